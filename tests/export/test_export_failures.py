"""Conversions that fail: a sentence that says why, nothing left behind."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_core.errors import ConversionFailed
from fedloop_server.export import ExportRequest, export_artifacts
from fedloop_server.export.process import _environment

NUMBERS = ({"kind": "numeric", "name": "age", "range": (0.0, 120.0)},)
CODES = ({"kind": "categorical", "name": "ward", "values": ("a", "b", "c")},)
CLASSES = {"kind": "classes", "name": "y", "classes": ("a", "b", "c", "d")}

FACTORIES = '''
import os
from pathlib import Path

import torch
from torch import nn

IN_CHILD = "export.worker" in Path("/proc/self/cmdline").read_text()


class Bag(nn.Module):
    def __init__(self, schema):
        super().__init__()
        self.bag = nn.EmbeddingBag(3, 4)

    def forward(self, codes):
        return self.bag(codes)


class Branches(nn.Module):
    """Decides by a value, which no exporter can follow."""

    def __init__(self, schema):
        super().__init__()
        self.linear = nn.Linear(1, 4)

    def forward(self, numbers):
        outputs = self.linear(numbers)
        return outputs if float(numbers.sum()) >= 0 else -outputs


def dies(schema):
    if IN_CHILD:
        print("the ground opens", flush=True)
        os._exit(3)
    return nn.Linear(1, 4)


def greedy(schema):
    if IN_CHILD:
        torch.ones(3 << 30)
    return nn.Linear(1, 4)
'''


@pytest.fixture(autouse=True)
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trial_exports.py").write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()


def custom(make_request: Any, factory: str, features: tuple[dict[str, Any], ...], target: str) -> ExportRequest:
    request: ExportRequest = make_request(
        features, {"kind": "custom", "factory": f"trial_exports:{factory}"}, export={"targets": (target,)}
    )
    return request


@pytest.mark.parametrize(
    ("factory", "features", "target", "words"),
    [
        pytest.param("Bag", CODES, "tflite-int8", ["tflite-int8", "embedding_bag"], id="operator without a lowering"),
        pytest.param("Branches", NUMBERS, "onnx-fp32", ["onnx-fp32", "data-dependent"], id="branch on a value"),
        pytest.param("dies", NUMBERS, "onnx-fp32", ["status 3", "the ground opens"], id="child dies"),
        pytest.param("greedy", NUMBERS, "onnx-fp32", ["allocate memory"], id="too much memory"),
    ],
)
def test_a_failed_conversion_is_one_readable_sentence(
    make_request: Any, tmp_path: Path, factory: str, features: tuple[dict[str, Any], ...], target: str, words: list[str]
) -> None:
    with pytest.raises(ConversionFailed) as caught:
        export_artifacts(custom(make_request, factory, features, target))
    text = str(caught.value)
    assert "task 'trial' version 3" in text
    assert all(word in text for word in words), text
    assert "Traceback" not in text
    assert len(text) < 1000
    assert not list((tmp_path / "scratch").iterdir())


def test_a_child_that_takes_too_long_is_ended(make_request: Any, tmp_path: Path) -> None:
    request = make_request(NUMBERS, {"kind": "logistic"})
    begun = time.monotonic()
    with pytest.raises(ConversionFailed, match=r"longer than 0\.5 seconds"):
        export_artifacts(request, timeout_seconds=0.5)
    assert time.monotonic() - begun < 5
    assert not list((tmp_path / "scratch").iterdir())
    assert not _processes_in(tmp_path / "scratch")


def _processes_in(folder: Path) -> list[str]:
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # a process may end while we look
            found.append(line.read_bytes().decode(errors="replace"))
    return [command for command in found if str(folder) in command]


def test_an_artifact_above_the_bound_is_refused(make_request: Any) -> None:
    request = make_request(NUMBERS, {"kind": "logistic"}, export={"targets": ("onnx-fp32",), "maximum_bytes": 100})
    with pytest.raises(ConversionFailed, match="maximum_bytes allows 100"):
        export_artifacts(request)


def test_arrays_that_do_not_fit_are_refused(make_request: Any) -> None:
    request = make_request(NUMBERS, {"kind": "logistic"}, export={"targets": ("onnx-fp32",)})
    request.arrays["backbone.linear.bias"] = np.zeros(9, np.float32)
    with pytest.raises(ConversionFailed, match=r"backbone\.linear\.bias has shape \(9,\)"):
        export_artifacts(request)


def test_the_child_gets_no_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDLOOP_DATABASE_PASSWORD", "hunter2")
    assert "hunter2" not in "".join(_environment(tmp_path).values())
