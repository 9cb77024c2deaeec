"""UCI Heart Disease in four hospitals, with the rows, columns and split of FLamby's Fed-Heart-Disease.

Protocol (FLamby, arXiv 2210.04620, ``datasets/fed_heart_disease``): the columns slope, ca and thal are left out, then
rows with a missing value; outcomes 1 to 4 are one class. Each hospital's rows are split 66 : 34 by scikit-learn's
``train_test_split`` with ``random_state=43``, stratified where both classes have more than two rows.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.data.mapping import ColumnMapping
from fedloop_clients.data.opening import open_source, read_source
from fedloop_clients.data.reading import Reading
from fedloop_clients.data.sentences import skipped_words
from fedloop_clients.data.settings import DataSettings
from fedloop_clients.data.sources.csv_settings import CsvSettings
from fedloop_core.durable import write_bytes
from fedloop_core.errors import DataError, FileMissing, UsageError
from fedloop_core.schema import ClassLabel, label_columns
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
_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
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
        reading = _read(_file(folder, hospital), task)
        rows, told = reading.rows, skipped_words(reading, task.feature_schema)
        train, test = _protocol_split(rows.labels)
        generator = np.random.default_rng([seed, number])
        parts = (evaluation_share, 1 - evaluation_share)
        evaluation, stream = divide(rows.take(test), task.feature_schema, parts, generator)
        sites.append(SiteRows(hospital, rows.take(train), evaluation, reading.skipped, bounded(told, reading.skipped)))
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


def _read(path: Path, task: Task) -> Reading:
    """Rows of one file that have all values."""
    classes = task.label.classes if isinstance(task.label, ClassLabel) else ("healthy", "diseased")
    recode = {"0": classes[0]} | {str(grade): classes[1] for grade in range(1, 5)}
    settings = DataSettings(
        file=path.name,
        columns=_COLUMNS,
        missing=("?",),
        csv=CsvSettings(delimiter=","),
        map={_label_name(task): ColumnMapping(column="num", recode=recode)},
    )
    try:
        return read_source(open_source(path, settings), task, settings.mappings(path.name))
    except DataError as error:
        hint = f"The folder needs processed.{{{','.join(HOSPITALS)}}}.data."
        raise FileMissing(f"cannot read {path}: {error.message}", hint=hint) from error


def _label_name(task: Task) -> str:
    return next(iter(label_columns(task.label).values()))


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
