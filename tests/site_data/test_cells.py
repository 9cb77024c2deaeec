"""Cells of every kind: what they mean, what is missing, and what is wrong with them; never another value than was written."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.data.cells.categories import parse_categories, parse_classes
from fedloop_clients.data.cells.dates import parse_dates
from fedloop_clients.data.cells.faults import Fault
from fedloop_clients.data.cells.identifiers import parse_identifiers
from fedloop_clients.data.cells.numbers import Numbers, parse_numbers
from fedloop_clients.data.cells.tensors import parse_tensors
from fedloop_clients.data.cells.writing import Writing
from fedloop_core.encoding import InputEncoder
from fedloop_core.errors import SourceInvalid
from fedloop_core.schema import CategoricalFeature, ClassLabel, FeatureSchema, ImageFeature, NumericFeature

PLAIN = Writing()


@dataclass(frozen=True)
class Cell:
    """One cell as it is written, and the number that it is, None where it is missing, or the fault."""

    name: str
    written: Any
    means: float | Fault | None
    writing: Writing = PLAIN


def comma(thousands: str = "") -> Writing:
    return Writing(decimal=",", thousands=thousands)


NUMBERS = (
    Cell("whole", "3", 3.0),
    Cell("fraction", "3.25", 3.25),
    Cell("no digit before the point", ".5", 0.5),
    Cell("no digit after the point", "5.", 5.0),
    Cell("plus", "+5", 5.0),
    Cell("exponent", "1e-3", 1e-3),
    Cell("blanks around", " 5 ", 5.0),
    Cell("no-break blanks around", "\u00a05\u00a0", 5.0),
    Cell("negative zero is zero", "-0", 0.0),
    Cell("empty", "", None),
    Cell("blanks only", "   ", None),
    Cell("not a marker unless declared", "NA", Fault.NOT_A_NUMBER),
    Cell("question mark", "?", Fault.NOT_A_NUMBER),
    Cell("declared marker", "n/a", None, Writing(frozenset({"N/A"}))),
    Cell("marker that is a number", "-9", None, Writing(frozenset({"-9"}))),
    Cell("the same marker as a fraction", "-9.0", None, Writing(frozenset({"-9"}))),
    Cell("empty where it is no marker", "", Fault.NOT_A_NUMBER, Writing(frozenset({"NA"}))),
    Cell("nan is no number", "nan", Fault.NOT_FINITE),
    Cell("nan that is a marker", "NaN", None, Writing(frozenset({"nan"}))),
    Cell("infinite", "-Infinity", Fault.NOT_FINITE),
    Cell("too large for float32", "1e39", Fault.NOT_FINITE),
    Cell("too large for anything", "1e400", Fault.NOT_FINITE),
    Cell("word", "high", Fault.NOT_A_NUMBER),
    Cell("below the limit of detection", "<5", Fault.NOT_A_NUMBER),
    Cell("percent", "5%", Fault.NOT_A_NUMBER),
    Cell("currency", "€5", Fault.NOT_A_NUMBER),
    Cell("underscore", "1_000", Fault.NOT_A_NUMBER),
    Cell("hexadecimal", "0x10", Fault.NOT_A_NUMBER),
    Cell("digits of another script", "٣", Fault.NOT_A_NUMBER),
    Cell("fullwidth digits", "\uff15", Fault.NOT_A_NUMBER),
    Cell("two numbers", "1 2", Fault.NOT_A_NUMBER),
    Cell("two points", "1.2.3", Fault.NOT_A_NUMBER),
    Cell("minus of typesetters", "\u22125", Fault.NOT_A_NUMBER),
    Cell("date", "2020-01-01", Fault.NOT_A_NUMBER),
    Cell("comma where the point is the mark", "3,5", Fault.NOT_A_NUMBER),
    Cell("thousands where there are none", "1,000", Fault.NOT_A_NUMBER),
    Cell("decimal comma", "3,5", 3.5, comma()),
    Cell("point where the comma is the mark", "3.5", Fault.NOT_A_NUMBER, comma()),
    Cell("German thousands", "1.234.567,5", 1234567.5, comma(".")),
    Cell("groups of another size", "12.34,5", Fault.NOT_A_NUMBER, comma(".")),
    Cell("thousands after the comma", "1,234.567", Fault.NOT_A_NUMBER, comma(".")),
    Cell("English thousands", "1,234.5", 1234.5, Writing(thousands=",")),
    Cell("a comma that groups nothing", "3,5", Fault.NOT_A_NUMBER, Writing(thousands=",")),
    Cell("French thousands", "1\u202f234,5", 1234.5, comma("\u202f")),
    Cell("recoded", "none", 0.0, Writing(recode={"none": "0"})),
    Cell("typed whole", 3, 3.0),
    Cell("typed fraction", 3.25, 3.25),
    Cell("typed decimal", Decimal("1.10"), 1.1),
    Cell("typed nan", math.nan, Fault.NOT_FINITE),
    Cell("typed infinity", math.inf, Fault.NOT_FINITE),
    Cell("typed marker", -9, None, Writing(frozenset({"-9"}))),
    Cell("truth value", True, Fault.NOT_A_NUMBER),
    Cell("typed date", date(2020, 1, 1), Fault.NOT_A_NUMBER),
)


def told(numbers: Numbers) -> float | Fault | None:
    (value,), (missing,) = numbers.values.tolist(), numbers.missing.tolist()
    faults = [fault for fault, rows in numbers.faults.items() if rows[0]]
    assert len(faults) + missing <= 1
    assert math.isnan(value) == (missing or bool(faults))
    return faults[0] if faults else None if missing else value


@pytest.mark.parametrize("cell", NUMBERS, ids=lambda cell: cell.name)
def test_a_number(cell: Cell) -> None:
    parsed = parse_numbers(pa.array([cell.written]), cell.writing)
    assert told(parsed) == cell.means
    assert math.copysign(1.0, parsed.values[0]) == 1.0 or parsed.values[0] != 0


@pytest.mark.parametrize("cell", NUMBERS, ids=lambda cell: cell.name)
def test_a_number_means_the_same_whatever_stands_beside_it(cell: Cell) -> None:
    if not isinstance(cell.written, str):
        return
    others = ["1", "", "x", " 2", "inf"]
    alone = parse_numbers(pa.array([cell.written]), cell.writing)
    for other in others:
        beside = parse_numbers(pa.array([other, cell.written]), cell.writing)
        second = Numbers(beside.values[1:], beside.missing[1:], {f: r[1:] for f, r in beside.faults.items() if r[1]})
        assert told(second) == told(alone)


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(allow_nan=False, width=32), st.integers(-(10**9), 10**9))))
def test_numbers_are_those_that_a_device_encodes(values: list[float]) -> None:
    schema = FeatureSchema(
        features=(NumericFeature(kind="numeric", name="n", range=(0.0, 1.0)),),
        label=ClassLabel(kind="classes", name="y", classes=("a", "b")),
    )
    finite = [repr(value) for value in values if math.isfinite(value)]
    encoded = InputEncoder(schema).encode([{"n": text} for text in finite])["numeric"][:, 0]
    parsed = parse_numbers(pa.array(finite, type=pa.string()), PLAIN)
    assert np.array_equal(parsed.values.astype(np.float32), encoded)  # -0 and 0 are equal


SEX = CategoricalFeature(kind="categorical", name="sex", values=("0", "1", "none", "4.0", "Ä"))
OPEN = CategoricalFeature(kind="categorical", name="sex", values=("0", "1"), other=True, missing="category")
UNKNOWN, MISSING = -1, -2


@dataclass(frozen=True)
class Category:
    """One cell, and the code that it gets."""

    name: str
    written: Any
    code: int
    feature: CategoricalFeature = SEX
    writing: Writing = field(default=PLAIN)


CATEGORIES = (
    Category("a value", "1", 1),
    Category("blanks around", " 1 ", 1),
    Category("a whole number with a point", "1.0", 1),
    Category("a value that has a point itself", "4.0", 3),
    Category("the same without", "4", UNKNOWN),
    Category("typed whole", 1, 1),
    Category("typed fraction that is whole", 1.0, 1),
    Category("typed fraction", 1.5, UNKNOWN),
    Category("truth value", True, 1),
    Category("another case", "ä", UNKNOWN),
    Category("composed otherwise", "A\u0308", UNKNOWN),
    Category("leading zero", "01", UNKNOWN),
    Category("empty", "", MISSING),
    Category("null", None, MISSING),
    Category("a value that is a marker too", "none", 2, SEX, Writing(frozenset({"none"}))),
    Category("a declared marker", "?", MISSING, SEX, Writing(frozenset({"?"}))),
    Category("no marker unless declared", "?", UNKNOWN),
    Category("recoded", "m", 1, SEX, Writing(recode={"m": "1", "f": "0"})),
    Category("recoded whole number", "2.0", 1, SEX, Writing(recode={"2": "1"})),
    Category("recoded number, typed", 2, 1, SEX, Writing(recode={"2": "1"})),
    Category("other", "7", 2, OPEN),
    Category("a category for missing", "", 3, OPEN),
)


@pytest.mark.parametrize("cell", CATEGORIES, ids=lambda cell: cell.name)
def test_a_category(cell: Category) -> None:
    codes = parse_categories(pa.array([cell.written]), cell.feature, cell.writing)
    assert codes.values.tolist() == [cell.code]
    assert codes.unknown.tolist() == [cell.code == UNKNOWN]


def test_a_class_has_neither_other_nor_missing() -> None:
    codes = parse_classes(pa.array(["yes", "no ", "", "maybe", None]), ("no", "yes"), PLAIN)
    assert codes.values.tolist() == [1, 0, MISSING, UNKNOWN, MISSING]


@dataclass(frozen=True)
class Dated:
    """One cell, its format, and the day that it is."""

    name: str
    written: Any
    means: float | Fault | None
    format: str = "%Y-%m-%d"


DAY = (date(2020, 2, 29) - date(1970, 1, 1)).days
DATES = (
    Dated("ISO", "2020-02-29", DAY),
    Dated("German", "29.02.2020", DAY, "%d.%m.%Y"),
    Dated("American", "02/29/2020", DAY, "%m/%d/%Y"),
    Dated("day and month the other way round", "29/02/2020", Fault.NOT_A_DATE, "%m/%d/%Y"),
    Dated("no such day", "2021-02-29", Fault.NOT_A_DATE),
    Dated("two digits of a year", "20-02-29", Fault.NOT_A_DATE),
    Dated("with a time that is not declared", "2020-02-29 12:00", Fault.NOT_A_DATE),
    Dated("with a time", "2020-02-29 12:00", DAY + 0.5, "%Y-%m-%d %H:%M"),
    Dated("with a zone", "2020-02-29 12:00 +0200", DAY + 10 / 24, "%Y-%m-%d %H:%M %z"),
    Dated("day number of a spreadsheet", "43890", Fault.NOT_A_DATE),
    Dated("digits of another script", "٢٠٢٠-02-29", Fault.NOT_A_DATE),
    Dated("empty", "", None),
    Dated("typed", date(2020, 2, 29), DAY),
    Dated("typed with time", datetime(2020, 2, 29, 12, tzinfo=UTC), DAY + 0.5),
    Dated("number", 18321, Fault.NOT_A_DATE),
)


@pytest.mark.parametrize("cell", DATES, ids=lambda cell: cell.name)
def test_a_date(cell: Dated) -> None:
    assert told(parse_dates(pa.array([cell.written]), cell.format, PLAIN)) == cell.means


def test_identifiers_keep_their_digits_and_zeros() -> None:
    text = parse_identifiers("a.csv", "id", pa.array(["007", " 12345678901234567890 ", "1.0", "", None]), PLAIN)
    assert text.to_pylist() == ["007", "12345678901234567890", "1.0", None, None]
    assert parse_identifiers("db", "id", pa.array([7, 2**60]), PLAIN).to_pylist() == ["7", str(2**60)]
    with pytest.raises(SourceInvalid, match="kept as floating-point numbers, which lose digits"):
        parse_identifiers("db", "id", pa.array([7.0]), PLAIN)


def test_images_come_as_lists_of_any_kind_or_as_text() -> None:
    feature = ImageFeature(kind="image", name="scan", height=4, width=4)
    cells = [float(at) for at in range(16)]
    expected = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    for column in (
        pa.array([cells]),
        pa.array([cells], type=pa.list_(pa.float32(), 16)),
        pa.array([list(range(16))], type=pa.large_list(pa.int8())),
        pa.array([" ".join(map(str, cells))]),
        pa.array([str(cells)]),
    ):
        values, faults = parse_tensors(column, feature)
        assert np.array_equal(values[0], expected)
        assert faults == {}
    odd = pa.array([cells[:-1], None, [*cells[:-1], math.nan], [*cells[:-1], None], cells])
    values, faults = parse_tensors(odd, feature)
    assert {fault: rows.tolist() for fault, rows in faults.items()} == {
        Fault.WRONG_SIZE: [True, False, False, False, False],
        Fault.NOT_AN_ARRAY: [False, True, False, False, False],
        Fault.NOT_FINITE: [False, False, True, True, False],
    }
    assert np.array_equal(values[4], expected)
