"""A deployed site's rows: read when a task is first described, and again when the file has changed between runs."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from fedloop_clients.data.claim import claim_rows
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.data.source import load_site_data
from fedloop_clients.home import SiteHome
from fedloop_clients.state_file import FileMark, file_mark
from fedloop_core.task.document import Task

__all__ = ["FileRows"]

_LOG = logging.getLogger(__name__)
_TASKS_KEPT = 2  # each holds all rows in memory


@dataclass(frozen=True)
class _Read:
    marks: tuple[FileMark | None, ...]
    data: SiteData


class FileRows:
    """The rows of one site's file, for each task as its schema reads them."""

    def __init__(self, home: SiteHome) -> None:
        self._home = home
        self._read: OrderedDict[bytes, _Read] = OrderedDict()

    def for_task(self, task: Task) -> SiteData:
        """The site's rows; the same object until the data file, site.toml or the list of erased people changes.

        Raises:
            DataClaimed: the rows are charged to another ledger.
            DataError, SettingsInvalid, NotSetUp: as ``load_site_data``.
        """
        files = (self._home.data_file, self._home.settings_file, self._home.erased_file)
        marks = tuple(file_mark(file) for file in files)
        known = self._read.get(task.digest)
        if known is None or known.marks != marks:
            claim_rows(self._home)
            data = load_site_data(self._home, task)
            _LOG.info("read the site's rows for task %s", task.name)
            known = self._read[task.digest] = _Read(marks, data)
        self._read.move_to_end(task.digest)
        while len(self._read) > _TASKS_KEPT:
            self._read.popitem(last=False)
        return known.data
