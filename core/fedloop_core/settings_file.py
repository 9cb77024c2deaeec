"""Reading server.toml and site.toml: as strict as a task file, and every mistake with its line."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from fedloop_core.errors import NotSetUp, SettingsInvalid
from fedloop_core.strict import Strict
from fedloop_core.toml.reader import DocumentKind, parse_document, read_document

__all__ = ["parse_settings", "read_settings"]

Settings = TypeVar("Settings", bound=Strict)


def read_settings(path: Path, model: type[Settings], *, missing: str) -> Settings:
    """Reads and checks a settings file; ``missing`` is what to do when it is not there.

    Raises:
        NotSetUp: there is no such file.
        SettingsInvalid: it cannot be read or holds something else than it should; ``problems`` names file, line and key
            of each mistake.
    """
    if not path.exists():
        raise NotSetUp(f"there is no {path}.", hint=missing, file=str(path))
    return read_document(path, _kind(model, missing))


def parse_settings(text: str, model: type[Settings], *, source: str) -> Settings:
    """Checks the text of a settings file; ``source`` names it in messages.

    Raises:
        SettingsInvalid: the text is not TOML or does not fit the model; ``problems`` names file, line and key of each
            mistake.
    """
    return parse_document(text, source, _kind(model, ""))


def _kind(model: type[Settings], missing: str) -> DocumentKind[Settings]:
    return DocumentKind(model, "settings file", missing, "server", SettingsInvalid, SettingsInvalid)
