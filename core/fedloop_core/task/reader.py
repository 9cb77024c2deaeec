"""Reading a task file strictly: every mistake at once, in plain words, with its line and column.

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
from pathlib import Path

from pydantic import ValidationError

from fedloop_core.errors import TaskInvalid, TaskUnreadable
from fedloop_core.strict import Place
from fedloop_core.task.document import Task
from fedloop_core.task.places import Position, find_positions, position_of
from fedloop_core.task.words import Mistake, mistakes_of

__all__ = ["MAXIMUM_BYTES", "parse_task", "read_task"]

MAXIMUM_BYTES = 4_000_000
"""Longest task file that is read."""

_DATES = (dt.date, dt.time)  # datetime.datetime is a date


def read_task(path: Path) -> Task:
    """Reads and checks a task file.

    Raises:
        TaskUnreadable: the file is missing, too long, not UTF-8 or not TOML; says where.
        TaskInvalid: the file breaks the schema; ``problems`` has a line for each mistake.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        hint = "`fedloop task init NAME` writes a first one." if isinstance(error, FileNotFoundError) else ""
        raise TaskUnreadable(f"cannot read {path}: {error.strerror}.", hint=hint, file=str(path)) from error
    if len(content) > MAXIMUM_BYTES:
        raise TaskUnreadable(f"{path} is longer than {MAXIMUM_BYTES} bytes: it is no task file.", file=str(path))
    return parse_task(_decoded(content, str(path)), source=str(path))


def parse_task(text: str, source: str = "task.toml") -> Task:
    """Checks the text of a task file; ``source`` names it in messages.

    Raises:
        TaskUnreadable: the text is not TOML; says where.
        TaskInvalid: the text breaks the schema; ``problems`` has a line for each mistake.
    """
    document = _parsed(text, source)
    mistakes = list(_unsayable(document, ()))
    try:
        # A value without a JSON form becomes null: its mistake is found above and not told twice.
        task = Task.model_validate_json(json.dumps(document, default=lambda _: None))
    except ValidationError as error:
        told = {mistake.place for mistake in mistakes}
        more = mistakes_of(error.errors(include_url=False), document, Task)
        mistakes += [mistake for mistake in more if mistake.place not in told]
    else:
        if not mistakes:
            return task
    raise _invalid(mistakes, text, source)


def _decoded(content: bytes, source: str) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TaskUnreadable(f"{source}:1: is UTF-16 text.", hint="Save the file as UTF-8.", file=source)
    try:
        return content.decode("utf-8-sig")  # editors on Windows begin UTF-8 files with a mark
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise TaskUnreadable(
            f"{source}:{line}:{column}: is not UTF-8 text.", hint="Save the file as UTF-8.", file=source, line=line
        ) from error


def _parsed(text: str, source: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise TaskUnreadable(f"{source}: is not a task file: its arrays are nested too deeply.", file=source) from error
    except tomllib.TOMLDecodeError as error:
        words, _, place = str(error).rstrip(")").rpartition(" (at ")
        if place == "end of document":
            place = f"line {len(text.splitlines()) or 1}, column 1"
        where = ":".join([source, *(word for word in place.replace(",", "").split() if word.isdigit())])
        hint = "Strings need quotes, and every key may stand once."
        raise TaskUnreadable(f"{where}: is not TOML: {words}.", hint=hint, file=source) from error
    except ValueError as error:  # an integer with more digits than Python reads
        raise TaskUnreadable(f"{source}: holds a number with thousands of digits.", file=source) from error


def _unsayable(node: object, place: Place) -> Iterator[Mistake]:
    """Values that TOML has and a task has not: dates, times and NaN."""
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


def _invalid(mistakes: list[Mistake], text: str, source: str) -> TaskInvalid:
    try:
        positions = find_positions(text)
    except ImportError:
        problems = tuple(f"{source}: {mistake.text}" for mistake in mistakes)
        hint = "Line numbers need `pip install 'fedloop[server]'`."
    else:
        placed = sorted(((position_of(m.place, positions), m.text) for m in mistakes), key=_in_order)
        problems = tuple(f"{source}:{at.line}:{at.column}: {words}" for at, words in placed)
        hint = ""
    many = f"{len(problems)} mistakes" if len(problems) > 1 else "1 mistake"
    return TaskInvalid(f"{source} has {many}.", problems=problems, hint=hint, file=source, mistakes=len(problems))


def _in_order(placed: tuple[Position, str]) -> tuple[int, int]:
    return placed[0].line, placed[0].column
