"""Which folder a command is about."""

from __future__ import annotations

from pathlib import Path

import typer

from fedloop_core.commands import as_owner

__all__ = ["HOME", "HOME_AS_ROOT"]

_HELP = "The site's folder."

HOME: Path = typer.Option(Path(), "--home", envvar="FEDLOOP_HOME", help=_HELP, callback=as_owner)
HOME_AS_ROOT: Path = typer.Option(Path(), "--home", envvar="FEDLOOP_HOME", help=_HELP)
"""For commands that start processes as users of their own."""
