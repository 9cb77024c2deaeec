"""Gathers an assessment from settings, ledger, audit log and stores. The data file is not opened, and nothing of keys or secrets told."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from fedloop_clients.assessment.document import (
    AssessedRun,
    AssessedTask,
    Assessment,
    BlockSpending,
    Column,
    Recipient,
    RunSpending,
)
from fedloop_clients.assessment.standing import blanks_of, measures_of, rights_of
from fedloop_clients.charging import epsilon_of_run
from fedloop_clients.cli.ledger_words import block_sentences
from fedloop_clients.data.site_data import is_evaluation_block
from fedloop_clients.home import SiteHome
from fedloop_clients.outbox import KnownRun
from fedloop_clients.policy_words import policy_words
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.retention import held_stores
from fedloop_core.audit import AuditAction
from fedloop_core.disclosure import disclosures_of
from fedloop_core.errors import UsageError
from fedloop_core.promises import mechanism_of, releases_of, residual_risks
from fedloop_core.schema import SurvivalLabel
from fedloop_core.task.document import Task

__all__ = ["Assessed", "assess", "known_run"]

_PACKAGES = ("fedloop", "flwr", "numpy", "opacus", "opendp", "torch")


@dataclass(frozen=True)
class Assessed:
    """What is assessed: a task that may come, or a run that came."""

    task: Task
    run: KnownRun | None = None


def known_run(home: SiteHome, run_id: str) -> Assessed:
    """A run that this site was asked to take part in.

    Raises:
        UsageError: it was asked for no run of this name.
        StorageError: the outbox cannot be read.
    """
    known = None
    if home.outbox_file.exists():
        outbox = home.outbox()
        try:
            known = outbox.run(run_id)
        finally:
            outbox.close()
    if known is None:
        begun = ", ".join(run.run_id for run in _runs(home)[-8:]) or "none"
        raise UsageError(f"this site knows no run {run_id!r}.", hint=f"The last runs that it began: {begun}.")
    return Assessed(Task.from_canonical(known.task_document), known)


def assess(home: SiteHome, assessed: Assessed, now_unix: int) -> Assessment:
    """The assessment of a task at this site, as things stand.

    Raises:
        NotSetUp, SettingsInvalid: the site has not joined, or its settings cannot be read.
        StorageError: one of its stores cannot be read.
    """
    task, settings = assessed.task, home.settings
    blocks: tuple[BlockSpending, ...] = ()
    run: RunSpending | None = None
    if home.ledger_file.exists():
        ledger = home.ledger()
        try:
            blocks = _blocks(ledger)
            run = None if assessed.run is None else _spent(ledger, task, assessed.run)
        finally:
            ledger.close()
    return Assessment(
        made_unix=now_unix,
        site=home.membership().site,
        software={name: found for name in _PACKAGES if (found := _version(name))},
        task=_task(task, settings.data.person_column),
        run=run,
        blocks=blocks,
        runs=_runs(home),
        recipients=tuple(_recipients(home, task)),
        disclosures=disclosures_of(task),
        releases=tuple(releases_of(task)),
        retention=held_stores(home),
        rights=rights_of(home, task),
        policy=tuple(line.strip() for line in policy_words(settings, len(home.consortium().state().sites))[1:]),
        measures=tuple(measures_of(home, task)),
        risks=tuple(residual_risks(task)),
        blanks=blanks_of(task),
    )


def _task(task: Task, person_column: str | None) -> AssessedTask:
    privacy, private = task.privacy, task.privacy.private
    purpose = task.purpose
    return AssessedTask(
        name=task.name,
        digest=task.digest.hex(),
        description=task.description,
        purpose=task.purpose_name,
        purpose_text="" if purpose is None else purpose.text,
        columns=tuple(_columns(task, person_column)),
        model=task.model.kind,
        rounds=task.rounds.count,
        unit=privacy.unit_column or "row",
        mechanism=mechanism_of(task),
        private=private,
        epsilon=privacy.epsilon if private else None,
        delta=privacy.delta if private else None,
        evaluation_epsilon=_finite(privacy.epsilon_of_evaluations),
        clipping_norm=privacy.clipping_norm if private else None,
    )


def _columns(task: Task, person_column: str | None) -> Iterator[Column]:
    for feature in task.features:
        yield Column(name=feature.name, kind=feature.kind, unit=getattr(feature, "unit", ""), role="input")
    label = task.label
    named = (label.time, label.event) if isinstance(label, SurvivalLabel) else (label.name,)
    for name in named:
        yield Column(name=name, kind=label.kind, unit=getattr(label, "unit", ""), role="label")
    if task.privacy.unit_column is not None:
        yield Column(name=task.privacy.unit_column, kind="name", unit="", role="names the unit of privacy")
    if person_column is not None and person_column != task.privacy.unit_column:
        yield Column(name=person_column, kind="name", unit="", role="names the person")


def _spent(ledger: Ledger, task: Task, run: KnownRun) -> RunSpending:
    spent = {False: 0.0, True: 0.0}
    for account in ledger.accounts():
        evaluation = is_evaluation_block(account.name)
        charges = ledger.charges(account.name, run.run_id)
        one = epsilon_of_run(charges, task.privacy.delta)
        spent[evaluation] = max(spent[evaluation], one)
    private = task.privacy.private
    return RunSpending(
        run_id=run.run_id,
        epsilon=_finite(spent[False]) if private else None,
        evaluation_epsilon=_finite(spent[True]) if private else None,
        blocks_left_out=len(run.left_out),
    )


def _blocks(ledger: Ledger) -> tuple[BlockSpending, ...]:
    accounts = ledger.accounts()
    ordered = sorted(accounts, key=lambda account: is_evaluation_block(account.name))  # as the sentences are
    return tuple(
        BlockSpending(
            name=account.name,
            words=words,
            epsilon=_finite(account.spend.epsilon),
            budget=_finite(account.spend.budget),
            delta=account.spend.delta,
            runs=account.runs,
            runs_left=None if account.runs_left is None else _finite(account.runs_left),
        )
        for account, words in zip(ordered, block_sentences(accounts), strict=True)
    )


def _runs(home: SiteHome) -> tuple[AssessedRun, ...]:
    if not home.audit_file.exists():
        return ()
    begun: dict[str, AssessedRun] = {}
    for entry in home.audit().entries():
        if entry.action is AuditAction.RUN_STARTED:
            said = entry.details
            run = AssessedRun(
                run_id=entry.subject,
                begun_unix=entry.unix,
                task=str(said.get("task", "")),
                purpose=str(said.get("purpose", "")),
            )
            begun.setdefault(entry.subject, run)
    return tuple(begun.values())


def _recipients(home: SiteHome, task: Task) -> Iterator[Recipient]:
    member = home.membership()
    update = "the sum of all sites' updates, and none by itself" if task.secure else "this site's update of each round"
    yield Recipient(
        who="the coordinator's operator",
        gets=f"{update}; counts, evaluations and what the table below names; no row",
        address=f"{member.fleet_address}, {member.hub_address}",
    )
    yield Recipient(who="the other sites of the federation", gets="each round's model, and versions that are made")
    yield Recipient(who="whoever runs a version on a device", gets="the model, its statement and its lineage")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
