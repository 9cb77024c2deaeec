"""What the commands of both sides say of a backup, and the bar that shows how far it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from fedloop_core.backup.kinds import HomeKind
from fedloop_core.backup.manifest import Manifest
from fedloop_core.backup.restoring import Restored
from fedloop_core.backup.writing import BackedUp, Progress, unseen
from fedloop_core.commands import Told, moment, tell_json

__all__ = ["shown", "tell_backed_up", "tell_plan", "tell_restored"]


@contextmanager
def shown(what: str, *, quiet: bool) -> Iterator[Progress]:
    """A bar on standard error, when a person looks at it."""
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


def tell_backed_up(kind: HomeKind, made: BackedUp, seconds: float, *, as_json: bool) -> None:
    """Says what was written, what is not in it, and how it is checked."""
    told, file = made.manifest, made.file
    if as_json:
        tell_json(
            {
                "file": str(file),
                "bytes": made.length,
                "files": len(told.files),
                "digest": told.digest,
                "keys": told.keys,
                "audit_sequence": told.audit_sequence,
                "seconds": round(seconds, 3),
                "notes": told.notes,
            }
        )
        return
    typer.echo(f"Wrote {file}: {len(told.files)} files, {made.length} bytes, digest {told.digest}.")
    for note in told.notes:
        typer.echo(f"  Not in it: {note}")
    if told.keys:
        typer.echo(f"  Whoever has this file can be this {kind.noun}: keep it as safe as its keys.")
    command = f"fedloop {kind.group} restore {file} --home NEW --digest {told.digest}"
    typer.echo(f"  Note the digest elsewhere; `{command}` checks it.")


def tell_plan(manifest: Manifest, home: Path, aside: Path | None, *, as_json: bool) -> None:
    """Says what a restore would write."""
    if as_json:
        files = [{"path": entry.path, "bytes": entry.length} for entry in manifest.files]
        more: Told = {"would_write": files} | ({} if aside is None else {"would_move_to": str(aside)})
        tell_json({**_told(manifest, home), **more})
        return
    if aside is not None:
        typer.echo(f"{home} would be moved to {aside}.")
    typer.echo(f"A backup of {moment(manifest.created_unix)}, sound. In {home} would be:")
    for entry in manifest.files:
        typer.echo(f"  {entry.path}: {entry.length} bytes")
    for note in manifest.notes:
        typer.echo(f"  Not in it: {note}")
    typer.echo("Nothing was written.")


def tell_restored(made: Restored, home: Path, steps: Sequence[str], more: Told, *, as_json: bool) -> None:
    """Says what was made, and what people do next; ``more`` is for JSON alone."""
    if as_json:
        aside = {} if made.aside is None else {"moved_to": str(made.aside)}
        tell_json({**_told(made.manifest, home), **aside, **more, "next": steps})
        return
    typer.echo(f"Restored {len(made.manifest.files)} files to {home}.")
    for number, step in enumerate(steps, 1):
        typer.echo(f"  {number}. {step}")


def _told(manifest: Manifest, home: Path) -> Told:
    return {
        "home": str(home),
        "files": len(manifest.files),
        "digest": manifest.digest,
        "created_unix": manifest.created_unix,
        "keys": manifest.keys,
        "audit_sequence": manifest.audit_sequence,
    }
