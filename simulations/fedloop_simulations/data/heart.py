"""UCI Heart Disease in four hospitals, with the rows, columns and split of FLamby's Fed-Heart-Disease.

Protocol (FLamby, arXiv 2210.04620, ``datasets/fed_heart_disease``): the columns slope, ca and thal are left out, then
rows with a missing value; outcomes 1 to 4 are one class. Each hospital's rows are split 66 : 34 by scikit-learn's
``train_test_split`` with ``random_state=43``, stratified where both classes have more than two rows.
"""

from __future__ import annotations

import csv
import hashlib
import math
import os
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloop_core.dataset import Dataset
from fedloop_core.durable import write_bytes
from fedloop_core.encoding import InputEncoder, Row
from fedloop_core.errors import ColumnValueInvalid, FileMissing, UsageError
from fedloop_core.task import Task
from fedloop_simulations.data.split import divide
from fedloop_simulations.data.world import SiteRows, StreamRows, World, bounded

__all__ = ["HOSPITALS", "fetch_heart", "heart_folder", "heart_world", "is_heart_folder"]

HOSPITALS: Mapping[str, str] = {
    "cleveland": "2d91a8ff69cfd9616aa47b59d6f843db",
    "hungarian": "22e96bee155b5973568101c93b3705f6",
    "switzerland": "9a87f7577310b3917730d06ba9349e20",
    "va": "4249d03ca7711e84f4444768c9426170",
}
"""The sites, and the MD5 of each one's file at UCI (the same as in FLamby)."""

_SOURCE = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
_COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
_OUTCOME = "num"
_CELLS = 14  # the columns above, slope, ca and thal, and the outcome
_MAXIMUM_BYTES = 100_000
_TIMEOUT_SECONDS = 30.0


def heart_folder() -> Path:
    """Where downloaded files are kept between runs: the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "fedloop" / "heart"


def is_heart_folder(folder: Path) -> bool:
    """Whether a folder holds a file of one of the hospitals."""
    return any(_file(folder, hospital).exists() for hospital in HOSPITALS)


def heart_world(task: Task, folder: Path, *, evaluation_share: float, seed: int) -> World:
    """The four hospitals. The protocol's test rows are evaluation rows for a share, and the devices' for the rest.

    Args:
        task: the preset ``heart``, or another with its columns.
        folder: holds ``processed.{cleveland,hungarian,switzerland,va}.data``.
        evaluation_share: of the test rows, in (0, 1]; 1 is the published protocol, and the streams are empty.
        seed: decides which test rows are which.

    Raises:
        FileMissing: a file is not there or cannot be read.
        UsageError: the share is not in (0, 1].
    """
    if not 0 < evaluation_share <= 1:
        raise UsageError(f"the evaluation share must be above 0 and at most 1, not {evaluation_share:g}.")
    sites: list[SiteRows] = []
    streams: list[StreamRows] = []
    for number, hospital in enumerate(HOSPITALS):
        rows, problems = _read(_file(folder, hospital), task)
        train, test = _protocol_split(rows.labels)
        generator = np.random.default_rng([seed, number])
        parts = (evaluation_share, 1 - evaluation_share)
        evaluation, stream = divide(rows.take(test), task.feature_schema, parts, generator)
        sites.append(SiteRows(hospital, rows.take(train), evaluation, len(problems), bounded(problems)))
        streams.append(StreamRows(hospital, stream))
    return World(task, tuple(sites), tuple(streams))


def fetch_heart(
    folder: Path, confirm: Callable[[str], bool], *, download: Callable[[str], bytes] | None = None
) -> Path:
    """Downloads the four files from UCI after asking, unless they are there already; returns the folder.

    Args:
        folder: where to keep them.
        confirm: asked one question; the answer yes is needed.
        download: reads a URL; HTTPS with a deadline by default.

    Raises:
        UsageError: the answer was no.
        FileMissing: UCI cannot be reached, or a file is not the published one.
    """
    by_hand = f"Put processed.{{{','.join(HOSPITALS)}}}.data into a folder and give it with --data."
    wanted = [hospital for hospital in HOSPITALS if not _is_published(_file(folder, hospital))]
    if not wanted:
        return folder
    if not confirm(f"Download {len(wanted)} files (40 kB) of UCI Heart Disease from {_SOURCE} to {folder}?"):
        raise UsageError("the heart data are not here, and were not to be downloaded.", hint=by_hand)
    for hospital in wanted:
        target = _file(folder, hospital)
        try:
            content = (download or _download)(f"{_SOURCE}/{target.name}")
        except OSError as error:  # URLError and timeouts are
            raise FileMissing(f"{target.name} cannot be downloaded from UCI: {error}.", hint=by_hand) from error
        if _md5(content) != HOSPITALS[hospital]:
            raise FileMissing(f"{target.name} from UCI is not the published file (MD5 differs).", hint=by_hand)
        write_bytes(target, content)
    return folder


def _file(folder: Path, hospital: str) -> Path:
    return folder / f"processed.{hospital}.data"


def _is_published(path: Path) -> bool:
    return path.is_file() and _md5(path.read_bytes()) == HOSPITALS[path.name.split(".")[1]]


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()  # which file it is, not who made it


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as reply:  # noqa: S310 - a constant https address
        content: bytes = reply.read(_MAXIMUM_BYTES)
    return content


def _read(path: Path, task: Task) -> tuple[Dataset, list[str]]:
    """Rows of one file that have all values, and a sentence for each one that has not."""
    encoder = InputEncoder(task.feature_schema)
    rows: list[Row] = []
    labels: list[str] = []
    units: list[str] = []
    problems: list[str] = []
    for line, cells in _lines(path):
        try:
            row, label = _row(cells)
            encoder.encode([row])
        except ColumnValueInvalid as error:
            problems.append(f"{path.name}:{line}: {error.message.removeprefix('row 1, ')}")
            continue
        rows.append(row)
        labels.append(label)
        units.append(f"patient-{line}")
    return Dataset(encoder.encode(rows), encoder.encode_labels(labels), tuple(units)), problems


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            return [(reader.line_num, cells) for cells in reader if cells]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileMissing(
            f"cannot read {path}: {error}.", hint=f"The folder needs processed.{{{','.join(HOSPITALS)}}}.data."
        ) from error


def _row(cells: list[str]) -> tuple[Row, str]:
    """One line as a row of the schema and a class; whole numbers are written 1.0 in some files and 1 in others."""
    if len(cells) != _CELLS:
        raise ColumnValueInvalid(f"has {len(cells)} cells; {_CELLS} are needed.")
    row = {name: _number(name, cell) for name, cell in zip(_COLUMNS, cells, strict=False)}
    outcome = _number(_OUTCOME, cells[-1])
    if outcome is None:
        raise ColumnValueInvalid(f"column {_OUTCOME!r} is missing.", column=_OUTCOME)
    if not math.isfinite(outcome):
        raise ColumnValueInvalid(f"column {_OUTCOME!r} is not a finite number: {cells[-1]!r}.", column=_OUTCOME)
    return row, "diseased" if outcome > 0 else "healthy"


def _number(name: str, cell: str) -> float | None:
    if cell.strip() == "?":
        return None
    try:
        return float(cell)
    except ValueError:
        raise ColumnValueInvalid(f"column {name!r} is not a number: {cell!r}.", column=name) from None


def _protocol_split(labels: NDArray[np.generic]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of training and test rows, as in FLamby."""
    from sklearn.model_selection import train_test_split  # here, since it takes a second

    if len(labels) < 2:
        return np.arange(len(labels)), np.arange(0)
    _, counts = np.unique(labels, return_counts=True)
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=1 - 0.66,
        train_size=0.66,
        random_state=43,
        shuffle=True,
        stratify=labels if len(counts) == 2 and counts.min() > 2 else None,
    )
    return train, test
