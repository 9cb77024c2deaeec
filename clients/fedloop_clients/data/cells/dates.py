"""Dates: days since 1970-01-01 as float64, by one declared format."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedloop_clients.data.cells.faults import Fault
from fedloop_clients.data.cells.numbers import Numbers
from fedloop_clients.data.cells.text import as_text, booleans, missing_text, recoded
from fedloop_clients.data.cells.writing import Writing
from fedloop_core.schema import days_since_1970

__all__ = ["parse_dates"]

_SECONDS = 86400


def parse_dates(column: pa.Array, date_format: str, writing: Writing) -> Numbers:
    """Days of each cell: from dates and times of the source's own, or from text in the format. Numbers are no dates."""
    kind = column.type
    if pa.types.is_null(kind):
        return Numbers(np.full(len(column), np.nan), np.ones(len(column), dtype=np.bool_), {})
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        seconds = column.cast(pa.timestamp("us", tz=getattr(kind, "tz", None))).cast(pa.int64())
        days = np.asarray(seconds.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)) / (_SECONDS * 10**6)
        return Numbers(days, booleans(pc.is_null(column)), {})
    text = recoded(as_text(column), writing.recode)
    missing = booleans(missing_text(text, writing))
    distinct = text.dictionary_encode(null_encoding="encode")
    day_of = np.array([_days(cell, date_format) for cell in distinct.dictionary.to_pylist()], dtype=np.float64)
    days = day_of[np.asarray(distinct.indices.to_numpy(zero_copy_only=False), dtype=np.int64)]
    days[missing] = np.nan
    wrong = np.isnan(days) & ~missing
    return Numbers(days, missing, {Fault.NOT_A_DATE: wrong} if wrong.any() else {})


def _days(cell: str | None, date_format: str) -> float:
    try:
        return np.nan if cell is None else days_since_1970(cell, date_format)
    except ValueError:
        return np.nan
