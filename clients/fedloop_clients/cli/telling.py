"""What the commands share: the home, who acts, times as people write them."""

from __future__ import annotations

import datetime as dt
import getpass
import json
import os
from collections.abc import Mapping
from pathlib import Path

import typer

__all__ = ["AS_JSON", "HOME", "Told", "moment", "operator", "tell_json"]

Told = Mapping[str, object]

HOME: Path = typer.Option(Path(), "--home", envvar="FEDLOOP_HOME", help="The site's folder.")
AS_JSON: bool = typer.Option(False, "--json", help="Print JSON instead of sentences.")


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
    print(json.dumps(told))
