"""What came of leaving people out, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedloop_clients.people import PersonFound, Search

__all__ = ["ErasureOutcome"]


@dataclass(frozen=True)
class ErasureOutcome:
    """What came of it. ``unseen``: why nobody was looked for; ``absent`` are in no row and were not on the list before."""

    named: int
    new: int
    known: int
    search: Search | None
    unseen: str
    absent: tuple[PersonFound, ...]
    dry_run: bool
    not_yet: bool

    def as_json(self) -> dict[str, object]:
        """For programs."""
        search = self.search
        return {
            "new": self.new,
            "known": self.known,
            "dry_run": self.dry_run,
            "columns": [] if search is None else list(search.columns),
            "rows": None if search is None else search.rows,
            "people_with_rows": None if search is None else sum(one.rows > 0 for one in search.people),
            "without_rows": [{"person": one.person, "near": list(one.near)} for one in self.absent],
        }

    def words(self) -> Iterator[str]:
        """Sentences, the sum first."""
        would = "would be" if self.dry_run else "are"
        others = f"; {self.known} already were" if self.known else ""
        yield f"{self.new} of {self.named} people {would} left out of every run that begins from now on{others}."
        if self.search is None:
            yield f"Nobody was looked for: {self.unseen}"
            return
        having = sum(one.rows > 0 for one in self.search.people)
        columns = " or ".join(map(repr, self.search.columns))
        found = f"{_counted(self.search.rows, 'row')} of {_counted(having, 'person', 'people')}"
        yield f"Column {columns} of {self.search.file} holds {found}."
        for one in self.absent:
            near = f" Near it: {', '.join(map(repr, one.near))}." if one.near else ""
            listed = " On the list all the same." if self.not_yet and not self.dry_run else ""
            yield f"{one.person!r} is in no row.{near}{listed}"


def _counted(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"
