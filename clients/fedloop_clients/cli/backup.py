"""Back up a site while its daemon answers, and make one of a backup."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from fedloop_clients.cli.options import HOME_AS_ROOT
from fedloop_core.commands import AS_JSON, as_owner, operator

__all__ = ["backup", "restore"]


def backup(
    file: Path = typer.Argument(help="File to write; it must not be there."),
    home: Path = HOME_AS_ROOT,
    without_keys: bool = typer.Option(False, "--without-keys", help="Leave private keys out; keep them elsewhere."),
    as_json: bool = AS_JSON,
) -> None:
    """Write the site into one file, while it runs; the rows are not in it."""
    from fedloop_clients.backup import SITE, back_up
    from fedloop_clients.home import SiteHome
    from fedloop_core.audit import AuditAction
    from fedloop_core.backup.telling import shown, tell_backed_up

    site, started = SiteHome(home.resolve()), time.monotonic()
    site.membership()
    with shown("Backing up", quiet=as_json) as progress:
        made = back_up(site.folder, file, unix=int(time.time()), keys=not without_keys, progress=progress)
    told = made.manifest
    as_owner(site.folder)
    site.audit().record(
        operator(), AuditAction.BACKUP, str(file), backup=told.digest, files=len(told.files), keys=told.keys
    )
    tell_backed_up(SITE, made, time.monotonic() - started, as_json=as_json)


def restore(
    file: Path = typer.Argument(help="What `fedloop site backup` wrote."),
    home: Path = typer.Option(..., "--home", help="New folder of the site; not there yet, or empty."),
    digest: str = typer.Option("", "--digest", help="Of the backup, as it was printed when it was written."),
    move_present_aside: bool = typer.Option(
        False,
        "--move-present-aside",
        help="Keep a folder that is there, with its ledger, under another name; the site goes on with the backup's ledger.",
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Check everything, say what would be written, and write nothing."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Make a site's folder of a backup; everything is checked before anything is written."""
    from fedloop_clients.backup import check_restore, next_steps
    from fedloop_clients.backup import restore as make_home
    from fedloop_core.backup.telling import shown, tell_plan, tell_restored

    new = home.resolve()
    aside = new.with_name(f"{new.name}.aside-{int(time.time())}") if move_present_aside and new.exists() else None
    with shown("Checking" if dry_run else "Checking and restoring", quiet=as_json) as progress:
        if dry_run:
            manifest = check_restore(file, new, digest=digest, aside=aside, progress=progress)
            tell_plan(manifest, home, aside, as_json=as_json)
            return
        made = make_home(file, new, actor=operator(), digest=digest, aside=aside, progress=progress)
    tell_restored(made.made, home, next_steps(made, home), {"ledger_sequence": made.ledger}, as_json=as_json)
