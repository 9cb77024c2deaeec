"""What the commands of all layers share: whose home it is, who acts, and how times, tables and JSON are printed."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

__all__ = ["AS_JSON", "Told", "as_owner", "moment", "operator", "tell_json", "tell_table"]

Told = Mapping[str, object]

AS_JSON: bool = typer.Option(False, "--json", help="Print JSON instead of sentences.")


def as_owner(home: Path) -> Path:
    """What ``--home`` does on its way in: goes on as the user whose home it is, when root gives the command.

    Raises:
        NotSetUp: that user cannot run this installation.
    """
    from fedloop_core.processes.users import become_owner

    become_owner(home)
    return home


def operator() -> str:
    """Who acts, for the audit log: the person behind sudo, where there is one."""
    try:
        return f"operator:{os.environ.get('SUDO_USER') or getpass.getuser()}"
    except (KeyError, OSError):  # a container's user number may have no name
        return f"operator:{os.getuid()}"


def moment(unix: int) -> str:
    """A Unix time in UTC, for people."""
    return dt.datetime.fromtimestamp(unix, dt.UTC).strftime("%Y-%m-%d %H:%M UTC") if unix else "never"


def tell_json(told: Told) -> None:
    """Prints one line of JSON."""
    typer.echo(json.dumps(told))


def tell_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    for row in (head, *rows):
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
