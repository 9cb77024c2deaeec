"""While a run goes on a fourth site is added and one is revoked: the others notice nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.federation import PATIENCE, Books, Held, between, bundled_site, small_task

from deployment import Deployment, wait_until
from fedloop_clients.home import SiteHome
from fedloop_clients.status import read_status
from fedloop_server.front.client import FrontClient

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("deployment")]

OTHERS = ("north", "south")
TROUBLE = re.compile(r"\b(ERROR|CRITICAL|Traceback)\b.*")
AT_ONCE = 60.0  # seconds, on a machine that may be busy; a fifth of the round's deadline


def test_one_comes_and_one_is_revoked_in_mid_run(rehearsal: Deployment, tmp_path: Path) -> None:
    task = small_task(tmp_path, "members", rounds={"count": 500})
    processes = {site: rehearsal.processes(site) for site in ("coordinator", *OTHERS)}
    logged = {site: len(Books(rehearsal, site).logged()) for site in OTHERS}
    run = rehearsal.start_run(str(task), "--no-export")
    try:
        before = while_it_goes_on(rehearsal, run)
    finally:
        rehearsal.fedloop("run", "stop", run, "--home", str(rehearsal.home))
    assert rehearsal.wait_for_end(run, PATIENCE) == "run-stopped"

    rounds = closed(rehearsal, run)
    joined = next(r["round"] for r in rounds if "east" in r["folded"])
    assert 1 < joined <= before
    for told in rounds:
        gone = told["round"] > before + 1
        assert set(told["asked"]) == {
            *OTHERS,
            *(["west"] if not gone else []),
            *(["east"] if told["round"] >= joined else []),
        }
        assert set(told["folded"]) == set(told["asked"]) - ({"west"} if told["round"] == before + 1 else set())
    assert {site: rehearsal.processes(site) for site in processes} == processes
    for site in OTHERS:
        assert not TROUBLE.findall(Books(rehearsal, site).logged()[logged[site] :])
    shown = rehearsal.fedloop("run", "show", run, "--home", str(rehearsal.home))
    assert f"west was left out of round {before + 1}: it was revoked" in shown
    document = {site["site"]: site for site in rehearsal.show(run)["sites"]}
    assert document["east"]["member"]
    assert document["east"]["asked"] == document["east"]["answered"] == len(rounds) - joined + 1
    assert document["west"]["answered"] == before
    rehearsal.stop("west")


def while_it_goes_on(rehearsal: Deployment, run: str) -> int:
    """East joins, and west is revoked while its answer to a round is held; returns the rounds closed before that one."""
    rehearsal.wait_for_rounds(run, 1, PATIENCE)
    rehearsal.add_site(bundled_site(rehearsal.folder, "east", 3))
    wait_until("a round with east", lambda: "east" in closed(rehearsal, run)[-1]["folded"], PATIENCE)

    held = Held(len(closed(rehearsal, run)) + 3)
    with between(SiteHome(rehearsal.site_home("west")), held):
        held.wait()
        before = len(closed(rehearsal, run))
        rehearsal.fedloop("server", "site", "revoke", "west", "--home", str(rehearsal.home), "--reason", "moved away")
        rehearsal.wait_for_rounds(run, before + 1, AT_ONCE)  # long before the deadline, while its answer is still held
        refused_at_once(rehearsal)
        held.let_go()
    rehearsal.wait_for_rounds(run, before + 3, PATIENCE)
    return before


def closed(deployment: Deployment, run: str) -> list[dict[str, Any]]:
    return deployment.events(run, "round-closed")


def refused_at_once(deployment: Deployment) -> None:
    """The next fleet call and the hub's streams of the revoked site."""
    front = FrontClient(deployment.home / "sockets" / "front.sock")
    wait_until(
        "a refusal at the front",
        lambda: any((r.site, r.reason) == ("west", "revoked") for r in front.refusals(0)),
        AT_ONCE,
    )
    wait_until("word at the site", lambda: "revoked" in read_status(deployment.site_home("west")).hub, AT_ONCE)
    assert read_status(deployment.site_home("west")).activity == "stopped"
    told = deployment.fedloop("server", "site", "show", "west", "--home", str(deployment.home), json_output=True)
    assert (told["state"], told["reason"]) == ("revoked", "moved away")
