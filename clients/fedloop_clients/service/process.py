"""The daemon process: socket for the relay, link to the hub, renewal of the certificate; one that fails stops no other."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import ExitStack
from types import FrameType

from fedloop_clients.activity import Activity
from fedloop_clients.home import SiteHome
from fedloop_clients.joining.answer import check_authorities
from fedloop_clients.service.connection import HubConnection
from fedloop_clients.service.home_daemon import HomeDaemon
from fedloop_clients.service.link import HubLink, HubStanding, LinkActions
from fedloop_clients.service.renewing import Renewing
from fedloop_clients.service.retaining import Retaining
from fedloop_clients.service.threads import keep_going
from fedloop_clients.socket_server import SocketServer
from fedloop_clients.state_file import FileMark, file_mark
from fedloop_clients.status import SiteStatus, write_status
from fedloop_core.certificates import certificate_expiry
from fedloop_core.durable import write_bytes
from fedloop_core.errors import CertificateRefused, SiteRevoked, StorageError
from fedloop_core.processes.lock import folder_lock

__all__ = ["SiteService"]

_LOG = logging.getLogger(__name__)
_LEFT = "this site has left, as its people said. To come back, join again with a new token."
_LOOK_SECONDS = 0.2  # at what a signal left
_WORK_ENDS_WITHIN = 5.0  # seconds; the supervisor kills after ten


class SiteService:
    """All of a site's daemon process.

    Args:
        home: a site that has joined.
        relay_users: numbers of users, beside this process's own, whose processes may bring questions.
        report_seconds: between reports while nothing changes.

    Raises:
        NotSetUp: the site has not joined.
        SettingsInvalid: its membership was altered.
    """

    def __init__(self, home: SiteHome, relay_users: frozenset[int] = frozenset(), report_seconds: float = 10.0) -> None:
        self._home = home
        self._relay_users = relay_users
        self._stop = threading.Event()
        self._signalled = False
        self._connection = HubConnection(home)
        self.daemon = HomeDaemon(home)
        self.renewing = Renewing(home, self._connection.drop)
        self.link = HubLink(
            self.daemon,
            self._connection,
            self.daemon.signing,
            LinkActions(self._trust, self.renewing.ask, self._show),
            report_seconds=report_seconds,
        )

    def run(self) -> None:
        """Serves until ``stop`` or a signal.

        Raises:
            AlreadyRunning: another daemon serves this home; two could release under one reservation of the ledger.
            StorageError: the socket cannot be made.
        """
        with ExitStack() as stack:
            stack.enter_context(folder_lock(self._home.folder, "daemon.lock"))
            stack.callback(self._connection.drop)
            stack.callback(self.daemon.end, _WORK_ENDS_WITHIN)
            stack.enter_context(self._listening())
            activity = self.daemon.activity()  # makes the daemon, or says why it cannot be made yet
            _LOG.info("site daemon of %s is ready: %s %s", self._home.folder, activity.kind.value, activity.code)
            keep_going("hub notices", self.link.watch_once, self._stop)
            keep_going("hub reports", self.link.report_once, self._stop)
            keep_going("certificate renewal", self.renewing.once, self._stop)
            keep_going("retention", Retaining(self.daemon).once, self._stop)
            standing = self._standing_mark()
            while not (self._signalled or self._stop.wait(_LOOK_SECONDS)):
                if self._standing_mark() != standing:  # a person paused, or left: the coordinator hears of it now
                    standing = self._standing_mark()
                    self.daemon.board.touch()
            self._stop.set()
            _LOG.info("the site daemon ends")

    def _standing_mark(self) -> FileMark | None:
        try:
            return file_mark(self._home.standing_file)
        except StorageError:
            return None

    def _listening(self) -> SocketServer:
        """The socket. Where other users may ask, anybody may connect who reaches the folder: the kernel says who it is."""
        path = self._home.daemon_socket
        allowed = self._relay_users | {os.getuid()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return SocketServer(path, self.daemon, allowed_users=allowed, mode=0o666 if len(allowed) > 1 else 0o600)
        except OSError as error:
            raise StorageError(
                f"cannot listen on {path}: {error.strerror or error}.",
                hint="Correct the folder's rights; a socket's path has at most 107 bytes.",
            ) from error

    def stop(self) -> None:
        """Ends ``run``."""
        self._stop.set()
        self.daemon.board.touch()

    def stop_on_signals(self) -> None:
        """Ends ``run`` at SIGTERM and SIGINT; for the main thread."""

        def end(_number: int, _frame: FrameType | None) -> None:
            self._signalled = True  # and no lock: the main thread may hold it

        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)

    def _trust(self, certificates: bytes) -> None:
        """Replaces the authorities, whole; the supervisor restarts Flower's process when the file changes."""
        check_authorities(certificates)
        write_bytes(self._home.authorities, certificates)
        _LOG.warning("the coordinator's authorities were replaced, as it asked")
        self._connection.drop()

    def _mark_shut_out(self, activity: Activity, standing: HubStanding) -> None:
        """A SuperNode that is refused ends, and its supervisor would start it again for ever."""
        if activity.code == SiteRevoked.code:
            if not self._home.shut_out_file.exists():
                why = _LEFT if activity.leaving else standing.trouble  # the supervisor tells it
                write_bytes(self._home.shut_out_file, f"{why}\n".encode())
        elif not standing.trouble:
            self._home.shut_out_file.unlink(missing_ok=True)

    def _show(self, activity: Activity, standing: HubStanding) -> None:
        try:
            expires = certificate_expiry(self._home.site_certificate.read_bytes())
        except (OSError, CertificateRefused):
            expires = 0
        status = SiteStatus(
            unix=int(time.time()),
            activity=activity.kind.value,
            run_id=activity.run_id,
            round=activity.round,
            step=activity.step,
            steps=activity.steps,
            code=activity.code,
            hub=standing.trouble,
            skew_seconds=standing.skew_seconds,
            certificate_expires_unix=expires,
        )
        try:
            self._mark_shut_out(activity, standing)
            write_status(self._home.folder, status)
        except StorageError as error:
            _LOG.warning("%s", error)
