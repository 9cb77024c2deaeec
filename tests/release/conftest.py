"""A small release world: a clock that stands still, a repository, artifacts with real descriptions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fedloop_core.artifact import ArtifactDescription, FileReference, Lineage, TensorSpec
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.schema import ClassLabel, FeatureSchema, NumericFeature
from fedloop_server.blobs import BlobStore
from fedloop_server.release import PublishedArtifact, ReleaseRepository

if TYPE_CHECKING:
    from fedloop_core.task.document import ExportTarget


@dataclass
class Clock:
    """Seconds since 1970, moved by hand."""

    now: int

    def __call__(self) -> int:
        return self.now


def _artifact(
    task: str, version: int, kind: ExportTarget = "onnx-fp32", model: bytes | None = None
) -> PublishedArtifact:
    content = model or f"model {task} {version} {kind}".encode() * 50
    golden, profile = b"golden", b'{"profile":1}'
    description = ArtifactDescription(
        format=1,
        task=task,
        version=version,
        kind=kind,
        runtimes=("onnxruntime",),
        cpu_class="any",
        rows="batch",
        model=FileReference.of(content),
        golden=FileReference.of(golden),
        profile=FileReference.of(profile),
        inputs=(TensorSpec(name="age", dtype="float32", shape=(1,)),),
        output=TensorSpec(name="logits", dtype="float32", shape=(2,)),
        features=FeatureSchema(
            features=(NumericFeature(kind="numeric", name="age", range=(0.0, 120.0)),),
            label=ClassLabel(kind="classes", name="ill", classes=("no", "yes")),
        ),
        operators=("Gemm",),
        golden_tolerance=0.005,
        privacy=PrivacyStatement(private=False, unit="record", adjacency="add-or-remove", mechanism="none", sites=()),
        lineage=Lineage(
            run_id="run-1", parent_version=None, task_digest="0" * 64, data_fingerprints={}, software={"fedloop": "0.1"}
        ),
    )
    return PublishedArtifact.of(description, model=content, golden=golden, profile=profile)


@pytest.fixture
def artifact() -> Callable[..., PublishedArtifact]:
    return _artifact


@pytest.fixture
def clock() -> Clock:
    return Clock(int(time.time()))  # ngclient compares with the wall clock


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(f"file://{tmp_path}/blobs")


@pytest.fixture
def repository(tmp_path: Path, blobs: BlobStore, clock: Clock) -> ReleaseRepository:
    return ReleaseRepository.create(tmp_path / "release", blobs, clock)


@pytest.fixture
def released(repository: ReleaseRepository) -> ReleaseRepository:
    """heart: versions 1 and 2, wave-1 runs 2 (it ran 1 before); bank: version 1."""
    from fedloop_core.release import Assignment

    for task, versions in (("heart", (1, 2)), ("bank", (1,))):
        repository.delegate_task(task)
        for version in versions:
            repository.publish_version(task, version, [_artifact(task, version)])
    for counter, version in ((1, 1), (2, 2)):
        repository.assign(Assignment(format=1, task="heart", group="wave-1", version=version, counter=counter))
    return repository
