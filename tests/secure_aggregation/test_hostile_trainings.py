"""What a coordinator asks sites to train beside a sum, so that what they mask is not what they agreed on.

S4: all sites agree on one model; then all but one are made to hold updates of a model that moves nothing, and the sum is the one site's
update (Pasquini et al. 2022, eprint 2021/1560). The sites are whole daemons, with ledgers and outboxes on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.secure_aggregation.daemons import MODEL, OTHER, OTHERS, SITES, VICTIM, Refused, Sites

from fedloop_core.arrays import ArraySpec
from fedloop_server.aggregation import FixedPointSum
from fedloop_server.secure_aggregation.machine import SecureSum, Stage


def plain(updates: list[dict[str, np.ndarray]]) -> list[bytes]:
    """Their sum without masks, to the bit."""
    sums = FixedPointSum(ArraySpec.of(updates[0]), largest_value=1000.0, total_weight=len(SITES))
    for arrays in updates:
        sums.add(arrays, 1)
    return [array.tobytes() for array in sums.sum().values()]


def unmasked(summed: SecureSum, like: dict[str, np.ndarray]) -> list[bytes]:
    sums = FixedPointSum(ArraySpec.of(like), largest_value=1000.0, total_weight=len(SITES))
    sums.add_whole(summed.whole, summed.weight)
    return [array.tobytes() for array in sums.sum().values()]


def _other_model(sites: Sites) -> list[str]:
    return [sites.try_train(site, OTHER) for site in OTHERS]


def _other_order(sites: Sites) -> list[str]:
    return [sites.try_train(site, MODEL, shuffle_seed=5) for site in OTHERS]


def _next_attempt(sites: Sites) -> list[str]:
    sites.attempt = 2
    return _other_model(sites)


def _restarted(sites: Sites) -> list[str]:
    """Secrets are gone, the word that was given is not."""
    for site in OTHERS:
        sites.restart(site)
    return _other_model(sites)


@dataclass(frozen=True)
class Swap:
    """What a coordinator does between ShareKeys and MaskInput.

    ``before``: the other training is in the outbox. ``restarts``: another instance must follow, as the secrets of the first are gone.
    """

    name: str
    swap: Callable[[Sites], list[str]]
    before: bool = False
    restarts: bool = False


SWAPS = [
    Swap("S4 the round on another model in between", _other_model),
    Swap("S4 the other update asked for again, which the site has kept from before", _other_model, before=True),
    Swap("S4 the same model, in another order of its rows", _other_order),
    Swap("S4 under a later attempt", _next_attempt),
    Swap("S4 after the sites were restarted", _restarted, restarts=True),
]


@pytest.mark.parametrize("row", SWAPS, ids=lambda row: row.name)
def test_the_update_that_was_agreed_on_is_the_one_that_is_masked(row: Swap, tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    if row.before:
        for site in OTHERS:
            sites.train(site, OTHER)
    for site in SITES:
        sites.train(site, MODEL)
    of_model = [sites.updates[site][-1] for site in SITES]
    charged = {site: sites.daemons[site]._ledger.head() for site in SITES}
    round_ = sites.round(1)
    sites.sum_up_to(Stage.SHARES, round_)
    assert row.swap(sites) == ["update", "update"]
    assert {site: sites.daemons[site]._ledger.head() for site in SITES} == charged  # before anything is computed
    if row.restarts:
        for site in SITES:
            assert sites.try_train(site, MODEL) == ""  # as it was asked for first: from the outbox
        round_ = sites.round(2)
        sites.sum_up_to(Stage.SHARES, round_)
    told = unmasked(sites.rest_of_sum(round_), of_model[0])
    assert told == plain(of_model)
    assert told != plain(of_model[:1])


def test_a_later_instance_of_a_round_is_on_the_same_update(tmp_path: Path) -> None:
    """S4: a sum that was given up once it was agreed on, and begun again on another model, in memory and after a restart."""
    sites = Sites(tmp_path)
    for site in SITES:
        sites.train(site, OTHER)
        sites.train(site, MODEL)
    sites.sum_up_to(Stage.SHARES, sites.round(1))
    for number in (2, 3):
        assert [sites.try_train(site, OTHER) for site in SITES] == ["update"] * 3
        with pytest.raises(Refused, match="model" if number == 2 else "no-update"):
            sites.sum_up_to(Stage.SHARES, sites.round(number), OTHER)
        for site in SITES:
            sites.restart(site)
    sites.attempt = 2
    for site in SITES:
        sites.train(site, MODEL)
    round_ = sites.round(17)
    sites.sum_up_to(Stage.SHARES, round_)
    told = unmasked(sites.rest_of_sum(round_), sites.updates[VICTIM][-1])
    assert told == plain([sites.updates[site][-1] for site in SITES])
    assert sites.try_train(VICTIM, OTHER) == "update"  # nor when it was summed


def test_before_an_update_is_agreed_on_a_round_may_be_trained_again(tmp_path: Path) -> None:
    """As after a coordinator was put back from a backup; the spare trainings are still as many."""
    sites = Sites(tmp_path)
    for site in SITES:
        sites.train(site, MODEL)
    sites.sum_up_to(Stage.KEYS, sites.round(1))
    for site in SITES:
        sites.train(site, OTHER)
    round_ = sites.round(2)
    sites.sum_up_to(Stage.SHARES, round_, OTHER)
    told = unmasked(sites.rest_of_sum(round_), sites.updates[VICTIM][-1])
    assert told == plain([sites.updates[site][-1] for site in SITES])
