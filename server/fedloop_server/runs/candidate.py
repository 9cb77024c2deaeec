"""From trained arrays to a version that may be released: registered, exported, evaluated at the sites, and judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import UpdateRefused
from fedloop_core.measure import Measure, measure_of
from fedloop_core.task.document import ExportTarget
from fedloop_proto.coordination.v1.coordination_pb2 import EvaluateArtifact, EvaluationRows, Instruction
from fedloop_server.export import Artifact, ExportRequest, export_artifacts
from fedloop_server.registry import Registry, Verdict, VersionMetric
from fedloop_server.release import PublishedArtifact
from fedloop_server.runs.answers import measured_in
from fedloop_server.runs.card import card_of
from fedloop_server.runs.estimates import Estimate, estimate
from fedloop_server.runs.events import ArtifactMeasured, GateDecided, LeftOut, Measured, SiteLeftOut, VersionRegistered
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.leaving import left_out_of, refused_by_gate
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.plausible import check_measured
from fedloop_server.runs.quality import decide
from fedloop_server.runs.replies import SiteAnswer, SiteFailure
from fedloop_server.runs.statement import lineage_of, privacy_of

__all__ = ["FLOAT_REFERENCE", "Candidate"]

FLOAT_REFERENCE: ExportTarget = "onnx-fp32"
"""The artifact that stands for the model before quantisation (docs/adr/0006)."""


class Candidate:
    """The version that a run makes. Each step is journalled, so that a resumed run repeats none.

    Whatever the registry and its blobs are asked waits as the journal does: each is one transaction that may be done twice.
    """

    def __init__(self, plan: RunPlan, journal: RunJournal, registry: Registry, exchange: Exchange) -> None:
        self._plan = plan
        self._task = plan.task
        self._journal = journal
        self._registry = registry
        self._exchange = exchange
        self._asked = 0

    def make(self, arrays: NamedArrays) -> int:
        """Registers, exports, evaluates, judges and describes; returns the version's number.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        version = self._register()
        artifacts = self._export(version, arrays)
        for artifact in artifacts:
            self._measure(version, artifact)
        production = self._measure_production()
        self._judge(version, [artifact.kind for artifact in artifacts], production)
        self._journal.patiently(lambda: self._describe(version))
        return version

    def _describe(self, version: int) -> None:
        """Keeps the model card, beside the version."""
        record = self._registry.version(self._task.name, version)
        self._registry.keep_card(card_of(self._plan, self._journal.state, record))

    def _register(self) -> int:
        if self._journal.state.version is not None:
            return self._journal.state.version
        number = self._journal.patiently(self._number)
        self._journal.record(VersionRegistered(version=number))
        return number

    def _number(self) -> int:
        """The version that the registry has of this run, or a new one."""
        made = self._registry.made_by(self._plan.run_id)
        if made is not None:  # the process, or the connection to the database, died before it could be noted
            return made.number
        state = self._journal.state
        record = self._registry.register_version(
            self._plan.run_id, privacy_of(self._plan, state), lineage_of(self._plan, state)
        )
        return record.number

    def _export(self, version: int, arrays: NamedArrays) -> list[PublishedArtifact]:
        record = self._journal.patiently(lambda: self._registry.version(self._task.name, version))
        wanted = tuple(dict.fromkeys((FLOAT_REFERENCE, *self._task.export.targets)))
        there = {artifact.kind for artifact in record.artifacts}
        if not there.issuperset(wanted):
            self._exchange.look()
            export = self._task.export.model_copy(update={"targets": wanted})
            request = ExportRequest(
                task=self._task.model_copy(update={"export": export}),
                version=version,
                arrays=arrays,
                lineage=record.lineage,
                privacy=record.privacy,
                seed=self._plan.seed,
            )
            for artifact in map(_published, export_artifacts(request)):
                self._journal.patiently(partial(self._registry.add_artifact, self._task.name, version, artifact))
        return [self._read(version, kind) for kind in wanted]

    def _read(self, version: int, kind: ExportTarget) -> PublishedArtifact:
        return self._journal.patiently(lambda: self._registry.read_artifact(self._task.name, version, kind))

    def _measure(self, version: int, artifact: PublishedArtifact) -> tuple[Measured, ...]:
        """What every site finds of an artifact; a site that fails is left out of this evaluation by name."""
        self._asked += 1
        round_number = self._task.rounds.count + self._asked
        known = self._journal.state.measured(version, artifact.kind)
        if known is not None:
            return known
        state = self._journal.state
        sites = sorted({member.site for member in state.members} - state.barred_sites)
        work = {
            site: Instruction(
                evaluate_artifact=EvaluateArtifact(
                    description=artifact.description, rows=EvaluationRows.EVALUATION_ROWS_ALL
                )
            )
            for site in sites
        }
        model = {"artifact": np.frombuffer(artifact.model, dtype=np.uint8)}
        measured: list[Measured] = []
        for reply in self._exchange.ask(round_number, work, model, deadline_seconds=self._task.rounds.deadline_seconds):
            found = self._found(reply, round_number)
            if isinstance(found, LeftOut):
                self._journal.record(SiteLeftOut(left_out=found))
            else:
                measured.extend(found)
        ordered = tuple(sorted(measured, key=lambda counts: counts.site))
        self._journal.patiently(self._exchange.keep)
        self._journal.record(ArtifactMeasured(version=version, kind=artifact.kind, measured=ordered))
        return ordered

    def _found(self, reply: SiteAnswer | SiteFailure, round_number: int) -> tuple[Measured, ...] | LeftOut:
        """What a site measured, or why it counts for nothing."""
        if isinstance(reply, SiteFailure):
            return left_out_of(reply, round_number)
        try:
            found = measured_in(reply.site, self._task.label, reply.answer.evaluation)
            for member in (m for m in self._journal.state.members if m.site == reply.site):
                for measured in found:
                    check_measured(measured, member, self._task)
        except UpdateRefused as error:
            return left_out_of(refused_by_gate(reply, error), round_number)
        return found

    def _measure_production(self) -> Estimate | None:
        """The version in production on today's rows, by the artifact that most devices run."""
        production = self._journal.patiently(lambda: self._registry.production(self._task.name))
        if production is None:
            return None
        kind = self._task.export.targets[-1]
        artifact = self._read(production.number, kind)
        measured = self._measure(production.number, artifact)
        return self._estimate(measured)

    def _estimate(self, measured: Sequence[Measured]) -> Estimate:
        return estimate(self._task.label, measured, self._task.gates.quality.confidence)

    def _judge(self, version: int, kinds: Sequence[ExportTarget], production: Estimate | None) -> None:
        if self._journal.state.gate is not None:
            return
        gate = self._task.gates.quality
        by_kind = {kind: self._journal.state.measured(version, kind) or () for kind in kinds}
        overall = {kind: self._estimate(measured) for kind, measured in by_kind.items()}
        self._journal.patiently(lambda: self._record_metrics(version, by_kind, overall))
        released, decisions = decide(gate, self._task.label, overall, float_kind=FLOAT_REFERENCE, production=production)
        for decision in decisions:
            said = (decision.name, Verdict(decision.verdict), decision.detail)
            self._journal.patiently(partial(self._registry.add_gate_result, self._task.name, version, *said))
        reasons = tuple(f"{d.name}: {d.verdict} ({d.detail})" for d in decisions)
        self._journal.record(GateDecided(released=released, reasons=reasons))

    def _record_metrics(
        self, version: int, by_kind: dict[ExportTarget, tuple[Measured, ...]], overall: dict[ExportTarget, Estimate]
    ) -> None:
        if self._registry.version(self._task.name, version).metrics:
            return
        measure = measure_of(self._task.label)
        metrics = [_metric("all", kind, measure, found) for kind, found in overall.items()]
        for kind, measured in by_kind.items():
            metrics.extend(_metric(m.site, kind, measure, self._estimate([m])) for m in measured)
        self._registry.add_metrics(self._task.name, version, metrics)


def _metric(scope: str, kind: str, measure: Measure, found: Estimate) -> VersionMetric:
    return VersionMetric(scope, kind, measure.value, found.value, found.low, found.high, found.total)


def _published(artifact: Artifact) -> PublishedArtifact:
    return PublishedArtifact.of(
        artifact.description, model=artifact.model, golden=artifact.golden, profile=artifact.profile
    )
