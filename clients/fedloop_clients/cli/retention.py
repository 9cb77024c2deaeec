"""What the site holds, since when, and when it goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, moment, operator, tell_json, tell_table
from fedloop_core.errors import UsageError

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome
    from fedloop_clients.retention import Deleted, HeldStore

__all__ = ["retention"]


def retention(
    delete: bool = typer.Option(False, "--delete", help="Delete now what is due; the daemon does so each hour."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="With --delete: say what would be deleted, and delete nothing."
    ),
    home: Path = HOME,
    as_json: bool = AS_JSON,
) -> None:
    """Show what each store holds, since when, when it goes, and what stays for ever and why."""
    from fedloop_clients.home import SiteHome
    from fedloop_clients.retention import held_stores

    site = SiteHome(home.resolve())
    site.membership()
    if dry_run and not delete:
        raise UsageError("--dry-run belongs to --delete.", hint="Without --delete nothing is deleted.")
    now = int(time.time())
    held = held_stores(site)
    if delete:
        due = [one for one in held if one.is_due(now)]
        done = () if dry_run else _delete(site, now)
        _tell_deletion(due, done, dry_run=dry_run, as_json=as_json)
        return
    if as_json:
        tell_json({"stores": [one.model_dump() | {"due": one.is_due(now)} for one in held]})
        return
    tell_table(("store", "holds", "bytes", "since", "next deletion"), [_row(one, now) for one in held])
    print()
    for one in held:
        print(f"{one.store.name}: {one.store.holds}.")
        print(f"  kept {one.store.kept}; deleted by {one.store.deleted_by}{_setting(one)}; stays: {one.store.stays}.")


def _delete(site: SiteHome, now_unix: int) -> tuple[Deleted, ...]:
    from fedloop_clients.retention import delete_due

    outbox = site.outbox()
    try:
        return delete_due(site, outbox, now_unix, actor=operator())
    finally:
        outbox.close()


def _tell_deletion(due: Sequence[HeldStore], done: Sequence[Deleted], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        tell_json(
            {
                "due": [one.store.name for one in due],
                "deleted": [deleted.model_dump() for deleted in done],
                "dry_run": dry_run,
            }
        )
        return
    if not due:
        print("Nothing is due.")
    elif dry_run:
        listed = "; ".join(f"{one.store.name}, of {moment(one.oldest_unix or 0)} and later" for one in due)
        print(f"Due: {listed}. Nothing was deleted.")
    for deleted in done:
        print(f"{deleted.store}: {deleted.items} items of more than {deleted.days} days were deleted.")
    if any(one.store.name == "logs" for one in due):
        print("logs: the supervisor deletes them within the hour; `fedloop site up` starts it.")


def _row(held: HeldStore, now_unix: int) -> tuple[str, ...]:
    goes = "-" if held.goes_unix is None else "now" if held.is_due(now_unix) else moment(held.goes_unix)
    since = "-" if held.oldest_unix is None else moment(held.oldest_unix)
    items = "-" if held.items is None else str(held.items)
    return held.store.name, items, str(held.bytes), since, goes


def _setting(held: HeldStore) -> str:
    return f" ({held.store.setting})" if held.store.setting else ""
