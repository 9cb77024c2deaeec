"""What the commands of all layers share: whose home it is, who acts, questions without an answer, and how things are printed."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
import typer

from fedloop_core.errors import UsageError
from fedloop_core.printable import printable

__all__ = ["AS_JSON", "Told", "as_owner", "moment", "operator", "tell_json", "tell_lines", "tell_table", "unanswered"]

Told = Mapping[str, object]

_ANSWERS = ("--fingerprint", "--yes")
"""Options that answer a command's question, the safest first."""

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


def unanswered(error: BaseException, root: click.Command, arguments: Sequence[str]) -> UsageError | None:
    """What to say of a command that ended at its question, by the end of the input or a no; None where something else ended it.

    Args:
        error: what ended the command: click makes one exception of Ctrl-C, of the end of the input, and of a no.
        root: the group of all commands.
        arguments: the command, as it was given.
    """
    why = error.__cause__ or error.__context__
    if why is None and isinstance(error, click.Abort):
        return UsageError("nothing was changed.")
    if not isinstance(why, EOFError):
        return None
    typer.echo(err=True)  # ends the line of the question
    answers = [option for option in _ANSWERS if option in _options(root, arguments)]
    hint = f"Add {' or '.join(answers)}, or answer it at a terminal." if answers else "Answer it at a terminal."
    return UsageError("the question needs an answer, and the input has ended.", hint=hint)


def _options(command: click.Command, arguments: Sequence[str]) -> frozenset[str]:
    """The options of the command that was given."""
    for word in arguments:
        if not isinstance(command, click.Group):
            break
        if not word.startswith("-"):
            command = command.resolve_command(click.Context(command), [word])[1] or command
    return frozenset(option for parameter in command.params for option in parameter.opts)


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
