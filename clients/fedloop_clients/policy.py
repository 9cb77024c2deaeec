"""What a site allows, by its own decision. The coordinator plans; the site enforces."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from fedloop_core.errors import PolicyRefused
from fedloop_core.federation.names import SiteName
from fedloop_core.strict import Strict
from fedloop_core.task.document import DataGate, Task

__all__ = ["Budget", "SiteConfig", "SitePolicy"]


class Budget(Strict):
    """A block's budget for life; an infinite epsilon keeps none and allows exact releases."""

    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6


class SitePolicy(Strict):
    """Rules of a site. No message can loosen them.

    ``tasks``: names of the tasks that may run here; absent means any. ``maximum_epsilon``: greatest epsilon of one run,
    for training rows and for evaluation rows; a finite one excludes runs without privacy. ``data_gate``: rules on top of
    the task's own.
    """

    tasks: tuple[str, ...] | None = None
    maximum_epsilon: Annotated[float, Field(gt=0)] = math.inf
    data_gate: DataGate | None = None
    paused: bool = False

    def check(self, task: Task, site: str) -> None:
        """Whether a task may run here at all.

        Raises:
            PolicyRefused: names the rule.
        """
        if self.paused:
            raise PolicyRefused(f"site {site} has paused its part in training.", rule="paused")
        if self.tasks is not None and task.name not in self.tasks:
            raise PolicyRefused(
                f"site {site} does not allow task {task.name!r}.",
                hint="Ask the site to add it to policy.tasks.",
                rule="tasks",
            )
        asked = max(task.privacy.epsilon, task.privacy.epsilon_of_evaluations)
        if asked > self.maximum_epsilon:
            raise PolicyRefused(
                f"site {site} allows epsilon {self.maximum_epsilon:g} a run; task {task.name!r} asks for {asked:g}.",
                hint="Lower privacy.epsilon and privacy.evaluation_epsilon.",
                rule="maximum-epsilon",
            )


class SiteConfig(Strict):
    """A site's name, its policy, and the budgets of its blocks of training rows and of evaluation rows."""

    site: SiteName
    policy: SitePolicy = SitePolicy()
    training_budget: Budget
    evaluation_budget: Budget
