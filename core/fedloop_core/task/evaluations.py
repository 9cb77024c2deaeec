"""How many evaluations a run plans: sites divide their epsilon for evaluation rows by it, the coordinator keeps to it."""

from __future__ import annotations

from fedloop_core.task.document import Task

__all__ = ["planned_evaluations"]


def planned_evaluations(task: Task) -> int:
    """Evaluations of each site's evaluation rows in one run: those between rounds, and those before a release.

    Before a release each export target is evaluated once, the float model once, and the version in production once.
    """
    every = task.rounds.evaluate_every
    rounds = max(task.rounds.count, task.retraining.rounds or 0)
    return (rounds // every if every else 0) + len(task.export.targets) + 2
