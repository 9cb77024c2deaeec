"""Target paths and the assignment document."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.errors import AssignmentRefused, UsageError
from fedloop_core.release import (
    ArtifactFile,
    Assignment,
    artifact_path,
    assignment_path,
    parse_artifact_path,
    task_role,
)

FIELDS: dict[str, Any] = {"format": 1, "task": "heart", "group": "wave-1", "version": 2, "counter": 3}


def test_paths_are_as_the_devices_expect() -> None:
    assert artifact_path("heart", 2, "tflite-int8", "model.tflite") == "heart/2/tflite-int8/model.tflite"
    assert assignment_path("heart", "wave-1") == "assignments/heart/wave-1.json" == Assignment(**FIELDS).path
    assert task_role("heart") == "task-heart"
    assert parse_artifact_path("heart/2/onnx-int8/golden.safetensors") == ArtifactFile(
        "heart", 2, "onnx-int8", "golden.safetensors"
    )


BAD_NAMES = ["", ".", "..", "../x", "a/b", "/a", "a\\b", "a\n", "a\0", "*", "a?", "[a]", "é", "x" * 101]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_could_leave_its_folder_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        assignment_path("heart", name)
    with pytest.raises(UsageError):
        artifact_path(name, 1, "onnx-fp32", "model.onnx")
    with pytest.raises(UsageError):
        artifact_path("heart", 1, "onnx-fp32", name)
    for field in ("task", "group"):
        with pytest.raises(ValueError, match=field):
            Assignment(**{**FIELDS, field: name})


@pytest.mark.parametrize(
    "path",
    ["heart/02/onnx-fp32/model.onnx", "heart/0/onnx-fp32/model.onnx", "heart/1/exe/model.onnx", "heart/1/onnx-fp32/x",
     "heart/1/onnx-fp32", "assignments/heart/wave-1.json", "heart/1/onnx-fp32/../model.onnx", "Heart/1/onnx-fp32/model.onnx"],
)  # fmt: skip
def test_other_paths_are_not_artifacts(path: str) -> None:
    with pytest.raises(UsageError):
        parse_artifact_path(path)


@given(st.builds(Assignment, format=st.just(1), task=st.from_regex(r"\A[a-z][a-z0-9\-]{0,62}\Z"),
                 group=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_\-]{0,99}\Z"), version=st.integers(1, 2**31),
                 counter=st.integers(1, 2**62), rollback_of=st.none() | st.integers(2**31 + 1, 2**32 - 1)))  # fmt: skip
def test_an_assignment_survives_its_bytes(assignment: Assignment) -> None:
    assert Assignment.from_bytes(assignment.to_bytes()) == assignment


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("not JSON", b"\x00"),
        ("a list", b"[]"),
        ("unknown key", b'{"format":1,"task":"heart","group":"w","version":1,"counter":1,"extra":1}'),
        ("unknown format", b'{"format":2,"task":"heart","group":"w","version":1,"counter":1}'),
        ("counter as text", b'{"format":1,"task":"heart","group":"w","version":1,"counter":"1"}'),
        ("version 0", b'{"format":1,"task":"heart","group":"w","version":0,"counter":1}'),
        ("takes back itself", b'{"format":1,"task":"heart","group":"w","version":1,"counter":1,"rollback_of":1}'),
        ("path in the task", b'{"format":1,"task":"../heart","group":"w","version":1,"counter":1}'),
        ("too long", b" " * 5000),
    ],
)
def test_a_document_that_is_no_assignment_is_refused(name: str, content: bytes) -> None:
    with pytest.raises(AssignmentRefused):
        Assignment.from_bytes(content)


def test_the_device_side_needs_neither_numpy_nor_tuf_nor_torch() -> None:
    code = "import sys, fedloop_core.release; print(sorted({'numpy', 'tuf', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
