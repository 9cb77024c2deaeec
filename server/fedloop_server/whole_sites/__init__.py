"""What runs have spent on hiding whole sites, over all runs of a coordinator, and the budget for life that bounds it."""
