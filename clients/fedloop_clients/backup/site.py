"""What the machinery of backups is told of a site's home.

Only what is named here is ever in a site's backup, and nothing else in a site's folder: people keep rows of patients there.

A charge is in the ledger before the answer that it pays for is in the outbox, and open until then. So both are taken while
nobody writes to either: with an older outbox the open charge would carry its release once more, with an older ledger the
answer would stand there without its charge. What was open at that moment may have been answered since, and is settled in
full when it is put back.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from fedloop_clients import approvals, consortium, erasure, heads, standing, status, trusted
from fedloop_clients.home import SiteHome
from fedloop_core.backup import Changing, HomeKind, held_still
from fedloop_core.errors import BackupRefused, StorageError

__all__ = ["DATABASES", "SITE", "is_left_out"]

DATABASES = ("ledger.db", "outbox.db", "feedback.db")
"""In the order in which they are held still: the first one's writers have the most patience."""
_LOG = "audit.jsonl"
_STATE = frozenset(
    {
        "site.toml",
        "membership.json",
        approvals.FILE_NAME,
        consortium.FILE_NAME,
        erasure.FILE_NAME,
        heads.FILE_NAME,
        standing.FILE_NAME,
        trusted.FILE_NAME,
    }
)
_KEYS = "keys"
_LEFT_OUT = frozenset(
    {"flower", "logs", "restarts", "sockets", "shut-out", "supervisor.json", "supervisor.lock", "daemon.lock"}
) | {status.FILE_NAME}
_OLD_KEYS = re.compile(r"keys\.\d+")  # set aside when the site joined again: they never work again


def is_left_out(name: str) -> bool:
    """Whether a name in a home is known and not in any backup: sockets, locks, logs and what ``fedloop site up`` makes anew."""
    beside = any(name.startswith(f"{database}-") for database in DATABASES)
    return name in _LEFT_OUT or _OLD_KEYS.fullmatch(name) is not None or beside


def _is_kept(path: str) -> bool:
    return path in DATABASES or path == _LOG or path in _STATE or path.partition("/")[0] == _KEYS


def _changing(path: str) -> Changing:
    if path in DATABASES:
        return Changing.DATABASE
    return Changing.GROWS if path == _LOG else Changing.REPLACED


@contextmanager
def _writers_wait(home: Path) -> Iterator[None]:
    """Nobody writes to a store, nor changes a state file: whoever does has a lock on the folder (``StateFile``)."""
    with ExitStack() as held:
        for name in DATABASES:
            held.enter_context(held_still(home / name))
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        held.callback(os.close, folder)
        fcntl.flock(folder, fcntl.LOCK_SH)
        yield


def _opened(home: Path) -> None:
    site = SiteHome(home)
    try:
        if site.ledger_file.exists():
            ledger = site.ledger()
            ledger.settle_open()
            ledger.close()
        if site.outbox_file.exists():
            site.outbox().close()
    except StorageError as error:
        raise BackupRefused(
            f"what the backup holds cannot be used: {error.message}", hint="Use another backup."
        ) from error


def _subject(home: Path) -> str:
    site = SiteHome(home)
    return site.membership().site if site.membership_file.exists() else "site"


SITE = HomeKind(
    name="fedloop-site",
    noun="site",
    group="site",
    signs=("membership.json", "ledger.db", "site.toml"),
    secret=frozenset({_KEYS}),
    kept=_is_kept,
    changing=_changing,
    unhurried=frozenset(),
    writers_wait=_writers_wait,
    nothing_goes=lambda _: nullcontext(),
    opened=_opened,
    subject=_subject,
)
