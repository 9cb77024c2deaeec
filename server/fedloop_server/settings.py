"""server.toml: what people decide about one coordinator."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedloop_core.errors import NotSetUp, SettingsInvalid
from fedloop_core.processes.logs import LOG_DAYS
from fedloop_core.strict import Strict
from fedloop_core.toml.reader import DocumentKind, read_document
from fedloop_server.whole_sites.budget import SiteBudget

__all__ = [
    "SETTINGS_FILE",
    "FrontLimits",
    "HubLimits",
    "Listener",
    "OwnCertificate",
    "RetentionSettings",
    "ServerSettings",
    "SiteSettings",
    "load_settings",
    "read_file",
    "split_address",
]

SETTINGS_FILE = "server.toml"

_MIB = 1 << 20
_MOST_DAYS = 3650
_HIGHEST_PORT = 65_535
_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9\-]{0,61}[A-Za-z0-9])?)*"
)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 address stands in brackets.

    Raises:
        ValueError: it has another form.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) <= _HIGHEST_PORT:
        raise ValueError(f"must be written as host:port, not {address[:80]!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(text: str) -> str:
    split_address(text)
    return text


def _host(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        if not _HOST_NAME.fullmatch(text):
            raise ValueError(f"must be a host name or an IP address, not {text[:80]!r}") from None
    return text


Address = Annotated[str, AfterValidator(_address)]
Host = Annotated[str, AfterValidator(_host)]
Port = Annotated[int, Field(ge=1, le=_HIGHEST_PORT)]


class Listener(Strict):
    """A port that sites reach: ``address`` is listened on, ``public`` is what sites are told."""

    address: Address
    public: Address

    @property
    def host(self) -> str:
        """Host that is listened on."""
        return split_address(self.address)[0]

    @property
    def port(self) -> int:
        """Port that is listened on."""
        return split_address(self.address)[1]


class FrontLimits(Strict):
    """Bounds of the front: bytes of a request and of a site's reply, requests of one site, open connections.

    The rate is also that at which one address may send what is refused; a site's own requests wait for their turn. A SuperNode
    has one to three connections: ``connections_per_address`` bounds how many sites may share a proxy or a NAT.
    """

    body_bytes: Annotated[int, Field(ge=64 << 10)] = 8 * _MIB
    reply_bytes: Annotated[int, Field(ge=_MIB)] = 1024 * _MIB
    requests_per_second: Annotated[float, Field(gt=0)] = 20.0
    burst: Annotated[int, Field(ge=1)] = 100
    connections: Annotated[int, Field(ge=8)] = 512
    connections_per_address: Annotated[int, Field(ge=1)] = 64


class HubLimits(Strict):
    """Bounds of the hub: bytes of a message, open watches, reports of one site."""

    message_bytes: Annotated[int, Field(ge=4096)] = 64 << 10
    streams: Annotated[int, Field(ge=1, le=4096)] = 256
    reports_per_second: Annotated[float, Field(gt=0)] = 2.0
    report_burst: Annotated[int, Field(ge=1)] = 20


class SiteSettings(Strict):
    """How long a site's certificate is valid; it is renewed at half of that."""

    certificate_days: Annotated[int, Field(ge=1, le=825)] = 90


class RetentionSettings(Strict):
    """How long is kept what need not be kept for ever, in days after a run has ended, or a line was written.

    ``run_days``: runs that made no version. ``weights_days``: weights of versions, from which later runs may start.
    """

    run_days: Annotated[int, Field(ge=1, le=_MOST_DAYS)] = 365
    weights_days: Annotated[int, Field(ge=1, le=_MOST_DAYS)] = 365
    log_days: Annotated[int, Field(ge=2, le=_MOST_DAYS)] = LOG_DAYS


class OwnCertificate(Strict):
    """An institution's own server certificate for the front: PEM files, and the authority that sites are to trust."""

    certificate: str
    key: str
    authority: str


class ServerSettings(Strict):
    """What server.toml holds. ``database`` and ``blobs`` are URLs; empty ones mean files in the home."""

    format: Literal[1] = 1
    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
    public_names: Annotated[tuple[Host, ...], Field(min_length=1, max_length=50)]
    front: Listener
    hub: Listener
    superlink_port: Port = 9092
    health_port: Port = 8480
    database: str = ""
    blobs: str = ""
    limits: FrontLimits = FrontLimits()
    hub_limits: HubLimits = HubLimits()
    sites: SiteSettings = SiteSettings()
    retention: RetentionSettings = RetentionSettings()
    whole_sites: SiteBudget = SiteBudget()
    certificate: OwnCertificate | None = None

    @classmethod
    def rehearsal(cls) -> ServerSettings:
        """For a folder without server.toml: a simulation's, which no site reaches."""
        return cls(
            name="simulation",
            public_names=("localhost",),
            front=Listener(address="127.0.0.1:8443", public="localhost:8443"),
            hub=Listener(address="127.0.0.1:8444", public="localhost:8444"),
        )


_KIND = DocumentKind(
    model=ServerSettings,
    name="settings file",
    absent="`fedloop server init` makes a coordinator.",
    extra="server",
    unreadable=SettingsInvalid,
    invalid=SettingsInvalid,
)


def load_settings(home: Path) -> ServerSettings:
    """Reads ``server.toml`` of a coordinator.

    Raises:
        NotSetUp: the folder has none.
        SettingsInvalid: it cannot be read or holds something else than it should; names file, line and key.
    """
    path = home / SETTINGS_FILE
    if not path.exists():
        raise NotSetUp(f"{home} holds no coordinator: there is no {SETTINGS_FILE}.", hint=_KIND.absent)
    return read_document(path, _KIND)


def read_file(path: Path) -> bytes:
    """Content of a file that the settings name.

    Raises:
        SettingsInvalid: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsInvalid(f"cannot read {path}: {error.strerror}.", hint=f"{SETTINGS_FILE} names it.") from error
