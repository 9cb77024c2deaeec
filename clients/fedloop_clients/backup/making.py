"""Backs a site up, and makes one of a backup; a ledger that is in the way is named, and never lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fedloop_clients.backup.site import DATABASES, SITE, is_left_out
from fedloop_clients.home import SiteHome
from fedloop_core.backup import BackedUp, Manifest, Progress, Restored, unseen
from fedloop_core.backup import back_up as write_backup
from fedloop_core.backup import check_restore as check_any_restore
from fedloop_core.backup import restore as make_home
from fedloop_core.backup.owners import acting_as_owner
from fedloop_core.errors import BackupRefused, NotSetUp, SettingsInvalid
from fedloop_core.processes.lock import folder_lock

__all__ = ["SiteRestored", "back_up", "check_restore", "restore"]

_TOLD = 5  # names of files that are not the site's own


@dataclass(frozen=True)
class SiteRestored:
    """A site that was made of a backup.

    ``ledger``: the number of the newest entry of the backup's ledger; 0 without a ledger. ``ledger_aside``: that of the
    ledger which was in the folder before; None when there was none, or one that cannot be read. ``rows_aside``: where the
    file with the site's rows is now, which was in the folder and is in no backup.
    """

    made: Restored
    site: str
    ledger: int
    ledger_aside: int | None
    rows_aside: Path | None = None


def back_up(home: Path, target: Path, *, unix: int, keys: bool = True, progress: Progress = unseen) -> BackedUp:
    """Writes one file (0600), whole or not at all, from which ``restore`` makes the site again; its daemon may go on.

    Args:
        home: the site's folder.
        target: the file; its folder also takes copies of ledger and outbox meanwhile.
        unix: now, in seconds since 1970.
        keys: whether private keys are in it.
        progress: see ``Progress``.

    Raises:
        NotSetUp: there is no site.
        BackupRefused: the target is there or lies in the home; or a store is a link.
        StorageError: a file cannot be read, or the disk is full.
    """
    for name in DATABASES:
        if (home / name).is_symlink():
            raise BackupRefused(
                f"{home / name} is a link, and a backup would lack what it leads to.", hint="Move the file itself here."
            )
    notes = tuple(_elsewhere(SiteHome(home))) if home.is_dir() else ()
    return write_backup(SITE, home, target, unix=unix, keys=keys, notes=notes, progress=progress)


def check_restore(
    archive: Path, home: Path, *, digest: str = "", aside: Path | None = None, progress: Progress = unseen
) -> Manifest:
    """Finds out all that can be found out about a restore before anything is written; raises as ``restore``."""
    with _at_rest(home):
        _check_ledger(home, aside)
        return check_any_restore(SITE, archive, home, digest=digest, aside=aside, progress=progress)


def restore(
    archive: Path,
    home: Path,
    *,
    actor: str,
    digest: str = "",
    aside: Path | None = None,
    progress: Progress = unseen,
) -> SiteRestored:
    """Makes ``home`` of a backup; it appears whole or not at all, and its ledger's chain holds.

    Args:
        archive: what ``back_up`` wrote.
        home: the site's folder: new, empty, or with ``aside`` one that is in use no more.
        actor: who restores, for the audit log.
        digest: of the backup, as it was noted elsewhere; "" when nobody noted it.
        aside: where what is in the folder now is moved; None refuses a folder that is not empty.
        progress: told of bytes, first of those that are checked and then of those that are written.

    Raises:
        BackupRefused: it is no backup of a site, or damaged; the folder has a ledger or something else; the disk is too small.
        AlreadyRunning: a site runs in the folder.
        StorageError: the disk is full.
        AuditBroken: the audit log in the backup does not hold.
    """
    ends = list[int]()

    def opened(made: Path) -> None:
        ends.append(_newest(made / "ledger.db") or 0)  # before what was open is settled
        SITE.opened(made)

    kind = replace(SITE, opened=opened)
    with _at_rest(home):
        before = _check_ledger(home, aside)
        made = make_home(kind, archive, home, actor=actor, digest=digest, aside=aside, progress=progress)
    return SiteRestored(made, SITE.subject(home), ends[0], before, None if aside is None else _rows_aside(home, aside))


def _elsewhere(home: SiteHome) -> Iterator[str]:
    """Sentences on what is not in a backup, and is not made anew either."""
    rows = None
    try:
        rows = home.data_file
    except (NotSetUp, SettingsInvalid):
        yield "the rows: site.toml does not say where they are."
    else:
        yield f"the rows in {rows}: back them up as you do other records of patients."
    strange = sorted(
        entry.name
        for entry in home.folder.iterdir()
        if not SITE.kept(entry.name)
        and not is_left_out(entry.name)
        and entry != rows
        and not entry.name.startswith(".")
    )
    for name in strange[:_TOLD]:
        yield f"{name}, which is no file of fedloop's."
    if len(strange) > _TOLD:
        yield f"{len(strange) - _TOLD} more files and folders that are not fedloop's."


def _rows_aside(home: Path, aside: Path) -> Path | None:
    try:
        rows = SiteHome(home).data_file
    except (NotSetUp, SettingsInvalid):
        return None
    if not rows.is_relative_to(home) or rows.exists():
        return None
    moved = aside / rows.relative_to(home)
    return moved if moved.exists() else None


def _check_ledger(home: Path, aside: Path | None) -> int | None:
    """The newest entry of a ledger that is in the folder; refuses it unless it shall be moved aside."""
    ledger = home / "ledger.db"
    if not ledger.exists():
        return None
    newest = _newest(ledger)
    if aside is None:
        entries = "that cannot be read" if newest is None else f"of {newest} entries"
        raise BackupRefused(
            f"{home} has a ledger {entries}: nothing is written over it.",
            hint="Name a new folder. Only if this folder is given up: --move-present-aside keeps it under another name, and the "
            "site goes on with the backup's ledger.",
        )
    return newest


def _newest(ledger: Path) -> int | None:
    """Number of the newest entry; None when it cannot be read. Leaves nothing beside the file."""
    if not ledger.exists():
        return None
    how = "mode=ro" if ledger.with_name(f"{ledger.name}-wal").exists() else "immutable=1"
    try:
        with (
            acting_as_owner(ledger),
            closing(sqlite3.connect(f"{ledger.absolute().as_uri()}?{how}", uri=True)) as connection,
        ):
            (number,) = connection.execute("SELECT coalesce(max(sequence), 0) FROM entry").fetchone()
    except sqlite3.Error:
        return None
    return int(number)


@contextmanager
def _at_rest(home: Path) -> Iterator[None]:
    """No process of the site runs or begins in the folder for the length of the block."""
    with ExitStack() as held:
        for name in ("supervisor.lock", "daemon.lock"):
            if (home / name).exists():
                held.enter_context(folder_lock(home, name))
        yield
