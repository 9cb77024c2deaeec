"""Sites whose people accept another consortium while a run goes on, or who do not all know the same sites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.secure_sites import SEED, Watched, rows_of, task_of

from fedloop_core.errors import PolicyRefused
from fedloop_core.secure_aggregation.identity import Consortium
from fedloop_server.runs.events import RoundClosed
from fedloop_simulations.keys import rehearsal_consortium, rehearsal_key

Make = Callable[..., Any]
WARDS = tuple(f"ward-{at}" for at in range(5))


def closed_by(members: Any, watched: Watched) -> tuple[Any, list[RoundClosed]]:
    closed: list[RoundClosed] = []

    def observe(_: object, event: object) -> None:
        if isinstance(event, RoundClosed):
            closed.append(event)

    return members.run(observe=observe, wrap=watched.wrap), closed


def of(*sites: str) -> Consortium:
    return rehearsal_consortium(sites)


@pytest.mark.parametrize("kind", ["share_keys", "mask_input", "confirm_survivors", "unmask"])
def test_a_consortium_that_changes_in_mid_sum_gives_that_sum_up_at_the_site(federation: Make, kind: str) -> None:
    """Also a wider one: what was begun under other rules is not finished under the new ones, and nothing is released twice."""
    members = federation(task_of(True), rows_of(task_of(True), 5), SEED)
    watched = Watched()

    def change(told: str, round_: int) -> None:
        if (told, round_) == (kind, 2):
            members.knows["ward-4"] = of(*WARDS, "ward-9")

    watched.before = change
    state, closed = closed_by(members, watched)
    assert state.failure is None
    late = kind in ("confirm_survivors", "unmask")  # its vector had arrived
    assert [len(told.folded) for told in closed] == [5, 5 if late else 4, 5]
    assert [{out.site for out in told.left_out} for told in closed] == [set(), {"ward-4"}, set()]
    assert "ward-4" not in watched.released(2)
    assert all(len(shares) == 1 for round_ in (1, 2, 3) for shares in watched.released(round_).values())


def test_a_consortium_that_is_removed_in_mid_sum_ends_the_sites_part(federation: Make) -> None:
    members = federation(task_of(True), rows_of(task_of(True), 5), SEED)
    watched = Watched()

    def remove(told: str, round_: int) -> None:
        if (told, round_) == ("mask_input", 2):
            members.knows["ward-4"] = None

    watched.before = remove
    state, closed = closed_by(members, watched)
    assert state.failure is None
    assert [len(told.folded) for told in closed] == [5, 4, 4]
    reasons = {out.code for told in closed for out in told.left_out if out.site == "ward-4"}
    assert PolicyRefused.code in reasons
    assert "ward-4" not in watched.released(2) | watched.released(3)


def test_a_run_over_some_sites_of_the_consortium_ends_like_one_over_all(federation: Make) -> None:
    task = task_of(True)
    plain, some = (federation(task, rows_of(task, 5), SEED) for _ in range(2))
    some.knows = dict.fromkeys(WARDS, of(*WARDS, "ward-8", "ward-9"))
    for members in (plain, some):
        state, closed = closed_by(members, Watched())
        assert state.failure is None
        assert [len(told.folded) for told in closed] == [5, 5, 5]
    before, after = (dict(members.home.trained_arrays("run-1")) for members in (plain, some))
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())


def exchanged(site: str) -> Consortium:
    """As a coordinator writes it that has put a key of its own in a site's place, and whose people were not asked."""
    keys = dict(of(*WARDS).keys)
    keys[site] = rehearsal_key("nobody").verifying
    return Consortium(keys)


def test_s4_a_site_that_was_given_another_key_of_a_peer_sums_with_nobody(federation: Make) -> None:
    members = federation(task_of(True), rows_of(task_of(True), 5), SEED)
    members.knows["ward-4"] = exchanged("ward-0")
    watched = Watched()
    state, closed = closed_by(members, watched)
    assert state.failure is None
    assert [len(told.folded) for told in closed] == [4, 4, 4]
    assert {out.site for told in closed for out in told.left_out} == {"ward-4"}
    assert not [site for site, kind, _, reply in watched.replies if (site, kind) == ("ward-4", "unmask")]
    assert all("ward-4" not in watched.released(round_) for round_ in (1, 2, 3))
