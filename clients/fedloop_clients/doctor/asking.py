"""One question to the front and one to the hub, as a site asks them, with the times of their clocks."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib import metadata

import httpx

from fedloop_clients.home import SiteHome
from fedloop_clients.hub_client import HubIdentity, SiteHubClient
from fedloop_clients.joining.address import Address, Proxy
from fedloop_clients.joining.front import for_httpx
from fedloop_clients.joining.keys import public_side_of
from fedloop_core.errors import CoordinatorUnreachable, NetworkError, StorageError, TrustError
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_proto.membership.v1.membership_pb2 import WatchRequest

__all__ = ["FrontAnswer", "Greeting", "ask_front", "ask_hub"]

_OURS = frozenset({"refused", "not now"})
_LONGEST = 4096


@dataclass(frozen=True)
class FrontAnswer:
    """``ours``: the front's own page of refusal; ``skew``: how far this machine's clock is ahead, None when not said."""

    status: int
    ours: bool
    skew: float | None
    failed: str = ""


@dataclass(frozen=True)
class Greeting:
    """The coordinator's generation and how far this machine's clock is ahead; or the error that came instead."""

    protocol: int = 0
    skew: float = 0.0
    error: TrustError | NetworkError | None = None


def ask_front(
    target: Address, proxy: Proxy | None, context: ssl.SSLContext, seconds: float, clock: Callable[[], float]
) -> FrontAnswer:
    """Asks for a page that no front serves."""
    try:
        with httpx.Client(verify=context, proxy=for_httpx(proxy), trust_env=False, timeout=seconds) as client:
            begun = clock()
            with client.stream("GET", f"https://{target}/") as reply:
                middle = (begun + clock()) / 2
                text = next(reply.iter_text(_LONGEST), "")
                status, date = reply.status_code, reply.headers.get("date", "")
    except (httpx.TransportError, httpx.DecodingError, ssl.SSLError) as error:
        return FrontAnswer(0, ours=False, skew=None, failed=type(error).__name__)
    return FrontAnswer(status, text.strip() in _OURS, _skew(date, middle))


def ask_hub(home: SiteHome, seconds: float, clock: Callable[[], float]) -> Greeting:
    """Opens the stream of notices as the site, takes the greeting, and hangs up; acknowledges nothing.

    The hub keeps one stream a site: a daemon that has one opens it again.

    Raises:
        NotSetUp, SettingsInvalid: the site has not joined, or site.toml has mistakes.
        StorageError: a key file cannot be read.
        CertificateRefused: a key file holds something else.
    """
    try:
        key, chain, authorities = (
            path.read_bytes() for path in (home.site_key, home.site_certificate, home.authorities)
        )
    except OSError as error:
        raise StorageError(
            f"cannot read {error.filename}: {error.strerror}.", hint="Run as the site's user."
        ) from error
    public_side_of(key, str(home.site_key))  # gRPC ends the process's wish to speak with less of an explanation
    client = SiteHubClient(home.membership().hub_address, HubIdentity(key, chain, authorities), home.settings.proxy)
    deadline = threading.Timer(seconds, client.close)
    deadline.start()
    try:
        begun = clock()
        notice = next(client.watch(WatchRequest(protocol=PROTOCOL, software_version=metadata.version("fedloop"))), None)
        if notice is None:
            raise CoordinatorUnreachable("the hub ends the connection without a word.", stage="hub")
        return Greeting(notice.protocol, (begun + clock()) / 2 - notice.now_unix - 0.5)
    except (TrustError, NetworkError) as error:
        return Greeting(error=error)
    finally:
        deadline.cancel()
        client.close()


def _skew(date: str, middle: float) -> float | None:
    """A Date header names a whole second: half a second is the best guess at what it leaves out."""
    try:
        return middle - (parsedate_to_datetime(date).timestamp() + 0.5)
    except (ValueError, TypeError):
        return None
