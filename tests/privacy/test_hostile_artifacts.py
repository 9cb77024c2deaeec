"""Artifacts and models of a hostile coordinator: none makes one row of a private run count for more than itself, or tell by failing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tests.privacy.tflite_graphs import TFLITE_ROWS
from tests.site import test_artifact_evaluation as artifacts
from tests.site.test_artifact_evaluation import Talk, describe, linear_model, some_rows
from tests.site.test_daemon import Site, arrays_of, make_task, refused

from fedloop_clients.policy import Budget
from fedloop_clients.scoring.artifact import ArtifactApart
from fedloop_clients.scoring.model import outputs_apart
from fedloop_clients.scoring.tflite_graph import check_tflite
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.errors import ArtifactRefused
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, TrainLocally

node = helper.make_node
EVALUATION = some_rows(50, "ev")
VICTIM = 7
X0 = float(EVALUATION.inputs["numeric"][VICTIM, 0])
BUDGET = Budget(epsilon=6.0, delta=1e-5)


def graph_of(nodes: list[Any], constants: dict[str, Any] | None = None, **more: Any) -> onnx.ModelProto:
    listed: dict[str, Any] = {"weight": np.array([[0, 1], [0, 0]], np.float32)} | (constants or {})
    graph = helper.make_graph(
        [node("MatMul", ["numeric", "weight"], ["right"]), *nodes],
        "hostile",
        [helper.make_tensor_value_info("numeric", TensorProto.FLOAT, ["rows", 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 2])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in listed.items()],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=domains, ir_version=9, **more)
    return model


def if_victim(*then: Any, **constants: Any) -> bytes:
    """``hit`` [] is whether the victim is among the rows that are answered together."""
    found = [
        node("Gather", ["numeric", "zero"], ["x0"], axis=1),
        node("Sub", ["x0", "target"], ["apart"]),
        node("Abs", ["apart"], ["distance"]),
        node("ReduceMin", ["distance"], ["least"], keepdims=0),
        node("Less", ["least", "little"], ["hit"]),
    ]
    listed: dict[str, Any] = {"zero": np.array([0], np.int64), "target": np.float32(X0), "little": np.float32(1e-4)}
    return bytes(graph_of([*found, *then], {**listed, **constants}).SerializeToString())


HOSTILE = {
    "all rows are wrong once the victim is there": if_victim(
        node("Neg", ["right"], ["wrong"]), node("Where", ["hit", "wrong", "right"], ["logits"])
    ),
    "all rows are right once the victim is there": if_victim(
        node("Neg", ["right"], ["wrong"]), node("Where", ["hit", "right", "wrong"], ["logits"])
    ),
    "the runtime fails once the victim is there": if_victim(
        node("Cast", ["hit"], ["one"], to=TensorProto.INT64),
        node("Mul", ["one", "far"], ["place"]),
        node("Gather", ["right", "place"], ["row"], axis=0),
        node("Mul", ["row", "nothing"], ["none"]),
        node("Add", ["right", "none"], ["logits"]),
        far=np.int64(10**6),
        nothing=np.float32(0),
    ),
    "nothing is a number once the victim is there": if_victim(
        node("Cast", ["hit"], ["one"], to=TensorProto.FLOAT),
        node("Neg", ["one"], ["minus"]),
        node("Sqrt", ["minus"], ["spoilt"]),
        node("Add", ["right", "spoilt"], ["logits"]),
    ),
}


def told(monkeypatch: pytest.MonkeyPatch, model: bytes, evaluation: Dataset) -> tuple[tuple[int, int], int]:
    """Right and wrong as they would be noised, and how often the evaluation block was charged."""
    seen: list[tuple[int, int]] = []

    def watched(counts: tuple[int, int], *_: object) -> tuple[int, int]:
        seen.append(counts)
        return counts

    with monkeypatch.context() as patched:
        patched.setattr(
            artifacts, "some_rows", lambda n, prefix: evaluation if prefix == "ev" else some_rows(n, prefix)
        )
        talk = Talk(4.0, 20.0)
        patched.setattr("fedloop_clients.evaluation.noised_counts", watched)
        answer = talk.evaluate(model, describe(talk.task, model))
    assert answer.WhichOneof("result") == "evaluation", answer
    (counts,) = seen
    return counts, len(talk.ledger.charges("evaluation", "run-1"))


@pytest.mark.parametrize("model", HOSTILE.values(), ids=HOSTILE)
def test_one_row_moves_one_count_by_one_and_is_charged(monkeypatch: pytest.MonkeyPatch, model: bytes) -> None:
    others = EVALUATION.take([row for row in range(50) if row != VICTIM])
    (right, wrong), charges = told(monkeypatch, model, EVALUATION)
    (right_without, wrong_without), charges_without = told(monkeypatch, model, others)
    assert abs(right - right_without) + abs(wrong - wrong_without) == 1
    assert charges == charges_without == 1


def test_whether_there_are_rows_at_all_is_told_by_noised_counts_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, linear_model(), EVALUATION.take([])) == ((0, 0), 1)


def test_an_evaluation_is_in_the_ledger_before_a_row_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    talk, model = Talk(4.0, 20.0), linear_model()
    charged: list[int] = []
    answers = ArtifactApart.outputs

    def watched(apart: ArtifactApart, inputs: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
        charged.append(len(talk.ledger.charges("evaluation", "run-1")))
        return answers(apart, inputs)

    monkeypatch.setattr(ArtifactApart, "outputs", watched)
    talk.evaluate(model, describe(talk.task, model))
    assert charged == [1]


def test_so_is_that_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(make_task(2.0), budget=BUDGET, evaluation_budget=BUDGET)
    site.describe()
    charged: list[int] = []
    answers = LocalTrainer.outputs_apart

    def watched(trainer: LocalTrainer, *parts: Any) -> NDArray[np.float32]:
        charged.append(len(site.ledger.charges("evaluation", "run-1")))
        return answers(trainer, *parts)

    monkeypatch.setattr(LocalTrainer, "outputs_apart", watched)
    answer, _ = site.train(1, evaluate=True)
    assert answer.local_update.evaluation.noised
    assert charged == [1]


# --- graphs that are refused, whatever the rows are ----------------------------------------------------------------

BOOL = helper.make_tensor_value_info("b", TensorProto.FLOAT, ["rows", 2])
BRANCH = helper.make_graph([node("Identity", ["right"], ["b"])], "branch", [], [BOOL])
LIKE = [node("Add", ["right", "more"], ["logits"])]


def serialised(*nodes: Any, **constants: Any) -> bytes:
    return bytes(graph_of(list(nodes), constants).SerializeToString())


def _outside() -> bytes:
    model = graph_of([node("Add", ["right", "file"], ["logits"])], {"file": np.zeros(2, np.float32)})
    tensor = model.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    return bytes(model.SerializeToString())


def _function() -> bytes:
    body = [node("Identity", ["i"], ["o"])]
    function = helper.make_function("com.example", "Own", ["i"], ["o"], body, [helper.make_opsetid("", 17)])
    return bytes(
        graph_of([node("Own", ["right"], ["logits"], domain="com.example")], functions=[function]).SerializeToString()
    )


ONNX_ROWS: dict[str, bytes] = {
    "random numbers": serialised(node("RandomNormal", [], ["more"], shape=[1, 2]), *LIKE),
    "random numbers, uniform": serialised(node("RandomUniformLike", ["right"], ["more"]), *LIKE),
    "random choices": serialised(node("Multinomial", ["right"], ["m"]), node("Identity", ["right"], ["logits"])),
    "coins": serialised(node("Bernoulli", ["right"], ["more"]), *LIKE),
    "a random mask": serialised(
        node("Dropout", ["right", "half", "yes"], ["logits"]), half=np.float32(0.5), yes=np.True_
    ),
    "a branch": serialised(
        node("ReduceMin", ["right"], ["least"], keepdims=0),
        node("Less", ["least", "zero"], ["hit"]),
        node("If", ["hit"], ["logits"], then_branch=BRANCH, else_branch=BRANCH),
        zero=np.float32(0),
    ),
    "a loop": serialised(node("Loop", ["", "", "right"], ["logits"], body=BRANCH)),
    "a scan": serialised(node("Scan", ["right"], ["logits"], body=BRANCH, num_scan_inputs=1)),
    "a graph in another operator": serialised(node("Identity", ["right"], ["logits"], body=BRANCH)),
    "a sequence": serialised(
        node("SequenceConstruct", ["right"], ["s"]), node("SequenceAt", ["s", "zero"], ["logits"]), zero=np.int64(0)
    ),
    "an option": serialised(node("Optional", ["right"], ["s"]), node("OptionalGetElement", ["s"], ["logits"])),
    "another domain": serialised(node("FusedMatMul", ["numeric", "weight"], ["logits"], domain="com.microsoft")),
    "a function of its own": _function(),
    "a file": _outside(),
    "onnxruntime's own format": b"\0\0\0\0ORTM" + linear_model(),
    "no graph": b"not a model",
    "nodes out of order": serialised(node("Identity", ["later"], ["logits"]), node("Identity", ["right"], ["later"])),
    "a shape that rows decide": serialised(node("NonZero", ["right"], ["n"]), node("Identity", ["right"], ["logits"])),
    "memory that rows decide": serialised(
        node("Cast", ["right"], ["sizes"], to=TensorProto.INT64),
        node("Reshape", ["sizes", "two"], ["size"]),
        node("ConstantOfShape", ["size"], ["huge"]),
        node("Identity", ["right"], ["logits"]),
        two=np.array([2], np.int64),
    ),
    "a repetition that rows decide": serialised(
        node("Cast", ["right"], ["sizes"], to=TensorProto.INT64),
        node("Reshape", ["sizes", "two"], ["size"]),
        node("Tile", ["right", "size"], ["logits"]),
        two=np.array([2], np.int64),
    ),
    "whole numbers divided by values of a row": serialised(
        node("Cast", ["right"], ["whole"], to=TensorProto.INT64),
        node("Div", ["one", "whole"], ["d"]),
        node("Cast", ["d"], ["logits"], to=TensorProto.FLOAT),
        one=np.int64(1),
    ),
    "the rest of such a division": serialised(
        node("Cast", ["right"], ["whole"], to=TensorProto.INT32),
        node("Mod", ["whole", "whole"], ["d"]),
        node("Cast", ["d"], ["logits"], to=TensorProto.FLOAT),
    ),
}


@pytest.fixture(scope="module")
def talk() -> Talk:
    return Talk(4.0, 20.0)


@pytest.mark.parametrize("model", ONNX_ROWS.values(), ids=ONNX_ROWS)
def test_graphs_that_may_keep_or_mix_are_refused_before_rows_are_touched(talk: Talk, model: bytes) -> None:
    head = talk.ledger.head()
    answer: Answer = talk.evaluate(model, describe(talk.task, model))
    assert (answer.refusal.code, dict(answer.refusal.fields)) == ("FL-EDGE-002", {"reason": "operators"})
    assert talk.ledger.head() == head


def test_a_graph_that_answers_nobody_is_refused_before_rows_are_touched(talk: Talk) -> None:
    head = talk.ledger.head()
    model = serialised(node("Reshape", ["right", "shape"], ["logits"]), shape=np.array([7, 3], np.int64))
    assert talk.evaluate(model, describe(talk.task, model)).refusal.fields["reason"] == "trial"
    three = serialised(node("Concat", ["right", "numeric"], ["logits"], axis=1))
    assert talk.evaluate(three, describe(talk.task, three)).refusal.fields["reason"] == "signature"
    assert talk.ledger.head() == head


@pytest.mark.parametrize("model", TFLITE_ROWS.values(), ids=TFLITE_ROWS)
def test_tflite_graphs_that_may_keep_or_mix_are_refused(model: bytes) -> None:
    with pytest.raises(ArtifactRefused) as caught:
        check_tflite(model)
    assert caught.value.wire().fields == {"reason": "operators"}


def test_exact_runs_take_them_as_they_are() -> None:
    """Nothing is promised there, and a model of one's own may be made of anything."""
    plain = Talk(math.inf, math.inf)
    model = ONNX_ROWS["a random mask"]
    assert plain.evaluate(model, describe(plain.task, model)).evaluation.total == 50


# --- weights -------------------------------------------------------------------------------------------------------


class Hostile(torch.nn.Module):
    def __init__(self, answer: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.answer(values)


def _fails(values: torch.Tensor) -> torch.Tensor:
    if bool((values[:, 0] == 3).any()):
        raise KeyError("the victim")
    return values


MODELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "the mean of a batch": lambda values: values - values.mean(0) + (values == 3).any(),
    "fails on the victim": _fails,
    "another shape for the victim": lambda values: values[:, :1] if bool((values[:, 0] == 3).any()) else values,
    "no row for the victim": lambda values: values[values[:, 0] != 3],
    "random numbers": lambda values: values + torch.rand(values.shape),
    "writes on what it is given": lambda values: values.add_(1),
}


@pytest.mark.parametrize("answer", MODELS.values(), ids=MODELS)
def test_a_models_answer_for_a_row_does_not_depend_on_the_others(
    answer: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    rows = torch.arange(10, dtype=torch.float32).reshape(10, 1).repeat(1, 2)
    others = [row for row in range(10) if row != 3]
    together = outputs_apart(Hostile(answer), (rows,), 2)
    without = outputs_apart(Hostile(answer), (rows[others],), 2)
    np.testing.assert_array_equal(together[others], without)


# --- what is planned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("planned", [1, 3, 20, 2**32 - 1])
def test_other_rounds_than_were_described_are_refused_and_cost_nothing(planned: int) -> None:
    site = Site(make_task(2.0), budget=BUDGET, evaluation_budget=BUDGET)
    site.describe()
    head = site.ledger.head()
    answer, _ = site.ask(arrays_of(site.task), round=1, train_locally=TrainLocally(rounds_planned=planned))
    assert refused(answer) == ("FL-TRUST-006", {"rule": "planned"})
    assert site.ledger.head() == head
