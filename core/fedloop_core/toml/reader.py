"""Reading a TOML file strictly as a document: every mistake at once, in plain words, with its line and column.

The text passes three readers. ``tomllib`` reads values; pydantic checks them as JSON, where arrays are tuples and
``inf`` is a number; tree-sitter finds the places, and only when there are mistakes to place.
"""

from __future__ import annotations

import codecs
import datetime as dt
import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from fedloop_core.errors import FedloopError, SettingsInvalid, TaskInvalid, TaskUnreadable
from fedloop_core.strict import Place, Strict
from fedloop_core.toml.places import Position, find_positions, position_of
from fedloop_core.toml.words import Mistake, mistakes_of

__all__ = ["MAXIMUM_BYTES", "DocumentKind", "parse_document", "read_document"]

MAXIMUM_BYTES = 4_000_000
"""Longest file that is read."""

_DATES = (dt.date, dt.time)  # datetime.datetime is a date
D = TypeVar("D", bound=Strict)


@dataclass(frozen=True)
class DocumentKind(Generic[D]):
    """A kind of file: what it is read as, how messages call it, and which errors tell that it is wrong.

    ``absent`` is the hint when the file is not there; ``extra`` brings the parser that finds lines; ``maximum_bytes`` is the longest
    file that is read.
    """

    model: type[D]
    name: str
    absent: str
    extra: str
    unreadable: type[TaskUnreadable | SettingsInvalid]
    invalid: type[TaskInvalid | SettingsInvalid]
    maximum_bytes: int = MAXIMUM_BYTES


def read_document(path: Path, kind: DocumentKind[D]) -> D:
    """Reads and checks a file.

    Raises:
        FedloopError: ``kind.unreadable`` when the file is missing, too long, not UTF-8 or not TOML; ``kind.invalid`` when
            it breaks the model: its ``problems`` have a line for each mistake.
    """
    source = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(kind.maximum_bytes + 1)
    except OSError as error:
        hint = kind.absent if isinstance(error, FileNotFoundError) else ""
        raise kind.unreadable(f"cannot read {path}: {error.strerror}.", hint=hint, file=source) from error
    if len(content) > kind.maximum_bytes:
        raise kind.unreadable(f"{path} is longer than {kind.maximum_bytes} bytes: it is no {kind.name}.", file=source)
    return parse_document(_decoded(content, source, kind.unreadable), source, kind)


def parse_document(text: str, source: str, kind: DocumentKind[D]) -> D:
    """Checks the text of a file; ``source`` names it in messages.

    Raises:
        FedloopError: as ``read_document``.
    """
    document = _parsed(text, source, kind)
    mistakes = list(_unsayable(document, ()))
    try:
        # A value without a JSON form becomes null: its mistake is found above and not told twice.
        read = kind.model.model_validate_json(json.dumps(document, default=lambda _: None))
    except ValidationError as error:
        told = {mistake.place for mistake in mistakes}
        more = mistakes_of(error.errors(include_url=False), document, kind.model)
        mistakes += [mistake for mistake in more if mistake.place not in told]
    else:
        if not mistakes:
            return read
    raise _invalid(mistakes, text, source, kind)


def _decoded(content: bytes, source: str, unreadable: type[FedloopError]) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise unreadable(f"{source}:1: is UTF-16 text.", hint="Save the file as UTF-8.", file=source)
    try:
        return content.decode("utf-8-sig")  # editors on Windows begin UTF-8 files with a mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise unreadable(
            f"{source}:{line}:{column}: is not UTF-8 text.", hint="Save the file as UTF-8.", file=source, line=line
        ) from error


def _parsed(text: str, source: str, kind: DocumentKind[D]) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise kind.unreadable(
            f"{source}: is not a {kind.name}: its arrays are nested too deeply.", file=source
        ) from error
    except tomllib.TOMLDecodeError as error:
        words, _, place = str(error).rstrip(")").rpartition(" (at ")
        if place == "end of document":
            place = f"line {len(text.splitlines()) or 1}, column 1"
        where = ":".join([source, *(word for word in place.replace(",", "").split() if word.isdigit())])
        hint = "Strings need quotes, and every key may stand once."
        raise kind.unreadable(f"{where}: is not TOML: {words}.", hint=hint, file=source) from error
    except ValueError as error:  # an integer with more digits than Python reads
        raise kind.unreadable(f"{source}: holds a number with thousands of digits.", file=source) from error


def _unsayable(node: object, place: Place) -> Iterator[Mistake]:
    """Values that TOML has and our documents have not: dates, times and NaN."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _unsayable(value, (*place, key))
    elif isinstance(node, list):
        for at, value in enumerate(node):
            yield from _unsayable(value, (*place, at))
    elif isinstance(node, _DATES):
        yield Mistake(place, f"{_key(place)} is a date or time; write it in quotes if text is meant.")
    elif isinstance(node, float) and math.isnan(node):
        yield Mistake(place, f"{_key(place)} is nan, which is no number.")


def _key(place: Place) -> str:
    return ".".join(str(part) for part in place)


def _invalid(mistakes: list[Mistake], text: str, source: str, kind: DocumentKind[D]) -> TaskInvalid | SettingsInvalid:
    try:
        positions = find_positions(text)
    except ImportError:
        problems = tuple(f"{source}: {mistake.text}" for mistake in mistakes)
        hint = f"Line numbers need `pip install 'fedloop[{kind.extra}]'`."
    else:
        placed = sorted(((position_of(m.place, positions), m.text) for m in mistakes), key=_in_order)
        problems = tuple(f"{source}:{at.line}:{at.column}: {words}" for at, words in placed)
        hint = ""
    many = f"{len(problems)} mistakes" if len(problems) > 1 else "1 mistake"
    return kind.invalid(f"{source} has {many}.", problems=problems, hint=hint, file=source, mistakes=len(problems))


def _in_order(placed: tuple[Position, str]) -> tuple[int, int]:
    return placed[0].line, placed[0].column
