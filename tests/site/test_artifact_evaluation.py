"""A site evaluates the file that would ship, in the runtime that a device would use."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import digest
from fedloop_core.artifact import ArtifactDescription, FileReference, Lineage, TensorSpec
from fedloop_core.dataset import Dataset
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_core.noise import SeededNoise
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import LogisticModel, Privacy, Task
from fedloop_core.task.evaluations import planned_evaluations
from fedloop_proto.coordination.v1.coordination_pb2 import (
    EVALUATION_ROWS_FEEDBACK,
    EVALUATION_ROWS_ORIGINAL,
    Answer,
    DescribeData,
    EvaluateArtifact,
    EvaluationRows,
    Instruction,
)

KEY, SITE_KEY = SigningKey.generate(), SigningKey.generate()


def make_task(epsilon: float) -> Task:
    return Task(
        format=1,
        name="tabular",
        features=tuple(NumericFeature(kind="numeric", name=f"x{at}", range=(-4.0, 4.0)) for at in range(2)),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        privacy=Privacy(epsilon=epsilon, delta=1e-4),
    )


def linear_model() -> bytes:
    """Class 1 where the first number is above 0."""
    weight = numpy_helper.from_array(np.array([[0, 1], [0, 0]], np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["numeric", "weight"], ["logits"])],
        "linear",
        [helper.make_tensor_value_info("numeric", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 2])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def describe(task: Task, model: bytes) -> ArtifactDescription:
    nothing = FileReference.of(b"-")
    return ArtifactDescription(
        format=1,
        task=task.name,
        version=1,
        kind="onnx-fp32",
        runtimes=("onnxruntime",),
        cpu_class="any",
        rows="batch",
        model=FileReference.of(model),
        golden=nothing,
        profile=nothing,
        inputs=(TensorSpec(name="numeric", dtype="float32", shape=(2,)),),
        output=TensorSpec(name="logits", dtype="float32", shape=(2,)),
        features=task.feature_schema,
        operators=("MatMul",),
        golden_tolerance=0.01,
        privacy=PrivacyStatement(private=False, unit="record", adjacency="add-or-remove", mechanism="none", sites=()),
        lineage=Lineage(run_id="run-1", parent_version=None, task_digest="0" * 64, data_fingerprints={}, software={}),
    )


def some_rows(count: int, prefix: str) -> Dataset:
    values = np.random.default_rng(len(prefix)).normal(size=(count, 2)).astype(np.float32)
    return Dataset(
        {"numeric": values}, (values[:, 0] > 0).astype(np.int64), tuple(f"{prefix}{at}" for at in range(count))
    )


class Talk:
    def __init__(self, epsilon: float, budget: float) -> None:
        self.task = make_task(epsilon)
        budgets = Budget(epsilon=budget, delta=1e-5)
        self.ledger = Ledger(":memory:", lambda: 0)
        self.daemon = SiteDaemon(
            SiteConfig(site="north", training_budget=budgets, evaluation_budget=budgets),
            SiteData(some_rows(100, "t"), some_rows(50, "ev"), secret=b"s" * 32),
            self.ledger,
            Outbox(":memory:"),
            SeededNoise(1),
            KEY.verifying,
            lambda: 0,
            signing_key=SITE_KEY,
        )
        self.daemon.add_feedback(some_rows(40, "fee"), 0.5)
        self._ask({}, Instruction(describe_data=DescribeData(task_document=self.task.canonical())))

    def evaluate(
        self,
        model: bytes,
        description: ArtifactDescription,
        rows: EvaluationRows = EVALUATION_ROWS_ORIGINAL,
        number: int = 0,
    ) -> Answer:
        arrays = {"artifact": np.frombuffer(model, np.uint8)}
        work = EvaluateArtifact(
            description=description.to_bytes(), evaluations_planned=planned_evaluations(self.task), rows=rows
        )
        return self._ask(arrays, Instruction(evaluate_artifact=work, round=number))

    def _ask(self, arrays: dict[str, NDArray[np.uint8]], instruction: Instruction) -> Answer:
        instruction.run_id, instruction.attempt, instruction.site = "run-1", 1, "north"
        instruction.task_digest, instruction.arrays_digest = self.task.digest, digest(arrays)
        instruction.expires_unix, instruction.protocol = 60, PROTOCOL
        reply = self.daemon.answer(Question(seal(instruction, KEY), arrays))
        return open_answer(reply.answer, SITE_KEY.verifying, site="north")


def test_an_artifact_is_scored_on_the_rows_asked_for() -> None:
    talk = Talk(math.inf, math.inf)
    model = linear_model()
    own = talk.evaluate(model, describe(talk.task, model)).evaluation
    returned = talk.evaluate(model, describe(talk.task, model), EVALUATION_ROWS_FEEDBACK).evaluation
    everything = talk.evaluate(model, describe(talk.task, model), 0).evaluation  # type: ignore[arg-type]
    assert (own.present, own.correct, own.total, own.noised) == (True, 50, 50, False)
    assert (returned.correct, returned.total) == (20, 20)
    assert everything.total == 70


def test_a_private_evaluation_is_noised_and_charged_to_the_evaluation_block() -> None:
    talk = Talk(4.0, 20.0)
    model = linear_model()
    evaluation = talk.evaluate(model, describe(talk.task, model)).evaluation
    assert evaluation.noised
    assert evaluation.noise_scale == pytest.approx(planned_evaluations(talk.task) / 4.0)
    assert evaluation.total == pytest.approx(50, abs=40)
    assert len(talk.ledger.charges("evaluation", "run-1")) == 1
    assert talk.ledger.charges("feedback-evaluation-1", "run-1") == ()


def test_evaluations_beyond_the_plan_are_refused() -> None:
    talk = Talk(4.0, 20.0)
    model = linear_model()
    planned = planned_evaluations(talk.task)
    answers = [talk.evaluate(model, describe(talk.task, model), number=at) for at in range(planned + 1)]
    assert [answer.WhichOneof("result") for answer in answers] == ["evaluation"] * planned + ["refusal"]
    assert answers[-1].refusal.code == "FL-PRIV-002"


def _tampered(model: bytes) -> bytes:
    return model[:-1] + bytes([model[-1] ^ 1])


def test_bytes_that_are_not_the_described_ones_are_refused() -> None:
    talk = Talk(math.inf, math.inf)
    model = linear_model()
    refusal = talk.evaluate(_tampered(model), describe(talk.task, model)).refusal
    assert (refusal.code, dict(refusal.fields)) == ("FL-EDGE-002", {"reason": "digest"})


def test_an_artifact_for_other_features_is_refused() -> None:
    talk = Talk(math.inf, math.inf)
    model = linear_model()
    other = describe(make_task(1.0).model_copy(update={"features": talk.task.features[:1]}), model)
    assert talk.evaluate(model, other).refusal.fields["reason"] == "description"


def test_a_file_that_no_runtime_loads_is_refused() -> None:
    talk = Talk(math.inf, math.inf)
    refusal = talk.evaluate(b"not a model", describe(talk.task, b"not a model")).refusal
    assert refusal.code.startswith("FL-EDGE-")
