"""Values of a vocabulary, and the classes of a label: int64 codes from any column."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedloop_clients.data.cells.text import as_text
from fedloop_clients.data.cells.writing import Writing
from fedloop_core.schema import CategoricalFeature

__all__ = ["Codes", "parse_categories", "parse_classes"]

_WHOLE = re.compile(r"(-?\d+)\.0*")  # 3.0 and 3. are the whole number 3
_TRUTH = {"true": "1", "false": "0"}
_UNKNOWN = -1
_MISSING = -2


@dataclass(frozen=True)
class Codes:
    """int64 ``[rows]`` codes, -1 where ``unknown`` and -2 where ``missing``; bool ``[rows]`` for each of the two."""

    values: NDArray[np.int64]
    missing: NDArray[np.bool_]
    unknown: NDArray[np.bool_]


def parse_categories(column: pa.Array, feature: CategoricalFeature, writing: Writing) -> Codes:
    """Codes of one feature. A value of the vocabulary is one, also when it looks like a marker of missing values elsewhere.

    Where the feature has a category for other or for missing values, such cells get its code, and are still named as missing.
    """
    codes = _codes(column, feature.values, writing)
    values = codes.copy()
    missing, unknown = codes == _MISSING, codes == _UNKNOWN
    if feature.missing == "category":
        values[missing] = feature.cardinality - 1
    if feature.other:
        values[unknown] = len(feature.values)
        unknown = np.zeros_like(unknown)
    return Codes(values, missing, unknown)


def parse_classes(column: pa.Array, classes: Sequence[str], writing: Writing) -> Codes:
    """Places in the classes of a label."""
    codes = _codes(column, classes, writing)
    return Codes(codes, codes == _MISSING, codes == _UNKNOWN)


def _codes(column: pa.Array, vocabulary: Sequence[str], writing: Writing) -> NDArray[np.int64]:
    """Judges each distinct text once."""
    if pa.types.is_null(column.type):
        return np.full(len(column), _MISSING, dtype=np.int64)
    distinct = as_text(column).dictionary_encode(null_encoding="encode")
    known = {value: code for code, value in enumerate(vocabulary)}
    code_of = np.array([_code(cell, known, writing) for cell in distinct.dictionary.to_pylist()], dtype=np.int64)
    return code_of[np.asarray(distinct.indices.to_numpy(zero_copy_only=False), dtype=np.int64)]


def _code(cell: str | None, known: dict[str, int], writing: Writing) -> int:
    if cell is None:
        return _MISSING
    whole = _WHOLE.fullmatch(cell)
    for form in (cell, cell if whole is None else whole[1], _TRUTH.get(cell, cell)):
        text = writing.recode.get(form, form)
        if text in known:
            return known[text]
    return _MISSING if cell.lower() in writing.markers else _UNKNOWN
