"""How a text table is written: declared in site.toml, or told from its beginning where that leaves no doubt."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass

from fedloop_clients.data.sources.batches import Fact, Known
from fedloop_clients.data.sources.csv_settings import CsvSettings
from fedloop_core.errors import SourceInvalid

__all__ = ["CsvDialect", "not_in_encoding", "settle_dialect"]

_DELIMITERS = (",", ";", "\t", "|")
_NAMES = {"\t": "tab", " ": "blank"}
_MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_ROWS_LOOKED_AT = 1000


@dataclass(frozen=True)
class CsvDialect:
    """What is settled: ``encoding`` a codec's name, ``mark`` the number of bytes to pass over at the start."""

    encoding: str
    mark: int
    delimiter: str
    quote: bool
    skip_lines: int
    facts: tuple[Fact, ...]


def settle_dialect(name: str, beginning: bytes, whole: bool, settings: CsvSettings) -> CsvDialect:
    """The dialect of a file.

    Args:
        name: the file's, for messages.
        beginning: its first bytes.
        whole: whether these are all of it.
        settings: what the site declares.

    Raises:
        SourceInvalid: the beginning is no text of that encoding, or more than one delimiter would do.
    """
    encoding, mark, known = _encoding(beginning, settings.encoding)
    text = _text(name, beginning[mark:], encoding, whole)
    lines = io.StringIO(text, newline="").readlines()
    if not whole and lines:
        lines = lines[:-1]
    delimiter, told = _delimiter(name, lines[settings.skip_lines :], settings)
    facts = (
        Fact("encoding", encoding, known),
        Fact("delimiter", _NAMES.get(delimiter, repr(delimiter)), told),
        Fact("quotation marks", "double" if settings.quote else "none", Known.DECLARED),
    )
    return CsvDialect(encoding, mark, delimiter, settings.quote, settings.skip_lines, facts)


def _encoding(beginning: bytes, declared: str | None) -> tuple[str, int, Known]:
    marked = next(((mark, name) for mark, name in _MARKS.items() if beginning.startswith(mark)), None)
    if declared is None:
        return ("utf-8", 0, Known.DETECTED) if marked is None else (marked[1], len(marked[0]), Known.DETECTED)
    name = codecs.lookup(declared).name
    own = marked is not None and name in {marked[1], marked[1].rpartition("-")[0], "utf-8-sig"}
    if marked is not None and own:
        return marked[1], len(marked[0]), Known.DECLARED
    return name, 0, Known.DECLARED


def _text(name: str, content: bytes, encoding: str, whole: bool) -> str:
    try:
        return codecs.getincrementaldecoder(encoding)("strict").decode(content, final=whole)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise not_in_encoding(name, line, encoding) from error


def not_in_encoding(name: str, line: int, encoding: str) -> SourceInvalid:
    """The error for bytes that are no text of an encoding."""
    return SourceInvalid(
        f"{name}:{line}: is not {encoding.upper()} text.",
        hint='Save the file as CSV UTF-8, or declare its encoding in site.toml: [data.csv] encoding = "cp1252".',
    )


def _delimiter(name: str, lines: list[str], settings: CsvSettings) -> tuple[str, Known]:
    if settings.delimiter is not None:
        return settings.delimiter, Known.DECLARED
    widths = {mark: _widths(lines, mark, settings.quote) for mark in _DELIMITERS}
    dividing = [mark for mark, found in widths.items() if found and found[0] > 1]
    if not dividing:
        return ",", Known.DETECTED  # one column
    if len(dividing) > 1:
        dividing = [mark for mark in dividing if 10 * widths[mark].count(widths[mark][0]) >= 9 * len(widths[mark])]
    if len(dividing) == 1:
        return dividing[0], Known.DETECTED
    could = " and ".join(_NAMES.get(mark, repr(mark)) for mark in dividing) or "none of the usual marks"
    raise SourceInvalid(
        f"{name}: what divides its cells cannot be told: {could} would do.",
        hint='Declare it in site.toml: [data.csv] delimiter = ";".',
    )


def _widths(lines: Iterable[str], delimiter: str, quote: bool) -> list[int]:
    """Cells in each of the first rows that are not empty."""
    widths: list[int] = []
    reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE)
    try:
        for cells in reader:
            if cells:
                widths.append(len(cells))
            if len(widths) == _ROWS_LOOKED_AT:
                break
    except csv.Error:
        return widths
    return widths
