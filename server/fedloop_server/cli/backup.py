"""Back up a coordinator while it runs, and set one up from a backup."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.commands import AS_JSON, as_owner, operator
from fedloop_server.cli.options import HOME_AS_ROOT, open_home

if TYPE_CHECKING:
    from fedloop_server.settings import ServerSettings

__all__ = ["backup", "restore"]


def backup(
    file: Path = typer.Argument(help="File to write; it must not be there."),
    home: Path = HOME_AS_ROOT,
    without_keys: bool = typer.Option(False, "--without-keys", help="Leave private keys out; keep them elsewhere."),
    as_json: bool = AS_JSON,
) -> None:
    """Write the coordinator into one file, while it runs."""
    from fedloop_core.audit import AuditAction
    from fedloop_core.backup.telling import shown, tell_backed_up
    from fedloop_server.backup import COORDINATOR, back_up

    coordinator = open_home(home)
    notes, started = _elsewhere(coordinator.settings), time.monotonic()
    with shown("Backing up", quiet=as_json) as progress:
        made = back_up(home, file, unix=int(time.time()), keys=not without_keys, notes=notes, progress=progress)
    told = made.manifest
    as_owner(home)  # whose log it is
    coordinator.audit().record(
        operator(), AuditAction.BACKUP, str(file), backup=told.digest, files=len(told.files), keys=told.keys
    )
    tell_backed_up(COORDINATOR, made, time.monotonic() - started, as_json=as_json)


def restore(
    file: Path = typer.Argument(help="What `fedloop server backup` wrote."),
    home: Path = typer.Option(..., "--home", help="New folder of the coordinator; not there yet, or empty."),
    digest: str = typer.Option("", "--digest", help="Of the backup, as it was printed when it was written."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Check everything, say what would be written, and write nothing."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Make a coordinator's folder of a backup; everything is checked before anything is written."""
    from fedloop_core.backup.telling import shown, tell_plan, tell_restored
    from fedloop_server.backup import check_restore, next_steps
    from fedloop_server.backup import restore as make_home

    with shown("Checking" if dry_run else "Checking and restoring", quiet=as_json) as progress:
        if dry_run:
            tell_plan(check_restore(file, home, digest=digest, progress=progress), home, None, as_json=as_json)
            return
        made = make_home(file, home, actor=operator(), digest=digest, progress=progress)
    tell_restored(made, home, next_steps(made.manifest, home, made.unknown_owners), {}, as_json=as_json)


def _elsewhere(settings: ServerSettings) -> tuple[str, ...]:
    notes = []
    if settings.database:
        notes.append(
            "the database: it is a PostgreSQL server's, and pg_dump is the tool for it; run it just before this."
        )
    if settings.blobs:
        notes.append("the blobs: server.toml names a store elsewhere; use that store's own copies.")
    return tuple(notes)
