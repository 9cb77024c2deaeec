"""Looks people up by what they are called in a site's file: how many rows are theirs, and whose spelling is only near.

A name counts as the file writes it, in composed characters (NFC) and without blanks around it: whoever takes ``123`` for ``00123``
may take one person for another. What differs in no more than capitals, zeros before a number, ``.0`` after it, or the form of
its characters (NFKC) is told as a suggestion.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedloop_core.errors import UsageError

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome

__all__ = ["PersonFound", "Search", "look_up", "person_columns", "person_name", "search_for"]

_MOST_NEAR = 5
_ZEROS_BEFORE = re.compile(r"(?<!\d)0+(?=\d)")
_NOTHING_AFTER = re.compile(r"[.,]0+$")


@dataclass(frozen=True)
class PersonFound:
    """A person as somebody named them: how many rows are theirs, and names in the file that may be meant where none is."""

    person: str
    rows: int
    near: tuple[str, ...] = ()


@dataclass(frozen=True)
class Search:
    """Where people were looked for, and what was found of each, in the order in which they were named."""

    file: str
    columns: tuple[str, ...]
    people: tuple[PersonFound, ...]

    @property
    def rows(self) -> int:
        """Of all of them together."""
        return sum(found.rows for found in self.people)


def person_name(text: str) -> str:
    """What a person is compared by."""
    return unicodedata.normalize("NFC", text.strip())


def look_up(people: Sequence[str], texts: Iterable[str]) -> tuple[PersonFound, ...]:
    """Finds people among the cells of a column.

    Args:
        people: as somebody named them.
        texts: the column, a cell for each row.
    """
    rows = Counter(texts)
    named: Counter[str] = Counter()
    for text, count in rows.items():
        named[person_name(text)] += count
    absent = {_look(person) for person in people if not named[person_name(person)]}
    near: dict[str, list[str]] = {}
    for text in rows:
        if absent and text and (look := _look(text)) in absent:
            near.setdefault(look, []).append(text)
    found = []
    for person in people:
        count = named[person_name(person)]
        found.append(PersonFound(person, count, () if count else tuple(near.get(_look(person), ())[:_MOST_NEAR])))
    return tuple(found)


def person_columns(home: SiteHome) -> tuple[str, ...]:
    """The columns of the site's file that name people: ``data.person_column``, or else the units of the tasks that it was asked to train.

    Raises:
        NotSetUp, SettingsInvalid: as ``SiteHome.settings``.
        StorageError: the outbox cannot be read.
    """
    from fedloop_clients.past_runs import known_tasks

    data = home.settings.data
    if data.person_column is not None:
        return (data.person_column,)
    mappings = data.mappings(str(home.settings_file))
    units = (task.privacy.unit_column for task in known_tasks(home))
    return tuple(dict.fromkeys(mappings.column(unit) for unit in units if unit is not None))


def search_for(home: SiteHome, people: Sequence[str]) -> Search:
    """Looks for people in the site's file, in every column that names people.

    Raises:
        UsageError: no such column is known.
        FileMissing, SourceInvalid, ColumnMissing: the file cannot be read, or has not that column.
        NotSetUp, SettingsInvalid, StorageError: as ``person_columns``.
    """
    from fedloop_clients.data.opening import open_source
    from fedloop_clients.data.persons import named_persons

    columns = person_columns(home)
    if not columns:
        raise UsageError(
            "no column is known that names the person of a row, so nobody can be looked for.",
            hint=f"Set data.person_column in {home.settings_file}; or add --not-yet to put people on the list unseen.",
        )
    source = open_source(home.data_file, home.settings.data)
    looked = [look_up(people, (text for _, text in named_persons(source, column))) for column in columns]
    return Search(home.data_file.name, columns, tuple(map(_best, zip(*looked, strict=True))))


def _best(found: tuple[PersonFound, ...]) -> PersonFound:
    """Of what each column says about one person."""
    most = max(found, key=lambda one: one.rows)
    near = dict.fromkeys(name for one in found for name in one.near)
    return most if most.rows else PersonFound(most.person, 0, tuple(near)[:_MOST_NEAR])


def _look(text: str) -> str:
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return _ZEROS_BEFORE.sub("", _NOTHING_AFTER.sub("", plain))
