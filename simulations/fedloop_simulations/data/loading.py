"""From a task to a federation's data: bundled with scikit-learn, the four hospitals, or the user's own tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from fedloop_clients.data.opening import csv_files, read_file
from fedloop_clients.data.reading import Reading
from fedloop_clients.data.sentences import skipped_words
from fedloop_core.dataset import Dataset
from fedloop_core.errors import FileMissing, TooFewRows, UsageError
from fedloop_core.task import Task
from fedloop_core.task.presets import load_preset
from fedloop_simulations.data.bundled import BUNDLED, bundled_rows
from fedloop_simulations.data.heart import HOSPITALS, fetch_heart, heart_folder, heart_world, is_heart_folder
from fedloop_simulations.data.split import DEFAULT_SHARES, Shares, divide, units_in
from fedloop_simulations.data.world import SiteRows, StreamRows, World, bounded

__all__ = ["DEFAULT_SITES", "load_world"]

DEFAULT_SITES = 3
"""Sites over which one body of rows is divided unless told otherwise."""
_SITE_NAME = re.compile(r"[a-z0-9][a-z0-9\-]{0,62}")


def load_world(
    task: Task,
    *,
    sites: int | None = None,
    seed: int = 0,
    data: Path | None = None,
    shares: Shares = DEFAULT_SHARES,
    evaluation_share: float = 0.5,
    confirm: Callable[[str], bool] | None = None,
) -> World:
    """Loads and distributes the rows of a task; the same arguments and files give the same world.

    Without ``data``, a task with the columns of a preset gets that preset's data, whatever its name, model or privacy.

    Args:
        task: what is learned.
        sites: how many sites; where the data have sites of their own, their number or None.
        seed: decides which rows go where.
        data: a folder with one CSV for each site, one CSV to divide over the sites, or the four hospitals' files.
        shares: of a site's rows: to train on, to evaluate on, and for its devices.
        evaluation_share: of the four hospitals' test rows, the others being for devices; their training rows are fixed.
        confirm: asked before the four hospitals' files are downloaded; without it they are not.

    Raises:
        UsageError: more sites than rows, another number of sites than the data have, a file whose name cannot name a
            site, or no data given.
        FileMissing: a file or folder is not there or cannot be read.
        ColumnMissing: a table lacks a column of the task.
        TooFewRows: the one table has no row that fits.
    """
    if sites is not None and sites < 1:
        raise UsageError(f"there must be at least 1 site, not {sites}.")
    preset = _preset_with_columns_of(task)
    if data is None and preset in BUNDLED:
        rows = bundled_rows(preset, task)
        return _divided(task, Reading(rows), sites or DEFAULT_SITES, seed, shares, preset)
    if data is None and preset == "heart" and confirm is not None:
        data = fetch_heart(heart_folder(), confirm)
    if data is None:
        raise UsageError(
            f"no data are known for the task {task.name!r}.",
            hint="Give --data: a folder with one CSV for each site, or one CSV.",
        )
    if preset == "heart" and is_heart_folder(data):
        _check_number(sites, len(HOSPITALS), data)
        return heart_world(task, data, evaluation_share=evaluation_share, seed=seed)
    if data.is_dir():
        return _one_table_for_each_site(task, data, sites, seed, shares)
    if not data.exists():
        raise FileMissing(f"{data} is not there.", hint="--data takes a folder with CSV files, or one CSV file.")
    return _divided(task, read_file(data, task), sites or DEFAULT_SITES, seed, shares, str(data))


def _preset_with_columns_of(task: Task) -> str:
    """The preset whose data fit the task: the same names and kinds of features, and the same label; "" for none."""
    columns = [(feature.name, feature.kind) for feature in task.features]
    for name in (*BUNDLED, "heart"):
        preset = load_preset(name)
        if task.label == preset.label and columns == [(feature.name, feature.kind) for feature in preset.features]:
            return name
    return ""


def _check_number(asked: int | None, there: int, data: Path) -> None:
    if asked not in (None, there):
        raise UsageError(
            f"{data} has the data of {there} sites, and {asked} were asked for.", hint="Leave the number of sites out."
        )


def _one_table_for_each_site(task: Task, folder: Path, sites: int | None, seed: int, shares: Shares) -> World:
    files = csv_files(folder)
    _check_number(sites, len(files), folder)
    names = [file.stem for file in files]
    if len(set(names)) != len(names):
        raise UsageError(
            f"two files in {folder} have one name: each names a site.", hint=f"It has: {', '.join(names)}."
        )
    for file in files:
        if not _SITE_NAME.fullmatch(file.stem):
            raise UsageError(
                f"{file} cannot name a site: up to 63 small letters, digits and '-' can, and no '-' first.",
                hint="Rename the file.",
            )
    readings = {file.stem: read_file(file, task) for file in files}
    told = {name: skipped_words(reading, task.feature_schema) for name, reading in readings.items()}
    parts = {name: _Share(reading.rows, reading.skipped, told[name]) for name, reading in readings.items()}
    return _world(task, parts, seed, shares)


def _divided(task: Task, reading: Reading, sites: int, seed: int, shares_of_rows: Shares, source: str) -> World:
    units = units_in(reading.rows)
    if not units:
        told = skipped_words(reading, task.feature_schema)
        first = f" The first: {told[0]}" if told else ""
        raise TooFewRows(f"{source} has no row that fits the task; {reading.skipped} were skipped.{first}")
    if sites > units:
        what = "rows" if task.privacy.unit_column is None else f"values of {task.privacy.unit_column!r}"
        raise UsageError(f"{sites} sites cannot share {units} {what} of {source}.", hint="Ask for fewer sites.")
    parts = divide(reading.rows, task.feature_schema, [1 / sites] * sites, np.random.default_rng(seed))
    told = skipped_words(reading, task.feature_schema)
    shares = {
        f"site-{at + 1}": _Share(part, len(range(at, reading.skipped, sites)), told[at::sites])
        for at, part in enumerate(parts)
    }
    return _world(task, shares, seed, shares_of_rows)


@dataclass(frozen=True)
class _Share:
    """What one site gets of a reading."""

    rows: Dataset
    skipped: int
    told: tuple[str, ...]


def _world(task: Task, parts: dict[str, _Share], seed: int, shares: Shares) -> World:
    sites: list[SiteRows] = []
    streams: list[StreamRows] = []
    for number, (name, part) in enumerate(parts.items()):
        generator = np.random.default_rng([seed, number])
        train, evaluation, stream = divide(part.rows, task.feature_schema, astuple(shares), generator)
        sites.append(SiteRows(name, train, evaluation, part.skipped, bounded(part.told, part.skipped)))
        streams.append(StreamRows(name, stream))
    return World(task, tuple(sites), tuple(streams))
