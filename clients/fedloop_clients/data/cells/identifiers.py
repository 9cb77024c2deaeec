"""Names of patients and customers: text that keeps its digits and zeros."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from fedloop_clients.data.cells.text import as_text, missing_text
from fedloop_clients.data.cells.writing import Writing
from fedloop_core.errors import SourceInvalid

__all__ = ["parse_identifiers"]


def parse_identifiers(where: str, name: str, column: pa.Array, writing: Writing) -> pa.Array:
    """The text of each cell, null where it is missing.

    Raises:
        SourceInvalid: the source keeps them as floating-point numbers, which have lost zeros and perhaps digits.
    """
    if pa.types.is_floating(column.type):
        raise SourceInvalid(
            f"{where}: column {name!r} names whose rows are whose, and is kept as floating-point numbers, which lose digits.",
            hint="Keep it as text or as whole numbers.",
            column=name,
        )
    text = as_text(column)
    return pc.if_else(missing_text(text, writing), pa.scalar(None, pa.string()), text)
