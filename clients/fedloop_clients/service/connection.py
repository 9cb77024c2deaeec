"""The one connection to the hub, made anew whenever a key, a certificate, an authority or the settings change."""

from __future__ import annotations

import logging
import threading

from fedloop_clients.home import SiteHome
from fedloop_clients.hub_client import HubIdentity, SiteHubClient
from fedloop_clients.state_file import FileMark, file_mark
from fedloop_core.errors import StorageError

__all__ = ["HubConnection"]

_LOG = logging.getLogger(__name__)


class HubConnection:
    """Shared by the thread that watches and the one that reports; the proxy is that of site.toml."""

    def __init__(self, home: SiteHome) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._client: SiteHubClient | None = None
        self._marks: tuple[FileMark | None, ...] = ()

    def client(self) -> SiteHubClient:
        """The client for the files as they are now; one for other files is closed, which ends its calls.

        Raises:
            NotSetUp: the site has not joined.
            SettingsInvalid: settings or membership have mistakes.
            StorageError: a file cannot be read.
        """
        with self._lock:
            marks = self._look()
            if self._client is None or marks != self._marks:
                self._close()
                self._client = self._open()
                self._marks = marks
            return self._client

    def holds(self, client: SiteHubClient) -> bool:
        """Whether this is still the client; if not, it was closed."""
        with self._lock:
            return self._client is client

    def drop(self) -> None:
        """Closes the connection; the next call makes a new one."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _open(self) -> SiteHubClient:
        home = self._home
        try:
            identity = HubIdentity(
                home.site_key.read_bytes(), home.site_certificate.read_bytes(), home.authorities.read_bytes()
            )
        except OSError as error:
            raise StorageError(
                f"cannot read {error.filename}: {error.strerror}.", hint="Restore it from a backup, or join again."
            ) from error
        address = home.membership().hub_address
        _LOG.info("connecting to the hub %s", address)
        return SiteHubClient(address, identity, home.settings.proxy)

    def _look(self) -> tuple[FileMark | None, ...]:
        home = self._home
        files = (home.site_key, home.site_certificate, home.authorities, home.membership_file, home.settings_file)
        return tuple(file_mark(file) for file in files)
