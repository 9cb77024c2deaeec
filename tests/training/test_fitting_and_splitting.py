"""How a batch is cut: into what fits the memory, and over ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedloop_clients.training.memory import BatchFit, fitted_size
from fedloop_clients.training.splitting import split_rows, split_units


def test_a_batch_is_fitted_to_what_a_trial_took() -> None:
    assert fitted_size(256, 16, 16_000, 100_000, 0.8) == 64  # 80 rows fit
    assert fitted_size(64, 16, 16_000, 100_000, 0.8) == 64
    assert fitted_size(50, 16, 16_000, 100_000, 0.8) == 50
    assert fitted_size(256, 16, 16_000, 500, 0.8) == 1
    assert fitted_size(256, 16, 0, 500, 0.8) == 256


@given(
    bound=st.integers(1, 10**6),
    rows=st.integers(1, 16),
    bytes_=st.integers(1, 10**12),
    free=st.integers(0, 10**12),
    share=st.floats(0.01, 1.0),
)
def test_what_is_fitted_takes_no_more_than_its_share(
    bound: int, rows: int, bytes_: int, free: int, share: float
) -> None:
    size = fitted_size(bound, rows, bytes_, free, share)
    assert 1 <= size <= bound
    assert size == 1 or size * bytes_ / rows <= free * share * (1 + 1e-9)


def test_a_fit_is_halved_down_to_one_row() -> None:
    sizes, fit = [], BatchFit(100)
    while (smaller := fit.halved()) is not None:
        fit = smaller
        sizes.append(fit.size)
    assert sizes == [50, 25, 12, 6, 3, 1]


@given(sizes=st.lists(st.integers(1, 50), max_size=60), ranks=st.integers(1, 5))
def test_units_go_whole_to_one_rank_in_their_order(sizes: list[int], ranks: int) -> None:
    units = np.arange(len(sizes), dtype=np.int64) * 3
    rows = np.array(sizes, dtype=np.int64)
    parts = split_units(units, rows, ranks)
    assert len(parts) == ranks
    assert np.concatenate(parts).tolist() == units.tolist()
    if sizes:
        loads = [int(rows[np.isin(units, part)].sum()) for part in parts]
        assert max(loads) <= sum(sizes) / ranks + max(sizes)


@given(rows=st.integers(0, 50), ranks=st.integers(1, 5))
def test_rows_are_dealt_evenly(rows: int, ranks: int) -> None:
    parts = split_rows(np.arange(rows, dtype=np.int64), ranks)
    assert [len(part) for part in parts] == sorted((len(part) for part in parts), reverse=True)
    assert np.concatenate(parts).tolist() == list(range(rows))
