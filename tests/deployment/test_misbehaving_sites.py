"""Of five sites one is dead, one slow, one sends NaN, one a wrong shape, one a norm of 1e9: rounds close on the quorum.

The sites are real; between relay and daemon of the two that misbehave stands somebody who has the site's key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.deployment.federation import PATIENCE, between, bundled_site, small_task

from deployment import Deployment
from fedloop_clients.endpoint import Reply
from fedloop_clients.home import SiteHome
from fedloop_core.arrays import digest
from fedloop_core.federation.answers import sign_answer
from fedloop_core.keys import SigningKey
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Instruction, SignedAnswer
from fedloop_server.home import CoordinatorHome

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("deployment")]

Arrays = dict[str, NDArray[np.generic]]
UPDATE_REFUSED, NO_REPLY = "FL-UPD-001", "FL-RUN-010"


def not_a_number(arrays: Arrays) -> Arrays:
    return {name: np.full_like(array, np.nan) for name, array in arrays.items()}


def of_wrong_shape(arrays: Arrays) -> Arrays:
    return {name: np.zeros((3, *array.shape), array.dtype) for name, array in arrays.items()}


def far_away(arrays: Arrays) -> Arrays:
    values = sum(array.size for array in arrays.values())
    return {name: np.full_like(array, 1e9 / values**0.5) for name, array in arrays.items()}


class Misbehaving:
    """Does something else in each round, and signs it with the site's own key."""

    def __init__(self, key: SigningKey, misdeeds: Mapping[int, Callable[[Arrays], Arrays]]) -> None:
        self._key = key
        self._misdeeds = misdeeds

    def __call__(self, instruction: Instruction, ask: Callable[[], Reply]) -> Reply:
        reply = ask()
        if not instruction.HasField("train_locally") or instruction.round not in self._misdeeds:
            return reply
        arrays = self._misdeeds[instruction.round]({name: np.asarray(array) for name, array in reply.arrays.items()})
        answer = Answer.FromString(SignedAnswer.FromString(reply.answer).answer)
        answer.arrays_digest = digest(arrays)
        return Reply(sign_answer(answer, self._key), arrays)


def five_sites(deployment: Deployment) -> list[str]:
    """The active sites and, as the last two, those that will misbehave."""
    for part, name in enumerate(("far", "odd"), 4):
        deployment.add_site(bundled_site(deployment.folder, name, part))
    told = deployment.fedloop("server", "site", "list", "--home", str(deployment.home), json_output=True)["sites"]
    good = [site["site"] for site in told if site["state"] == "active" and site["site"] not in ("far", "odd")]
    assert len(good) == 3
    return [*sorted(good), "far", "odd"]


def test_rounds_close_on_the_quorum_and_show_says_who_and_why(rehearsal: Deployment, tmp_path: Path) -> None:
    deadline = max(20.0, 5 * os.getloadavg()[0])  # in which good sites answer on a busy machine, too
    *good, far, odd = five_sites(rehearsal)
    homes = {site: SiteHome(rehearsal.site_home(site)) for site in (far, odd)}
    over, died = threading.Event(), threading.Event()

    def dawdle(arrays: Arrays) -> Arrays:
        over.wait(PATIENCE)
        return arrays

    def die(arrays: Arrays) -> Arrays:
        rehearsal.kill_all(odd)
        died.set()
        return arrays

    slow = Misbehaving(homes[far].signing_key(), {1: not_a_number, 2: far_away, 3: dawdle})
    dead = Misbehaving(homes[odd].signing_key(), {1: of_wrong_shape, 3: die})
    rounds = {"count": 3, "quorum": 0.6, "deadline_seconds": deadline}
    task = small_task(tmp_path, "quorum", rounds=rounds)
    with between(homes[far], slow), between(homes[odd], dead):
        run = rehearsal.start_run(str(task), "--no-export")
        try:
            assert rehearsal.wait_for_end(run, PATIENCE) == "run-finished"
        finally:
            over.set()
    assert died.is_set()
    closed = rehearsal.events(run, "round-closed")
    assert [told["asked"] for told in closed] == [sorted([*good, far, odd])] * 3
    assert [told["folded"] for told in closed] == [good, sorted([*good, odd]), good]
    expected = {
        (far, 1): (UPDATE_REFUSED, "not finite"),
        (odd, 1): (UPDATE_REFUSED, "shape"),
        (far, 2): (UPDATE_REFUSED, "norm"),
        (far, 3): (NO_REPLY, f"no answer within {deadline:g} s"),
        (odd, 3): (NO_REPLY, f"no answer within {deadline:g} s"),
    }
    document = rehearsal.show(run)
    outs = {(out["site"], told["round"]): out for told in document["rounds"] for out in told["left_out"]}
    assert set(outs) == set(expected)
    shown = rehearsal.fedloop("run", "show", run, "--home", str(rehearsal.home))
    for (site, number), (code, words) in expected.items():
        out = outs[site, number]
        assert (out["code"], out["for_good"]) == (code, False)
        assert words in out["reason"]
        (line,) = (line for line in shown.splitlines() if line.startswith(f"{site} was left out of round {number}"))
        assert words in line
        assert code in line
    assert all(told["waiting_seconds"] < deadline for told in document["rounds"][:2])
    weights = CoordinatorHome(rehearsal.home).trained_arrays(run)
    assert all(np.isfinite(array).all() and np.abs(array).max() < 1000 for array in weights.values())
    rehearsal.stop(far)
