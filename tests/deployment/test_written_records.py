"""Audit logs and ledgers hold at the coordinator and at every site, after all that the tests of this folder did to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.deployment.federation import PATIENCE, Books, small_task

from deployment import CommandFailed, Deployment
from fedloop_clients.home import SiteHome
from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.audit.countersignatures import countersigned

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.xdist_group("deployment")]


def test_the_books_hold(rehearsal: Deployment, tmp_path: Path) -> None:
    run = rehearsal.start_run(str(small_task(tmp_path, "books", rounds={"count": 1})), "--no-export")
    assert rehearsal.wait_for_end(run, PATIENCE) == "run-finished"
    (closed,) = rehearsal.events(run, "round-closed")
    homes = {path.name: SiteHome(path) for path in sorted((rehearsal.folder / "sites").iterdir())}
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({site: home.signing_key().verifying.raw.hex() for site, home in homes.items()}))

    told = rehearsal.fedloop("audit", "verify", "--home", str(rehearsal.home), "--keys", str(keys), json_output=True)
    log = AuditLog(rehearsal.home / "audit.jsonl")
    signed = {one["site"]: one["sequence"] for one in told["countersigned"]}
    assert all(one["verified"] for one in told["countersigned"])
    assert set(closed["folded"]) <= set(signed) <= set(homes)
    started = next(
        entry.sequence for entry in log.entries() if (entry.action, entry.subject) == (AuditAction.RUN_STARTED, run)
    )
    assert all(started <= signed[site] <= told["head"]["sequence"] for site in closed["folded"])
    digests = {entry.sequence: entry.digest for entry in log.entries()}
    kept = countersigned(log.path).all()
    assert {(one.sequence, one.digest) for one in kept} <= set(digests.items())
    done = {(entry.action, entry.subject) for entry in log.entries()}
    assert {(AuditAction.SITE_JOINED, site) for site in homes} <= done
    assert (AuditAction.RUN_FINISHED, run) in done

    for site, home in homes.items():
        report = rehearsal.fedloop("audit", "verify", "--home", str(home.folder), json_output=True)
        assert report["head"]["sequence"] > 0
        ledger = Books(rehearsal, site).ledger()
        assert ledger.verify().sequence > 0
        ledger.close()


def test_a_log_that_was_cut_back_is_told(rehearsal: Deployment, tmp_path: Path) -> None:
    """What sites countersigned is evidence against whoever holds the log."""
    log = countersigned(rehearsal.home / "audit.jsonl")
    newest = max(one.sequence for one in log.all())
    shutil.copytree(log.folder, tmp_path / log.folder.name)
    lines = (rehearsal.home / "audit.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines[: newest - 1]))
    with pytest.raises(CommandFailed, match="cut back"):
        rehearsal.fedloop("audit", "verify", "--home", str(tmp_path))
