"""From what happened to what is told: the summary for machines and the report for people."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping
from importlib.metadata import version as package_version
from typing import Literal

import numpy as np

from fedloop_core.measure import Measure, measure_of
from fedloop_core.model_card import card_page
from fedloop_core.privacy.audit import audit_sentence
from fedloop_core.schema import Label, RegressionLabel
from fedloop_core.task.document import ExportTarget
from fedloop_server.registry import VersionRecord
from fedloop_server.runs.candidate import FLOAT_REFERENCE
from fedloop_server.runs.estimates import estimate
from fedloop_server.runs.events import Measured
from fedloop_simulations.artifacts import ArtifactMeasurement, measure_artifacts
from fedloop_simulations.attacks.telling import attack_sentences, attack_summary, bounded_in
from fedloop_simulations.cards import audit_summary, card_file, cards_of, whole_sites_summary
from fedloop_simulations.fleet import Answered
from fedloop_simulations.report.model import (
    ArtifactLine,
    CardText,
    DeviceVersion,
    DriftScore,
    EventLine,
    PrivacyLine,
    RoundPoint,
    RunReport,
    StreamPhase,
)
from fedloop_simulations.scoring import CONFIDENCE, measured_answers, metric_of
from fedloop_simulations.simulation import Simulation
from fedloop_simulations.site import SimulatedSite
from fedloop_simulations.summary import (
    ArtifactSummary,
    DeviceSummary,
    DriftSummary,
    LeftOutSummary,
    Metric,
    RunSummary,
    SiteSummary,
    StreamSummary,
    Summary,
    Timings,
    VersionSummary,
)

__all__ = ["report_of", "summary_of"]

Phase = Literal["before", "under", "after"]
Measurements = Mapping[int, Mapping[ExportTarget, ArtifactMeasurement]]


def summary_of(simulation: Simulation) -> Summary:
    """The document of ``summary.json``."""
    story, task = simulation.story, simulation.task
    with story.stage("measuring artifacts"):
        measurements = _measurements(simulation)
    versions = [_version(simulation, record, measurements) for record in _records(simulation)]
    latencies = {
        f"version {number} {kind}": measured.latency_us
        for number, by_kind in measurements.items()
        for kind, measured in by_kind.items()
    }
    stream, measure = _stream(simulation), measure_of(task.label)
    return Summary(
        fedloop=package_version("fedloop"),
        task=task.name,
        measure=measure,
        unit=_unit(task.label),
        seed=simulation.settings.seed,
        private=task.privacy.private and simulation.settings.seed is None,
        epsilon=task.privacy.epsilon if task.privacy.private else None,
        attack=attack_summary(simulation.assault, task, story.runs),
        audit=audit_summary(simulation.settings.audit),
        sites=tuple(_site(simulation, site, number) for number, site in enumerate(simulation.sites)),
        left_out=tuple(
            LeftOutSummary(run=run.run_id, site=o.site, round=o.round, code=o.code, reason=o.reason)
            for run in story.runs
            for o in run.state.left_out
        ),
        runs=tuple(
            RunSummary(
                id=run.run_id,
                rounds=run.state.completed_rounds,
                version=run.state.version,
                held_out=run.held_out,
                bounded=tuple(bounded_in(run.state)),
                whole_sites=whole_sites_summary(task, run.state),
            )
            for run in story.runs
        ),
        versions=tuple(versions),
        devices=tuple(_devices(simulation)),
        drift=DriftSummary(
            kind=simulation.settings.drift,
            injected_at_tick=story.injected_at,
            detected=story.detected is not None,
            detected_at_tick=story.detected.tick if story.detected else None,
            detected_window=story.detected.window if story.detected else None,
            detected_by=story.detected.site if story.detected else None,
        ),
        retrained=len(story.runs) > 1,
        decisions=tuple(story.decisions),
        stream=stream,
        stream_accuracy=stream if measure is Measure.ACCURACY else None,
        timings=Timings(
            seconds=dict(story.seconds),
            total_seconds=sum(story.seconds.values()),
            latency_us=latencies,
            peak_memory_bytes=_peak_memory(),
        ),
    )


def report_of(simulation: Simulation, summary: Summary) -> RunReport:
    """The content of ``report.html``."""
    story, task = simulation.story, simulation.task
    stream = summary.stream
    phases: tuple[tuple[Phase, Metric | None], ...] = (
        ("before", stream.before),
        ("under", stream.under),
        ("after", stream.after),
    )
    return RunReport(
        title=f"fedloop: {task.name}{'' if summary.attack is None else ' (under attack)'}",
        attack=tuple(attack_sentences(summary)),
        whole_sites=next((run.whole_sites for run in reversed(summary.runs) if run.whole_sites is not None), None),
        audit="" if simulation.settings.audit is None else audit_sentence(simulation.settings.audit),
        cards=tuple(
            CardText(version=card.version, text=card_page(card))
            for card in cards_of(simulation.coordinator, task, simulation.settings.audit)
        ),
        task=task.name,
        measure=summary.measure,
        unit=summary.unit,
        fedloop=summary.fedloop,
        seed=summary.seed,
        epsilon=summary.epsilon,
        private=summary.private,
        sites=tuple(site.name for site in simulation.sites),
        last_tick=story.tick,
        drift_kind=simulation.settings.drift,
        drift_tick=story.injected_at,
        rounds=tuple(_rounds(simulation)),
        privacy=tuple(
            PrivacyLine(
                site=site.name,
                epsilon=site.epsilon,
                budget=site.budget,
                evaluation_epsilon=site.evaluation_epsilon,
                evaluation_budget=site.budget,
            )
            for site in summary.sites
        ),
        artifacts=tuple(_artifact_lines(summary)),
        device_versions=tuple(
            DeviceVersion(tick=point.tick, device=point.device, version=point.version) for point in story.versions
        ),
        drift=tuple(
            DriftScore(
                site=point.site,
                tick=point.tick,
                window=point.window,
                version=point.version,
                score=point.score,
                alarmed=point.drifted,
            )
            for point in story.drift
        ),
        stream=tuple(
            StreamPhase(phase=name, value=m.value, low=m.low, high=m.high, rows=round(m.rows))
            for name, m in phases
            if m is not None
        ),
        events=tuple(EventLine(tick=tick, text=text) for tick, text in story.events),
    )


def _artifact_lines(summary: Summary) -> Iterable[ArtifactLine]:
    for version in summary.versions:
        for artifact in version.artifacts:
            yield ArtifactLine(
                version=version.number,
                kind=artifact.kind,
                bytes=artifact.bytes,
                latency_us=summary.timings.latency_us.get(f"version {version.number} {artifact.kind}"),
                value=artifact.metrics.value if artifact.metrics else None,
                agreement=artifact.agreement,
            )


def _records(simulation: Simulation) -> tuple[VersionRecord, ...]:
    return simulation.coordinator.registry.versions(simulation.task.name)


def _measurements(simulation: Simulation) -> Measurements:
    unseen = simulation.world.sites[0].evaluation
    for site, stream in zip(simulation.world.sites, simulation.world.stream, strict=True):
        unseen = unseen.concatenate(site.evaluation) if site is not simulation.world.sites[0] else unseen
        unseen = unseen.concatenate(stream.rows)
    return {
        record.number: measure_artifacts(
            [simulation.coordinator.artifact(record.number, artifact.kind) for artifact in record.artifacts], unseen
        )
        for record in _records(simulation)
    }


def _site(simulation: Simulation, site: SimulatedSite, number: int) -> SiteSummary:
    spends = site.spends()
    last = simulation.story.runs[-1].state if simulation.story.runs else None
    kind = simulation.task.export.targets[-1]
    measured = last.measured(last.version, kind) if last and last.version else None
    own = [found for found in measured or () if found.site == site.name]
    return SiteSummary(
        name=site.name,
        rows=len(site.rows.train),
        evaluation_rows=len(site.rows.evaluation),
        stream_rows=len(simulation.world.stream[number].rows),
        skipped_rows=site.rows.skipped,
        feedback_rows=site.feedback_rows,
        metrics=metric_of(simulation.task.label, own),
        epsilon=spends[0].epsilon if spends else None,
        evaluation_epsilon=spends[1].epsilon if spends else None,
        delta=spends[0].delta if spends else None,
        budget=spends[0].budget if spends else None,
    )


def _version(simulation: Simulation, record: VersionRecord, measurements: Measurements) -> VersionSummary:
    run = next(run for run in simulation.story.runs if run.run_id == record.run_id)
    label = simulation.task.label
    by_kind = {a.kind: metric_of(label, run.state.measured(record.number, a.kind) or ()) for a in record.artifacts}
    gate = run.state.gate
    int8 = next((kind for kind in by_kind if kind.endswith("int8")), None)
    return VersionSummary(
        number=record.number,
        parent=record.parent,
        run=record.run_id,
        released=gate is not None and gate.released,
        reasons=gate.reasons if gate is not None else (),
        float_metrics=by_kind.get(FLOAT_REFERENCE),
        int8_metrics=by_kind[int8] if int8 else None,
        artifacts=tuple(
            ArtifactSummary(
                kind=artifact.kind,
                bytes=artifact.model.length,
                sha256=artifact.model.sha256,
                metrics=by_kind[artifact.kind],
                agreement=measurements[record.number][artifact.kind].agreement,
            )
            for artifact in record.artifacts
        ),
        card=card_file(record.number),
    )


def _devices(simulation: Simulation) -> Iterable[DeviceSummary]:
    for device in simulation.fleet.devices if simulation.fleet else ():
        yield DeviceSummary(
            id=device.name,
            site=device.site.name,
            runtime=device.agent.status.runtime,
            version=device.agent.serving_version,
            predictions=len(device.answers),
        )


def _stream(simulation: Simulation) -> StreamSummary:
    answers = [answer for device in (simulation.fleet.devices if simulation.fleet else ()) for answer in device.answers]
    first = min((answer.version for answer in answers), default=1)
    changed = simulation.story.injected_at
    old = [answer for answer in answers if answer.version == first]
    label = simulation.task.label
    return StreamSummary(
        before=_stream_metric(label, [a for a in old if changed is None or a.tick < changed]),
        under=_stream_metric(label, [a for a in old if changed is not None and a.tick >= changed]),
        after=_stream_metric(label, [a for a in answers if a.version > first]),
    )


def _stream_metric(label: Label, answers: list[Answered]) -> Metric | None:
    if not answers:
        return None
    predicted = np.array([answer.predicted for answer in answers])
    return metric_of(label, measured_answers(label, predicted, np.stack([answer.outcome for answer in answers])))


def _unit(label: Label) -> str:
    return label.unit if isinstance(label, RegressionLabel) else ""


def _rounds(simulation: Simulation) -> Iterable[RoundPoint]:
    """A round's answer evaluates the arrays that the round before it made; artifacts are of the last round."""
    for run in simulation.story.runs:
        state = run.state
        version = state.version or 1
        for closed in state.rounds:
            for found in closed.measured:
                yield _point(simulation.task.label, version, closed.round - 1, found)
        for found in (state.measured(state.version, FLOAT_REFERENCE) or ()) if state.version else ():
            yield _point(simulation.task.label, version, state.completed_rounds, found)


def _point(label: Label, version: int, round_number: int, found: Measured) -> RoundPoint:
    value = estimate(label, [found], CONFIDENCE)
    return RoundPoint(
        version=version,
        site=found.site,
        round=round_number,
        value=value.value,
        low=value.low,
        high=value.high,
    )


def _peak_memory() -> int:
    """Peak of this process and of its largest child together, in bytes (Linux counts in KiB)."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    return 1024 * (own + child)
