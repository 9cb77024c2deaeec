"""Rows to records and back."""

from __future__ import annotations

from typing import cast

from fedloop_core.artifact import FileReference, Lineage
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.task.document import ExportTarget
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
from fedloop_server.registry.tables import ArtifactRow, GateRow, MetricRow, RunRow, StageRow, TaskRow, VersionRow

__all__ = [
    "artifact_record",
    "artifact_row",
    "gate_record",
    "metric_row",
    "run_record",
    "stage_change",
    "task_record",
    "version_record",
]


def task_record(row: TaskRow) -> TaskRecord:
    """A task."""
    return TaskRecord(row.digest, row.name, row.document, row.registered_at)


def run_record(row: RunRow) -> RunRecord:
    """A run."""
    return RunRecord(
        run_id=row.id,
        task=row.task.name,
        task_digest=row.task_digest,
        state=RunState(row.state),
        started_at=row.started_at,
        finished_at=row.finished_at,
        reason=row.reason,
        parent_version=row.parent_version,
        summary=row.summary,
    )


def metric_row(task: str, number: int, metric: VersionMetric) -> MetricRow:
    """The row of a metric."""
    return MetricRow(
        task=task,
        number=number,
        scope=metric.scope,
        artifact=metric.artifact,
        metric=metric.metric,
        value=metric.value,
        low=metric.low,
        high=metric.high,
        total=metric.total,
    )


def artifact_row(task: str, number: int, artifact: ArtifactRecord) -> ArtifactRow:
    """The row of an artifact."""
    return ArtifactRow(
        task=task,
        number=number,
        kind=artifact.kind,
        description_sha256=artifact.description.sha256,
        description_length=artifact.description.length,
        model_sha256=artifact.model.sha256,
        model_length=artifact.model.length,
        golden_sha256=artifact.golden.sha256,
        golden_length=artifact.golden.length,
        profile_sha256=artifact.profile.sha256,
        profile_length=artifact.profile.length,
    )


def artifact_record(row: ArtifactRow) -> ArtifactRecord:
    """An artifact."""
    return ArtifactRecord(
        kind=cast("ExportTarget", row.kind),
        description=FileReference(sha256=row.description_sha256, length=row.description_length),
        model=FileReference(sha256=row.model_sha256, length=row.model_length),
        golden=FileReference(sha256=row.golden_sha256, length=row.golden_length),
        profile=FileReference(sha256=row.profile_sha256, length=row.profile_length),
    )


def gate_record(row: GateRow) -> GateResult:
    """A gate's word."""
    return GateResult(row.name, Verdict(row.verdict), row.detail, row.decided_at)


def stage_change(row: StageRow) -> StageChange:
    """A step of a version."""
    before = None if row.before is None else Stage(row.before)
    return StageChange(row.task, row.number, before, Stage(row.after), row.reason, row.at)


def version_record(row: VersionRow) -> VersionRecord:
    """A version with all that belongs to it."""
    return VersionRecord(
        task=row.task,
        number=row.number,
        run_id=row.run_id,
        parent=row.parent,
        stage=Stage(row.stage),
        registered_at=row.registered_at,
        privacy=PrivacyStatement.model_validate_json(row.privacy),
        lineage=Lineage.model_validate_json(row.lineage),
        metrics=tuple(
            VersionMetric(m.scope, m.artifact, m.metric, m.value, m.low, m.high, m.total) for m in row.metrics
        ),
        artifacts=tuple(map(artifact_record, row.artifacts)),
        gates=tuple(map(gate_record, row.gates)),
    )
