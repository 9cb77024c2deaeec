"""Secure aggregation in a whole deployment: the same model to the bit, who is left out, and a site that is lost in mid-sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deployment.federation import PATIENCE, Books, between, bundled_site, last_digest, small_task

from deployment import Deployment, deployed
from fedloop_clients.endpoint import Reply
from fedloop_clients.home import SiteHome
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("deployment")]

SITES = ("east", "north", "south", "west")
SEED = ("--no-export", "--seed", "11")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Four sites; people of all but west have compared and accepted the consortium while the sites run."""
    folder = tmp_path_factory.mktemp("s")
    with deployed(folder, [bundled_site(folder, name, part) for part, name in enumerate(SITES)]) as deployment:
        for site in SITES[:-1]:
            accept(deployment, site)
        yield deployment


def accept(deployment: Deployment, site: str) -> None:
    """As a site's people do: the fingerprint is what people of another site read out from the same file."""
    file, home = deployment.folder / "consortium.toml", str(deployment.site_home(site))
    deployment.fedloop("server", "consortium", "export", "--out", str(file), "--home", str(deployment.home))
    other = str(deployment.site_home("north"))
    read_out = deployment.fedloop("site", "consortium", "show", str(file), "--home", other, json_output=True)
    deployment.fedloop(
        "site", "consortium", "accept", str(file), "--fingerprint", read_out["fingerprint"], "--home", home
    )


def masked(folder: Path, name: str, rounds: int, *, secure: bool = True) -> Path:
    task = small_task(folder, name, rounds={"count": rounds, "quorum": 0.75})
    if secure:
        task.write_text(task.read_text() + '[aggregation]\nrule = "mean"\nsecure = true\n')
    return task


def finished(deployment: Deployment, task: Path) -> str:
    run = deployment.start_run(str(task), *SEED)
    assert deployment.wait_for_end(run, PATIENCE) == "run-finished", deployment.show(run)
    return run


def folded(deployment: Deployment, run: str) -> list[list[str]]:
    return [closed["folded"] for closed in deployment.events(run, "round-closed")]


def test_a_site_without_a_consortium_is_left_out_by_name_and_the_others_sum(four: Deployment, tmp_path: Path) -> None:
    assert four.fedloop("site", "status", "--home", str(four.site_home("west")), json_output=True)["consortium"] == {
        "key_fingerprint": own_fingerprint(four, "west"),
        "sites": 0,
        "fingerprint": "",
    }
    run = finished(four, masked(tmp_path, "three", 2))
    assert folded(four, run) == [list(SITES[:-1])] * 2
    (out,) = [dict(event["left_out"]) for event in four.events(run, "site-left-out")]
    assert (out["site"], out["for_good"], "rule consortium" in out["reason"]) == ("west", True, True)
    shown = four.fedloop("run", "show", run, "--home", str(four.home))
    assert "west was left out of the run: it refused: rule consortium" in shown
    assert "knows no consortium" in Books(four, "west").logged()


def own_fingerprint(deployment: Deployment, site: str) -> str:
    home = str(deployment.site_home(site))
    return str(deployment.fedloop("site", "consortium", "show", "--home", home, json_output=True)["key_fingerprint"])


def test_masked_and_plain_updates_end_with_the_same_model(
    four: Deployment, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    accept(four, "west")
    runs = [
        finished(four, masked(tmp_path, name, 3, secure=secure)) for name, secure in (("sum", True), ("one", False))
    ]
    secure, plain = runs
    assert folded(four, secure) == folded(four, plain) == [list(SITES)] * 3
    assert last_digest(four, secure) == last_digest(four, plain)
    assert [bool(closed["updates"]) for closed in four.events(plain, "round-closed")] == [True] * 3
    assert not any(closed["updates"] for closed in four.events(secure, "round-closed"))  # no single norm is known
    for site in SITES:
        charged = [Books(four, site).charged(run) for run in runs]
        assert charged[0] == charged[1]
    record_property("seconds_a_round", [seconds(four, run) for run in runs])


def seconds(deployment: Deployment, run: str) -> float:
    """Between the first round's opening and the last one's close, for each round."""
    opened, closed = deployment.events(run, "round-opened"), deployment.events(run, "round-closed")
    return float(closed[-1]["unix"] - opened[0]["unix"]) / len(closed)


def test_a_site_that_takes_its_consortium_back_in_mid_sum_is_lost_to_it(four: Deployment, tmp_path: Path) -> None:
    """After its shares are dealt and before its masked vector has come: the others take its masks off."""
    accept(four, "west")
    west = four.site_home("west")

    def takes_back(instruction: Instruction, ask: Callable[[], Reply]) -> Reply:
        asked: Any = instruction.aggregate_securely if instruction.HasField("aggregate_securely") else None
        if asked is not None and asked.WhichOneof("question") == "mask_input" and instruction.round == 2:
            four.fedloop("site", "consortium", "remove", "--yes", "--home", str(west))
        return ask()

    with between(SiteHome(west), takes_back):
        run = finished(four, masked(tmp_path, "lost", 3))
    assert folded(four, run) == [list(SITES), list(SITES[:-1]), list(SITES[:-1])]
    shown = four.fedloop("run", "show", run, "--home", str(four.home))
    assert "west was left out of round 2: it refused: rule consortium" in shown
