"""From what site.toml says to rows: which source it is, and all of it read for a task."""

from __future__ import annotations

from pathlib import Path

from fedloop_clients.data.leave_out import LeaveOut
from fedloop_clients.data.mapping import Mappings
from fedloop_clients.data.reading import Reading, read_rows
from fedloop_clients.data.row_reader import RowReader
from fedloop_clients.data.settings import DataSettings
from fedloop_clients.data.sources.batches import RowSource
from fedloop_clients.data.sources.csv_source import CsvSource
from fedloop_clients.data.sources.npz_source import NpzSource
from fedloop_clients.data.sources.parquet_source import ArrowSource, ParquetSource
from fedloop_core.errors import FileMissing
from fedloop_core.task import Task

__all__ = ["csv_files", "open_source", "read_file", "read_source"]


def open_source(path: Path, settings: DataSettings) -> RowSource:
    """The source that the settings are about; nothing is read yet.

    Args:
        path: its file; ``.parquet``, ``.arrow`` or ``.feather``, and ``.npz`` say what they are, all else is text.
        settings: how it is written.
    """
    match path.suffix.lower():
        case ".parquet":
            return ParquetSource(path)
        case ".arrow" | ".feather":
            return ArrowSource(path)
        case ".npz":
            return NpzSource(path)
        case _:
            return CsvSource(path, settings.csv, settings.columns)


def read_source(source: RowSource, task: Task, mappings: Mappings, leave_out: LeaveOut | None = None) -> Reading:
    """All rows of a source for a task.

    Raises:
        FileMissing, SourceInvalid, ColumnMissing: as the source.
        SettingsInvalid: the site says something of a column that the task's cannot be.
    """
    return read_rows(source, RowReader(source, task, mappings, leave_out))


def read_file(path: Path, task: Task) -> Reading:
    """All rows of a file of which nothing is said: its columns have the task's names, and only an empty cell is missing.

    Raises:
        FileMissing, SourceInvalid, ColumnMissing: as the source.
    """
    settings = DataSettings(file=path.name)
    return read_source(open_source(path, settings), task, settings.mappings(path.name))


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
