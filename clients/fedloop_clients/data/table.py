"""Rows from a site's CSV file.

A file is UTF-8 with commas; columns are found by name, in its header or as the site's settings list them, and others are
ignored. A row that does not fit the task's schema is skipped and told; a missing column ends the reading, since then no
row fits.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedloop_core.dataset import Dataset
from fedloop_core.encoding import Cell, InputEncoder, Row
from fedloop_core.errors import ColumnMissing, ColumnValueInvalid, FileMissing, LabelUnknown
from fedloop_core.schema import (
    CategoricalFeature,
    ClassLabel,
    Feature,
    ImageFeature,
    Label,
    NumericFeature,
    SignalFeature,
    SurvivalLabel,
    label_columns,
)
from fedloop_core.task import Task

__all__ = ["LeaveOut", "Table", "csv_files", "read_cells", "read_table"]

_MISSING_NUMBERS = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
_WHOLE = re.compile(r"(-?\d+)\.0*")  # 3.0 and 3. are the whole number 3


@dataclass(frozen=True)
class Table:
    """Rows of a file that fit the schema, and for each other row a sentence that says where and why.

    ``left_out`` rows are neither: they are those of people who do not take part.
    """

    rows: Dataset
    skipped: tuple[str, ...]
    left_out: int = 0


class LeaveOut(Protocol):
    """Says whose rows are passed over before anything of them is looked at."""

    @property
    def column(self) -> str:
        """Names the person of a row."""

    @property
    def leaves_out(self) -> Callable[[str], bool]:
        """Whether a person takes no part."""


@dataclass(frozen=True)
class _Writing:
    """How a file writes what it holds: markers of missing values, and labels in place of the task's classes."""

    missing: frozenset[str] | None
    labels: Mapping[str, str]


def csv_files(folder: Path) -> tuple[Path, ...]:
    """The CSV files of a folder by name.

    Raises:
        FileMissing: the folder cannot be read or holds none.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".csv" and path.is_file())
    except OSError as error:
        raise FileMissing(f"cannot read the folder {folder}: {error.strerror}.") from error
    if not files:
        raise FileMissing(f"the folder {folder} holds no CSV file.", hint="Put one file for each site there.")
    return tuple(files)


def read_table(
    path: Path,
    task: Task,
    *,
    columns: tuple[str, ...] | None = None,
    missing: tuple[str, ...] | None = None,
    labels: Mapping[str, str] | None = None,
    leave_out: LeaveOut | None = None,
) -> Table:
    """Reads one file. A whole number written 3.0 is the category or label 3, unless 3.0 is one itself.

    Args:
        path: the file.
        task: says which columns are wanted and what fits.
        columns: names of the file's columns when it has no header.
        missing: cells that mean a missing value, in small letters; by default the usual markers in columns of numbers, and
            an empty cell in all.
        labels: the class that a text in the label's column means; a text that is a class already needs no entry.
        leave_out: whose rows are passed over, if anybody's.

    Raises:
        FileMissing: the file is not there, empty, not UTF-8 or not CSV.
        ColumnMissing: the file lacks a column of the task.
        ColumnValueInvalid: the file names a column twice.
    """
    schema = task.feature_schema
    encoder = InputEncoder(schema)
    writing = _Writing(None if missing is None else frozenset(missing), labels or {})
    lines = read_cells(path)
    header = _header(path, next(lines, (1, []))[1] if columns is None else list(columns), task, leave_out)
    rows: list[Row] = []
    told: list[NDArray[np.generic]] = []
    units: list[str] = []
    skipped: list[str] = []
    left_out = 0
    for line, cells in lines:
        try:
            named = _named(header, cells)
            if leave_out is not None and leave_out.leaves_out(named[leave_out.column]):
                left_out += 1
                continue
            row = {feature.name: _cell(feature, named[feature.name], writing) for feature in schema.features}
            encoder.encode([row])
            label = _label(schema.label, encoder, named, writing)
            unit = _unit(task, named, line)
        except (ColumnValueInvalid, LabelUnknown) as error:
            why = error.message.removeprefix("row 1, ").removeprefix("row 1: ")
            skipped.append(f"{path.name}:{line}: {why}")
            continue
        rows.append(row)
        told.append(label)
        units.append(unit)
    kept = np.concatenate([_no_labels(schema.label, encoder), *told])
    return Table(Dataset(encoder.encode(rows), kept, tuple(units)), tuple(skipped), left_out)


def read_cells(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each record that is not empty, blanks around cells taken away.

    Raises:
        FileMissing: the file is not there, not UTF-8 or not CSV.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise FileMissing(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise FileMissing(f"{path}:{line}: is not UTF-8 text.", hint="Save the file as CSV UTF-8.") from error
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield reader.line_num, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise FileMissing(f"{path}:{reader.line_num}: is not CSV: {error}.") from error


def _header(path: Path, header: list[str], task: Task, leave_out: LeaveOut | None) -> list[str]:
    if not header:
        raise FileMissing(f"{path} is empty.", hint="Its first line must name the columns.")
    unit_column = task.privacy.unit_column
    wanted = [feature.name for feature in task.features] + list(label_columns(task.label).values())
    wanted += [] if unit_column is None else [unit_column]
    wanted += [] if leave_out is None else [leave_out.column]
    wanted = list(dict.fromkeys(wanted))
    missing = [name for name in wanted if name not in header]
    if missing:
        other = len(header) == 1 and any(mark in header[0] for mark in ";\t")
        hint = "Separate the columns by commas." if other else f"It has: {', '.join(header[:20])}."
        raise ColumnMissing(
            f"{path} has no column {', '.join(map(repr, missing))}.", hint=hint, column=missing[0], file=path.name
        )
    doubled = sorted({name for name in wanted if header.count(name) > 1})
    if doubled:
        raise ColumnValueInvalid(f"{path} has two columns {doubled[0]!r}.", column=doubled[0], file=path.name)
    return header


def _named(header: list[str], cells: list[str]) -> dict[str, str]:
    if len(cells) != len(header):
        raise ColumnValueInvalid(f"has {len(cells)} cells; the header has {len(header)}.")
    return dict(zip(header, cells, strict=True))


def _cell(feature: Feature, cell: str, writing: _Writing) -> Cell:
    match feature:
        case NumericFeature():
            markers = _MISSING_NUMBERS if writing.missing is None else writing.missing
            return None if cell.lower() in markers else cell
        case CategoricalFeature():
            return _category(feature, cell, writing)
        case ImageFeature() | SignalFeature():
            return cell.strip("[]").replace(",", " ").split()


def _category(feature: CategoricalFeature, cell: str, writing: _Writing) -> str | None:
    """A value of the vocabulary is one, also when it looks like a marker of missing values elsewhere."""
    text = cell if cell in feature.values else _whole(cell)
    if text not in feature.values and writing.missing is not None and cell.lower() in writing.missing:
        return None
    return text


def _whole(cell: str) -> str:
    found = _WHOLE.fullmatch(cell)
    return cell if found is None else found[1]


def _label(label: Label, encoder: InputEncoder, cells: Mapping[str, str], writing: _Writing) -> NDArray[np.generic]:
    if isinstance(label, SurvivalLabel):
        return _survival(label, cells)
    cell = cells[label.name]
    if isinstance(label, ClassLabel):
        known = {*writing.labels, *label.classes}
        text = cell if cell in known else _whole(cell)
        return encoder.encode_labels([writing.labels.get(text, text)])
    return encoder.encode_labels([cell])


def _survival(label: SurvivalLabel, cells: Mapping[str, str]) -> NDArray[np.generic]:
    try:
        time, event = float(cells[label.time]), float(cells[label.event])
    except ValueError:
        time, event = math.nan, math.nan
    if not (math.isfinite(time) and time >= 0 and event in (0.0, 1.0)):
        raise LabelUnknown(f"columns {label.time!r} and {label.event!r} are not a time and 0 or 1.")
    return np.array([[time, event]], dtype=np.float32)


def _no_labels(label: Label, encoder: InputEncoder) -> NDArray[np.generic]:
    return np.empty((0, 2), dtype=np.float32) if isinstance(label, SurvivalLabel) else encoder.encode_labels([])


def _unit(task: Task, cells: Mapping[str, str], line: int) -> str:
    """The unit that a column names, else the row itself."""
    column = task.privacy.unit_column
    if column is None:
        return f"row-{line}"
    if not cells[column]:
        raise ColumnValueInvalid(f"column {column!r} is missing, and names whose privacy the row is.", column=column)
    return cells[column]
