"""How many sites may work with the coordinator: what a floor withstands, that one more is too many, and what holds where nobody has set one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.secure_aggregation.daemons import MODEL, SITES, Refused, Sites
from tests.secure_aggregation.federation import AT, LARGEST, Federation, names, refusal, run, take

from fedloop_clients.secure_aggregation.policy import floor_of, floor_words, withstood
from fedloop_clients.secure_aggregation.states import Masked
from fedloop_core.fixed_point import FixedPoint
from fedloop_core.secure_aggregation.agreement import KeyPair, pair_key, self_key
from fedloop_core.secure_aggregation.identity import LEAST_SITES, MOST_SITES, least_threshold
from fedloop_core.secure_aggregation.masks import MaskStream
from fedloop_core.secure_aggregation.messages import ConfirmSurvivors, SiteSignature, Unmask, Unmasking
from fedloop_core.secure_aggregation.sharing import join_shares
from fedloop_core.secure_aggregation.transcript import members_transcript, survivors_text
from fedloop_server.secure_aggregation.machine import Stage

VICTIM = "site-00"


@pytest.mark.parametrize("sites", [12, 5])
def test_s5_a_coordinator_and_two_sites_do_not_pick_a_third_one_out(sites: int, tmp_path: Path) -> None:
    """People have set no floor, and the coordinator takes 3 sites of the consortium."""
    known = (*SITES, *(f"east-{at}" for at in range(sites - 3)))
    small = Sites(tmp_path, known)
    for site in SITES:
        small.train(site, MODEL)
    with pytest.raises(Refused, match="cohort"):
        small.sum_up_to(Stage.SHARES, small.round(1))


@pytest.mark.parametrize(
    ("asked", "sites", "floor", "others"),
    [
        (None, 3, 3, 1),
        (None, 4, 3, 1),
        (None, 5, 4, 1),
        (None, 12, 9, 3),
        (None, 100, 67, 22),
        (3, 12, 3, 1),
        (12, 12, 12, 4),
        (5, 4, 5, 2),
    ],
)
def test_a_floor_and_what_it_withstands(asked: int | None, sites: int, floor: int, others: int) -> None:
    assert (floor_of(asked, sites), withstood(floor)) == (floor, others)
    words = floor_words(asked, sites)
    assert f"{floor} of these {sites} sites" in words
    assert f"up to {others} other site" in words


def test_words_before_anything_was_accepted() -> None:
    assert "more than two thirds" in floor_words(None, 0)
    assert "takes 7 sites or more" in floor_words(7, 0)


def test_what_a_floor_withstands_is_the_least_over_all_cohorts_that_it_allows() -> None:
    """T of c sign a list and give shares. t of them make two lists from 2T - c on; and two honest updates, at least, are in each sum."""
    for floor in range(LEAST_SITES, MOST_SITES - 1):
        cohorts = [(c, least_threshold(c)) for c in range(floor, MOST_SITES + 1)]
        assert withstood(floor) == min(2 * t - c - 1 for c, t in cohorts)
        assert withstood(floor) <= min(t for _, t in cohorts) - 2


class Collusion:
    """A coordinator with some of ten sites, whose floor is 9: it has two lists signed, one with the victim and one without."""

    def __init__(self, colluding: int) -> None:
        self.federation = Federation(10, minimum=9)
        self.round = self.federation.coordinator(AT)
        run(self.federation, self.round, until=Stage.INPUTS)
        self.vectors = {}
        for site, question in self.round.ask_inputs().items():
            answer = self.federation.answer(site, question)
            self.vectors[site] = answer.masked.copy()  # type: ignore[union-attr]
            take(self.round, site, answer)
        self.sites = tuple(names(10))
        self.bad = self.sites[10 - colluding :]
        honest = self.sites[: 10 - colluding]
        self.whole = (honest[: (len(honest) + 1) // 2], self.sites)
        self.without = (honest[(len(honest) + 1) // 2 :], self.sites[1:])
        self.transcript = members_transcript(self.round._transcript, self.sites)
        self.held = {site: self._state(site) for site in self.bad}

    def _state(self, site: str) -> Masked:
        state = next(iter(self.federation.machines[site]._live.values())).state
        assert isinstance(state, Masked)
        return state

    def released(self, signers: tuple[str, ...], survivors: tuple[str, ...]) -> dict[str, Unmasking]:
        """What honest signers of one list give out for it; the coordinator's sites sign every list."""
        text = survivors_text(self.transcript, survivors)
        signed = {site: self.federation.keys[site].sign(text) for site in self.bad}
        for site in signers:
            machine = self.federation.machines[site]
            signed[site] = machine.confirm(ConfirmSurvivors(AT, survivors)).signature
        question = Unmask(AT, tuple(SiteSignature(site, signed[site]) for site in sorted(signed)))
        given = {site: self.federation.answer(site, question) for site in signers}
        return {site: answer for site, answer in given.items() if isinstance(answer, Unmasking)}

    def unmasked(self) -> np.ndarray:
        """The victim's update alone, in whole numbers."""
        alive, dead = self.released(*self.whole), self.released(*self.without)
        places = {site: place for place, site in enumerate(self.sites)}
        seeds = {places[site]: share.content for site, a in alive.items() for share in a.seeds if share.site == VICTIM}
        keys = {places[site]: share.content for site, a in dead.items() for share in a.keys if share.site == VICTIM}
        for site, state in self.held.items():
            seeds[places[site]], keys[places[site]] = state.shares[VICTIM]
        threshold = least_threshold(10)
        key = KeyPair.from_secret(join_shares(keys, threshold))
        vector, stream = self.vectors[VICTIM], MaskStream()
        own = self_key(join_shares(seeds, threshold), members=self.transcript, instance=AT, site=VICTIM)
        stream.apply(own, vector, add=False)
        for other in self.sites[1:]:
            peer = self.round._cohort[other].mask_key
            mask = pair_key(key, peer, members=self.transcript, instance=AT, site=VICTIM, other=other)
            stream.apply(mask, vector, add=False)
        return vector.view(np.int64)


def test_as_many_sites_as_a_floor_withstands_have_no_second_list_signed() -> None:
    scene = Collusion(withstood(9))
    assert refusal(scene.unmasked) == "survivors"


def test_one_site_more_than_a_floor_withstands_is_too_many() -> None:
    """What is not protected, so that nobody claims more: of 10 sites, 4 and the coordinator see a fifth one's update."""
    scene = Collusion(withstood(9) + 1)
    federation = scene.federation
    point = FixedPoint(federation.spec.dtypes, largest_value=LARGEST, total_weight=federation.total_weight)
    expected = np.zeros(federation.spec.size, dtype=np.int64)
    start = 0
    for array in federation.updates[VICTIM].values():
        point.add(array, federation.weights[VICTIM], expected[start : start + array.size])
        start += array.size
    seen = scene.unmasked()
    assert seen[:-1].tobytes() == expected.tobytes()
    assert int(seen[-1]) == federation.weights[VICTIM]
