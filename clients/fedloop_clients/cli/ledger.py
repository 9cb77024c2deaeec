"""The site's privacy ledger: see it, check it, and decide when it was put back from a copy."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, operator, tell_json
from fedloop_core.errors import UsageError

__all__ = ["accept_restored", "commands", "verify"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)


@commands.callback()
def _ledger() -> None:
    """The site's privacy ledger: check it, and decide when it was put back from a copy."""


@commands.command()
def verify(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Read the whole chain again: every entry must follow from the one before it."""
    from fedloop_clients.home import SiteHome

    site = SiteHome(home.resolve())
    site.membership()
    if not site.ledger_file.exists():
        raise UsageError(f"{site.ledger_file} is not there: the ledger begins with the first run.")
    ledger = site.ledger()
    head = ledger.verify()
    ledger.close()
    if as_json:
        tell_json({"sequence": head.sequence, "digest": head.digest.hex()})
    else:
        print(f"The ledger holds: {head.sequence} entries, head {head.digest.hex()}")


@commands.command("accept-restored")
def accept_restored(
    home: Path = HOME,
    yes: bool = typer.Option(False, "--yes", help="Ask nothing."),
    as_json: bool = AS_JSON,
) -> None:
    """Go on with a ledger that lost its newest entries: what they charged is known to nobody any more."""
    from fedloop_clients.heads import FILE_NAME, accept_restored
    from fedloop_clients.home import SiteHome
    from fedloop_core.audit import AuditAction

    site = SiteHome(home.resolve())
    name = site.membership().site
    if not yes:
        if as_json:
            raise UsageError("this must be confirmed.", hint="Add --yes.")
        if not typer.confirm("Charges were lost. Go on, and answer for it?"):
            raise UsageError("nothing was changed.")
    by = operator()
    stop = accept_restored(site.folder / FILE_NAME, by=by, now_unix=int(time.time()))
    site.audit().record(by, AuditAction.OVERRIDE, name, what="ledger accepted", seen=stop.seen_sequence)
    if as_json:
        tell_json({"given_up": stop.seen_sequence, "own": stop.own_sequence})
    else:
        print(f"Entry {stop.seen_sequence} is given up; the ledger goes on from entry {stop.own_sequence}.")
        print("Tell the coordinator's people: they must give it up too.")
