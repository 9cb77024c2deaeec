"""The coordinator's side of secure aggregation: the machine of one sum, and how masks come off it."""
