"""Numbers: float64 from any column; what is missing and what is none is told apart."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedloop_clients.data.cells.faults import Fault
from fedloop_clients.data.cells.text import as_text, booleans, is_text, missing_text, recoded
from fedloop_clients.data.cells.writing import Writing

__all__ = ["Numbers", "parse_numbers"]

_PLAIN = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Numbers:
    """float64 ``[rows]``, NaN where ``missing`` or faulty; bool ``[rows]`` for what is missing and for each fault."""

    values: NDArray[np.float64]
    missing: NDArray[np.bool_]
    faults: dict[Fault, NDArray[np.bool_]]


def parse_numbers(column: pa.Array, writing: Writing) -> Numbers:
    """Numbers of one column. Infinity, not-a-number and what float32 cannot hold are faults, unless they are markers.

    Args:
        column: text, numbers of any type, or nothing at all.
        writing: how the site writes them. A marker that is a number is missing in columns of numbers too.
    """
    if pa.types.is_null(column.type):
        everything = np.ones(len(column), dtype=np.bool_)
        return Numbers(np.full(len(column), np.nan), everything, {})
    if is_text(column) or writing.recode:
        return _of_text(column, writing)
    if not (_is_number(column.type)):
        return _judged(
            np.full(len(column), np.nan), booleans(pc.is_null(column)), booleans(pc.is_valid(column)), writing
        )
    values, missing = _floats(column.cast(pa.float64(), safe=False)), booleans(pc.is_null(column))
    if "nan" in writing.markers:
        missing |= np.isnan(values)
    return _judged(values, missing, None, writing)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _floats(values: pa.Array) -> NDArray[np.float64]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _of_text(column: pa.Array, writing: Writing) -> Numbers:
    quick = _quick(column, writing)
    if quick is not None:
        return quick
    text = recoded(as_text(column), writing.recode)
    missing = missing_text(text, writing)
    plain = _plain(text, writing)
    sound = pc.and_(pc.fill_null(pc.match_substring_regex(plain, _PLAIN), False), pc.invert(missing))
    values = pc.if_else(sound, plain, pa.scalar(None, pa.string())).cast(pa.float64())
    spelled = pc.is_in(pc.utf8_lower(text), value_set=pa.array(_NOT_FINITE))
    values = pc.if_else(pc.and_(spelled, pc.invert(missing)), pa.scalar(np.inf), values)
    odd = booleans(pc.invert(pc.or_(pc.or_(sound, missing), spelled)))
    return _judged(_floats(values), booleans(missing), odd, writing)


_NOT_FINITE = ["nan", "inf", "infinity", "+inf", "-inf", "+infinity", "-infinity", "+nan", "-nan"]


def _quick(column: pa.Array, writing: Writing) -> Numbers | None:
    """Most columns hold plain numbers and perhaps empty cells: one pass; None where something else is among them."""
    if writing.decimal != "." or writing.thousands or writing.recode:
        return None
    text = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    missing = pc.is_null(text)
    if "" in writing.missing:
        missing = pc.or_(missing, pc.equal(text, ""))
        text = pc.if_else(missing, pa.scalar(None, text.type), text)
    try:
        values = _floats(text.cast(pa.float64()))
    except pa.ArrowInvalid:
        return None
    gone = booleans(pc.fill_null(missing, True))
    if not np.isfinite(values[~gone]).all():
        return None
    return _judged(values, gone, None, writing)


def _plain(text: pa.Array, writing: Writing) -> pa.Array:
    """The text with a decimal point and nothing between thousands; null where the marks stand wrongly."""
    decimal, thousands = re.escape(writing.decimal), re.escape(writing.thousands)
    if writing.thousands:
        grouped = rf"^[+-]?\d{{1,3}}({thousands}\d{{3}})+({decimal}\d*)?$"
        fits = pc.match_substring_regex(text, grouped)
        loose = pc.invert(pc.match_substring(text, writing.thousands))
        text = pc.if_else(pc.or_(fits, loose), text, pa.scalar(None, pa.string()))
        text = pc.replace_substring(text, writing.thousands, "")
    if writing.decimal != ".":
        pointed = pc.match_substring(text, ".")
        text = pc.if_else(pointed, pa.scalar(None, pa.string()), text)
        text = pc.replace_substring(text, writing.decimal, ".")
    return text


def _judged(
    values: NDArray[np.float64], missing: NDArray[np.bool_], odd: NDArray[np.bool_] | None, writing: Writing
) -> Numbers:
    missing = missing | _numeric_markers(values, writing)
    values[missing] = np.nan
    faults: dict[Fault, NDArray[np.bool_]] = {}
    bad = np.zeros(len(values), dtype=np.bool_) if odd is None else odd & ~missing
    if bad.any():
        faults[Fault.NOT_A_NUMBER] = bad
    unbounded = ~(np.abs(values) <= _LARGEST) & ~missing & ~bad
    if unbounded.any():
        faults[Fault.NOT_FINITE] = unbounded
        values[unbounded] = np.nan
    return Numbers(values + 0.0, missing, faults)  # no negative zero


def _numeric_markers(values: NDArray[np.float64], writing: Writing) -> NDArray[np.bool_]:
    marked = np.zeros(len(values), dtype=np.bool_)
    for marker in writing.missing:
        if re.fullmatch(_PLAIN, marker.strip()):
            marked |= values == float(marker)
    return marked
