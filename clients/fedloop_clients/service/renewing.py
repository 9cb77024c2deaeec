"""The site's certificate renews itself: at half of its life, or when the coordinator asks for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from fedloop_clients.home import SiteHome
from fedloop_clients.joining import Renewal, renew
from fedloop_core.certificates import DAY_SECONDS, certificate_validity
from fedloop_core.errors import StorageError

__all__ = ["Renewing", "renewal_time"]

_LOG = logging.getLogger(__name__)
_LOOK_SECONDS = 60.0


def renewal_time(begin_unix: int, end_unix: int) -> int:
    """When a certificate is due: at half of its life."""
    return begin_unix + (end_unix - begin_unix) // 2


class Renewing:
    """Looks once a minute, and at once when it is asked.

    Args:
        home: the site's.
        renewed: called after a renewal, so that connections are made anew.
        clock: seconds since 1970.
        renewer: asks the coordinator; ``joining.renew``.
    """

    def __init__(
        self,
        home: SiteHome,
        renewed: Callable[[], None],
        clock: Callable[[], float] = time.time,
        renewer: Callable[[SiteHome], Renewal] = renew,
    ) -> None:
        self._home = home
        self._renewed = renewed
        self._clock = clock
        self._renewer = renewer
        self._asked = threading.Event()
        self._said_unix = 0.0

    def ask(self) -> None:
        """The coordinator says that a renewal is due."""
        self._asked.set()

    def once(self) -> float:
        """Renews when it is due; returns the seconds until it looks again.

        Raises:
            FedloopError: the renewal failed; it is tried again.
        """
        begin, end = certificate_validity(self._certificate())
        now = self._clock()
        asked = self._asked.is_set()
        if not asked and now < renewal_time(begin, end):
            self._asked.wait(_LOOK_SECONDS)
            return 0.0
        self._asked.clear()
        if self._home.membership().own_authority:
            self._remind(end, now)
            return _LOOK_SECONDS
        renewal = self._renewer(self._home)
        _LOG.info(
            "the site's certificate was renewed; it holds for %.1f days", (renewal.expires_unix - now) / DAY_SECONDS
        )
        self._renewed()
        return _LOOK_SECONDS

    def _remind(self, end: int, now: float) -> None:
        """A certificate of the institution's own authority is its own people's to renew."""
        if now - self._said_unix >= DAY_SECONDS:
            self._said_unix = now
            _LOG.warning(
                "the site's certificate is the institution's own and expires in %.1f days: renew it with "
                "`fedloop site renew --certificate FILE --key FILE`",
                (end - now) / DAY_SECONDS,
            )

    def _certificate(self) -> bytes:
        try:
            return self._home.site_certificate.read_bytes()
        except OSError as error:
            raise StorageError(
                f"cannot read {self._home.site_certificate}: {error.strerror}.", hint="Restore it, or join again."
            ) from error
