"""What the commands share: the home, who acts, times and durations as people write them."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.errors import NotSetUp, UsageError
from fedloop_server.settings import SETTINGS_FILE

if TYPE_CHECKING:
    from fedloop_server.home import CoordinatorHome

__all__ = ["AS_JSON", "HOME", "Told", "moment", "open_home", "operator", "parse_seconds", "tell_json", "tell_table"]

Told = Mapping[str, object]

HOME: Path = typer.Option(Path(), "--home", envvar="FEDLOOP_HOME", help="The coordinator's folder.")
AS_JSON: bool = typer.Option(False, "--json", help="Print JSON instead of sentences.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def open_home(folder: Path) -> CoordinatorHome:
    """A coordinator that is set up.

    Raises:
        NotSetUp: the folder holds none.
    """
    from fedloop_server.home import CoordinatorHome  # the database's packages take a while, and `up` needs none

    if not (folder / SETTINGS_FILE).exists():
        raise NotSetUp(
            f"{folder.resolve()} holds no coordinator.",
            hint="Give --home or FEDLOOP_HOME; `fedloop server init` makes a coordinator.",
        )
    return CoordinatorHome(folder)


def operator() -> str:
    """Who acts, for the audit log: the person behind sudo, where there is one."""
    return f"operator:{os.environ.get('SUDO_USER') or getpass.getuser()}"


def moment(unix: int) -> str:
    """A Unix time in UTC, for people."""
    return dt.datetime.fromtimestamp(unix, dt.UTC).strftime("%Y-%m-%d %H:%M UTC") if unix else "never"


def parse_seconds(text: str) -> int:
    """Seconds of ``7d``, ``12h``, ``30m``.

    Raises:
        UsageError: it has another form, or is not between a minute and a year.
    """
    found = re.fullmatch(r"(\d{1,6})([smhdw])", text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 60 <= seconds <= 366 * 86_400:
        raise UsageError(f"{text!r} is no time between a minute and a year.", hint="Write 7d, 12h or 30m.")
    return seconds


def tell_json(told: Told) -> None:
    """Prints one line of JSON."""
    print(json.dumps(told))


def tell_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints columns."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    for row in (head, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
