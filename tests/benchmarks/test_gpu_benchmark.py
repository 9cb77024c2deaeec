"""The benchmark of training on devices runs on any machine and tells what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_gpu_measures_the_cpu_where_there_is_no_gpu() -> None:
    ran = subprocess.run(
        [sys.executable, "benchmarks/gpu.py", "--short", "--json"],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    told = json.loads(ran.stdout)
    assert told["device"].startswith("cuda:" if told["gpus"] else "cpu")
    assert told["precision_of_ours"] == "float32"
    for kind in ("plain", "private"):
        assert 0 < told[kind]["step_seconds"] < told[kind]["warm_round_seconds"]
        assert told[kind]["warm_round_seconds"] < told[kind]["cold_round_seconds"]
        assert told[kind]["difference"] < 1e-3
        assert set(told[f"bare_{kind}_step_seconds"]) == {"float32", "bfloat16"}
        assert told[f"ratio_bare_{kind}"] > 0
