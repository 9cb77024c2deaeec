"""Two moves in the middle of a run: the coordinator goes on elsewhere from a backup; a site's ledger comes back from a copy."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from chaos_scene import COORDINATOR, SITES, Scene
from deployment import wait_until

__all__ = ["MOVES", "ROUNDS"]

ROUNDS = 6
"""Of the runs in which something moves."""

_ELSEWHERE = "elsewhere"
_STORES = ("ledger.db", "outbox.db")
_ROLLED_BACK = "FL-PRIV-003"


def backup_and_go_on_elsewhere(place: Scene, digests: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Backs up after round 1, lets the run go on, kills the coordinator, and starts the copy in another folder."""
    run_id = place.begin_run("moved", ROUNDS)
    place.wait_for_rounds(run_id, 1, 300)
    file = place.folder / "backup.tar"
    place.fedloop("server", "backup", str(file), "--home", str(place.home))
    place.wait_for_rounds(run_id, min(len(place.events(run_id, "round-closed")) + 1, ROUNDS), 300)
    place.kill_all(COORDINATOR)
    elsewhere = place.folder / _ELSEWHERE
    place.fedloop("server", "restore", str(file), "--home", str(elsewhere))
    place.moved = _ELSEWHERE
    place.start_server()
    end = place.wait_for_end(run_id, 420)
    wrong = [] if end == "run-finished" else [f"ended as {end}: {place.journal(run_id)[-1]}"]
    closed = place.events(run_id, "round-closed")
    if tuple(event["digest"] for event in closed) != tuple(digests[: len(closed)]):
        wrong.append("other weights than the uninterrupted run")
    return run_id, tuple(wrong)


def snapshot_at_a_site(place: Scene, digests: Sequence[str]) -> tuple[str, tuple[str, ...]]:  # noqa: ARG001  one site alone
    """Puts ledger and outbox of the second site back to where they were before the run; the first goes on alone."""
    site = SITES[1]
    home = place.site_home(site)
    copies = place.folder / "snapshot"
    copies.mkdir()
    for store in _STORES:
        _copy(home / store, copies / store)
    run_id = place.begin_run("rolled-back", ROUNDS)
    place.wait_for_rounds(run_id, 2, 300)
    place.kill_all(site)
    for store in _STORES:
        for old in home.glob(f"{store}*"):
            old.unlink()
        shutil.copyfile(copies / store, home / store)
    place.start_site(site)
    end = place.wait_for_end(run_id, 420)
    wrong = [] if end == "run-finished" else [f"ended as {end}: {place.journal(run_id)[-1]}"]
    out = [event["left_out"] for event in place.events(run_id, "site-left-out")]
    if not any(left["site"] == site and left["code"] == _ROLLED_BACK for left in out):
        wrong.append(f"nobody noticed that the ledger of {site} was put back: {out}")
    wait_until(f"{site} says that it stopped", lambda: place.status(site).get("code") == _ROLLED_BACK)
    return run_id, tuple(wrong)


def _copy(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as own, closing(sqlite3.connect(target)) as copy:
        own.backup(copy)


MOVES: Mapping[str, Callable[[Scene, Sequence[str]], tuple[str, tuple[str, ...]]]] = {
    "backup-elsewhere": backup_and_go_on_elsewhere,
    "site-snapshot": snapshot_at_a_site,
}
