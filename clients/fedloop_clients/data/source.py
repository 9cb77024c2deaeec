"""From a site's file to its rows: which are trained on, and which only evaluated on.

Whether a unit is evaluated on follows from a keyed hash of the unit, and of nothing else: it stays on its side when rows
are added, moved or taken away. Where each row is a unit of its own, the hash is over what the row holds; rows that hold
the same are numbered.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.data.fingerprint import row_digests
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.data.table import Table, read_table
from fedloop_core.dataset import Dataset
from fedloop_core.errors import SettingsInvalid
from fedloop_core.task import Task

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome

__all__ = ["evaluation_rows", "load_site_data", "read_site_table"]

_LOG = logging.getLogger(__name__)
_TOLD = 20
_SCALE = 2**64


def load_site_data(home: SiteHome, task: Task) -> SiteData:
    """A site's rows for a task, split into training and evaluation rows. Rows that do not fit are counted and logged.

    Raises:
        FileMissing: the data file is not there, empty, not UTF-8 or not CSV.
        ColumnMissing: the file lacks a column of the task.
        ColumnValueInvalid: the file names a column twice.
        SettingsInvalid: site.toml has mistakes, or maps a label to a class that the task has not; or people were erased and no
            column names them.
        NotSetUp: the site has no site.toml or no secret yet.
    """
    table = read_site_table(home, task)
    for why in table.skipped[:_TOLD]:
        _LOG.warning("site %s, task %s: skipped %s", home.settings.site, task.name, why)
    if len(table.skipped) > _TOLD:
        _LOG.warning("site %s, task %s: and %d more rows", home.settings.site, task.name, len(table.skipped) - _TOLD)
    if table.left_out:
        _LOG.info(
            "site %s, task %s: %d rows of erased people are left out", home.settings.site, task.name, table.left_out
        )
    secret = home.fingerprint_secret()
    by_row = task.privacy.unit_column is None
    chosen = evaluation_rows(table.rows, home.settings.data.evaluation_share, secret, by_row=by_row)
    training, evaluation = (table.rows.take(np.flatnonzero(part)) for part in (~chosen, chosen))
    return SiteData(training, evaluation, secret=secret, skipped=len(table.skipped))


def read_site_table(home: SiteHome, task: Task) -> Table:
    """All rows of the site's file that fit a task, and why the others do not.

    Raises:
        FileMissing, ColumnMissing, ColumnValueInvalid, SettingsInvalid, NotSetUp: as ``load_site_data``.
    """
    data = home.settings.data
    classes = task.label.classes if task.label.kind == "classes" else ()
    strange = sorted(set(data.labels.values()) - set(classes))
    if data.labels and strange:
        known = f"its classes are {', '.join(classes)}" if classes else "its label has no classes"
        raise SettingsInvalid(
            f"{home.settings_file}: data.labels names the class {strange[0]!r}, which task {task.name!r} has not: {known}.",
            hint="Correct data.labels.",
        )
    markers = tuple(marker.lower() for marker in data.missing)
    leave_out = _erased(home, task)
    return read_table(
        home.data_file, task, columns=data.columns, missing=markers, labels=data.labels, leave_out=leave_out
    )


@dataclass(frozen=True)
class _Erased:
    """People who were erased, by the column that names them."""

    column: str
    leaves_out: Callable[[str], bool]


def _erased(home: SiteHome, task: Task) -> _Erased | None:
    """Nobody while nobody was erased: then no column is needed.

    Raises:
        SettingsInvalid: people were erased, and no column says whose a row is.
    """
    if not home.erased_file.exists() or len(home.erased()) == 0:
        return None
    column = home.settings.data.person_column or task.privacy.unit_column
    if column is None:
        raise SettingsInvalid(
            f"{len(home.erased())} people were erased, and neither task {task.name!r} nor {home.settings_file} says which column "
            "names the person of a row: they cannot be left out.",
            hint="Set data.person_column in site.toml.",
        )
    return _Erased(column, home.erased().holds())


def evaluation_rows(rows: Dataset, share: float, secret: bytes, *, by_row: bool) -> NDArray[np.bool_]:
    """Which rows are evaluated on: all of a unit or none, about ``share`` of the units.

    Args:
        rows: the site's rows.
        share: of the units, in (0, 1).
        secret: the site's own, so that nobody else can tell on which side a patient is.
        by_row: each row is a unit of its own, and its name says only where it stood.
    """
    units = _row_names(rows) if by_row else [unit.encode() for unit in rows.units]
    known: dict[bytes, bool] = {}
    for unit in units:
        if unit not in known:
            drawn = hmac.digest(secret, b"fedloop evaluation rows\0" + unit, hashlib.sha256)
            known[unit] = int.from_bytes(drawn[:8], "big") < share * _SCALE
    return np.array([known[unit] for unit in units], dtype=np.bool_)


def _row_names(rows: Dataset) -> list[bytes]:
    seen: Counter[bytes] = Counter()
    names: list[bytes] = []
    for digest in row_digests(rows):
        seen[digest] += 1
        names.append(digest + seen[digest].to_bytes(8, "big"))
    return names
