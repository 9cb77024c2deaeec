"""What a site allows, by its own decision. The coordinator plans; the site enforces."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from fedloop_core.errors import PolicyRefused
from fedloop_core.federation.names import SiteName
from fedloop_core.federation.rules import PolicyRule
from fedloop_core.secure_aggregation.identity import LEAST_SITES, MOST_SITES
from fedloop_core.strict import Misfit, Strict
from fedloop_core.task.document import CustomModel, DataGate, Task
from fedloop_core.task.purpose import PurposeName

__all__ = ["AllowedModule", "AllowedTask", "ApprovalMode", "Budget", "Hours", "SiteConfig", "SitePolicy", "TimeWindow"]

ApprovalMode = Literal["none", "each-run", "each-task"]
AllowedTask = Annotated[str, Field(pattern=r"^[a-z][a-z0-9\-]{0,62}(@[0-9a-f]{64})?$")]
"""A task's name, or ``name@`` and the hex SHA-256 of its document: that very task and no other of this name."""

AllowedModule = Annotated[str, Field(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")]
"""A Python module, whole: ``package.module`` does not allow ``package.other``."""

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_TimeOfDay = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
_LONGEST_NAME = 256
_Cap = Annotated[float, Field(gt=0)]


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(f"is no time zone of this machine: {name!r}; write it like 'Europe/Berlin'") from error
    return name


def _some_purpose(purposes: tuple[str, ...]) -> tuple[str, ...]:
    """Neither "none" nor "any" is read out of an empty list."""
    if not purposes:
        raise ValueError("must name at least one purpose; leave the key out to let the names of tasks decide alone")
    return purposes


class Budget(Strict):
    """A block's budget for life; an infinite epsilon keeps none and allows exact releases."""

    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6


class TimeWindow(Strict):
    """From ``start`` until just before ``end`` on these weekdays; a window that ends before it starts ends the next day."""

    days: Annotated[tuple[Day, ...], Field(min_length=1)] = _DAYS
    start: _TimeOfDay
    end: _TimeOfDay

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        if self.start == self.end:
            raise Misfit((("end",), f"start and end are both {self.start}: the window would be empty"))
        return self

    def covers(self, local: dt.datetime) -> bool:
        """Whether a local time lies in the window."""
        time, today = local.strftime("%H:%M"), _DAYS[local.weekday()]
        if self.start < self.end:
            return today in self.days and self.start <= time < self.end
        yesterday = _DAYS[local.weekday() - 1]
        return (today in self.days and time >= self.start) or (yesterday in self.days and time < self.end)


class Hours(Strict):
    """When work may be asked of the site, in the local time of ``time_zone``; work that has begun is ended."""

    time_zone: Annotated[str, AfterValidator(_known_zone)]
    windows: Annotated[tuple[TimeWindow, ...], Field(min_length=1)]

    def open_at(self, unix: int) -> bool:
        """Whether a moment (seconds since 1970) lies in one of the windows."""
        local = dt.datetime.fromtimestamp(unix, ZoneInfo(self.time_zone))
        return any(window.covers(local) for window in self.windows)


class SitePolicy(Strict):
    """Rules of a site. No message can loosen them.

    ``tasks``: tasks that may run here, by name or by name and digest; absent means any. ``purposes``: what models may be made for
    here; absent means that names of tasks decide alone. ``model_modules``: installed modules whose functions may make a task's
    model; none unless they are named, since a coordinator would choose what is imported. ``maximum_epsilon``: greatest
    epsilon of one run, for training rows and for evaluation rows; a finite one excludes runs without privacy, and so does
    ``require_private``. ``unit_column``: whose rows a private task must protect together, by the task's name for the column; "" allows
    any unit, single rows too; absent: the column of ``data.person_column``, where that is set. ``maximum_verdict_epsilon`` and ``maximum_label_count_epsilon`` bound what the task's retraining may
    tell of devices and labels; a task without privacy tells them exactly, which a finite bound excludes. ``approval``: a
    person decides on each run, or on each task once. ``require_secure_aggregation`` excludes tasks whose updates the coordinator would see
    one by one; ``minimum_sites`` is the fewest sites behind any sum that this site's update is in; absent: more than two thirds of the consortium that
    was accepted. ``data_gate``: rules on top of the
    task's own.
    """

    tasks: tuple[AllowedTask, ...] | None = None
    purposes: Annotated[tuple[PurposeName, ...], AfterValidator(_some_purpose)] | None = None
    model_modules: tuple[AllowedModule, ...] = ()
    hours: Hours | None = None
    require_private: bool = False
    unit_column: Annotated[str, Field(max_length=_LONGEST_NAME)] | None = None
    maximum_epsilon: _Cap = math.inf
    maximum_delta: Annotated[float, Field(gt=0, le=1)] = 1.0
    maximum_rounds: Annotated[int, Field(ge=1)] | None = None
    maximum_verdict_epsilon: _Cap = math.inf
    maximum_label_count_epsilon: _Cap = math.inf
    require_secure_aggregation: bool = False
    minimum_sites: Annotated[int, Field(ge=LEAST_SITES, le=MOST_SITES)] | None = None
    approval: ApprovalMode = "none"
    data_gate: DataGate | None = None
    paused: bool = False
    leaving: bool = False

    def check(self, task: Task, site: str, now_unix: int) -> None:
        """Whether a task may run here, now. What would not change by waiting is told first.

        Raises:
            PolicyRefused: names the rule.
        """
        for rule, sentence, hint in (*self._lasting(task, site), *self._passing(site, now_unix)):
            raise PolicyRefused(sentence, hint=hint, rule=rule.value)

    def _lasting(self, task: Task, site: str) -> Iterator[tuple[PolicyRule, str, str]]:
        privacy, name = task.privacy, f"task {task.name!r}"
        if self.leaving:
            yield PolicyRule.LEAVING, f"site {site} is leaving the federation and takes no further part.", ""
        if self.tasks is not None and not {task.name, f"{task.name}@{task.digest.hex()}"} & set(self.tasks):
            known = any(entry.partition("@")[0] == task.name for entry in self.tasks)
            which = "with this document" if known else ""
            yield (
                PolicyRule.TASKS,
                f"site {site} does not allow {name} {which}".rstrip() + ".",
                f"Ask the site to add it to policy.tasks; its digest is {task.digest.hex()}.",
            )
        if self.purposes is not None and task.purpose_name not in self.purposes:
            named = f"is for {task.purpose_name!r}" if task.purpose_name else "names no purpose"
            yield (
                PolicyRule.PURPOSES,
                f"site {site} takes part for {', '.join(self.purposes)} only; {name} {named}.",
                "Ask the site to add it to policy.purposes, or name the purpose in the task's [purpose].",
            )
        if isinstance(task.model, CustomModel) and task.model.module not in self.model_modules:
            yield (
                PolicyRule.MODEL_MODULES,
                f"site {site} does not allow module {task.model.module!r}, which makes the model of {name}.",
                "Ask the site to look at that module and to add it to policy.model_modules.",
            )
        if self.require_private and not privacy.private:
            yield PolicyRule.REQUIRE_PRIVATE, f"site {site} allows private runs only; {name} is not private.", ""
        yield from self._of_unit(task, site)
        if self.require_secure_aggregation and not task.secure:
            yield (
                PolicyRule.REQUIRE_SECURE_AGGREGATION,
                f"site {site} gives its updates to secure aggregation only; {name} does not ask for it.",
                "Write secure = true under [aggregation] in the task.",
            )
        asked = max(privacy.epsilon, privacy.epsilon_of_evaluations)
        if asked > self.maximum_epsilon:
            yield (
                PolicyRule.MAXIMUM_EPSILON,
                f"site {site} allows epsilon {self.maximum_epsilon:g} a run; {name} asks for {asked:g}.",
                "Lower privacy.epsilon and privacy.evaluation_epsilon.",
            )
        if privacy.private and privacy.delta > self.maximum_delta:
            yield (
                PolicyRule.MAXIMUM_DELTA,
                f"site {site} allows delta {self.maximum_delta:g}; {name} asks for {privacy.delta:g}.",
                "Lower privacy.delta.",
            )
        if self.maximum_rounds is not None and task.rounds.count > self.maximum_rounds:
            yield (
                PolicyRule.MAXIMUM_ROUNDS,
                f"site {site} allows {self.maximum_rounds} rounds a run; {name} asks for {task.rounds.count}.",
                "Lower rounds.count.",
            )
        yield from self._of_retraining(task, site)

    def _of_unit(self, task: Task, site: str) -> Iterator[tuple[PolicyRule, str, str]]:
        asked = task.privacy.unit_column
        if task.privacy.private and self.unit_column and asked != self.unit_column:
            protects = "each row by itself" if asked is None else f"the rows of each {asked!r} together"
            yield (
                PolicyRule.UNIT_COLUMN,
                f"site {site} wants the rows of each {self.unit_column!r} protected together; task {task.name!r} protects {protects}.",
                f"Write unit_column = {json.dumps(self.unit_column)} under [privacy] in the task.",
            )

    def _of_retraining(self, task: Task, site: str) -> Iterator[tuple[PolicyRule, str, str]]:
        retraining, private = task.retraining, task.privacy.private
        for rule, key, asked, most in (
            (PolicyRule.VERDICT_EPSILON, "verdict_epsilon", retraining.verdict_epsilon, self.maximum_verdict_epsilon),
            (
                PolicyRule.LABEL_COUNT_EPSILON,
                "label_count_epsilon",
                retraining.label_count_epsilon,
                self.maximum_label_count_epsilon,
            ),
        ):
            told = asked if private else math.inf
            if told > most:
                yield (
                    rule,
                    f"site {site} allows retraining.{key} up to {most:g}; task {task.name!r} asks for {told:g}.",
                    f"Lower retraining.{key}." if private else "Make the task private.",
                )

    def _passing(self, site: str, now_unix: int) -> Iterator[tuple[PolicyRule, str, str]]:
        if self.paused:
            yield PolicyRule.PAUSED, f"site {site} has paused its part in training.", ""
        if self.hours is not None and not self.hours.open_at(now_unix):
            zone = self.hours.time_zone
            yield PolicyRule.HOURS, f"site {site} does not work at this hour ({zone}).", "It is asked again later."


class SiteConfig(Strict):
    """A site's name, its policy, and the budgets of its blocks of training rows and of evaluation rows."""

    site: SiteName
    policy: SitePolicy = SitePolicy()
    training_budget: Budget
    evaluation_budget: Budget
