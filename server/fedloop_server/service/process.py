"""The service as a whole: its doors and its loops."""

from __future__ import annotations

import logging
import time

from fedloop_server.home import CoordinatorHome
from fedloop_server.hub.board import MembershipBoard
from fedloop_server.hub.credentials import hub_credentials
from fedloop_server.hub.server import SiteHubServer
from fedloop_server.hub.service import HubParts
from fedloop_server.manager.queue import RunQueue
from fedloop_server.manager.retention import CoordinatorRetention
from fedloop_server.membership import Members, MembershipDesk, Notices
from fedloop_server.membership.servers import ServerCertificates
from fedloop_server.service.http import build_door
from fedloop_server.service.loops import Loop
from fedloop_server.service.parts import NodeRegistrar, Ticker
from fedloop_server.service.reconcile import Reconciler
from fedloop_server.service.socket_server import SocketServer

__all__ = ["SOCKET", "Service"]

_LOG = logging.getLogger(__name__)

SOCKET = "service.sock"

_LOOK_SECONDS = 1.0
_CERTIFICATES_SECONDS = 5.0
_FORGET_SECONDS = 3600.0


class Service:
    """What ``python -m fedloop_server.service`` runs.

    Args:
        home: a coordinator that is set up.
        registrar: Flower's list of nodes; without one, nodes are not registered.
        ticker: the run manager, called every second.

    Raises:
        SettingsInvalid: server.toml has mistakes, or files that it names cannot be read.
        StorageError: the database cannot be opened.
        CertificateRefused: keys and certificates do not fit.
        UsageError: the hub's address cannot be listened on.
    """

    def __init__(
        self, home: CoordinatorHome, *, registrar: NodeRegistrar | None = None, ticker: Ticker | None = None
    ) -> None:
        settings = home.settings
        self._database = home.database()
        authorities = home.authorities()
        self._certificates = ServerCertificates(home.folder, settings, authorities)
        self._renew()
        members, notices, audit = Members(self._database), Notices(self._database), home.audit()
        self._board = MembershipBoard(members.revision)
        desk = MembershipDesk(members, authorities, settings, home.envelope_key.verifying, audit)
        self._door = SocketServer(home.folder / "sockets" / SOCKET, build_door(desk, members, self._board))
        credentials = hub_credentials(
            home.keys / "hub.key", home.keys / "hub.pem", lambda: authorities.client_bundle(members.institutions())
        )
        parts = HubParts(members, notices, authorities, audit, self._board, settings.hub_limits)
        self._hub = SiteHubServer(parts, settings.hub.address, credentials)
        self._loops = [
            Loop("certificates", _CERTIFICATES_SECONDS, self._renew),
            Loop("expired certificates", _FORGET_SECONDS, members.forget_expired_certificates),
            Loop("retention", _FORGET_SECONDS, CoordinatorRetention(home, RunQueue(self._database), audit).once),
        ]
        if registrar is not None:
            reconciler = Reconciler(members, registrar, home.folder / "flower" / "nodes")
            self._loops.append(Loop("nodes of Flower", _LOOK_SECONDS, reconciler.run))
        if ticker is not None:
            self._loops.append(Loop("run manager", _LOOK_SECONDS, ticker.tick, longest=2 * _LOOK_SECONDS))

    def start(self) -> None:
        """Opens the doors and begins the loops.

        Raises:
            ProcessFailed: the unix socket cannot be made.
        """
        self._board.start()
        self._hub.start()
        self._door.start()
        for loop in self._loops:
            loop.start()
        _LOG.info("the service listens for sites on %s", self._hub.address)

    def stop(self) -> None:
        """Ends streams at once, other calls after a second, and the loops after what they do now."""
        self._board.close()
        self._door.stop()
        self._hub.stop()
        for loop in self._loops:
            loop.stop()
        self._database.close()

    def _renew(self) -> None:
        for name in self._certificates.refresh(int(time.time())):
            _LOG.info("%s was written anew", name)
