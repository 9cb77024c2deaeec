"""The site's privacy ledger: see it, check it, hand it on, and decide when it was put back from a copy."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, operator, tell_json, tell_table
from fedloop_core.errors import UsageError

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome
    from fedloop_clients.privacy.accounts import BlockAccount
    from fedloop_clients.privacy.ledger import Ledger
    from fedloop_clients.privacy.verification import Verified

__all__ = ["accept_restored", "commands", "export", "show", "verify"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)


@commands.callback()
def _ledger() -> None:
    """The site's privacy ledger: see it, check it, hand it on, and decide when it was put back from a copy."""


@commands.command()
def show(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show what was spent on whom, and how far the rest reaches: in words, then in numbers."""
    from fedloop_clients.cli.ledger_words import block_sentences

    with _opened(home) as (_, ledger):
        accounts = ledger.accounts()
    if as_json:
        tell_json({"blocks": [_told(account) for account in accounts]})
        return
    for sentence in block_sentences(accounts):
        print(sentence)
    print()
    head = (
        "block",
        "spent",
        "budget",
        "delta",
        "if fixed beforehand",
        "runs",
        "runs left",
        "open",
        "order",
        "last run",
    )
    tell_table(head, [_row(account) for account in accounts])
    print(
        "\nspent: epsilon for life at the block's one order, which decides. A block's first charge takes a part once for all, and "
        "later\nones do not: one run of epsilon 1 may show 4, and ten of them far less than 40.\nif fixed beforehand: by loss distributions, for information."
    )


@commands.command()
def verify(
    home: Path = HOME,
    exported: Path | None = typer.Option(None, "--export", help="Verify this export instead of the site's ledger."),
    key: str = typer.Option(
        "", "--key", help="With --export: the site's public key in hex, as `fedloop site status` shows; no file."
    ),
    head: str = typer.Option(
        "", "--head", help="The digest of an entry that must be there, in hex, as `fedloop server site show` tells it."
    ),
    as_json: bool = AS_JSON,
) -> None:
    """Read everything again: chain, signatures, every admission, every sum. Names the first entry that is wrong."""
    from fedloop_clients.cli.ledger_checks import entry_of, key_of, reach_words, read_rows
    from fedloop_clients.privacy.verification import verify_rows

    if exported is None:
        with _opened(home) as (_, ledger):
            found, rows, name = ledger.verify(), ledger.rows(), str(home)
    else:
        rows, name = read_rows(exported), str(exported)
        found = verify_rows(rows, key_of(key), name)
    compared = entry_of(rows, head, name)
    if as_json:
        told = {
            "sequence": found.sequence,
            "digest": found.digest.hex(),
            "signed": found.signed,
            "keys": list(found.keys),
            "compared": compared,
        }
        tell_json(told | {"clock_back": list(found.clock_back)})
        return
    print(
        f"The {'ledger' if exported is None else 'export'} holds: {found.sequence} entries, head {found.digest.hex()}"
    )
    print(_signed(found))
    for line in reach_words(found.sequence, compared, exported=exported is not None):
        print(line)
    if found.clock_back:
        listed = ", ".join(str(entry) for entry in found.clock_back)
        print(f"A clock was set back before: entry {listed}. No sum depends on it.")


@commands.command()
def export(
    home: Path = HOME,
    out: Path | None = typer.Option(None, "--out", help="Where to write; standard output without it."),
    as_json: bool = AS_JSON,
) -> None:
    """Write all entries as JSON lines, for auditors; the first line says what each field means."""
    from fedloop_clients.privacy.export import export_lines
    from fedloop_core.durable import write_bytes

    with _opened(home) as (site, ledger):
        rows = ledger.rows()
        lines = tuple(export_lines(rows, site.membership().site, _tasks(site)))
    if out is None:
        for line in lines:
            print(line)
        return
    write_bytes(out, "".join(f"{line}\n" for line in lines).encode())
    if as_json:
        tell_json({"file": str(out), "entries": len(rows)})
    else:
        print(f"Wrote {len(rows)} entries to {out}. To check them: fedloop site ledger verify --export {out} --key KEY")


@commands.command("accept-restored")
def accept_restored(
    home: Path = HOME,
    yes: bool = typer.Option(False, "--yes", help="Ask nothing."),
    as_json: bool = AS_JSON,
) -> None:
    """Go on with a ledger that lost its newest entries: what they charged is known to nobody any more."""
    from fedloop_clients.heads import FILE_NAME, accept_restored, standing_stop
    from fedloop_clients.home import SiteHome
    from fedloop_core.audit import AuditAction

    site = SiteHome(home.resolve())
    name = site.membership().site
    if not yes:
        found = standing_stop(site.folder / FILE_NAME)
        if as_json:
            raise UsageError("this must be confirmed.", hint="Add --yes.")
        if not typer.confirm(
            f"{found.sentence} What was charged in its lost entries is gone. Go on, and answer for it?"
        ):
            raise UsageError("nothing was changed.")
    by = operator()
    stop = accept_restored(site.folder / FILE_NAME, by=by, now_unix=int(time.time()))
    site.audit().record(by, AuditAction.OVERRIDE, name, what="ledger accepted", seen=stop.seen_sequence)
    if as_json:
        tell_json({"given_up": stop.seen_sequence, "own": stop.own_sequence})
    else:
        print(f"Entry {stop.seen_sequence} is given up; the ledger goes on from entry {stop.own_sequence}.")
        print("Tell the coordinator's people: they must give it up too.")


@contextmanager
def _opened(home: Path) -> Iterator[tuple[SiteHome, Ledger]]:
    """The site and its ledger.

    Raises:
        NotSetUp: the site has not joined.
        UsageError: there is no ledger yet.
        StorageError: it cannot be read.
    """
    from fedloop_clients.home import SiteHome

    site = SiteHome(home.resolve())
    site.membership()
    if not site.ledger_file.exists():
        raise UsageError(f"{site.ledger_file} is not there: the ledger begins with the first run.")
    ledger = site.ledger()
    try:
        yield site, ledger
    finally:
        ledger.close()


def _tasks(site: SiteHome) -> dict[str, dict[str, str]]:
    """Name and purpose of the tasks that this site was asked to train, by the digest that the ledger names."""
    from fedloop_clients.past_runs import known_tasks

    return {task.digest.hex(): {"name": task.name, "purpose": task.purpose_name} for task in known_tasks(site)}


def _signed(found: Verified) -> str:
    if found.sequence and found.vouched == found.sequence:
        return "The newest signature, by this site's key, vouches for all of them; every admission and every sum holds."
    return "Every admission and every sum holds. No key was expected: who wrote the entries is not checked."


def _told(account: BlockAccount) -> dict[str, object]:
    """JSON has no infinity: what is infinite is null."""
    return {
        "block": account.name,
        "opened_unix": account.opened_unix,
        "unit_column": account.unit,
        "unit_columns": list(account.units),
        "epsilon": _finite(account.spend.epsilon),
        "epsilon_once": account.once,
        "budget": _finite(account.spend.budget),
        "delta": account.spend.delta,
        "order": account.order,
        "epsilon_if_fixed_beforehand": _finite(account.by_loss),
        "runs": account.runs,
        "last_run": account.last_run,
        "runs_left": None if account.runs_left is None else _finite(account.runs_left),
        "retired": account.retired,
        "charges": account.charges,
        "open_reservations": account.open_reservations,
    }


def _row(account: BlockAccount) -> tuple[str, ...]:
    spend = account.spend
    return (
        account.name,
        f"{spend.epsilon:.4f}",
        f"{spend.budget:g}",
        f"{spend.delta:g}",
        f"{account.by_loss:.4f}",
        str(account.runs),
        "-" if account.runs_left is None else f"{account.runs_left:.1f}",
        str(account.open_reservations),
        "-" if account.order is None else f"{account.order:g}",
        account.last_run or "-",
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
