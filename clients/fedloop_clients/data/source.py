"""From a site's file to its rows: which are trained on, and which only evaluated on.

Whether a unit is evaluated on follows from a keyed hash of the unit, and of nothing else: it stays on its side when rows
are added, moved or taken away. Where each row is a unit of its own, the hash is over the person that ``data.person_column``
names, so that every task has this person on the same side; where the site names no such column, it is over what the row
holds, as the task reads it, and rows that hold the same are numbered.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.data.fingerprint import row_digests
from fedloop_clients.data.opening import open_source, read_source
from fedloop_clients.data.persons import named_persons
from fedloop_clients.data.reading import Reading
from fedloop_clients.data.sentences import skipped_words
from fedloop_clients.data.settings import DataSettings
from fedloop_clients.data.site_data import SiteData
from fedloop_core.dataset import Dataset
from fedloop_core.errors import SettingsInvalid
from fedloop_core.schema import ClassLabel
from fedloop_core.task import Task

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome

__all__ = ["evaluation_rows", "load_site_data", "read_site_rows"]

_LOG = logging.getLogger(__name__)
_TOLD = 20
_SCALE = 2**64


def load_site_data(home: SiteHome, task: Task) -> SiteData:
    """A site's rows for a task, split into training and evaluation rows. Rows that do not fit are counted and logged.

    Raises:
        FileMissing: the data file is not there or cannot be read.
        SourceInvalid: it is not written as it is declared to be, or that cannot be told.
        ColumnMissing: it lacks a column of the task.
        SettingsInvalid: site.toml has mistakes, or says of a column what the task's cannot be; or people were erased and no
            column names them.
        NotSetUp: the site has no site.toml or no secret yet.
    """
    reading = read_site_rows(home, task)
    told = skipped_words(reading, task.feature_schema)[:_TOLD]
    for why in told:
        _LOG.warning("site %s, task %s: skipped %s", home.settings.site, task.name, why)
    if reading.skipped > len(told):
        _LOG.warning("site %s, task %s: and %d more rows", home.settings.site, task.name, reading.skipped - len(told))
    if reading.left_out:
        _LOG.info(
            "site %s, task %s: %d rows of erased people are left out", home.settings.site, task.name, reading.left_out
        )
    secret = home.fingerprint_secret()
    by_row, share = task.privacy.unit_column is None, home.settings.data.evaluation_share
    persons = _persons(home, reading.rows) if by_row else None
    chosen = evaluation_rows(reading.rows, share, secret, by_row=by_row, persons=persons)
    training, evaluation = (reading.rows.take(np.flatnonzero(part)) for part in (~chosen, chosen))
    return SiteData(training, evaluation, secret=secret, skipped=reading.skipped)


def read_site_rows(home: SiteHome, task: Task) -> Reading:
    """All rows of the site's file that fit a task, and what is wrong with the others.

    Raises:
        FileMissing, SourceInvalid, ColumnMissing, SettingsInvalid, NotSetUp: as ``load_site_data``.
    """
    settings = home.settings.data
    _check_recoded_classes(settings, task, home)
    mappings = settings.mappings(str(home.settings_file))
    return read_source(open_source(home.data_file, settings), task, mappings, _erased(home, task))


def _check_recoded_classes(settings: DataSettings, task: Task, home: SiteHome) -> None:
    label = task.label
    mapping = settings.map.get(label.name) if isinstance(label, ClassLabel) else None
    if not isinstance(label, ClassLabel) or mapping is None:
        return
    strange = sorted(set(mapping.recode.values()) - set(label.classes))
    if strange:
        raise SettingsInvalid(
            f"{home.settings_file}: data.map.{label.name}.recode names the class {strange[0]!r}, which task {task.name!r} has not: "
            f"its classes are {', '.join(label.classes)}.",
            hint="Correct it in site.toml.",
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
    data, unit = home.settings.data, task.privacy.unit_column
    column = data.person_column or (None if unit is None else data.mappings(str(home.settings_file)).column(unit))
    if column is None:
        raise SettingsInvalid(
            f"{len(home.erased())} people were erased, and neither task {task.name!r} nor {home.settings_file} says which column "
            "names the person of a row: they cannot be left out.",
            hint="Set data.person_column in site.toml.",
        )
    return _Erased(column, home.erased().holds())


def _persons(home: SiteHome, rows: Dataset) -> list[str] | None:
    """Who each row is of, where rows are units and the site knows a column that names people: they stay on one side all the same."""
    data = home.settings.data
    if data.person_column is None:
        return None
    nobody = {marker.casefold() for marker in data.missing}
    found = named_persons(open_source(home.data_file, data), data.person_column)
    named = {f"row-{number}": "" if name.casefold() in nobody else name for number, name in found}
    return [named.get(unit, "") for unit in rows.units]


def evaluation_rows(
    rows: Dataset, share: float, secret: bytes, *, by_row: bool, persons: Sequence[str] | None = None
) -> NDArray[np.bool_]:
    """Which rows are evaluated on: all of a unit or none, about ``share`` of the units.

    Args:
        rows: the site's rows.
        share: of the units, in (0, 1).
        secret: the site's own, so that nobody else can tell on which side a patient is.
        by_row: each row is a unit of its own, and its name says only where it stood.
        persons: who each row is of, "" where nobody knows; a person's rows then go together as if the person were the unit.
    """
    units = _row_names(rows) if by_row else [unit.encode() for unit in rows.units]
    if persons is not None:
        units = [person.encode() or unit for person, unit in zip(persons, units, strict=True)]
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
