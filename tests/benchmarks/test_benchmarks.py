"""The benchmarks run and tell what they promise; how fast anything is depends on the machine and is not asserted."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray comes with the extra `bench`: make bench")
def test_simulate_compares_with_flower_and_with_bare_loops(told_by: Callable[..., dict[str, Any]]) -> None:
    told = told_by("simulate")
    ratios = {name: value for name, value in told.items() if name.startswith("ratio_")}
    assert {"ratio_flower", "ratio_loop", "ratio_flower_one_thread", "ratio_loop_one_thread"} <= set(ratios)
    assert all(math.isfinite(value) and value > 0 for value in ratios.values())
    assert set(told["rivals"]) == {"ours", "ours_one_thread", "flower", "bare_loop", "torch_loop"}
    for rival in told["rivals"].values():
        assert rival["seconds_per_round"] > 0
        assert 0.5 < rival["accuracy"] <= 1  # the ten digits are learned, not guessed
    split = told["split_seconds"]
    assert {"training", "serialisation", "rest", "whole"} <= set(split)
    assert min(split["training"], split["serialisation"], split["whole"]) > 0
    assert {"cores", "load", "python", "versions"} <= set(told)


@pytest.mark.slow
def test_aggregate_folds_in_the_memory_of_two_models_and_a_half_and_ends_where_flower_does(
    told_by: Callable[..., dict[str, Any]],
) -> None:
    told = told_by("aggregate", "--part", "folding")
    assert set(told["rivals"]) == {"ours", "axpy", "flower"}
    assert 1.9 < told["peak_models"] <= 2.5
    assert told["ratio_axpy"] > 0
    assert told["ratio_flower"] > 0


def test_secure_aggregation_ends_where_the_plain_sum_does(told_by: Callable[..., dict[str, Any]]) -> None:
    told = told_by("secagg")
    assert [(case["sites"], case["dropped"]) for case in told["cases"]] == [(5, 0), (20, 2)]
    for case in told["cases"]:
        assert set(case["site_seconds"]) == {"keys", "shares", "mask", "confirm", "unmask"}
        assert case["ratio_plain"] > 0
        assert 8 * case["parameters"] < case["bytes_up"] < 9 * case["parameters"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.xdist_group("deployment")
def test_a_serverapp_does_not_grow_with_the_number_of_replies(told_by: Callable[..., dict[str, Any]]) -> None:
    deployed = told_by("aggregate", "--part", "deployed", seconds=600)["deployed"]
    assert [told["replies"] for told in deployed["rounds"]] == [2, 8]
    model = deployed["rounds"][0]["model_bytes"]
    few, many = (told["serverapp_models"] * model for told in deployed["rounds"])
    assert (
        abs(many - few) < 2 * model
    )  # six more replies weigh six; seen: from 0 to 1.5, as replies come beside each other or not


@pytest.mark.slow
def test_private_steps_are_set_beside_plain_ones_and_those_of_opacus(told_by: Callable[..., dict[str, Any]]) -> None:
    told = told_by("dpsgd")
    for ratios in told["times_plain"].values():
        assert set(ratios) == {"plain", "ours", *(f"opacus-{mode}" for mode in ("hooks", "functorch", "ew", "ghost"))}
        assert ratios["plain"] == 1.0
        assert all(math.isfinite(value) and value > 0 for value in ratios.values())
    large = {row["mode"]: row for row in told["modes"]["1.2M"]}
    assert large["ours"]["mebibytes"] < large["opacus-hooks"]["mebibytes"] / 2  # no gradient for each row


def test_a_table_is_checked_and_encoded_beside_bare_readers(told_by: Callable[..., dict[str, Any]]) -> None:
    told = told_by("data")
    for kind in ("csv", "parquet"):
        assert told[kind]["ours"]["rows"] == told[kind]["pyarrow"]["rows"] == told["rows"]
        assert told[kind]["ratio"] > 0
        assert told[kind]["ours"]["peak_mib"] > 0
