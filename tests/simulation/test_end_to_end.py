"""The whole loop as one command: twice with one seed it is the same, and it ends with version 2 on every device."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloop_simulations.summary import Summary

Starter = Callable[..., subprocess.Popen[str]]


@pytest.mark.slow
def test_the_loop_ends_with_version_2_everywhere_and_repeats_by_its_seed(tmp_path: Path, start: Starter) -> None:
    asked = ("breast-cancer", "--rounds", 4, "--devices", 3, "--seed", 7, "--json", "--out")
    folders = [tmp_path / "one", tmp_path / "two"]
    processes = [start(*asked, folder) for folder in folders]
    said = [process.communicate(timeout=250) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said[0][1]
    first, second = ((folder / "summary.json").read_text() for folder in folders)
    assert without_timings(first) == without_timings(second)
    assert json.loads(said[0][0]) == json.loads(first)  # what is printed is what is written, and nothing else
    _check_summary(Summary.model_validate_json(first))
    for folder in folders:
        _check_report((folder / "report.html").read_text())


def without_timings(summary: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(summary)
    del content["timings"]
    return content


def _check_summary(summary: Summary) -> None:
    assert (summary.seed, summary.private, summary.epsilon) == (7, False, 8.0)
    assert summary.drift.detected
    assert summary.retrained
    assert [run.rounds for run in summary.runs] == [4, 4]
    assert [(version.number, version.parent, version.released) for version in summary.versions] == [
        (1, None, True),
        (2, 1, True),
    ]
    assert [device.version for device in summary.devices] == [2, 2, 2]
    assert {device.runtime for device in summary.devices} == {"onnxruntime", "litert"}
    assert sum(device.predictions for device in summary.devices) == sum(site.stream_rows for site in summary.sites)
    assert all(site.feedback_rows > 0 for site in summary.sites)
    assert summary.left_out == ()
    for site in summary.sites:
        assert site.epsilon is not None
        assert site.evaluation_epsilon is not None
        assert site.budget is not None
        assert 8 < site.epsilon <= site.budget  # two runs and verdicts
        assert 0 < site.evaluation_epsilon <= site.budget
    stream = summary.stream
    assert summary.stream_accuracy == stream
    assert stream.before is not None
    assert stream.under is not None
    assert stream.after is not None
    assert stream.under.value < stream.before.value
    assert stream.under.value < stream.after.value
    for version in summary.versions:
        assert {artifact.kind for artifact in version.artifacts} == {"onnx-fp32", "onnx-int8", "tflite-int8"}
        assert all(artifact.agreement is not None and artifact.agreement > 0.9 for artifact in version.artifacts)


def _check_report(html: str) -> None:
    """Self-contained: no address but the names of SVG's vocabularies, nothing that a browser would fetch."""
    assert set(re.findall(r"https?://[^\s\"'<>)]+", html)) <= {
        "http://www.w3.org/1999/xlink",
        "http://www.w3.org/2000/svg",
    }
    assert re.findall(r"(?:src|href)\s*=\s*[\"'](?!#|data:)", html) == []
    assert re.findall(r"url\((?!#|['\"]?data:)", html) == []
    assert not any(tag in html for tag in ("<link", "<iframe", "<object", "@import"))


@pytest.mark.slow
def test_without_a_seed_the_summary_says_private(make_wards: Callable[[int], Any], start: Starter) -> None:
    wards = make_wards(150)
    wards.change_task("epsilon = inf", "epsilon = 8.0")
    wards.change_task('"per-site"', '"range"')
    wards.task.write_text(wards.task.read_text() + '[export]\ntargets = ["onnx-fp32"]\n')
    process = start(*wards.arguments, "--devices", 1, "--drift", "none")
    printed, progress = process.communicate(timeout=250)
    assert process.returncode == 0, progress
    summary = wards.summary()
    assert (summary.private, summary.seed, summary.epsilon) == (True, None, 8.0)
    assert summary.drift.injected_at_tick is None
    assert summary.stream.under is None
    assert "not private" not in printed
    assert f"Summary: {wards.out / 'summary.json'}" in printed
