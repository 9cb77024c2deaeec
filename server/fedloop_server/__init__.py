"""The coordinator: runs and aggregation, export, registry, releases, rollout, and the loop that starts the next run."""
