"""What the commands of all layers share: whose home it is, who acts, and how times, tables and JSON are printed."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from fedloop_core.printable import printable

__all__ = ["AS_JSON", "Told", "as_owner", "moment", "operator", "tell_json", "tell_lines", "tell_table"]

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
    """Prints columns; whatever a cell holds, it is one line of printed characters."""
    table = [[printable(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    for row in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def tell_lines(told: Told) -> None:
    """Prints a line for each key: its name and its value, of which no terminal obeys any; times as people read them."""
    for key, value in told.items():
        shown = moment(value) if key.endswith("_unix") and isinstance(value, int) else value
        said = "-" if shown in ("", None) else printable(str(shown))
        typer.echo(f"{key.removesuffix('_unix').replace('_', ' '):24}{said}")
