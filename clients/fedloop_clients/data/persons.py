"""Who is named in a column of a site's source, row by row."""

from __future__ import annotations

from collections.abc import Iterator

from fedloop_clients.data.cells.text import as_text
from fedloop_clients.data.sources.batches import RowSource

__all__ = ["named_persons"]


def named_persons(source: RowSource, column: str) -> Iterator[tuple[int, str]]:
    """The number of each row that can be read and the person it names, "" where it names none: as text, blanks around it taken away.

    Args:
        source: the site's.
        column: its name for the column.

    Raises:
        FileMissing, SourceInvalid, ColumnMissing: as the source.
    """
    for batch in source.batches((column,)):
        names = as_text(batch.columns.column(column)).to_pylist()
        for number, name in zip(batch.numbers.tolist(), names, strict=True):
            yield number, name or ""
