"""What a run would do, before it does it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from fedloop_core.errors import TaskUnreadable
from fedloop_core.strict import Strict
from fedloop_core.task.advice import advice_on
from fedloop_core.task.document import Task
from fedloop_core.task.presets import load_preset, preset_names
from fedloop_core.task.reader import read_task
from fedloop_server.cli.run_tables import make_table
from fedloop_server.cli.run_words import bytes_words, every_words, took_words, zoned
from fedloop_server.runs.plan import RunPlan

if TYPE_CHECKING:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.membership.records import SiteRecord
    from fedloop_server.whole_sites.outlook import Outlook

__all__ = [
    "AskedSite",
    "DryRun",
    "WholeSiteLine",
    "WholeSitesPlan",
    "active_names",
    "dry_run",
    "dry_run_tables",
    "named_task",
    "whole_sites_of",
]

_QUIET_SECONDS = 120.0


class AskedSite(Strict):
    """A site, whether the run would ask it, and what speaks against its taking part."""

    site: str
    state: str
    asked: bool
    warning: str


class WholeSiteLine(Strict):
    """A whole site that the run would hide: epsilon spent for life before it, and whether it holds the run.

    ``runs_left``: how many runs like this one it holds, None: no limit.
    """

    site: str
    spent: float
    holds: bool
    runs_left: int | None


class WholeSitesPlan(Strict):
    """What the run would cost each whole site, of the coordinator's ``budget`` for life at ``budget_delta``; None: no limit.

    ``refusal``: why it would not begin; empty when it would.
    """

    epsilon: float
    delta: float
    budget: float | None
    budget_delta: float
    sites: tuple[WholeSiteLine, ...]
    refusal: str


class DryRun(Strict):
    """What ``fedloop run start --dry-run --json`` prints.

    ``epsilon`` is what the run may spend on each site's training rows, ``evaluation_epsilon`` on its evaluation rows; None
    without privacy. ``whole_sites`` is there where the task hides them. Messages and bytes are estimates over the whole run when all sites answer; a byte there is one back.
    """

    run: str
    task: str
    task_digest: str
    sites: tuple[AskedSite, ...]
    expected_sites: int
    quorum: int
    rounds: int
    epsilon: float | None
    evaluation_epsilon: float | None
    delta: float | None
    unit: str
    whole_sites: WholeSitesPlan | None
    deadline_seconds: float
    model_bytes: int
    messages: int
    bytes_each_way: int
    starts_unix: float | None
    every_seconds: float | None
    warnings: tuple[str, ...]


def named_task(name: str) -> Task:
    """The task in that file, or the preset of that name.

    Raises:
        TaskUnreadable: there is neither.
        TaskInvalid: the file has mistakes; names each line.
    """
    if Path(name).is_file():
        return read_task(Path(name))
    if name in preset_names():
        return load_preset(name)
    raise TaskUnreadable(
        f"{name} is neither a file nor a preset.",
        hint=f"Presets: {', '.join(preset_names())}. `fedloop task init NAME` writes a file to begin with.",
    )


def active_names(sites: Sequence[SiteRecord]) -> tuple[str, ...]:
    """The sites that take part in the federation now."""
    return tuple(site.name for site in sites if site.state.value == "active")


def whole_sites_of(home: CoordinatorHome, plan: RunPlan, sites: Sequence[SiteRecord]) -> Outlook | None:
    """Whether the active sites hold the run as whole ones; None where its task does not hide them.

    Raises:
        BudgetFixed: server.toml names another budget than at a site's first charge.
        PrivacyParameterInvalid: no noise keeps the run within its epsilon, or the budget holds nothing.
        StorageError: the record cannot be read, or was altered.
    """
    if plan.task.central_privacy is None:
        return None
    from fedloop_server.whole_sites.outlook import outlook_of

    with closing(home.whole_sites()) as book:
        return outlook_of(book, plan, active_names(sites))


def dry_run(
    plan: RunPlan,
    sites: Sequence[SiteRecord],
    outlook: Outlook | None,
    *,
    not_before: float = 0.0,
    every_seconds: float | None = None,
    now_unix: float | None = None,
) -> DryRun:
    """What the run would ask, of whom, and what it would cost."""
    from fedloop_server.runs.model import model_of

    now = time.time() if now_unix is None else now_unix
    task, privacy = plan.task, plan.task.privacy
    asked = tuple(_asked(site, now) for site in sites)
    model = model_of(task, plan.seed)
    size = sum(array.nbytes for array in model.all_arrays().values())
    there = len(active_names(sites))
    each = min(there, task.rounds.sites_per_round or there)
    artifacts = len({"onnx-fp32", *task.export.targets}) if plan.export else 0
    before = 2 if model.wants_moments else 1
    return DryRun(
        run=plan.run_id,
        task=task.name,
        task_digest=task.digest.hex(),
        sites=asked,
        expected_sites=plan.expected_sites,
        quorum=max(1, math.ceil(task.rounds.quorum * plan.expected_sites)),
        rounds=task.rounds.count,
        epsilon=privacy.epsilon if privacy.private else None,
        evaluation_epsilon=privacy.epsilon_of_evaluations if privacy.private else None,
        delta=privacy.delta if privacy.private else None,
        unit=privacy.unit_column or "record",
        whole_sites=_whole_sites(task, outlook),
        deadline_seconds=task.rounds.deadline_seconds,
        model_bytes=size,
        messages=before * there + task.rounds.count * each + artifacts * there,
        bytes_each_way=task.rounds.count * each * size,
        starts_unix=not_before or None,
        every_seconds=every_seconds,
        warnings=(*_on_sites(asked, plan), *_on_whole_sites(outlook), *advice_on(task)),
    )


def dry_run_tables(found: DryRun) -> RenderableType:
    """The same for people."""
    rows = [(site.site, site.state, "yes" if site.asked else "no", site.warning) for site in found.sites]
    return Group(
        *(Text(line) for line in _facts(found)),
        make_table("Sites", ("site", "state", "asked", "note"), rows),
        *(Text(f"warning: {warning}") for warning in found.warnings),
        Text("Nothing was started. Leave --dry-run out to start it."),
    )


def _facts(found: DryRun) -> Iterator[str]:
    yield f"run:      {found.run} of task {found.task}, digest {found.task_digest[:16]}"
    if found.starts_unix is not None:
        every = "" if found.every_seconds is None else f", then every {every_words(found.every_seconds)}"
        yield f"starts:   {zoned(found.starts_unix)}{every}"
    yield (
        f"rounds:   {found.rounds}, each closes with {found.quorum} of {found.expected_sites} sites after at most "
        f"{took_words(found.deadline_seconds)}"
    )
    if found.epsilon is None:
        yield "privacy:  none (epsilon = inf)"
    else:
        yield (
            f"privacy:  epsilon {found.epsilon:g} on training rows and {found.evaluation_epsilon:g} on evaluation rows, "
            f"delta {found.delta:g}, for each {found.unit} at each site"
        )
    if found.whole_sites is not None:
        yield _whole_sites_words(found.whole_sites)
    yield (
        f"traffic:  about {found.messages} messages; the model has {bytes_words(found.model_bytes)}, in all "
        f"{bytes_words(found.bytes_each_way)} each way"
    )


def _whole_sites(task: Task, outlook: Outlook | None) -> WholeSitesPlan | None:
    central = task.central_privacy
    if outlook is None or central is None:
        return None
    return WholeSitesPlan(
        epsilon=central.epsilon,
        delta=central.delta,
        budget=None if math.isinf(outlook.budget.epsilon) else outlook.budget.epsilon,
        budget_delta=outlook.budget.delta,
        sites=tuple(
            WholeSiteLine(
                site=one.site,
                spent=one.spent,
                holds=one.holds,
                runs_left=None if math.isinf(one.runs_left) else int(one.runs_left),
            )
            for one in outlook.sites
        ),
        refusal="" if outlook.refusal is None else outlook.refusal.message,
    )


def _whole_sites_words(found: WholeSitesPlan) -> str:
    """What the run costs whole sites, and what those have that have spent most."""
    most = max((one.spent for one in found.sites), default=0.0)
    counts = [one.runs_left for one in found.sites if one.runs_left is not None]
    left = f"{min(counts)} such runs fit" if counts else "no limit is set"
    limit = "" if found.budget is None else f" of {found.budget:g} at {found.budget_delta:g} for life"
    return (
        f"whole sites: epsilon {found.epsilon:g} at delta {found.delta:g} for each; the most that one has spent is {most:.3f}{limit}, "
        f"and {left}"
    )


def _on_whole_sites(outlook: Outlook | None) -> Iterator[str]:
    if outlook is None:
        return
    spent = [one.site for one in outlook.sites if not one.holds]
    if outlook.refusal is not None:
        yield f"the run would be refused: {outlook.refusal.message}"
    elif spent:
        yield f"left out, since their budget as whole sites does not hold the run: {', '.join(spent)}."


def _asked(site: SiteRecord, now: float) -> AskedSite:
    state = site.state.value
    return AskedSite(site=site.name, state=state, asked=state == "active", warning=_doubt(site, state, now))


def _doubt(site: SiteRecord, state: str, now: float) -> str:
    if state != "active":
        return f"not asked: {site.reason}" if site.reason else "not asked"
    doing = site.activity.kind.value
    if doing in {"paused", "stopped"}:
        return f"says that it is {doing}{f' ({site.activity.code})' if site.activity.code else ''}"
    if not site.last_seen_unix:
        return "has never connected"
    quiet = now - site.last_seen_unix
    return f"not heard of for {took_words(quiet)}" if quiet > _QUIET_SECONDS else ""


def _on_sites(asked: Sequence[AskedSite], plan: RunPlan) -> Iterator[str]:
    doubtful = [site.site for site in asked if site.asked and site.warning]
    for site in asked:
        if site.asked and site.warning:
            yield f"site {site.site} {site.warning}."
    there = sum(site.asked for site in asked) - len(doubtful)
    needed = max(1, math.ceil(plan.task.rounds.quorum * plan.expected_sites))
    if there < needed:
        yield f"{there} sites seem to be there and {needed} are needed: the run waits for them, and then fails."
