"""A coordinator that was put back from a copy counts attempts anew: it goes on beyond those that its sites have seen."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.outbox import KnownRun, Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.errors import AttemptBehind, EnvelopeRefused
from fedloop_core.noise import SeededNoise
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.behind import catching_up, check_attempt
from fedloop_server.runs.events import AttemptStarted
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.replies import SiteFailure
from fedloop_server.runs.state import Phase
from fedloop_simulations.data import load_world
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_key
from fedloop_simulations.tasks import chosen_task

RUN = "restored"


def refused(attempt: str, code: str = EnvelopeRefused.code) -> SiteFailure:
    return SiteFailure("a", code, {"reason": "attempt", "attempt": attempt}, "it refused")


def test_sites_that_have_seen_later_attempts_are_caught_up_with(tmp_path: Path) -> None:
    task = chosen_task("breast-cancer", rounds=2, epsilon=math.inf)
    home = CoordinatorHome(tmp_path / "coordinator")
    budget = Budget(epsilon=math.inf, delta=task.privacy.delta)
    endpoints = {}
    for site, seen in zip(load_world(task, sites=3, seed=1).sites, (0, 4, 6), strict=True):
        outbox = Outbox(":memory:")
        if seen:
            outbox.remember(KnownRun(RUN, seen, task.canonical(), rows_said=0))
        endpoints[site.name] = SiteDaemon(
            SiteConfig(site=site.name, training_budget=budget, evaluation_budget=budget),
            SiteData(site.train, site.evaluation, secret=bytes(16)),
            Ledger(":memory:", lambda: int(time.time())),
            outbox,
            SeededNoise(1, site.name),
            home.envelope_key.verifying,
            lambda: int(time.time()),
            signing_key=rehearsal_key(site.name),
        )
    attempts: list[int] = []
    plan = RunPlan(run_id=RUN, task=task, seed=1, private=False, expected_sites=3, export=False)
    run_in_process(
        home,
        plan,
        endpoints,
        lambda _state, event: attempts.append(event.attempt) if isinstance(event, AttemptStarted) else None,
    )
    state = home.journal(RUN).state
    assert state.phase is Phase.FINISHED
    assert attempts[0] == 1
    assert attempts[-1] == 7
    assert len(attempts) <= 3
    assert all(len(closed.folded) == 3 for closed in state.rounds)


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(refused("3"), id="this attempt"),
        pytest.param(refused("2"), id="an earlier one"),
        pytest.param(refused("1000000"), id="beyond belief"),
        pytest.param(refused("-5"), id="negative"),
        pytest.param(refused("4", "FL-SITE-001"), id="another refusal"),
        pytest.param(SiteFailure("a", EnvelopeRefused.code, {"reason": "expiry"}, "it refused"), id="no attempt"),
    ],
)
def test_other_failures_end_no_attempt(failure: SiteFailure) -> None:
    check_attempt(failure, 3)


def test_a_site_that_always_knows_a_later_attempt_is_heeded_three_times() -> None:
    tries: list[tuple[int, bool]] = []

    def drive(at_least: int, heeds: bool) -> None:
        tries.append((at_least, heeds))
        if heeds:
            check_attempt(refused(str(at_least + 10)), at_least)

    catching_up(drive)
    assert tries == [(0, True), (11, True), (22, True), (33, False)]


def test_what_a_site_knows_is_told() -> None:
    with pytest.raises(AttemptBehind) as caught:
        check_attempt(refused("9"), 3)
    assert caught.value.fields["attempt"] == 9
