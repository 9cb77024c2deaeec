"""The contract of a runtime, over every runtime that is installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedloop_core.arrays import arrays_from_bytes, arrays_to_bytes
from fedloop_core.artifact import TensorSpec
from fedloop_core.errors import ArtifactRefused, GoldenMismatch, InputRefused, RuntimeUnavailable
from fedloop_edge.agent.runtimes import Runtime, available_runtimes, check_golden, load_runtime, runtime_version
from fedloop_edge.agent.runtimes.selection import preferred_kinds

if TYPE_CHECKING:
    from fedloop_core.encoding import Inputs


def some_rows(count: int) -> Inputs:
    random = np.random.default_rng(3)
    return {
        "numeric": random.uniform([20, 80], [90, 200], size=(count, 2)).astype(np.float32),
        "categorical": random.integers(0, 3, size=(count, 1)),
    }


@pytest.fixture(params=available_runtimes())
def case(request: pytest.FixtureRequest, loadable: Any) -> tuple[Any, Runtime]:
    model = loadable(request.param)
    return model, load_runtime(model.description, model.model, request.param)


def test_at_least_two_runtimes_are_under_this_contract() -> None:
    assert {"onnxruntime", "litert"} <= set(available_runtimes())


def test_logits_are_those_of_the_reference_for_any_number_of_rows(case: Any) -> None:
    model, runtime = case
    for count in (1, 2, 7):
        inputs = some_rows(count)
        logits = runtime.run(inputs)
        assert logits.dtype == np.float32
        assert logits.shape == (count, 2)
        np.testing.assert_allclose(logits, model.weights.logits(inputs), rtol=1e-4, atol=1e-4)


def test_a_row_answers_alone_as_among_others(case: Any) -> None:
    _, runtime = case
    inputs = some_rows(5)
    together = runtime.run(inputs)
    alone = np.concatenate([runtime.run({name: a[row : row + 1] for name, a in inputs.items()}) for row in range(5)])
    np.testing.assert_array_equal(together, alone)


def test_an_answer_is_not_changed_by_the_next_one(case: Any) -> None:
    _, runtime = case
    first = runtime.run(some_rows(1))
    kept = first.copy()
    runtime.run({"numeric": np.array([[1.0, 1.0]], np.float32), "categorical": np.array([[2]])})
    np.testing.assert_array_equal(first, kept)


def test_a_missing_number_goes_into_the_model(case: Any) -> None:
    model, runtime = case
    inputs = some_rows(2)
    inputs["numeric"][1, 1] = np.nan
    np.testing.assert_allclose(runtime.run(inputs), model.weights.logits(inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("dtype of numbers", {"numeric": np.ones((1, 2), np.float64)}),
        ("dtype of codes", {"categorical": np.ones((1, 1), np.int32)}),
        ("shape", {"numeric": np.ones((1, 3), np.float32)}),
        ("rank", {"numeric": np.ones(2, np.float32)}),
        ("rows differ", {"numeric": np.ones((2, 2), np.float32)}),
        ("no row", {"numeric": np.ones((0, 2), np.float32), "categorical": np.ones((0, 1), np.int64)}),
        ("another name", {"more": np.ones((1, 2), np.float32)}),
    ],
)
def test_inputs_that_do_not_fit_are_refused(case: Any, name: str, change: Inputs) -> None:
    _, runtime = case
    with pytest.raises(InputRefused):
        runtime.run({**some_rows(1), **change})


def test_codes_beyond_32_bits_are_refused_where_the_model_has_32(case: Any) -> None:
    _, runtime = case
    inputs = {**some_rows(1), "categorical": np.array([[2**40]])}
    with pytest.raises(InputRefused):
        runtime.run(inputs)


def test_the_golden_check_holds(case: Any) -> None:
    model, runtime = case
    assert 0 <= check_golden(runtime, model.description, model.golden) < 1e-5


@pytest.mark.parametrize(
    ("name", "shift", "passes"), [("within", 0.9, True), ("above", 1.1, False), ("far", 100.0, False)]
)
def test_the_golden_tolerance_is_a_share_of_the_range(case: Any, name: str, shift: float, passes: bool) -> None:
    model, runtime = case
    golden = arrays_from_bytes(model.golden)
    logits = golden["logits"].astype(np.float32)
    width = logits.max() - logits.min()
    logits[3, 0] += shift * model.description.golden_tolerance * width * (1 if logits[3, 0] < logits.max() - 1 else -1)
    changed = arrays_to_bytes({**golden, "logits": logits})
    if passes:
        check_golden(runtime, model.description, changed)
        return
    with pytest.raises(GoldenMismatch) as mismatch:
        check_golden(runtime, model.description, changed)
    assert float(mismatch.value.wire().fields["deviation"]) > model.description.golden_tolerance


class _NotFinite(Runtime):
    """A runtime whose kernels overflow."""

    name = "onnxruntime"

    def _load(self, model: bytes) -> None:
        """Loads nothing."""

    def _answer(self, feed: Any) -> Any:
        return np.full((1, 2), np.nan, np.float32)


def test_an_answer_that_is_not_finite_is_a_mismatch(loadable: Any) -> None:
    model = loadable("onnxruntime")
    with pytest.raises(GoldenMismatch):
        check_golden(_NotFinite(model.description, b""), model.description, model.golden)


@pytest.mark.parametrize(
    "change",
    [
        lambda golden: b"junk",
        lambda golden: arrays_to_bytes({n: a[:31] for n, a in golden.items()}),
        lambda golden: arrays_to_bytes({n: a for n, a in golden.items() if n != "logits"}),
        lambda golden: arrays_to_bytes({**golden, "logits": golden["logits"] * np.float32(np.nan)}),
        lambda golden: arrays_to_bytes({**golden, "numeric": golden["numeric"][:20]}),
        lambda golden: arrays_to_bytes({**golden, "numeric": golden["numeric"][:, :1]}),
        lambda golden: arrays_to_bytes({**golden, "logits": golden["logits"][:, :1]}),
    ],
    ids=["junk", "31 rows", "no logits", "not finite", "uneven", "narrow", "one output"],
)
def test_a_golden_file_that_is_not_one_is_refused(case: Any, change: Any) -> None:
    model, runtime = case
    with pytest.raises(ArtifactRefused):
        check_golden(runtime, model.description, change(arrays_from_bytes(model.golden)))


def test_a_constant_model_has_to_answer_exactly(loadable: Any) -> None:
    model = loadable("onnxruntime")
    constant = {**arrays_from_bytes(model.golden), "logits": np.ones((32, 2), np.float32)}
    runtime = load_runtime(model.description, model.model)
    with pytest.raises(GoldenMismatch):
        check_golden(runtime, model.description, arrays_to_bytes(constant))


def test_junk_is_not_loaded(case: Any) -> None:
    model, runtime = case
    for junk in (b"", b"junk" * 100, model.model[: len(model.model) // 2]):
        with pytest.raises((RuntimeUnavailable, ArtifactRefused)):
            load_runtime(model.description, junk, runtime.name)


def test_a_model_that_is_not_the_described_one_is_refused(case: Any) -> None:
    model, runtime = case
    first, second = model.description.inputs
    changes: tuple[dict[str, object], ...] = (
        {"inputs": (first.model_copy(update={"name": "other"}), second)},
        {"output": TensorSpec(name="other", dtype="float32", shape=(2,))},
        {"inputs": (first,)},
        {"inputs": (first.model_copy(update={"shape": (3,)}), second)},
        {"inputs": (first.model_copy(update={"dtype": "int64"}), second)},
    )
    for change in changes:
        described = model.description.model_copy(update=change)
        with pytest.raises(ArtifactRefused):
            load_runtime(described, model.model, runtime.name)


def test_a_runtime_that_does_not_fit_is_not_tried(loadable: Any) -> None:
    model = loadable("onnxruntime")
    for wrong in ("litert", "no-such-runtime"):
        with pytest.raises(RuntimeUnavailable):
            load_runtime(model.description, model.model, wrong)
    with pytest.raises(RuntimeUnavailable):
        load_runtime(model.description.model_copy(update={"runtimes": ()}), model.model)


def test_names_versions_and_kinds() -> None:
    assert preferred_kinds("onnxruntime") == ("onnx-int8", "onnx-fp32")
    assert preferred_kinds("litert") == preferred_kinds("tflite-runtime") == ("tflite-int8",)
    assert runtime_version("onnxruntime")[0].isdigit()
    with pytest.raises(RuntimeUnavailable):
        runtime_version("abacus")


def test_the_device_loads_neither_torch_nor_flower_nor_the_hub() -> None:
    code = (
        "import sys, fedloop_edge.agent.agent, fedloop_edge.agent.runtimes\n"
        "heavy = {'torch', 'flwr', 'opacus', 'jax', 'fedloop_edge.hub', 'fedloop_core.models'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_runtimes_alone_need_neither_grpc_nor_tuf() -> None:
    code = (
        "import sys, fedloop_edge.agent.runtimes\n"
        "heavy = {'grpc', 'tuf', 'onnxruntime', 'ai_edge_litert'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
