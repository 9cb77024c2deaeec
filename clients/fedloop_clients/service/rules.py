"""site.toml's policy as it is now: read again when the file changes, and refusing all work while it has mistakes."""

from __future__ import annotations

import logging
import threading

from fedloop_clients.home import SiteHome
from fedloop_clients.policy import SitePolicy
from fedloop_clients.state_file import FileMark, file_mark
from fedloop_core.errors import FedloopError, PolicyRefused, SettingsInvalid
from fedloop_core.federation.rules import PolicyRule

__all__ = ["WatchedPolicy"]

_LOG = logging.getLogger(__name__)


class WatchedPolicy:
    """The policy of a site's settings; any thread may ask.

    A file with mistakes refuses everything instead of leaving the former rules in force: whoever wrote it may have meant to
    tighten them.
    """

    def __init__(self, home: SiteHome) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._mark: FileMark | None = None
        self._policy: SitePolicy | None = None

    def __call__(self) -> SitePolicy:
        """The rules that hold.

        Raises:
            PolicyRefused: the settings cannot be read; rule ``settings``.
            StorageError: the home cannot be read.
        """
        with self._lock:
            mark = file_mark(self._home.settings_file)
            if mark is None or mark != self._mark:
                self._policy = self._load()
                self._mark = mark
            if self._policy is None:
                raise PolicyRefused(
                    "the site's settings cannot be read just now, so nothing is allowed.",
                    hint="At the site: correct site.toml; the daemon's log and `fedloop site doctor` say what is wrong.",
                    rule=PolicyRule.SETTINGS.value,
                )
            return self._policy

    def _load(self) -> SitePolicy | None:
        try:
            policy = self._home.settings.rules()
        except FedloopError as error:
            if self._policy is not None or self._mark is None:
                _LOG.error("all work is refused: %s", "; ".join((str(error), *_problems(error))))
            return None
        _LOG.info("the policy of %s holds", self._home.settings_file)
        return policy


def _problems(error: FedloopError) -> tuple[str, ...]:
    return error.problems if isinstance(error, SettingsInvalid) else ()
