"""What is wrong with a cell, in words for the people of the site that it lies at."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from fedloop_clients.data.cells.faults import Fault
from fedloop_clients.data.reading import Reading
from fedloop_core.schema import CategoricalFeature, ClassLabel, FeatureSchema, SurvivalLabel, label_columns

__all__ = ["skipped_words", "why"]

_COMMA = re.compile(r"[+-]?[\d.' ]*\d,\d+")


def why(fault: Fault, column: str, cell: str, schema: FeatureSchema) -> str:
    """One sentence about one cell, with what to do where that can be told.

    Args:
        fault: what is wrong.
        column: the task's name for it.
        cell: what the source holds; for a broken row, how it is broken.
        schema: the task's.
    """
    place = f"label {column!r}" if column in label_columns(schema.label).values() else f"column {column!r}"
    match fault:
        case Fault.BROKEN:
            return f"{cell}."
        case Fault.MISSING:
            return f"{place} is missing, and may not be."
        case Fault.NOT_A_NUMBER:
            hint = ' (for decimal commas: data.decimal = "," in site.toml)' if _COMMA.fullmatch(cell) else ""
            return f"{place} is not a number: {cell!r}{hint}."
        case Fault.NOT_FINITE:
            return f"{place} is not a finite number: {cell!r}."
        case Fault.NOT_A_DATE:
            return f"{place} is no date in the format that is declared: {cell!r}."
        case Fault.UNKNOWN_VALUE | Fault.UNKNOWN_LABEL:
            known = _known(column, schema)
            if not known:
                return f"{place} is {cell!r}, which is no time from 0 on."
            return f"{place} is {cell!r}, which is not one of {_some(known)}{_meant(cell, known)}."
        case Fault.WRONG_SIZE:
            return f"{place} has {_size(cell)}, and not as many as the task needs."
        case Fault.NOT_AN_ARRAY:
            return f"{place} is not an array of numbers."
        case Fault.NO_UNIT:
            return f"{place} is missing, and names whose privacy the row is."


def skipped_words(reading: Reading, schema: FeatureSchema) -> tuple[str, ...]:
    """A sentence for each row that is kept as an example of what does not fit, in the order of the source."""
    told: dict[int, str] = {}
    for count in reading.faults:
        for example in count.examples:
            told.setdefault(example.number, f"{example.place}: {why(count.fault, count.column, example.cell, schema)}")
    return tuple(told[number] for number in sorted(told))


def _known(column: str, schema: FeatureSchema) -> tuple[str, ...]:
    for feature in schema.features:
        if isinstance(feature, CategoricalFeature) and feature.name == column:
            return feature.values
    if isinstance(schema.label, ClassLabel):
        return schema.label.classes
    return ("0", "1") if isinstance(schema.label, SurvivalLabel) and schema.label.event == column else ()


def _some(known: Sequence[str]) -> str:
    return ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")


def _meant(cell: str, known: Iterable[str]) -> str:
    """The known spelling that looks the same; told, never put in silently."""
    same = [name for name in known if _look(name) == _look(cell)]
    return f" (did you mean {same[0]!r}?)" if same else ""


def _look(text: str) -> str:
    return unicodedata.normalize("NFKC", text).strip().casefold()


def _size(cell: str) -> str:
    return cell if cell.endswith(" numbers") else f"{len(cell.strip('[]').replace(',', ' ').split())} numbers"
