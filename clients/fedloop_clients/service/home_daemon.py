"""The daemon of a site's home: made when ledger and outbox can be opened, and refusing by name until then."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

from fedloop_clients.activity import Activity, ActivityBoard, ActivityKind
from fedloop_clients.controls import SiteControls
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.home import SiteHome
from fedloop_clients.notices import NoticeTaken
from fedloop_clients.outbox import Outbox
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.retention import Deleted, delete_due
from fedloop_clients.service.rows import FileRows
from fedloop_clients.service.rules import WatchedPolicy
from fedloop_clients.training.devices import DevicePool
from fedloop_core.arrays import digest
from fedloop_core.errors import FedloopError, SettingsInvalid
from fedloop_core.federation.answers import sign_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.noise import SystemNoise
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Refusal

__all__ = ["HomeDaemon"]

_LOG = logging.getLogger(__name__)


def _clock() -> int:
    return int(time.time())


class HomeDaemon:
    """As the site's daemon, as an endpoint and towards the hub; any thread may call.

    Keys and membership are read now and never again: a site that joins anew starts a new process. Settings, data, ledger and
    outbox may be damaged or on a full disk when the process starts: they are tried again at each call.

    Raises:
        NotSetUp: the site has not joined.
        SettingsInvalid: its membership was altered.
    """

    def __init__(self, home: SiteHome) -> None:
        self._home = home
        self._membership = home.membership()
        self._coordinator = home.coordinator_key()
        self.signing = home.signing_key()
        self.board = ActivityBoard()
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None
        self._outbox: Outbox | None = None
        self._daemon: SiteDaemon | None = None

    def answer(self, question: Question) -> Reply:
        """Answers a question; while there is no daemon, a refusal says by its code why."""
        try:
            daemon = self._made()
        except FedloopError as error:
            _LOG.error("site %s refuses: %s", self._membership.site, error)
            wire = error.wire()
            refusal = Refusal(code=wire.code, fields=wire.fields)
            answer = Answer(site=self._membership.site, protocol=PROTOCOL, arrays_digest=digest({}), refusal=refusal)
            return Reply(sign_answer(answer, self.signing), {})
        return daemon.answer(question)

    def notice(self, envelope: bytes) -> NoticeTaken:
        """Acts on a notice.

        Raises:
            FedloopError: as ``SiteDaemon.notice``, or there is no daemon yet.
        """
        return self._made().notice(envelope)

    def activity(self) -> Activity:
        """What the site does now; stopped, with a code, while there is no daemon."""
        try:
            return self._made().activity()
        except FedloopError as error:
            return replace(self.board.now, kind=ActivityKind.STOPPED, code=error.code)

    def delete_due(self, now_unix: int) -> tuple[Deleted, ...]:
        """Deletes what was kept for as long as site.toml allows, by its text of now.

        Raises:
            FedloopError: there is no daemon yet, settings cannot be read, or a store cannot be written.
        """
        self._made()
        if self._outbox is None:
            return ()
        return delete_due(self._home, self._outbox, now_unix, actor=f"site:{self._membership.site}")

    def end(self, seconds: float) -> None:
        """Ends the work in hand within about so many seconds, and closes the files when it has ended."""
        daemon = self._daemon
        if daemon is not None and not daemon.end(seconds):
            _LOG.warning("work in hand does not end; its charge stands in full")
            return
        for store in (self._ledger, self._outbox):
            if store is not None:
                store.close()

    def _made(self) -> SiteDaemon:
        daemon = self._daemon
        if daemon is not None:
            return daemon
        with self._lock:
            if self._daemon is None:
                self._daemon = self._make()
            return self._daemon

    def _make(self) -> SiteDaemon:
        home = self._home
        settings = home.settings
        if settings.site != self._membership.site:
            raise SettingsInvalid(
                f"{home.settings_file} is of site {settings.site!r}; this home joined as {self._membership.site!r}.",
                hint="Correct `site`.",
            )
        if self._ledger is None:
            self._ledger = home.ledger()
        if self._outbox is None:
            self._outbox = home.outbox()
        controls = SiteControls.of_folder(settings.site, home.folder, WatchedPolicy(home), home.audit())
        return SiteDaemon(
            settings.config(),
            FileRows(home),
            self._ledger,
            self._outbox,
            SystemNoise(),
            self._coordinator,
            _clock,
            signing_key=self.signing,
            controls=controls,
            board=self.board,
            devices=DevicePool.of_settings(settings.compute),
            consortium=home.consortium().consortium,
        )
