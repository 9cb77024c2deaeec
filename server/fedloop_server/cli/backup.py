"""Back up a coordinator while it runs, and set one up from a backup."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.commands import AS_JSON, operator, tell_json
from fedloop_server.cli.options import HOME_AS_ROOT, open_home

if TYPE_CHECKING:
    from fedloop_server.backup.writing import Progress
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
    from fedloop_server.backup import back_up

    coordinator = open_home(home)
    notes, started = _elsewhere(coordinator.settings), time.monotonic()
    with _bar("Backing up", quiet=as_json) as progress:
        made = back_up(home, file, unix=int(time.time()), keys=not without_keys, notes=notes, progress=progress)
    told = made.manifest
    coordinator.audit().record(
        operator(), AuditAction.BACKUP, str(file), backup=told.digest, files=len(told.files), keys=told.keys
    )
    if as_json:
        said = {
            "file": str(file),
            "bytes": made.length,
            "files": len(told.files),
            "digest": told.digest,
            "keys": told.keys,
            "audit_sequence": told.audit_sequence,
            "seconds": round(time.monotonic() - started, 3),
            "notes": told.notes,
        }
        tell_json(said)
        return
    print(f"Wrote {file}: {len(told.files)} files, {made.length} bytes, digest {told.digest}.")
    for note in told.notes:
        print(f"  Not in it: {note}")
    if told.keys:
        print("  Whoever has this file can be this coordinator: keep it as safe as its keys.")
    print(f"  Note the digest elsewhere; `fedloop server restore {file} --home NEW --digest {told.digest}` checks it.")


def restore(
    file: Path = typer.Argument(help="What `fedloop server backup` wrote."),
    home: Path = typer.Option(..., "--home", help="New folder of the coordinator; not there yet, or empty."),
    digest: str = typer.Option("", "--digest", help="Of the backup, as it was printed when it was written."),
    as_json: bool = AS_JSON,
) -> None:
    """Make a coordinator's folder of a backup; everything is checked before anything is written."""
    from fedloop_server.backup import next_steps
    from fedloop_server.backup import restore as make_home

    with _bar("Checking and restoring", quiet=as_json) as progress:
        made = make_home(file, home, actor=operator(), digest=digest, progress=progress)
    steps = next_steps(made.manifest, home, made.unknown_owners)
    if as_json:
        told = made.manifest
        said = {
            "home": str(home),
            "files": len(told.files),
            "digest": told.digest,
            "created_unix": told.created_unix,
            "keys": told.keys,
            "audit_sequence": told.audit_sequence,
            "next": steps,
        }
        tell_json(said)
        return
    print(f"Restored {len(made.manifest.files)} files to {home}.")
    for number, step in enumerate(steps, 1):
        print(f"  {number}. {step}")


def _elsewhere(settings: ServerSettings) -> tuple[str, ...]:
    notes = []
    if settings.database:
        notes.append(
            "the database: it is a PostgreSQL server's, and pg_dump is the tool for it; run it just before this."
        )
    if settings.blobs:
        notes.append("the blobs: server.toml names a store elsewhere; use that store's own copies.")
    return tuple(notes)


@contextmanager
def _bar(what: str, *, quiet: bool) -> Iterator[Progress]:
    """A bar on standard error, when a person looks at it."""
    from fedloop_server.backup.writing import unseen

    if quiet or not sys.stderr.isatty():
        yield unseen
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)
