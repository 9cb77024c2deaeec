"""The registry's public face."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from fedloop_core.artifact import FileReference, Lineage
from fedloop_core.errors import RegistryError
from fedloop_core.model_card import ModelCard
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.task.document import Task
from fedloop_server.blobs import BlobStore
from fedloop_server.database import Database
from fedloop_server.registry import mapping
from fedloop_server.registry.records import (
    ArtifactRecord,
    GateResult,
    RunRecord,
    RunState,
    Stage,
    StageChange,
    TaskRecord,
    Verdict,
    VersionMetric,
    VersionRecord,
)
from fedloop_server.registry.stages import check_gates, check_step
from fedloop_server.registry.tables import ArtifactRow, CardRow, GateRow, RunRow, StageRow, TaskRow, VersionRow
from fedloop_server.release.artifact import PublishedArtifact

__all__ = ["Registry"]


class Registry:
    """Tasks, runs, versions, their metrics, artifacts and gates, and the history of stages. Threads may share it.

    Every call is one transaction. All methods raise ``StorageError`` when the database fails. ``clock`` gives seconds
    since 1970.
    """

    def __init__(self, database: Database, blobs: BlobStore, clock: Callable[[], int]) -> None:
        self._database = database
        self._blobs = blobs
        self._clock = clock

    def close(self) -> None:
        """Closes the database that it was given."""
        self._database.close()

    # Tasks and runs.

    def register_task(self, task: Task) -> TaskRecord:
        """Stores a task document; one that is there stays as it is."""
        digest = task.digest.hex()
        with self._database.writing() as session:
            row = session.get(TaskRow, digest)
            if row is None:
                row = TaskRow(digest=digest, name=task.name, document=task.canonical(), registered_at=self._clock())
                session.add(row)
            return mapping.task_record(row)

    def tasks(self) -> tuple[TaskRecord, ...]:
        """All task documents, by name and time of registration."""
        query = select(TaskRow).order_by(TaskRow.name, TaskRow.registered_at, TaskRow.digest)
        with self._database.reading() as session:
            return tuple(map(mapping.task_record, session.scalars(query)))

    def open_run(self, run_id: str, task_digest: str, parent_version: int | None = None) -> RunRecord:
        """Begins a run of a registered task; ``parent_version`` is the version that it starts from.

        Raises:
            RegistryError: the task or the parent is not known, or the run is.
        """
        with self._database.writing() as session:
            task = session.get(TaskRow, task_digest)
            if task is None:
                raise RegistryError(f"run {run_id}: no task with digest {task_digest}.", hint="Register it first.")
            if session.get(RunRow, run_id) is not None:
                raise RegistryError(f"run {run_id} exists.", hint="Give each run an id of its own.")
            if parent_version is not None:
                _version(session, task.name, parent_version)
            row = RunRow(
                id=run_id,
                task=task,
                state=RunState.RUNNING,
                started_at=self._clock(),
                finished_at=None,
                reason="",
                parent_version=parent_version,
                summary="{}",
            )
            session.add(row)
            session.flush()
            return mapping.run_record(row)

    def finish_run(self, run_id: str, state: RunState, reason: str = "", summary: str = "{}") -> RunRecord:
        """Ends a run, once.

        Raises:
            RegistryError: no such run, it has ended, or the summary is not a JSON object of finite numbers.
        """
        _check_summary(run_id, summary)
        if state is RunState.RUNNING:
            raise RegistryError(f"run {run_id} cannot end as running.")
        with self._database.writing() as session:
            row = _run(session, run_id)
            if row.state != RunState.RUNNING:
                raise RegistryError(f"run {run_id} has ended: {row.state}.")
            row.state, row.reason, row.summary, row.finished_at = state, reason, summary, self._clock()
            return mapping.run_record(row)

    def reopen_run(self, run_id: str) -> RunRecord:
        """Takes an end that was not a success back, since a person lets the run go on.

        Raises:
            RegistryError: no such run, or it succeeded.
        """
        with self._database.writing() as session:
            row = _run(session, run_id)
            if row.state == RunState.SUCCEEDED:
                raise RegistryError(f"run {run_id} has ended: {row.state}.")
            row.state, row.reason, row.finished_at = RunState.RUNNING, "", None
            return mapping.run_record(row)

    def run(self, run_id: str) -> RunRecord:
        """One run.

        Raises:
            RegistryError: no such run.
        """
        with self._database.reading() as session:
            return mapping.run_record(_run(session, run_id))

    def runs(self, task: str) -> tuple[RunRecord, ...]:
        """All runs of a task, of whatever edition, in the order of their start."""
        query = select(RunRow).join(TaskRow).where(TaskRow.name == task).order_by(RunRow.started_at, RunRow.id)
        with self._database.reading() as session:
            return tuple(map(mapping.run_record, session.scalars(query)))

    # Versions.

    def register_version(
        self, run_id: str, privacy: PrivacyStatement, lineage: Lineage, metrics: Iterable[VersionMetric] = ()
    ) -> VersionRecord:
        """Gives the next number of its task to what a run produced; the version begins as candidate.

        Raises:
            RegistryError: no such run, it has a version, or the lineage is of another run, task or parent.
        """
        with self._database.writing() as session:
            run = _run(session, run_id)
            said = (lineage.run_id, lineage.task_digest, lineage.parent_version)
            if said != (run_id, run.task_digest, run.parent_version):
                raise RegistryError(f"run {run_id}: the lineage is of run {said[0]}, task {said[1]}, parent {said[2]}.")
            task = run.task.name
            # On databases that let writers go side by side, the lock on the task's editions orders the numbers.
            session.execute(select(TaskRow.digest).where(TaskRow.name == task).with_for_update())
            made = session.scalar(select(VersionRow.number).where(VersionRow.run_id == run_id))
            if made is not None:
                raise RegistryError(f"run {run_id} has produced {task} version {made}.")
            last = session.scalar(select(func.max(VersionRow.number)).where(VersionRow.task == task)) or 0
            row = VersionRow(
                task=task,
                number=last + 1,
                run_id=run_id,
                parent=run.parent_version,
                stage=Stage.CANDIDATE,
                registered_at=self._clock(),
                privacy=privacy.model_dump_json(),
                lineage=lineage.model_dump_json(),
            )
            session.add(row)
            session.flush()
            self._note(session, row, None, "registered")
            _add_metrics(session, row, metrics)
            return _reload(session, row)

    def add_metrics(self, task: str, version: int, metrics: Iterable[VersionMetric]) -> VersionRecord:
        """Adds metrics to a version.

        Raises:
            RegistryError: no such version, or it has one of these metrics.
        """
        with self._database.writing() as session:
            row = _version(session, task, version)
            _add_metrics(session, row, metrics)
            return _reload(session, row)

    def add_artifact(self, task: str, version: int, artifact: PublishedArtifact) -> ArtifactRecord:
        """Stores an artifact's files as blobs and adds it to its version.

        Raises:
            ArtifactRefused: the files are not what the description says, or are of another version.
            RegistryError: no such version, or it has another artifact of this kind.
        """
        description = artifact.checked(task, version)
        record = ArtifactRecord(
            kind=artifact.kind,
            description=FileReference.of(artifact.description),
            model=description.model,
            golden=description.golden,
            profile=description.profile,
        )
        for _, content in artifact.files():
            self._blobs.put(content)
        with self._database.writing() as session:
            row = _version(session, task, version)
            for known in map(mapping.artifact_record, row.artifacts):
                if known.kind == record.kind:
                    if known == record:
                        return known
                    raise RegistryError(f"{task} version {version} has another artifact {record.kind}.")
            session.add(mapping.artifact_row(task, version, record))
        return record

    def read_artifact(self, task: str, version: int, kind: str) -> PublishedArtifact:
        """The files of a registered artifact.

        Raises:
            RegistryError: no such version or artifact.
            StorageError: a blob is missing or damaged.
        """
        query = select(ArtifactRow).filter_by(task=task, number=version, kind=kind)
        with self._database.reading() as session:
            row = session.scalars(query).one_or_none()
            if row is None:
                raise RegistryError(f"{task} version {version} has no artifact {kind}.")
            record = mapping.artifact_record(row)
        files = (record.description, record.model, record.golden, record.profile)
        description, model, golden, profile = (self._blobs.read(file.sha256) for file in files)
        return PublishedArtifact(record.kind, description, model, golden, profile)

    def add_gate_result(self, task: str, version: int, name: str, verdict: Verdict, detail: str) -> GateResult:
        """Adds what a gate said; the last word of each gate counts.

        Raises:
            RegistryError: no such version.
        """
        with self._database.writing() as session:
            _version(session, task, version)
            row = GateRow(
                task=task, number=version, name=name, verdict=verdict, detail=detail, decided_at=self._clock()
            )
            session.add(row)
            return mapping.gate_record(row)

    def keep_card(self, card: ModelCard) -> None:
        """Keeps the model card of a version, once; one that is there stays as it is.

        Raises:
            RegistryError: no such version.
        """
        with self._database.writing() as session:
            _version(session, card.task, card.version)
            if session.get(CardRow, (card.task, card.version)) is None:
                session.add(CardRow(task=card.task, number=card.version, card=card.model_dump_json()))

    def card(self, task: str, version: int) -> ModelCard | None:
        """The model card of a version; None while its gate has not decided, and for versions of earlier releases."""
        with self._database.reading() as session:
            row = session.get(CardRow, (task, version))
            return None if row is None else ModelCard.model_validate_json(row.card)

    def promote(self, task: str, version: int, stage: Stage, reason: str = "") -> VersionRecord:
        """Moves a version along: candidate, canary, production, retired; each may also be retired at once.

        A new production retires the one before. A retired version goes back into production with a reason (rollback).

        Raises:
            RegistryError: no such version or step, another version is canary, a gate failed, or no reason is given.
        """
        with self._database.writing() as session:
            row = _version(session, task, version)
            what = f"{task} version {version}"
            check_step(what, Stage(row.stage), stage, reason)
            if stage is not Stage.RETIRED:
                check_gates(what, map(mapping.gate_record, row.gates))
            other = session.scalars(select(VersionRow).filter_by(task=task, stage=stage.value)).first()
            if other is not None and stage is Stage.CANARY:
                raise RegistryError(
                    f"{task} version {other.number} is canary.", hint="Promote or retire it before another one."
                )
            if other is not None and stage is Stage.PRODUCTION:
                self._move(session, other, Stage.RETIRED, f"version {version} took its place")
            self._move(session, row, stage, reason)
            return _reload(session, row)

    def production(self, task: str) -> VersionRecord | None:
        """The version in production; None when there is none."""
        with self._database.reading() as session:
            row = session.scalars(select(VersionRow).filter_by(task=task, stage=Stage.PRODUCTION.value)).one_or_none()
            return None if row is None else mapping.version_record(row)

    def versions(self, task: str) -> tuple[VersionRecord, ...]:
        """All versions of a task by number."""
        with self._database.reading() as session:
            rows = session.scalars(select(VersionRow).filter_by(task=task).order_by(VersionRow.number))
            return tuple(map(mapping.version_record, rows))

    def made_by(self, run_id: str) -> VersionRecord | None:
        """The version that a run made; None when it made none, or is not known."""
        with self._database.reading() as session:
            row = session.scalars(select(VersionRow).filter_by(run_id=run_id)).one_or_none()
            return None if row is None else mapping.version_record(row)

    def version(self, task: str, number: int) -> VersionRecord:
        """One version.

        Raises:
            RegistryError: no such version.
        """
        with self._database.reading() as session:
            return mapping.version_record(_version(session, task, number))

    def history(self, task: str) -> tuple[StageChange, ...]:
        """Every step of every version of a task, in order."""
        with self._database.reading() as session:
            rows = session.scalars(select(StageRow).filter_by(task=task).order_by(StageRow.id))
            return tuple(map(mapping.stage_change, rows))

    def _move(self, session: Session, row: VersionRow, stage: Stage, reason: str) -> None:
        before = row.stage
        row.stage = stage
        session.flush()  # at once: the next version may take this one's place only when it is free
        self._note(session, row, before, reason)

    def _note(self, session: Session, row: VersionRow, before: str | None, reason: str) -> None:
        session.add(
            StageRow(task=row.task, number=row.number, before=before, after=row.stage, reason=reason, at=self._clock())
        )
        session.flush()


def _run(session: Session, run_id: str) -> RunRow:
    row = session.get(RunRow, run_id)
    if row is None:
        raise RegistryError(f"no run {run_id}.", hint="Look at the runs of the task.")
    return row


def _version(session: Session, task: str, number: int) -> VersionRow:
    row = session.get(VersionRow, (task, number))
    if row is None:
        newest = select(VersionRow.number).where(VersionRow.task == task).order_by(VersionRow.number.desc()).limit(8)
        listed = ", ".join(map(str, session.scalars(newest)))
        hint = f"Its newest: {listed}." if listed else "It has none yet: `fedloop run list` says how its runs stand."
        raise RegistryError(f"task {task} has no version {number}.", hint=hint)
    return row


def _add_metrics(session: Session, row: VersionRow, metrics: Iterable[VersionMetric]) -> None:
    known = {(metric.scope, metric.artifact, metric.metric) for metric in row.metrics}
    for metric in metrics:
        key = (metric.scope, metric.artifact, metric.metric)
        if key in known:
            raise RegistryError(
                f"{row.task} version {row.number} has {metric.metric} of {metric.artifact} at {metric.scope}.",
                hint="A metric is recorded once.",
            )
        known.add(key)
        session.add(mapping.metric_row(row.task, row.number, metric))
    session.flush()


def _reload(session: Session, row: VersionRow) -> VersionRecord:
    session.expire(row)
    return mapping.version_record(row)


def _check_summary(run_id: str, summary: str) -> None:
    def refuse(constant: str) -> float:
        raise ValueError(f"{constant} is not a finite number")

    try:
        parsed = json.loads(summary, parse_constant=refuse)
    except ValueError as error:
        raise RegistryError(f"run {run_id}: the summary is not JSON: {error}.") from error
    if not isinstance(parsed, dict):
        raise RegistryError(f"run {run_id}: the summary is not a JSON object.")
