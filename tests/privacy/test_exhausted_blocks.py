"""Blocks that do not hold a run are left out of it: the run trains on the rest, or is refused with the reason."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
from tests.site.test_daemon import Site, make_task, refused, some_rows

from fedloop_clients.policy import Budget
from fedloop_core.dataset import Dataset
from fedloop_core.privacy.charges import GaussianCharge
from fedloop_proto.coordination.v1.coordination_pb2 import DataDescription

BUDGET = Budget(epsilon=6.0, delta=1e-5)


def site_with_feedback(rows: Dataset | None = None, folder: Path | None = None) -> Site:
    """Rows ``t0`` to ``t199`` in the oldest block; all the rows that came back in a block of their own."""
    site = Site(make_task(2.0), budget=BUDGET, evaluation_budget=BUDGET, folder=folder)
    site.daemon.add_feedback(some_rows(150, "f", 2) if rows is None else rows, 0.0)
    return site


def spend(site: Site, left: float, *blocks: str) -> None:
    """All but this share of what the blocks hold, which are fresh."""
    order, room = site.ledger.headroom(blocks[0]) or (0.0, 0.0)
    charge = GaussianCharge(noise_multiplier=math.sqrt(order / (2 * room * (1 - left))))
    site.ledger.settle(site.ledger.reserve(charge, blocks, "run-0", "an earlier run"), charge)


def described(site: Site) -> DataDescription:
    return site.describe().data_description


def charged(site: Site, block: str) -> int:
    return len(site.ledger.charges(block, "run-1"))


EARLIER = {
    "what is left does not pay for the number of rows": 0.001,
    "what is left pays for the number of rows and not for the rounds": 0.05,
}


@pytest.mark.parametrize("left", EARLIER.values(), ids=EARLIER.keys())
def test_a_run_trains_on_the_rest(left: float, caplog: pytest.LogCaptureFixture) -> None:
    site = site_with_feedback()
    spend(site, left, "original")
    with caplog.at_level(logging.WARNING):
        told = described(site)
    assert (told.admitted, told.blocks_left_out) == (True, 1)
    assert 100 <= told.rows <= 200
    assert "trains without these rows: block 'original' does not hold run run-1" in caplog.text
    before = charged(site, "original")
    for number in range(1, 5):
        assert site.train(number)[0].WhichOneof("result") == "local_update"
    assert charged(site, "original") == before <= 1
    assert charged(site, "feedback-1") == 5
    assert site.ledger.spend("feedback-1").epsilon <= 6.0


def test_nothing_is_left_out_while_all_hold_the_run() -> None:
    site = site_with_feedback()
    told = described(site)
    assert (told.blocks_left_out, told.admitted) == (0, True)
    assert 280 <= told.rows <= 420
    site.train(1)
    assert charged(site, "original") == charged(site, "feedback-1") == 2


def test_a_patient_who_returns_stays_in_the_home_block_and_is_left_out_with_it() -> None:
    """Rows of ``t0`` to ``t99`` come back: no budget of their own, whatever comes with them."""
    returning, new = some_rows(100, "t", 5), some_rows(150, "f", 2)
    site = site_with_feedback(returning.concatenate(new))
    spend(site, 0.001, "original")
    assert described(site).blocks_left_out == 1
    context = site.daemon._runs["run-1"]
    assert set(context.training.units) == set(new.units)
    assert np.isclose(context.training.inputs["numeric"].sum(), new.inputs["numeric"].sum(), rtol=1e-4)


def test_a_run_is_refused_when_no_block_holds_it() -> None:
    site = site_with_feedback()
    spend(site, 0.001, "original", "feedback-1")
    assert refused(site.describe())[0] == "FL-PRIV-002"
    assert charged(site, "original") == charged(site, "feedback-1") == 0


@pytest.mark.parametrize("left", EARLIER.values(), ids=EARLIER.keys())
def test_a_run_is_refused_by_the_data_gate_when_too_few_rows_are_left(left: float) -> None:
    site = site_with_feedback(some_rows(5, "f", 2))
    spend(site, left, "original")
    told = described(site)
    assert not told.admitted
    assert "minimum-rows" in told.reasons
    assert told.blocks_left_out == 1
    assert refused(site.train(1)[0])[0].startswith("FL-")


def test_what_was_left_out_stays_out_over_a_restart(tmp_path: Path) -> None:
    site = site_with_feedback(folder=tmp_path)
    spend(site, 0.001, "original")
    rows = described(site).rows
    site.train(1)
    site.restart()
    site.daemon.add_feedback(some_rows(150, "f", 2), 0.0)
    assert site.train(2, attempt=2)[0].WhichOneof("result") == "local_update"
    assert (charged(site, "original"), charged(site, "feedback-1")) == (0, 3)
    again = site.describe(attempt=2).data_description
    assert (again.rows, again.blocks_left_out) == (rows, 1)


def test_which_blocks_are_left_out_does_not_depend_on_what_their_rows_hold() -> None:
    """The same ledger and as many rows, of other values and labels: the same answer, up to the digest of the rows."""
    told = []
    for seed in (2, 3):
        site = site_with_feedback(some_rows(150, "f", seed))
        spend(site, 0.05, "original")
        description = described(site)
        description.data_fingerprint = b""
        told.append(description)
    assert told[0] == told[1]


def test_a_block_that_is_spent_in_the_middle_of_a_run_ends_it_for_its_site_alone() -> None:
    """Verdicts may spend it between two rounds: the round is refused by name, nothing is charged for it, and it stays refused."""
    site = site_with_feedback()
    assert described(site).blocks_left_out == 0
    assert site.train(1)[0].WhichOneof("result") == "local_update"
    before = site.train(1)[0]
    spend(site, 0.0001, "original")
    spent = [site.ledger.spend(block) for block in ("original", "feedback-1")]
    for number in (2, 3):
        code, fields = refused(site.train(number)[0])
        assert (code, fields) == ("FL-PRIV-002", {})  # which block, the site keeps to itself
    again = site.train(1)[0]  # what was paid for is told again
    assert again.local_update == before.local_update
    assert refused(site.train(2, attempt=2)[0])[0] == "FL-PRIV-002"  # a new attempt changes nothing
    assert [site.ledger.spend(block) for block in ("original", "feedback-1")] == spent
    told = site.describe(run_id="run-2").data_description  # the next run goes on without the block
    assert (told.admitted, told.blocks_left_out) == (True, 1)
