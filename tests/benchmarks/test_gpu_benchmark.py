"""The benchmark of training on devices runs on any machine and tells what it promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.slow
def test_gpu_measures_the_cpu_where_there_is_no_gpu(told_by: Callable[..., dict[str, Any]]) -> None:
    told = told_by("gpu")
    assert told["device"].startswith("cuda:" if told["gpus"] else "cpu")
    assert told["precision_of_ours"] == "float32"
    for kind in ("plain", "private"):
        assert 0 < told[kind]["step_seconds"] < told[kind]["warm_round_seconds"]
        assert told[kind]["warm_round_seconds"] < told[kind]["cold_round_seconds"]
        assert told[kind]["difference"] < 1e-3
        assert set(told[f"bare_{kind}_step_seconds"]) == {"float32", "bfloat16"}
        assert told[f"ratio_bare_{kind}"] > 0
