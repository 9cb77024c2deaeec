"""Which coordinator a command is about, and durations as people write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.commands import as_owner
from fedloop_core.errors import NotSetUp, UsageError
from fedloop_server.settings import SETTINGS_FILE

if TYPE_CHECKING:
    from fedloop_server.home import CoordinatorHome

__all__ = ["HOME", "HOME_AS_ROOT", "open_home", "parse_seconds"]

_HELP = "The coordinator's folder."

HOME: Path = typer.Option(Path(), "--home", envvar="FEDLOOP_HOME", help=_HELP, callback=as_owner)
HOME_AS_ROOT: Path = typer.Option(Path(), "--home", envvar="FEDLOOP_HOME", help=_HELP)
"""For commands that start processes as users of their own, or read what belongs to several."""

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
