"""The controller over a real release repository, with crashes between every two steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedloop_core.artifact import ArtifactDescription, FileReference, Lineage, TensorSpec
from fedloop_core.errors import AssignmentRefused, ReleaseError, StorageError
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import LogisticModel, Privacy, Task
from fedloop_server.blobs import BlobStore
from fedloop_server.release import PublishedArtifact, ReleaseRepository
from fedloop_server.rollout import (
    Abort,
    AssignGroup,
    Complete,
    DeviceReported,
    Outcome,
    Phase,
    RolloutController,
    Stop,
    controller,
)

TASK = Task(
    format=1,
    name="heart",
    features=(NumericFeature(kind="numeric", name="age", range=(0.0, 120.0)),),
    label=ClassLabel(kind="classes", name="ill", classes=("no", "yes")),
    model=LogisticModel(kind="logistic"),
    privacy=Privacy(epsilon=float("inf")),
)
MEMBERS = {"wave-1": ["a"], "wave-2": ["b", "c"]}


def _artifact(version: int) -> PublishedArtifact:
    description = ArtifactDescription(
        format=1,
        task="heart",
        version=version,
        kind="onnx-fp32",
        runtimes=("onnxruntime",),
        cpu_class="any",
        rows="batch",
        model=FileReference.of(b"model"),
        golden=FileReference.of(b"golden"),
        profile=FileReference.of(b"profile"),
        inputs=(TensorSpec(name="age", dtype="float32", shape=(1,)),),
        output=TensorSpec(name="logits", dtype="float32", shape=(2,)),
        features=TASK.feature_schema,
        operators=("Gemm",),
        golden_tolerance=0.005,
        privacy=PrivacyStatement(private=False, unit="record", adjacency="add-or-remove", mechanism="none", sites=()),
        lineage=Lineage(
            run_id="r", parent_version=None, task_digest=TASK.digest.hex(), data_fingerprints={}, software={}
        ),
    )
    return PublishedArtifact.of(description, model=b"model", golden=b"golden", profile=b"profile")


@pytest.fixture
def releases(tmp_path: Path) -> ReleaseRepository:
    repository = ReleaseRepository.create(tmp_path / "release", BlobStore(f"file://{tmp_path}/blobs"), lambda: 1_000)
    repository.delegate_task("heart")
    for version in (1, 2):
        repository.publish_version("heart", version, [_artifact(version)])
    return repository


@pytest.fixture
def rollouts(tmp_path: Path, releases: ReleaseRepository) -> RolloutController:
    return RolloutController(tmp_path / "rollouts", releases, lambda: 1_000)


def _serve(rollouts: RolloutController, version: int, *devices: str) -> None:
    for device in devices:
        rollouts.handle("heart", DeviceReported(device, Outcome.SERVING, version))


def _assigned(releases: ReleaseRepository) -> list[tuple[str, int, int, int | None]]:
    return [(a.group, a.version, a.counter, a.rollback_of) for a in releases.assignments("heart")]


def test_two_versions_and_a_rollback(rollouts: RolloutController, releases: ReleaseRepository) -> None:
    assert rollouts.start(TASK, 1, None, MEMBERS) == (AssignGroup(group="wave-1", version=1, counter=1),)
    assert rollouts.tick("heart") == ()
    _serve(rollouts, 1, "a")
    assert rollouts.tick("heart") == (AssignGroup(group="wave-2", version=1, counter=1),)
    with pytest.raises(ReleaseError, match="under way"):
        rollouts.start(TASK, 2, 1, MEMBERS)
    _serve(rollouts, 1, "b", "c")
    assert rollouts.tick("heart") == (Complete(),)

    rollouts.start(TASK, 2, 1, MEMBERS)
    _serve(rollouts, 2, "a")
    rollouts.tick("heart")
    assert _assigned(releases) == [("wave-1", 2, 2, None), ("wave-2", 2, 2, None)]
    rollouts.handle("heart", DeviceReported("c", Outcome.REFUSED, 2, counter=2))
    done = rollouts.tick("heart")
    assert isinstance(done[0], Abort)
    assert _assigned(releases) == [("wave-1", 1, 3, 2), ("wave-2", 1, 3, 2)]
    assert rollouts.handle("heart", DeviceReported("a", Outcome.SERVING, 2)).ignored


@pytest.mark.parametrize(
    ("version", "previous", "error"), [(9, None, AssignmentRefused), (2, 9, AssignmentRefused), (2, 2, ReleaseError)]
)
def test_a_rollout_that_could_not_end_does_not_begin(
    version: int, previous: int | None, error: type[Exception], rollouts: RolloutController
) -> None:
    with pytest.raises(error):
        rollouts.start(TASK, version, previous, MEMBERS)
    assert rollouts.state("heart") is None


def test_a_task_without_a_rollout(rollouts: RolloutController, tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="no rollout"):
        rollouts.tick("heart")
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "task-heart.json").write_bytes(b"{}")
    with pytest.raises(StorageError, match="cannot be read"):
        rollouts.state("heart")


class _PowerCut(Exception):
    pass


def _with_cuts(allowed: int, monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> bool:
    """Runs a call that dies when it would write or assign once more than allowed; returns whether it got through."""
    left = allowed

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def once(*arguments: object) -> None:
            nonlocal left
            if left == 0:
                raise _PowerCut
            left -= 1
            real(*arguments)

        return once

    with monkeypatch.context() as patch:
        patch.setattr(controller, "write_bytes", counted(_write))
        patch.setattr(ReleaseRepository, "assign", counted(_assign))
        try:
            call()
        except _PowerCut:
            return False
    return True


_write = getattr(controller, "write_bytes")  # noqa: B009 - the module does not export it
_assign = ReleaseRepository.assign


@pytest.mark.parametrize("allowed", range(8))
def test_a_decision_outlives_a_crash(
    allowed: int, rollouts: RolloutController, releases: ReleaseRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    _open_all_waves_of_the_second_version(rollouts)
    through = _with_cuts(allowed, monkeypatch, lambda: rollouts.handle("heart", Stop("recalled")))
    assert through == (allowed >= 4)  # stored, two assignments, settled

    again = RolloutController(tmp_path / "rollouts", releases, lambda: 1_000)
    again.tick("heart")
    state = again.state("heart")
    assert state is not None
    if state.phase is not Phase.ABORTED:  # the cut came before the decision was stored
        again.handle("heart", Stop("recalled"))
    assert _assigned(releases) == [("wave-1", 1, 3, 2), ("wave-2", 1, 3, 2)]


def test_what_was_decided_is_carried_out_before_the_next_rollout(
    rollouts: RolloutController, releases: ReleaseRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    _open_all_waves_of_the_second_version(rollouts)
    assert not _with_cuts(2, monkeypatch, lambda: rollouts.handle("heart", Stop("recalled")))
    assert _assigned(releases) == [("wave-1", 1, 3, 2), ("wave-2", 2, 2, None)]
    rollouts.start(TASK, 2, 1, MEMBERS)
    assert _assigned(releases) == [("wave-1", 2, 4, None), ("wave-2", 1, 3, 2)]


def _open_all_waves_of_the_second_version(rollouts: RolloutController) -> None:
    rollouts.start(TASK, 1, None, MEMBERS)
    _serve(rollouts, 1, "a")
    rollouts.tick("heart")
    _serve(rollouts, 1, "b", "c")
    rollouts.tick("heart")
    rollouts.start(TASK, 2, 1, MEMBERS)
    _serve(rollouts, 2, "a")
    rollouts.tick("heart")
