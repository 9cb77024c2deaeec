"""The registry's tables. Documents are canonical JSON of the models of ``fedloop_core.artifact``."""

from __future__ import annotations

from sqlalchemy import ForeignKey, ForeignKeyConstraint, Index, LargeBinary, text
from sqlalchemy.orm import Mapped, mapped_column, relationship

from fedloop_server.database import Base

__all__ = [
    "ArtifactRow",
    "CardRow",
    "GateRow",
    "MetricRow",
    "RunRow",
    "StageRow",
    "TaskRow",
    "VersionRow",
]


class TaskRow(Base):
    """A task document by digest; documents of one name are editions of one task."""

    __tablename__ = "tasks"
    digest: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(index=True)
    document: Mapped[bytes] = mapped_column(LargeBinary)
    registered_at: Mapped[int]


class RunRow(Base):
    """A run of a task."""

    __tablename__ = "runs"
    id: Mapped[str] = mapped_column(primary_key=True)
    task_digest: Mapped[str] = mapped_column(ForeignKey(TaskRow.digest), index=True)
    state: Mapped[str]
    started_at: Mapped[int]
    finished_at: Mapped[int | None]
    reason: Mapped[str]
    parent_version: Mapped[int | None]
    summary: Mapped[str]
    task: Mapped[TaskRow] = relationship()


def _of_a_version() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["task", "number"], ["versions.task", "versions.number"])


class MetricRow(Base):
    """A metric of a version."""

    __tablename__ = "version_metrics"
    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str]
    number: Mapped[int]
    scope: Mapped[str]
    artifact: Mapped[str]
    metric: Mapped[str]
    value: Mapped[float]
    low: Mapped[float]
    high: Mapped[float]
    total: Mapped[float]
    __table_args__ = (
        _of_a_version(),
        Index("one_value", "task", "number", "scope", "artifact", "metric", unique=True),
    )


class ArtifactRow(Base):
    """An artifact of a version: digest and length of its four files."""

    __tablename__ = "artifacts"
    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str]
    number: Mapped[int]
    kind: Mapped[str]
    description_sha256: Mapped[str]
    description_length: Mapped[int]
    model_sha256: Mapped[str]
    model_length: Mapped[int]
    golden_sha256: Mapped[str]
    golden_length: Mapped[int]
    profile_sha256: Mapped[str]
    profile_length: Mapped[int]
    __table_args__ = (_of_a_version(), Index("one_artifact", "task", "number", "kind", unique=True))


class GateRow(Base):
    """What a gate said about a version; later words are added, none is altered."""

    __tablename__ = "gate_results"
    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str]
    number: Mapped[int]
    name: Mapped[str]
    verdict: Mapped[str]
    detail: Mapped[str]
    decided_at: Mapped[int]
    __table_args__ = (_of_a_version(),)


class CardRow(Base):
    """The model card of a version, once its gate has decided."""

    __tablename__ = "model_cards"
    task: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    card: Mapped[str]
    __table_args__ = (_of_a_version(),)


class StageRow(Base):
    """A step of a version from stage to stage; the order of ``id`` is the order of events."""

    __tablename__ = "stage_history"
    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str] = mapped_column(index=True)
    number: Mapped[int]
    before: Mapped[str | None]
    after: Mapped[str]
    reason: Mapped[str]
    at: Mapped[int]
    __table_args__ = (_of_a_version(),)


class VersionRow(Base):
    """A model version. The database itself holds that at most one is canary and at most one is production."""

    __tablename__ = "versions"
    task: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey(RunRow.id), unique=True)
    parent: Mapped[int | None]
    stage: Mapped[str]
    registered_at: Mapped[int]
    privacy: Mapped[str]
    lineage: Mapped[str]
    metrics: Mapped[list[MetricRow]] = relationship(order_by=MetricRow.id)
    artifacts: Mapped[list[ArtifactRow]] = relationship(order_by=ArtifactRow.id)
    gates: Mapped[list[GateRow]] = relationship(order_by=GateRow.id)
    __table_args__ = tuple(
        Index(f"one_{stage}", "task", unique=True, sqlite_where=text(where), postgresql_where=text(where))
        for stage in ("canary", "production")
        for where in [f"stage = '{stage}'"]
    )
