"""The model card of a version that a run made: from its plan, its journal and what the registry holds."""

from __future__ import annotations

from collections.abc import Iterator

from fedloop_core.measure import Measure
from fedloop_core.model_card import CardGate, CardLineage, CardMetric, CardModel, CardSite, ModelCard
from fedloop_core.schema import ClassLabel, RegressionLabel, label_columns
from fedloop_core.task.document import Task
from fedloop_server.registry import VersionRecord
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState

__all__ = ["card_of"]


def card_of(plan: RunPlan, state: RunState, record: VersionRecord) -> ModelCard:
    """Of a version after its gate has decided; before that, metrics and gates are missing."""
    task, label = plan.task, plan.task.label
    lineage = record.lineage
    return ModelCard(
        task=task.name,
        version=record.number,
        registered_unix=record.registered_at,
        model=CardModel(
            kind=task.model.kind,
            inputs=tuple(feature.name for feature in task.features),
            output=" and ".join(label_columns(label).values()),
            classes=label.classes if isinstance(label, ClassLabel) else (),
            rounds=state.completed_rounds,
            rule=task.aggregation.rule,
            secure=task.secure,
        ),
        purpose=task.purpose,
        sites=tuple(
            CardSite(site=m.site, units=m.rows, noised=m.rows_noised, blocks_left_out=m.blocks_left_out)
            for m in sorted(state.members, key=lambda member: member.site)
        ),
        metrics=tuple(
            CardMetric(
                scope=metric.scope,
                artifact=metric.artifact,
                measure=Measure(metric.metric),
                value=metric.value,
                low=metric.low,
                high=metric.high,
                rows=metric.total,
            )
            for metric in record.metrics
        ),
        confidence=task.gates.quality.confidence,
        unit=label.unit if isinstance(label, RegressionLabel) else "",
        gates=tuple(CardGate(name=gate.name, verdict=gate.verdict.value, detail=gate.detail) for gate in record.gates),
        released=None if state.gate is None else state.gate.released,
        privacy=record.privacy,
        limits=tuple(_limits(task)),
        lineage=CardLineage(
            run=record.run_id,
            parent_version=record.parent,
            task_digest=lineage.task_digest,
            software=lineage.software,
        ),
    )


def _limits(task: Task) -> Iterator[str]:
    yield "It was measured on rows of the sites that trained it; elsewhere, and when the world changes, it may be worse."
    yield "Inputs outside the task's ranges and vocabularies are not what it learnt from."
    if task.privacy.private:
        yield "Counts and measures carry the noise that privacy asks for, which the intervals take into account."
    yield "How good it is for groups of people within a site was not measured."
    yield "A site that lies about its rows is not noticed."
