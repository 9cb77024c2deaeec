"""The loop's memory: serialisable, and enough to go on after a restart."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedloop_core.strict import Strict
from fedloop_core.task.document import Task
from fedloop_server.loop.decisions import Decision
from fedloop_server.loop.events import SiteVerdict

__all__ = ["Explanation", "LoopPolicy", "LoopState"]

Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class LoopPolicy(Strict):
    """What a person signed with the task: when a run may start by itself."""

    enabled: bool
    minimum_labels: Count
    maximum_runs: Natural
    approval: Literal["human", "within-plan"]
    rounds: Count
    quorum: Annotated[float, Field(ge=0, le=1)]

    @classmethod
    def for_task(cls, task: Task) -> Self:
        """From the task's retraining section; a run has the task's own number of rounds unless it says otherwise."""
        retraining = task.retraining
        return cls(
            enabled=retraining.enabled,
            minimum_labels=retraining.minimum_labels,
            maximum_runs=retraining.maximum_runs,
            approval=retraining.approval,
            rounds=retraining.rounds or task.rounds.count,
            quorum=task.rounds.quorum,
        )

    def needed(self, sites: int) -> int:
        """Sites that a run needs, at least one."""
        return max(1, math.ceil(self.quorum * sites))


class Explanation(Strict):
    """One decision: when, after which event, and what with its reason. Repeats of the last decision are not kept."""

    at: Natural
    event: str
    decision: Decision


class LoopState(Strict):
    """Everything learnt about the version in service, and every change of mind so far.

    ``silent``: sites that have no budget to tell of drift in this version, and ``uncounted``: none to tell of labels. The others
    decide without them. ``unhidden``: sites whose rows could pay for a run, and which the coordinator can hide as whole ones no more. ``runs_alone`` counts the runs that followed one another since a person last approved one.
    """

    policy: LoopPolicy
    sites: Annotated[tuple[str, ...], Field(min_length=1)]
    version: Count
    verdicts: dict[str, SiteVerdict] = Field(default_factory=dict)
    labels: dict[str, Natural] = Field(default_factory=dict)
    affordable: dict[str, bool] = Field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    uncounted: frozenset[str] = frozenset()
    unhidden: frozenset[str] = frozenset()
    running: bool = False
    runs_alone: Natural = 0
    approved_by: str | None = None
    now: Natural = 0
    history: tuple[Explanation, ...] = ()

    @model_validator(mode="after")
    def _sites_are_distinct(self) -> Self:
        if len(set(self.sites)) != len(self.sites):
            raise ValueError("sites must be distinct")
        return self

    @classmethod
    def start(cls, task: Task, sites: tuple[str, ...], version: int) -> Self:
        """The loop of a task whose version ``version`` has just gone into service at these sites."""
        return cls(policy=LoopPolicy.for_task(task), sites=sites, version=version)

    @property
    def drifted(self) -> tuple[SiteVerdict, ...]:
        """Verdicts that say drift, in the order of the sites."""
        known = (self.verdicts.get(site) for site in self.sites)
        return tuple(verdict for verdict in known if verdict is not None and verdict.drifted)

    @property
    def wants_labels(self) -> bool:
        """Whether more labels would change what is decided: each time they are told costs the sites privacy."""
        return bool(self.drifted) and not self.running and self.label_total < self.policy.minimum_labels

    @property
    def label_total(self) -> int:
        """Labelled examples over all sites that no run has trained on."""
        return sum(self.labels.values())
