"""Addresses of a coordinator and of a proxy, as texts and as their parts. Pure."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from fedloop_core.errors import UsageError

__all__ = ["Address", "Proxy", "proxy_to"]

_HIGHEST_PORT = 65_535
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Address:
    """A host name or IP address, and a port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads host:port; an IPv6 address stands in brackets.

        Raises:
            UsageError: the text has another form.
        """
        host, _, port = text.rpartition(":")
        if not (host and port.isascii() and port.isdigit() and 0 < int(port) <= _HIGHEST_PORT):
            raise UsageError(f"an address must be written as host:port, not {text[:80]!r}.")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy; ``authorization`` is the value of its header (RFC 7617), empty when it asks for nothing."""

    address: Address
    authorization: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Reads http://[user:password@]host:port, which site.toml has checked.

        Raises:
            UsageError: it is written otherwise; the text is not repeated, since it may hold a password.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or not port or parts.scheme != "http":
            raise UsageError("a proxy must be written as http://host:port or http://user:password@host:port.")
        if parts.username is None:
            return cls(Address(host, port), "")
        words = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        return cls(Address(host, port), f"Basic {base64.b64encode(words).decode()}")


def proxy_to(address: Address, url: str) -> Proxy | None:
    """The proxy on the way to an address: none when none is set, and none to this very machine.

    Raises:
        UsageError: as ``Proxy.parse``.
    """
    return None if not url or address.host in _LOOPBACK else Proxy.parse(url)
