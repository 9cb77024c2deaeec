"""Runs: one federated training of a task, driven over Flower's Grid, journalled so that it survives its process."""
