"""Every kind of model through every target, in the runtimes that devices use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray

from fedloop_clients.scoring.artifact import ArtifactApart
from fedloop_core.arrays import arrays_from_bytes
from fedloop_core.encoding import CATEGORICAL, NUMERIC, InputEncoder, Inputs
from fedloop_core.models import build_model
from fedloop_core.sketch import Profile
from fedloop_core.task.document import ExportTarget
from fedloop_edge.agent.runtimes import check_golden, load_runtime
from fedloop_server.export import Artifact, ExportRequest, export_artifacts
from fedloop_server.export.synthetic import synthetic_inputs

NUMBERS = (
    {"kind": "numeric", "name": "age", "range": (0.0, 120.0)},
    {"kind": "numeric", "name": "weight", "range": (-5.0, 5.0), "missing": "mean"},
    {"kind": "numeric", "name": "dose", "range": (0.0, 1.0)},
)
CATEGORIES = (
    {"kind": "categorical", "name": "ward", "values": ("a", "b", "c"), "other": True},
    {"kind": "categorical", "name": "sex", "values": ("f", "m"), "missing": "category"},
)
IMAGE = {"kind": "image", "name": "scan", "height": 8, "width": 8, "range": (0.0, 16.0)}
SIGNAL = {"kind": "signal", "name": "ecg", "length": 60, "channels": 2, "range": (-5.0, 5.0)}
DAYS = {"kind": "regression", "name": "days", "range": (100.0, 300.0)}

KINDS: dict[str, dict[str, Any]] = {
    "logistic": {"features": NUMBERS + CATEGORIES, "model": {"kind": "logistic"}},
    "mlp": {"features": NUMBERS + CATEGORIES, "model": {"kind": "mlp", "hidden": (32, 16)}},
    "cnn": {"features": (*NUMBERS, *CATEGORIES, IMAGE), "model": {"kind": "cnn", "channels": (8, 12)}},
    "signal-cnn": {"features": (SIGNAL,), "model": {"kind": "signal-cnn", "channels": (8, 12)}, "label": DAYS},
}
TARGETS: tuple[ExportTarget, ...] = ("onnx-fp32", "onnx-int8", "tflite-int8")
DEVIATION = {"onnx-fp32": 1e-5, "onnx-int8": 0.06, "tflite-int8": 0.06}
"""Largest deviation from torch over fresh synthetic rows, as a fraction of the range of outputs."""


@dataclass(frozen=True)
class Exported:
    request: ExportRequest
    artifacts: tuple[Artifact, ...]

    def torch_outputs(self, inputs: Inputs) -> NDArray[np.float32]:
        model = build_model(self.request.task).eval()
        model.load_trainable_arrays(self.request.trainable)
        model.set_scaler(self.request.scaler)
        with torch.no_grad():
            specs = InputEncoder(self.request.task.feature_schema).inputs
            outputs: NDArray[np.float32] = model(*(torch.from_numpy(inputs[spec.name]) for spec in specs)).numpy()
        return outputs

    def rows(self, count: int) -> Inputs:
        return synthetic_inputs(self.request.task.feature_schema, self.request.scaler, count, seed=(99,))


@pytest.fixture(scope="module", params=KINDS)
def exported(request: pytest.FixtureRequest, make_request: Any) -> Exported:
    asked = make_request(**KINDS[request.param])
    return Exported(asked, export_artifacts(asked))


def test_a_site_answers_each_row_alone_and_a_row_that_fails_changes_no_other(exported: Exported) -> None:
    inputs = exported.rows(40)
    spoilt = {name: array.copy() for name, array in inputs.items()}
    if CATEGORICAL in spoilt:
        spoilt[CATEGORICAL][3] = 2**40  # no table has such a place
    others = np.arange(40) != 3
    for artifact in exported.artifacts:
        apart = ArtifactApart(artifact.description, artifact.model)
        found = apart.outputs(inputs)
        together = load_runtime(artifact.description, artifact.model).run(inputs)
        assert float(np.abs(found - together).max()) <= 1e-4 * float(np.ptp(together)), artifact.description.kind
        again = apart.outputs(spoilt)
        np.testing.assert_array_equal(again[others], found[others])
        if exported.request.task.model.kind == "mlp":  # embeds its categories, and looks for a row that is not there
            assert np.isnan(again[3]).all()


def test_answers_agree_with_torch(exported: Exported) -> None:
    inputs = exported.rows(120)
    expected = exported.torch_outputs(inputs)
    assert tuple(artifact.description.kind for artifact in exported.artifacts) == TARGETS
    for artifact in exported.artifacts:
        found = load_runtime(artifact.description, artifact.model).run(inputs)
        deviation = np.abs(found - expected).max() / np.ptp(expected)
        assert deviation < DEVIATION[artifact.description.kind], artifact.description.kind
        if expected.shape[1] > 1:
            agreement = (found.argmax(axis=1) == expected.argmax(axis=1)).mean()
            assert agreement >= 0.95, artifact.description.kind


def test_a_row_alone_is_the_row_in_a_batch(exported: Exported) -> None:
    inputs = exported.rows(7)
    for artifact in exported.artifacts:
        runtime = load_runtime(artifact.description, artifact.model)
        alone = [runtime.run({name: array[row : row + 1] for name, array in inputs.items()}) for row in range(7)]
        np.testing.assert_allclose(runtime.run(inputs), np.concatenate(alone), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("exported", ["logistic", "mlp", "cnn"], indirect=True)
def test_missing_numbers_and_numbers_out_of_range_are_handled_in_the_graph(exported: Exported) -> None:
    inputs = exported.rows(2)
    wild = {name: array.copy() for name, array in inputs.items()}
    tame = {name: array.copy() for name, array in inputs.items()}
    wild[NUMERIC][:] = [[500.0, np.nan, 0.5], [-3.0, 1e9, 0.5]]
    tame[NUMERIC][:] = [[120.0, 0.0, 0.5], [0.0, 5.0, 0.5]]
    for artifact in exported.artifacts:
        runtime = load_runtime(artifact.description, artifact.model)
        answers = runtime.run(wild)
        assert np.isfinite(answers).all()
        np.testing.assert_array_equal(answers, runtime.run(tame))


def test_golden_files_pass_their_own_check_and_cover_the_schema(exported: Exported) -> None:
    schema = exported.request.task.feature_schema
    for artifact in exported.artifacts:
        description = artifact.description
        assert description.golden_tolerance == (0.01 if description.kind == "tflite-int8" else 0.005)
        assert check_golden(load_runtime(description, artifact.model), description, artifact.golden) == 0.0
        golden = arrays_from_bytes(artifact.golden)
        logits = golden.pop("logits")
        assert len(logits) >= 32
        assert not InputEncoder(schema).out_of_range(golden).any()
        for at, feature in enumerate(schema.categorical):
            assert set(golden[CATEGORICAL][:, at]) == set(range(feature.cardinality))
        for at, number in enumerate(schema.numeric):
            assert np.isnan(golden[NUMERIC][:, at]).any() == (number.missing == "mean")


def test_descriptions_say_what_the_files_are(exported: Exported) -> None:
    request = exported.request
    convolutional = request.task.model.kind.endswith("cnn")
    for artifact in exported.artifacts:
        description = artifact.description
        assert (description.task, description.version, description.privacy) == ("trial", 3, request.privacy)
        assert description.lineage == request.lineage
        assert Profile.from_bytes(artifact.profile) == Profile.for_schema(request.task.feature_schema, request.scaler)
        dynamic = description.kind == "onnx-int8" and not convolutional
        assert description.rows == ("one" if dynamic or description.kind == "tflite-int8" else "batch")
        assert "ConvInteger" not in description.operators
        quantised = {"onnx-fp32": set(), "onnx-int8": {"MatMulInteger", "QuantizeLinear"}, "tflite-int8": set()}
        assert not quantised[description.kind] or quantised[description.kind] & set(description.operators)


def test_onnx_files_hold_no_trace_of_this_machine(exported: Exported) -> None:
    for artifact in exported.artifacts[:2]:
        model = onnx.load_from_string(artifact.model)
        assert not model.metadata_props
        assert not any(node.metadata_props or node.doc_string for node in model.graph.node)
        assert b"site-packages" not in artifact.model
        assert b"fedloop_core/" not in artifact.model


@pytest.mark.parametrize("exported", ["cnn"], indirect=True)
def test_the_same_request_gives_the_same_bytes(exported: Exported) -> None:
    assert export_artifacts(exported.request) == exported.artifacts


@pytest.mark.parametrize("exported", ["signal-cnn"], indirect=True)
def test_a_regression_answers_in_the_label_s_unit(exported: Exported) -> None:
    for artifact in exported.artifacts:
        outputs = load_runtime(artifact.description, artifact.model).run(exported.rows(20))
        assert 50 < outputs.mean() < 350
