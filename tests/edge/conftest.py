"""A small world: a real release repository, a hub over TLS on loopback, devices, and artifacts that two runtimes load."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fedloop_core.arrays import arrays_to_bytes
from fedloop_core.artifact import ArtifactDescription, FileReference, Lineage, TensorSpec
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.profile import Profile
from fedloop_core.release import Assignment
from fedloop_core.scaling import Scaler
from fedloop_core.schema import CategoricalFeature, ClassLabel, FeatureSchema, NumericFeature
from fedloop_edge.agent.agent import AgentConfig, EdgeAgent
from fedloop_edge.hub import (
    DeviceRegistry,
    Hub,
    HubAddresses,
    HubConfig,
    ReceivedExample,
    ReceivedSketch,
    ReceivedStatus,
    ReleaseSource,
    issue_token,
)
from fedloop_server.blobs import BlobStore
from fedloop_server.release import PublishedArtifact, ReleaseRepository

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedloop_core.encoding import Inputs
    from fedloop_core.task.document import ExportTarget

TASK = "heart"
SITE = "clinic"
GROUP = "wave-1"

SCHEMA = FeatureSchema(
    features=(
        NumericFeature(kind="numeric", name="age", range=(0.0, 120.0)),
        NumericFeature(kind="numeric", name="pressure", range=(0.0, 300.0), missing="mean"),
        CategoricalFeature(kind="categorical", name="ward", values=("a", "b", "c")),
    ),
    label=ClassLabel(kind="classes", name="ill", classes=("no", "yes")),
)


@dataclass(frozen=True)
class Weights:
    """A linear model with a table for the ward; a missing pressure counts as 120."""

    matrix: NDArray[np.float32]
    bias: NDArray[np.float32]
    table: NDArray[np.float32]

    @classmethod
    def of(cls, seed: int) -> Weights:
        random = np.random.default_rng(seed)
        return cls(
            random.normal(scale=0.02, size=(2, 2)).astype(np.float32),
            random.normal(size=2).astype(np.float32),
            random.normal(size=(3, 2)).astype(np.float32),
        )

    def logits(self, inputs: Inputs) -> NDArray[np.float32]:
        numeric = inputs["numeric"].astype(np.float32)
        numeric = np.where(np.isnan(numeric), np.float32(120), numeric)
        looked_up = self.table[inputs["categorical"][:, 0].astype(int)]
        return np.asarray(numeric @ self.matrix + self.bias + looked_up, dtype=np.float32)


def rows(count: int, seed: int = 0) -> Inputs:
    random = np.random.default_rng(seed)
    return {
        "numeric": random.uniform([20, 80], [90, 200], size=(count, 2)).astype(np.float32),
        "categorical": random.integers(0, 3, size=(count, 1)),
    }


def onnx_model(weights: Weights) -> bytes:
    nodes = [
        helper.make_node("IsNaN", ["numeric"], ["absent"]),
        helper.make_node("Where", ["absent", "filler", "numeric"], ["filled"]),
        helper.make_node("Gemm", ["filled", "matrix", "bias"], ["linear"]),
        helper.make_node("Squeeze", ["categorical", "axis"], ["codes"]),
        helper.make_node("Gather", ["table", "codes"], ["looked_up"]),
        helper.make_node("Add", ["linear", "looked_up"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [
            helper.make_tensor_value_info("numeric", TensorProto.FLOAT, ["batch", 2]),
            helper.make_tensor_value_info("categorical", TensorProto.INT64, ["batch", 1]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(np.array(120, np.float32), "filler"),
            numpy_helper.from_array(weights.matrix, "matrix"),
            numpy_helper.from_array(weights.bias, "bias"),
            numpy_helper.from_array(np.array([1], np.int64), "axis"),
            numpy_helper.from_array(weights.table, "table"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def tflite_model(weights: Weights) -> bytes:
    """Converted by litert-torch, as the real export does."""
    import litert_torch
    import torch

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = torch.nn.Parameter(torch.from_numpy(weights.matrix))
            self.bias = torch.nn.Parameter(torch.from_numpy(weights.bias))
            self.table = torch.nn.Parameter(torch.from_numpy(weights.table))

        def forward(self, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
            filled = torch.where(torch.isnan(numeric), torch.full_like(numeric, 120.0), numeric)
            logits: torch.Tensor = filled @ self.matrix + self.bias + self.table[categorical[:, 0]]
            return logits

    example = (torch.zeros(1, 2), torch.zeros(1, 1, dtype=torch.int64))
    quiet = (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()))
    with quiet[0], quiet[1], warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's and jax's own, during this conversion only
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.tflite"
            litert_torch.convert(Linear().eval(), example).export(str(path))
            return path.read_bytes()


def describe(weights: Weights, version: int, kind: ExportTarget, model: bytes, golden: bytes) -> ArtifactDescription:
    tflite = kind.startswith("tflite")
    names = ("args_0", "args_1") if tflite else ("numeric", "categorical")
    return ArtifactDescription(
        format=1,
        task=TASK,
        version=version,
        kind=kind,
        runtimes=("litert", "tflite-runtime") if tflite else ("onnxruntime",),
        cpu_class="any",
        rows="one" if tflite else "batch",
        model=FileReference.of(model),
        golden=FileReference.of(golden),
        profile=FileReference.of(profile()),
        inputs=(
            TensorSpec(name=names[0], dtype="float32", shape=(2,)),
            TensorSpec(name=names[1], dtype="int32" if tflite else "int64", shape=(1,)),
        ),
        output=TensorSpec(name="output_0" if tflite else "logits", dtype="float32", shape=(2,)),
        features=SCHEMA,
        operators=("Gemm",),
        golden_tolerance=0.01 if tflite else 0.005,
        privacy=PrivacyStatement(private=False, unit="record", adjacency="add-or-remove", mechanism="none", sites=()),
        lineage=Lineage(run_id="r", parent_version=None, task_digest="0" * 64, data_fingerprints={}, software={}),
    )


def profile() -> bytes:
    return Profile.for_schema(SCHEMA, Scaler.from_ranges(SCHEMA)).to_bytes()


def golden_file(weights: Weights, *, shift: float = 0.0) -> bytes:
    inputs = rows(32, seed=99)
    return arrays_to_bytes({**inputs, "logits": weights.logits(inputs) + np.float32(shift)})


def make_artifact(version: int, kind: ExportTarget = "onnx-fp32", *, golden_shift: float = 0.0) -> PublishedArtifact:
    weights = Weights.of(version)
    model = tflite_model(weights) if kind == "tflite-int8" else onnx_model(weights)
    golden = golden_file(weights, shift=golden_shift)
    description = describe(weights, version, kind, model, golden)
    return PublishedArtifact.of(description, model=model, golden=golden, profile=profile())


@dataclass
class Sink:
    """Remembers what came, in order."""

    examples: list[tuple[str, ReceivedExample]] = field(default_factory=list)
    sketches: list[tuple[str, ReceivedSketch]] = field(default_factory=list)
    reports: list[tuple[str, ReceivedStatus]] = field(default_factory=list)
    fail: Callable[[ReceivedExample], None] = lambda example: None

    def labelled(self, device_id: str, example: ReceivedExample) -> None:
        self.fail(example)
        self.examples.append((device_id, example))

    def sketch(self, device_id: str, sketch: ReceivedSketch) -> None:
        self.sketches.append((device_id, sketch))

    def status(self, device_id: str, report: ReceivedStatus) -> None:
        self.reports.append((device_id, report))


@dataclass
class Tampering:
    """A release source that a test may bend: each hook sees what the true source answers."""

    true: ReleaseSource
    blob: Callable[[bytes, int, bytes], bytes] = lambda digest, offset, content: content
    length: Callable[[int | None], int | None] = lambda length: length
    of_role: Callable[[str, int, bytes | None], bytes | None] = lambda role, version, content: content
    reads: list[tuple[bytes, int]] = field(default_factory=list)

    def metadata(self, role: str, version: int) -> bytes | None:
        return self.of_role(role, version, self.true.metadata(role, version))

    def blob_length(self, sha256: bytes) -> int | None:
        return self.length(self.true.blob_length(sha256))

    def read_blob(self, sha256: bytes, offset: int, length: int) -> bytes:
        self.reads.append((sha256, offset))
        return self.blob(sha256, offset, self.true.read_blob(sha256, offset, length))

    def revision(self) -> int:
        return self.true.revision()

    def wait_for_revision(self, known: int, timeout: float) -> int:
        return self.true.wait_for_revision(known, timeout)

    def trusted_root(self) -> bytes:
        return self.true.trusted_root()


@dataclass
class World:
    """One site hub with its releases; devices are made on demand."""

    folder: Path
    repository: ReleaseRepository
    source: Tampering
    sink: Sink
    registry: DeviceRegistry
    config: HubConfig
    hub: Hub
    addresses: HubAddresses
    agents: list[EdgeAgent] = field(default_factory=list)
    now: int = field(default_factory=lambda: int(time.time()))

    def token(self, **changes: int) -> str:
        return issue_token(self.registry, group=GROUP, site=self.config.site, now_unix=self.now, **changes)

    def agent_config(self, name: str) -> AgentConfig:
        return AgentConfig(
            folder=self.folder / name,
            task=TASK,
            enrollment_address=self.addresses.enrollment,
            fleet_address=self.addresses.fleet,
            certificate_authority=self.hub.certificate_authority,
            runtime="onnxruntime",
            sketch_rows=10,
        )

    def agent(self, name: str, config: AgentConfig | None = None, *, enrolled: bool = True) -> EdgeAgent:
        agent = EdgeAgent(config or self.agent_config(name))
        self.agents.append(agent)
        if enrolled and not agent.enrolled:
            agent.enroll(self.token())
        return agent

    def release(self, version: int, counter: int, artifact: PublishedArtifact | None = None) -> None:
        self.repository.publish_version(TASK, version, [artifact or make_artifact(version)])
        self.assign(version, counter)

    def assign(self, version: int, counter: int) -> None:
        self.repository.assign(Assignment(format=1, task=TASK, group=GROUP, version=version, counter=counter))

    make_artifact = staticmethod(make_artifact)
    profile = staticmethod(profile)

    def big_artifact(self, version: int) -> PublishedArtifact:
        """One whose model has a little under 200 KB, most of it an unused constant: several chunks."""
        weights = Weights.of(version)
        model = onnx.load_from_string(onnx_model(weights))
        model.metadata_props.add(key="padding", value="x" * (199_000 - model.ByteSize()))
        content, golden = bytes(model.SerializeToString()), golden_file(weights)
        description = describe(weights, version, "onnx-fp32", content, golden)
        return PublishedArtifact.of(description, model=content, golden=golden, profile=profile())

    def assign_unloadable(self) -> None:
        """A version that has a TFLite artifact only."""
        weights = Weights.of(2)
        model, golden = b"TFL3 none of this is looked at", golden_file(weights)
        description = describe(weights, 2, "tflite-int8", model, golden)
        artifact = PublishedArtifact.of(description, model=model, golden=golden, profile=profile())
        self.release(2, counter=2, artifact=artifact)

    def restart_hub(self) -> None:
        """The same hub again, on the same ports."""
        self.hub.stop()
        config = replace(self.config, enrollment_address=self.addresses.enrollment, fleet_address=self.addresses.fleet)
        self.hub = Hub(config, self.source, self.sink, self.registry)
        self.hub.start()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    blobs = BlobStore(f"file://{tmp_path}/blobs")
    repository = ReleaseRepository.create(tmp_path / "release", blobs, lambda: int(time.time()))
    repository.delegate_task(TASK)
    registry = DeviceRegistry(tmp_path / "hub" / "registry.sqlite")
    config = HubConfig(folder=tmp_path / "hub", site=SITE, schemas={TASK: SCHEMA})
    source, sink = Tampering(repository), Sink()
    hub = Hub(config, source, sink, registry)
    world = World(tmp_path, repository, source, sink, registry, config, hub, hub.start())
    try:
        yield world
    finally:
        for agent in world.agents:
            agent.close()
        world.hub.stop()
        registry.close()


@pytest.fixture
def serving(world: World) -> tuple[World, EdgeAgent]:
    """A world and a device that serves version 1 under counter 1."""
    world.release(1, counter=1)
    agent = world.agent("device")
    outcome = agent.sync()
    assert outcome.serving_version == 1, outcome
    return world, agent


@dataclass(frozen=True)
class LoadableModel:
    """A model file with its description, golden file and the numpy reference."""

    weights: Weights
    description: ArtifactDescription
    model: bytes
    golden: bytes


@pytest.fixture(scope="session")
def loadable() -> Callable[[str], LoadableModel]:
    """The model for a runtime by name; converted once in a session."""
    weights = Weights.of(7)
    golden = golden_file(weights)
    made: dict[ExportTarget, LoadableModel] = {}

    def load(runtime: str) -> LoadableModel:
        kind: ExportTarget = "onnx-fp32" if runtime == "onnxruntime" else "tflite-int8"
        if kind not in made:
            model = onnx_model(weights) if kind == "onnx-fp32" else tflite_model(weights)
            made[kind] = LoadableModel(weights, describe(weights, 1, kind, model, golden), model, golden)
        return made[kind]

    return load
