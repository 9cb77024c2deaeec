"""Coordinator and site, each with a home that has something of everything, for the suites that run over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloop_clients import backup as site_backup
from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.joining.keys import load_or_create_keys
from fedloop_clients.outbox import KeptResult
from fedloop_clients.settings import starter_text
from fedloop_core.audit import AuditAction
from fedloop_core.durable import write_bytes
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.privacy.charges import PureCharge
from fedloop_server import backup as server_backup
from fedloop_server.home import CoordinatorHome

__all__ = ["SIDES", "Side", "make_site"]


@dataclass(frozen=True)
class Side:
    """``folder`` and ``file`` are in each of its backups, ``same`` are files that a restore leaves as they were."""

    noun: str
    folder: str
    file: str
    same: tuple[str, ...]
    make: Callable[[Path], Path]
    back_up: Callable[..., Any]
    check_restore: Callable[..., Any]
    restore: Callable[..., Any]


def make_coordinator(folder: Path) -> Path:
    home = CoordinatorHome(folder)
    home.database().close()
    assert home.envelope_key.pem()
    write_bytes(folder / "runs" / "run-1" / "journal.jsonl", b'{"a":1}\n')
    write_bytes(folder / "runs" / "run-1" / "round-1.safetensors", bytes(range(256)) * 5)
    home.audit().record("operator:ann", AuditAction.INITIALISE, "coordinator")
    return folder


def make_site(folder: Path) -> Path:
    home = SiteHome(folder)
    home.prepare()
    load_or_create_keys(home)
    home.store_membership(
        Membership(
            site="north",
            coordinator_key="ab" * 32,
            fleet_address="localhost:1",
            hub_address="localhost:2",
            protocol=PROTOCOL,
            joined_unix=5,
        )
    )
    home.settings_file.write_text(starter_text("north", ""), encoding="utf-8")
    ledger, outbox = home.ledger(), home.outbox()
    ledger.open_block("original", 10.0, 1e-6)
    ledger.reserve(PureCharge(epsilon=1.0), ("original",), "run-1", "number of rows")
    outbox.store(b"question", KeptResult(b"answer", {}))
    ledger.close()
    outbox.close()
    home.standing().pause(True)
    home.audit().record("operator:ann", AuditAction.PAUSED, "north")
    return folder


SIDES = (
    Side(
        "coordinator",
        "runs/run-1",
        "audit.jsonl",
        ("runs/run-1/journal.jsonl", "runs/run-1/round-1.safetensors", "keys/envelope.pem"),
        make_coordinator,
        server_backup.back_up,
        server_backup.check_restore,
        server_backup.restore,
    ),
    Side(
        "site",
        "keys",
        "keys/node.key",
        ("keys/node.key", "keys/fingerprint.secret", "site.toml", "membership.json", "standing.json"),
        make_site,
        site_backup.back_up,
        site_backup.check_restore,
        site_backup.restore,
    ),
)
