"""Any Arrow column as the text that a person would have typed, and what is said of text before it is parsed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedloop_clients.data.cells.writing import Writing

__all__ = ["as_text", "booleans", "is_text", "missing_text", "recoded"]


def is_text(column: pa.Array) -> bool:
    """Whether the source holds text there, also when it keeps each distinct text once."""
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def as_text(column: pa.Array) -> pa.Array:
    """Text without blanks around it; null where the source has nothing.

    Whole numbers are written without a decimal point, also where the source keeps them as floating-point numbers; truth values
    are ``true`` and ``false``; dates and times as in ISO 8601.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if is_text(column):
        return pc.utf8_trim_whitespace(column.cast(pa.string()))
    text = column.cast(pa.string())
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        whole = _whole_numbers(column)
        return pc.if_else(whole.is_valid(), whole, text) if isinstance(whole, pa.Array) else text
    return text


def _whole_numbers(column: pa.Array) -> pa.Array:
    """The column as whole numbers in text, null where a number is none or too large to be counted with."""
    values = column.cast(pa.float64(), safe=False)
    countable = pc.and_kleene(pc.equal(pc.floor(values), values), pc.less(pc.abs(values), 2.0**53))
    return pc.if_else(countable, values, pa.scalar(None, pa.float64())).cast(pa.int64()).cast(pa.string())


def missing_text(text: pa.Array, writing: Writing) -> pa.Array:
    """Bool ``[rows]``: null, or one of the markers."""
    marked = pc.is_in(pc.utf8_lower(text), value_set=pa.array(sorted(writing.markers), type=pa.string()))
    return pc.or_(pc.is_null(text), marked)


def recoded(text: pa.Array, recode: Mapping[str, str]) -> pa.Array:
    """Each text that stands for another, as that other one."""
    if not recode:
        return text
    place = pc.index_in(text, value_set=pa.array(list(recode), type=pa.string()))
    return pc.coalesce(pa.array(list(recode.values()), type=pa.string()).take(place), text)


def booleans(column: pa.Array) -> NDArray[np.bool_]:
    """An Arrow column of truth values as numpy's; null is false."""
    return np.asarray(pc.fill_null(column, False).to_numpy(zero_copy_only=False), dtype=np.bool_)
