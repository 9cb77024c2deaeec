"""How rows reach the sites of a simulation and their devices: none twice, mixed alike, the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.dataset import Dataset
from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import UsageError
from fedloop_core.schema import ClassLabel, FeatureSchema, NumericFeature, RegressionLabel
from fedloop_core.task.presets import load_preset
from fedloop_simulations.data import Shares, World, load_world
from fedloop_simulations.data.split import divide

SIZES = {"breast-cancer": 569, "digits": 1797}


def parts(world: World) -> list[Dataset]:
    streams = [stream.rows for stream in world.stream]
    return [part for site in world.sites for part in (site.train, site.evaluation)] + streams


@pytest.mark.parametrize("preset", SIZES)
@pytest.mark.parametrize("sites", [1, 3, 4])
def test_bundled_rows_are_all_dealt_once_and_mixed_alike(preset: str, sites: int) -> None:
    task = load_preset(preset)
    world = load_world(task, sites=sites, seed=7)
    units = [unit for part in parts(world) for unit in part.units]
    assert sorted(units) == sorted(f"row-{number}" for number in range(1, SIZES[preset] + 1))
    assert [site.name for site in world.sites] == [stream.name for stream in world.stream]
    share = np.bincount(np.concatenate([part.labels for part in parts(world)])) / SIZES[preset]
    for site, stream in zip(world.sites, world.stream, strict=True):
        total = len(site.train) + len(site.evaluation) + len(stream.rows)
        assert abs(total - SIZES[preset] / sites) < sites
        assert (len(site.train), len(site.evaluation)) == pytest.approx((0.35 * total, 0.08 * total), abs=2)
        assert np.bincount(site.train.labels) / len(site.train) == pytest.approx(share, abs=0.02)
        assert np.bincount(site.evaluation.labels) / len(site.evaluation) == pytest.approx(share, abs=0.05)
    assert not any(InputEncoder(task.feature_schema).out_of_range(part.inputs).any() for part in parts(world))


def test_the_seed_alone_decides_and_streams_are_not_in_order_of_outcome() -> None:
    task = load_preset("breast-cancer")
    first, again, other = (load_world(task, seed=seed) for seed in (1, 1, 2))
    assert [part.units for part in parts(first)] == [part.units for part in parts(again)]
    assert [part.units for part in parts(first)] != [part.units for part in parts(other)]
    changes = np.count_nonzero(np.diff(first.stream[0].rows.labels.astype(np.int64)))
    assert changes > 10  # one, if outcomes came one after the other


def test_a_task_with_the_columns_of_a_preset_gets_its_data() -> None:
    preset = load_preset("digits")
    changed = preset.model_copy(update={"name": "mine", "rounds": preset.rounds.model_copy(update={"count": 3})})
    assert len(load_world(changed, sites=2).sites) == 2


def test_shares_can_be_given_and_must_sum_to_one() -> None:
    world = load_world(load_preset("breast-cancer"), sites=1, shares=Shares(train=0.8, evaluation=0.2, stream=0.0))
    assert (len(world.sites[0].train), len(world.stream[0].rows)) == (455, 0)
    for train, evaluation, stream in ((0.5, 0.5, 0.5), (0.0, 0.5, 0.5), (1.5, -0.5, 0.0), (float("nan"), 0.5, 0.5)):
        with pytest.raises(UsageError, match="must sum to 1"):
            Shares(train, evaluation, stream)


def test_more_sites_than_rows_is_refused_with_counts() -> None:
    with pytest.raises(UsageError, match="600 sites cannot share 569 rows of breast-cancer"):
        load_world(load_preset("breast-cancer"), sites=600)
    with pytest.raises(UsageError, match="at least 1 site, not 0"):
        load_world(load_preset("breast-cancer"), sites=0)


def test_a_task_without_known_data_asks_for_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data"):
        load_world(load_preset("heart"))


SCHEMA = FeatureSchema(
    features=(NumericFeature(kind="numeric", name="x", range=(0.0, 1.0)),),
    label=ClassLabel(kind="classes", name="y", classes=("a", "b", "c")),
)
NUMBERS = FeatureSchema(features=SCHEMA.features, label=RegressionLabel(kind="regression", name="y", range=(0.0, 9.0)))


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=40),
    weights=st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any),
    seed=st.integers(0, 99),
    schema=st.sampled_from([SCHEMA, NUMBERS]),
)
def test_dividing_keeps_every_row_and_every_unit_whole(
    rows: list[tuple[int, int]], weights: list[int], seed: int, schema: FeatureSchema
) -> None:
    dtype = np.int64 if schema is SCHEMA else np.float32
    labels = np.array([label for label, _ in rows], dtype=dtype)
    values = np.arange(len(rows), dtype=np.float32).reshape(-1, 1)
    data = Dataset({"numeric": values}, labels, tuple(f"u{unit}" for _, unit in rows))
    shares = [weight / sum(weights) for weight in weights]
    divided = divide(data, schema, shares, np.random.default_rng(seed))
    assert sorted(np.concatenate([part.inputs["numeric"][:, 0] for part in divided])) == list(range(len(rows)))
    homes = [set(part.units) for part in divided]
    assert sum(map(len, homes)) == len(set(data.units))
    for share, home in zip(shares, homes, strict=True):
        assert abs(len(home) - share * len(set(data.units))) < len(shares)
        assert home == set() or share > 0
