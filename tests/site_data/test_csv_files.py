"""Text tables as spreadsheets, databases and instruments write them: divided rightly, or refused with the line."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.data.sources.csv_settings import CsvSettings
from fedloop_clients.data.sources.csv_source import CsvSource
from fedloop_core.errors import ColumnMissing, DataError, FileMissing, SourceInvalid


def cells_of(source: CsvSource) -> list[list[str]]:
    columns = source.columns()
    return [
        list(row)
        for batch in source.batches(columns)
        for row in zip(*(column.to_pylist() for column in batch.columns.columns), strict=True)
    ]


@dataclass(frozen=True)
class Written:
    """Bytes, what they are declared to be, and the cells that they hold."""

    name: str
    content: bytes
    cells: list[list[str]]
    declared: dict[str, Any] = field(default_factory=dict)
    header: tuple[str, ...] = ("a", "b")


READ = (
    Written("comma", b"a,b\n1,2\n", [["1", "2"]]),
    Written("semicolon with decimal commas", b"a;b\n1,5;2\n3;4,25\n", [["1,5", "2"], ["3", "4,25"]]),
    Written("tab", b"a\tb\n1\t2\n", [["1", "2"]]),
    Written("pipe", b"a|b\n1|2\n", [["1", "2"]]),
    Written("declared blank", b"a b\n1 2\n", [["1", "2"]], {"delimiter": " "}),
    Written("one column", b"a\n1\n2\n", [["1"], ["2"]], header=("a",)),
    Written("no line end at the end", b"a,b\n1,2", [["1", "2"]]),
    Written("line ends of Windows", b"a,b\r\n1,2\r\n", [["1", "2"]]),
    Written("line ends of old Macs", b"a,b\r1,2\r", [["1", "2"]]),
    Written("mixed line ends", b"a,b\r\n1,2\n3,4\r\n", [["1", "2"], ["3", "4"]]),
    Written("byte order mark", b"\xef\xbb\xbfa,b\n1,2\n", [["1", "2"]]),
    Written("byte order mark before a quoted name", b'\xef\xbb\xbf"a","b"\n1,2\n', [["1", "2"]]),
    Written("UTF-16 of a spreadsheet", "a\tb\nä\t2\n".encode("utf-16"), [["ä", "2"]]),
    Written("declared UTF-16 big-endian", "a,b\nä,2\n".encode("utf-16-be"), [["ä", "2"]], {"encoding": "utf-16-be"}),
    Written("declared cp1252", "a,b\n€,ü\n".encode("cp1252"), [["€", "ü"]], {"encoding": "cp1252"}),
    Written("delimiter in quotes", b'a,b\n"1,5",2\n', [["1,5", "2"]]),
    Written("line end in quotes", b'a,b\n"x\ny",2\n3,4\n', [["x\ny", "2"], ["3", "4"]]),
    Written("doubled quotation marks", b'a,b\n"say ""hi""",""\n', [['say "hi"', ""]]),
    Written("quotation marks that are text", b'a,b\n5" pipe,2\n', [['5" pipe', "2"]], {"quote": False}),
    Written("identifiers with zeros", b"a,b\n007,1e5\n", [["007", "1e5"]]),
    Written("long digits", b"a,b\n12345678901234567890,2\n", [["12345678901234567890", "2"]]),
    Written("blanks around names and cells", b" a , b \n 1 ,2 \n", [[" 1 ", "2 "]]),
    Written("lines before the header", b"made by X;;\n\na,b\n1,2\n", [["1", "2"]], {"skip_lines": 2}),
    Written("only a header", b"a,b\n", []),
    Written("a header without line end", b"a,b", []),
    Written("empty cells", b"a,b\n,\n1,\n", [["", ""], ["1", ""]]),
    Written("a formula stays text", b"a,b\n=1+1,2\n", [["=1+1", "2"]]),
    Written("text beyond the basic plane", "a,b\n🩺,\u202e\n".encode(), [["🩺", "\u202e"]]),
)


@pytest.mark.parametrize("written", READ, ids=lambda written: written.name)
def test_is_read_as_it_is_written(written: Written, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(written.content)
    source = CsvSource(file, CsvSettings(**written.declared))
    assert source.columns() == written.header
    assert cells_of(source) == written.cells


@dataclass(frozen=True)
class Refused:
    """Bytes that are refused, and the words about them."""

    name: str
    content: bytes
    words: str
    error: type[DataError] = SourceInvalid
    declared: dict[str, Any] = field(default_factory=dict)


REFUSED = (
    Refused("empty", b"", "is empty"),
    Refused("an empty first line", b"\na,b\n1,2\n", "its first line holds nothing"),
    Refused("not UTF-8", b"a,b\n1,2\n\xe4,3\n", "a.csv:3: is not UTF-8 text"),
    Refused("half a character at the end", b"a,b\n1,\xc3", "a.csv:2: is not UTF-8 text"),
    Refused("another encoding than declared", b"a,b\n\x81,1\n", "is not CP1252 text", declared={"encoding": "cp1252"}),
    Refused("NUL", b"a,b\n1,\x00\n", "a.csv:2: holds NUL characters"),
    Refused("UTF-16 without mark", "a,b\n1,2\n".encode("utf-16-le"), "holds NUL characters"),
    Refused(
        "an open quotation mark", b'a,b\n1,"2\n3,4\n', "a.csv:2: a quotation mark opens a cell that nothing closes"
    ),
    Refused(
        "text after a closing mark", b'a,b\n"1"2,3\n', "a.csv:2: a quotation mark closes a cell, and text follows it"
    ),
    Refused("a mark in a cell", b'a,b\n1,2\n5" pipe,2\n', "a.csv:3: a quotation mark stands in the middle of a cell"),
    Refused("escaped by backslash", b'a,b\n"5\\" pipe",2\n', "a.csv:2: a quotation mark closes a cell"),
    Refused("a column twice", b"a,a\n1,2\n", "has two columns 'a'"),
    Refused(
        "two delimiters would do", b"1,5;2,5\n2,5;3,5\n", "what divides its cells cannot be told: ',' and ';' would do"
    ),
    Refused("a longer row than is held", b"a,b\n1," + b"x" * (9 << 20) + b"\n", "one is longer than 4 MiB"),
)


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_is_refused_with_file_and_line(refused: Refused, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(refused.content)
    source = CsvSource(file, CsvSettings(**refused.declared))
    with pytest.raises(refused.error) as raised:
        cells_of(source)
    assert refused.words in raised.value.message
    assert raised.value.hint


def test_rows_of_another_width_are_told_by_number_and_the_others_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'a,b\n1,2\n3\n"x\ny",5\n6,7,8\n9,10\n11\n')
    source = CsvSource(file, CsvSettings())
    batches = list(source.batches(("b",)))
    numbers = [int(number) for batch in batches for number in batch.numbers]
    assert [cell for batch in batches for cell in batch.columns.column("b").to_pylist()] == ["2", "5", "10"]
    broken = {row.number: row.why for batch in batches for row in batch.broken}
    assert broken == {
        3: "has 1 cells; there are 2 columns",
        5: "has 3 cells; there are 2 columns",
        7: "has 1 cells; there are 2 columns",
    }
    assert source.places([*numbers, *broken]) == {
        2: "a.csv:2",
        3: "a.csv:3",
        4: "a.csv:4",
        5: "a.csv:6",
        6: "a.csv:7",
        7: "a.csv:8",
    }


def test_a_missing_file_and_a_missing_column_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match=r"cannot read .*none\.csv: No such file"):
        CsvSource(tmp_path / "none.csv", CsvSettings()).columns()
    file = tmp_path / "a.csv"
    file.write_bytes(b"Age,b\n1,2\n")
    with pytest.raises(ColumnMissing, match="has no column 'age', 'c'") as raised:
        list(CsvSource(file, CsvSettings()).batches(("age", "c")))
    assert "Did you mean 'Age'?" in str(raised.value.hint)


def test_names_of_a_file_without_header_must_be_as_many_as_its_cells(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b"1,2\n3,4\n")
    assert cells_of(CsvSource(file, CsvSettings(), ("x", "y"))) == [["1", "2"], ["3", "4"]]
    with pytest.raises(SourceInvalid, match=r"its first row has 2 cells, and site.toml names 3 columns"):
        CsvSource(file, CsvSettings(), ("x", "y", "z")).columns()


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@settings(deadline=None, max_examples=150)
@given(
    st.integers(2, 5).flatmap(lambda width: st.lists(st.lists(TEXT, min_size=width, max_size=width), max_size=12)),
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-16"]),
)
def test_what_a_writer_wrote_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], delimiter: str, end: str, encoding: str
) -> None:
    width = len(rows[0]) if rows else 2
    names = [f"c{at}" for at in range(width)]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerows([names, *rows])
    file = tmp_path_factory.mktemp("csv") / "a.csv"
    file.write_bytes(text.getvalue().encode(encoding))
    source = CsvSource(file, CsvSettings(delimiter=delimiter))
    assert source.columns() == tuple(names)
    assert cells_of(source) == rows


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from([b'"', b",", b"\n", b"\r\n", b"x", b"1", b" ", b'""']), max_size=40).map(b"".join))
def test_arrow_and_python_divide_alike_whatever_is_let_through(
    tmp_path_factory: pytest.TempPathFactory, body: bytes
) -> None:
    file = tmp_path_factory.mktemp("csv") / "a.csv"
    file.write_bytes(b"a,b\n" + body)
    try:
        read = cells_of(CsvSource(file, CsvSettings(delimiter=",")))
    except SourceInvalid:
        return
    text = (b"a,b\n" + body).decode()
    expected = [row or ["", ""] for row in csv.reader(io.StringIO(text, newline=""))][1:]
    assert read == [row for row in expected if len(row) == 2]
