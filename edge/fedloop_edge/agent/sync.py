"""One synchronisation: verify metadata, read the assignment, fetch, check, switch. Whatever fails, what serves stays."""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tuf.api.metadata import TargetFile

from fedloop_core.artifact import ArtifactDescription, FileReference
from fedloop_core.errors import (
    ArtifactRefused,
    AssignmentRefused,
    FedloopError,
    GoldenMismatch,
    HubUnreachable,
    RuntimeUnavailable,
    StorageError,
)
from fedloop_core.release import (
    DESCRIPTION_FILE,
    GOLDEN_FILE,
    MAXIMUM_ASSIGNMENT_BYTES,
    PROFILE_FILE,
    Assignment,
    artifact_path,
    assignment_path,
)
from fedloop_core.task.document import ExportTarget
from fedloop_edge.agent.config import AgentConfig
from fedloop_edge.agent.download import Downloads
from fedloop_edge.agent.hub_client import HubClient
from fedloop_edge.agent.metadata import ReleaseMetadata, VerifiedRelease
from fedloop_edge.agent.queue import DeviceStore
from fedloop_edge.agent.runtimes.selection import preferred_kinds, runtime_version
from fedloop_edge.agent.serving import ServingModel
from fedloop_edge.agent.slots import SlotName, Slots
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = ["SyncOutcome", "SyncResult", "Synchronizer"]

_log = logging.getLogger(__name__)
_COUNTER = "assignment-counter"
_VERSION = "assignment-version"
_TOLD = "told-counter"  # mark: the assignment that was reported as serving
_INCOMPATIBLE = "incompatible"  # mark: the description and runtime that gave other golden answers
_DESCRIPTION_BYTES = 4 << 20

Report = Callable[[fleet_pb2.StatusReport], None]


class SyncResult(Enum):
    """How a synchronisation ended."""

    SWITCHED = "switched"
    UNCHANGED = "unchanged"
    UNASSIGNED = "unassigned"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True)
class SyncOutcome:
    """The end of a synchronisation; ``code`` and ``detail`` say why a version was refused or the hub not reached."""

    result: SyncResult
    assigned_version: int | None
    serving_version: int | None
    counter: int
    code: str = ""
    detail: str = ""


@dataclass(frozen=True)
class _Plan:
    """The slot that an assignment asks for, and the signed targets of its files by name."""

    slot: SlotName
    targets: dict[str, TargetFile]


class Synchronizer:
    """Synchronises one device; not for two threads at once."""

    def __init__(
        self,
        config: AgentConfig,
        runtime: str,
        *,
        group: str,
        metadata: ReleaseMetadata,
        slots: Slots,
        store: DeviceStore,
        report: Report,
    ) -> None:
        self._config = config
        self._runtime = runtime
        self._group = group
        self._metadata = metadata
        self._slots = slots
        self._store = store
        self._report = report
        self._downloads = Downloads(config.folder / "incoming")
        self._last_refusal: tuple[int, int, str] | None = None

    @property
    def counter(self) -> int:
        """Counter of the last assignment that was accepted; 0 before the first."""
        return int(self._store.mark(_COUNTER) or 0)

    def sync(self, client: HubClient, serving: ServingModel | None) -> tuple[SyncOutcome, ServingModel | None]:
        """Brings the device to its assignment; returns the outcome and the model that is to answer from now on."""
        assignment: Assignment | None = None
        try:
            with self._metadata.verified(client.metadata) as release:
                assignment = self._assignment(release, client)
                plan = self._plan(release, assignment) if assignment else None
            if assignment is None or plan is None:
                return self._outcome(SyncResult.UNASSIGNED, None, serving), serving
            self._accept(assignment)
            if serving is not None and serving.slot == plan.slot:
                self._tell_serving(assignment, serving)
                return self._outcome(SyncResult.UNCHANGED, assignment, serving), serving
            model = self._bring(plan, assignment, client, serving)
            self._slots.activate(plan.slot)
        except HubUnreachable as error:
            return self._outcome(SyncResult.UNREACHABLE, assignment, serving, error), serving
        except FedloopError as error:
            _log.warning("the device keeps version %s: %s", serving.version if serving else "none", error)
            self._refused(assignment, serving, error)
            return self._outcome(SyncResult.REFUSED, assignment, serving, error), serving
        self._last_refusal = None
        self._tell_serving(assignment, model)
        return self._outcome(SyncResult.SWITCHED, assignment, model), model

    def _assignment(self, release: VerifiedRelease, client: HubClient) -> Assignment | None:
        target = release.target(assignment_path(self._config.task, self._group))
        if target is None:
            return None
        content = self._downloads.take(target, client.blob, maximum_bytes=MAXIMUM_ASSIGNMENT_BYTES)
        assignment = Assignment.from_bytes(content)
        if (assignment.task, assignment.group) != (self._config.task, self._group):
            raise AssignmentRefused(
                f"the assignment is for task {assignment.task} and group {assignment.group}; "
                f"this device runs {self._config.task} in group {self._group}.",
                reason="group",
            )
        accepted_version = int(self._store.mark(_VERSION) or 0)
        altered = assignment.counter == self.counter and assignment.version != accepted_version
        if assignment.counter < self.counter or altered:
            raise AssignmentRefused(
                f"the assignment of version {assignment.version} has counter {assignment.counter}; "
                f"version {accepted_version} was assigned under counter {self.counter} before.",
                hint="A fleet goes back by a new assignment under a higher counter.",
                reason="counter",
            )
        return assignment

    def _accept(self, assignment: Assignment) -> None:
        if assignment.counter > self.counter:
            self._store.set_marks(**{_COUNTER: str(assignment.counter), _VERSION: str(assignment.version)})

    def _plan(self, release: VerifiedRelease, assignment: Assignment) -> _Plan:
        for kind in self._config.kinds or preferred_kinds(self._runtime):
            description = release.target(artifact_path(assignment.task, assignment.version, kind, DESCRIPTION_FILE))
            if description is None:
                continue
            slot = SlotName(
                version=assignment.version,
                kind=kind,
                description=FileReference(sha256=description.hashes["sha256"], length=description.length),
            )
            files = (DESCRIPTION_FILE, _model_file(kind), GOLDEN_FILE, PROFILE_FILE)
            return _Plan(slot, {file: self._listed(release, slot, file) for file in files})
        raise RuntimeUnavailable(
            f"version {assignment.version} has no artifact for {self._runtime or 'no runtime'}.",
            hint="Add a kind to the task's export.targets, or install another runtime.",
            runtime=self._runtime or "none",
        )

    def _listed(self, release: VerifiedRelease, slot: SlotName, file: str) -> TargetFile:
        target = release.target(artifact_path(self._config.task, slot.version, slot.kind, file))
        if target is None:
            raise ArtifactRefused(f"{file} of version {slot.version} {slot.kind} is not signed.", reason="unsigned")
        return target

    def _bring(
        self, plan: _Plan, assignment: Assignment, client: HubClient, serving: ServingModel | None
    ) -> ServingModel:
        incompatible = f"{plan.slot.folder} {self._runtime} {runtime_version(self._runtime)}"
        if self._store.mark(_INCOMPATIBLE) == incompatible:
            raise GoldenMismatch(f"version {plan.slot.version} gave other golden answers here before.", deviation=-1.0)
        if not self._slots.has(plan.slot):
            self._tell(fleet_pb2.DEVICE_STATE_DOWNLOADING, assignment, serving)
            self._download(plan, client)
        self._tell(fleet_pb2.DEVICE_STATE_VERIFYING, assignment, serving)
        try:
            return ServingModel(self._slots.read(plan.slot), self._runtime)
        except GoldenMismatch:
            self._store.set_marks(**{_INCOMPATIBLE: incompatible})
            self._slots.discard(plan.slot)
            raise
        except FedloopError:
            self._slots.discard(plan.slot)
            raise

    def _download(self, plan: _Plan, client: HubClient) -> None:
        self._downloads.keep_only(plan.targets.values())
        limit = self._config.limits.artifact_bytes
        described = self._downloads.read(
            plan.targets[DESCRIPTION_FILE], client.blob, maximum_bytes=min(limit, _DESCRIPTION_BYTES)
        )
        self._check(ArtifactDescription.from_bytes(described), plan)
        files = {
            file: self._downloads.fetch(target, client.blob, maximum_bytes=limit)
            for file, target in plan.targets.items()
        }
        self._slots.fill(plan.slot, files)

    def _check(self, description: ArtifactDescription, plan: _Plan) -> None:
        """The signed description is about this version, and names the very files that are listed beside it."""
        slot = plan.slot
        if (description.task, description.version, description.kind) != (self._config.task, slot.version, slot.kind):
            raise ArtifactRefused(
                f"artifact.json of version {slot.version} {slot.kind} is about {description.task} version "
                f"{description.version} {description.kind}.",
                reason="description",
            )
        named = {
            description.model_file: description.model,
            GOLDEN_FILE: description.golden,
            PROFILE_FILE: description.profile,
        }
        for file, reference in named.items():
            target = plan.targets[file]
            if (target.hashes["sha256"], target.length) != (reference.sha256, reference.length):
                raise ArtifactRefused(f"{file} is listed with another digest than artifact.json has.", reason="digest")

    def _refused(self, assignment: Assignment | None, serving: ServingModel | None, error: FedloopError) -> None:
        refusal = (assignment.counter if assignment else 0, assignment.version if assignment else 0, error.code)
        if refusal == self._last_refusal:
            return  # told before; a device asks every minute
        self._last_refusal = refusal
        self._tell(fleet_pb2.DEVICE_STATE_REFUSED, assignment, serving, code=error.code, detail=_detail(error))

    def _tell_serving(self, assignment: Assignment, model: ServingModel) -> None:
        """Once for each assignment, also when a crash came between the switch and the report."""
        if self._store.mark(_TOLD) == str(assignment.counter):
            return
        detail = f"golden deviation {model.golden_deviation:.6f}"
        self._tell(fleet_pb2.DEVICE_STATE_SERVING, assignment, model, detail=detail)
        try:
            self._store.set_marks(**{_TOLD: str(assignment.counter)})
        except StorageError as error:
            _log.warning("the report of version %d may be repeated: %s", model.version, error)

    def _tell(
        self,
        state: fleet_pb2.DeviceState,
        assignment: Assignment | None,
        serving: ServingModel | None,
        *,
        code: str = "",
        detail: str = "",
    ) -> None:
        report = fleet_pb2.StatusReport(
            state=state,
            task=self._config.task,
            version=assignment.version if assignment else 0,
            serving_version=serving.version if serving else 0,
            assignment_counter=assignment.counter if assignment else self.counter,
            code=code,
            detail=detail,
        )
        try:
            self._report(report)
        except StorageError as error:  # a full disk does not keep a version from serving
            _log.warning("a status is not reported: %s", error)

    def _outcome(
        self,
        result: SyncResult,
        assignment: Assignment | None,
        serving: ServingModel | None,
        error: FedloopError | None = None,
    ) -> SyncOutcome:
        return SyncOutcome(
            result=result,
            assigned_version=assignment.version if assignment else None,
            serving_version=serving.version if serving else None,
            counter=self.counter,
            code=error.code if error else "",
            detail=error.message if error else "",
        )


def _model_file(kind: ExportTarget) -> str:
    return "model.tflite" if kind.startswith("tflite") else "model.onnx"


def _detail(error: FedloopError) -> str:
    """Facts about the device that help to find the cause: the error's own wire fields, the processor."""
    facts = [f"{name} {value}" for name, value in sorted(error.wire().fields.items())]
    return "; ".join([*facts, platform.machine()])[:200]
