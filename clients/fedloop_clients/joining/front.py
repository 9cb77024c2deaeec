"""Requests to the coordinator's front over HTTPS, before the site has a certificate and when it needs a new one."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TypeVar

import httpx
from google.protobuf.message import DecodeError, Message

from fedloop_clients.joining.address import Address, Proxy, proxy_to
from fedloop_clients.joining.way import trusting, walk
from fedloop_core.errors import (
    ClockSkewed,
    CoordinatorUnreachable,
    FedloopError,
    JoinRefused,
    RequestRefused,
    SiteRevoked,
    VersionRefused,
    heard,
)
from fedloop_core.printable import printable
from fedloop_proto.membership.v1.membership_pb2 import Refusal

__all__ = ["FrontClient", "for_httpx", "refusal_of"]

MAXIMUM_ANSWER_BYTES = 1 << 20
_LONGEST_SENTENCE = 500
_KNOWN: Mapping[str, type[FedloopError]] = {
    error.code: error for error in (JoinRefused, SiteRevoked, VersionRefused, ClockSkewed, RequestRefused)
}
M = TypeVar("M", bound=Message)


class FrontClient:
    """Speaks to one front, trusts only the authorities it is given, and looks at no proxy variable of the environment.

    Args:
        address: host:port of the front.
        authorities: PEM bundle.
        proxy: site.toml's proxy, or empty.
        seconds: for the connection, and for each answer.
    """

    def __init__(self, address: str, authorities: bytes, proxy: str, seconds: float = 30.0) -> None:
        self.address = Address.parse(address)
        self._proxy = proxy_to(self.address, proxy)
        self._context = trusting(authorities)
        self._seconds = seconds

    def post(self, path: str, message: Message, kind: type[M]) -> M:
        """Sends one message and reads the one that answers it.

        Raises:
            CoordinatorUnreachable: the way is closed; says at which stage, or that something else answered.
            JoinRefused, SiteRevoked, VersionRefused, ClockSkewed, RequestRefused: the coordinator refuses.
        """
        status, content = self._exchange(path, message.SerializeToString(deterministic=True))
        if status != httpx.codes.OK:
            raise refusal_of(status, content, str(self.address))
        try:
            return kind.FromString(content)
        except DecodeError as error:
            raise self._not_a_front("an answer that cannot be read") from error

    def _exchange(self, path: str, content: bytes) -> tuple[int, bytes]:
        headers = {"content-type": "application/octet-stream", "content-length": str(len(content))}
        try:
            with (
                httpx.Client(
                    verify=self._context, proxy=for_httpx(self._proxy), trust_env=False, timeout=self._seconds
                ) as client,
                client.stream("POST", f"https://{self.address}{path}", content=content, headers=headers) as reply,
            ):
                answer = bytearray()
                for chunk in reply.iter_bytes():
                    answer += chunk
                    if len(answer) > MAXIMUM_ANSWER_BYTES:
                        raise self._not_a_front("an endless answer")
                return reply.status_code, bytes(answer)
        except (httpx.TransportError, ssl.SSLError) as error:
            raise self._explained(error) from error
        except httpx.DecodingError as error:
            raise self._not_a_front("an answer that cannot be read") from error

    def _explained(self, error: Exception) -> CoordinatorUnreachable:
        """Goes the way again by hand, since the library's words do not say which stage it is."""
        for step in walk(self.address, self._proxy, self._context, min(self._seconds, 10.0)):
            if step.error is not None:
                return step.error
        return CoordinatorUnreachable(
            f"{self.address} accepts connections and does not answer ({type(error).__name__}).",
            hint="Try again; if it stays so, tell the coordinator's people.",
            stage="front",
        )

    def _not_a_front(self, what: str) -> CoordinatorUnreachable:
        return CoordinatorUnreachable(
            f"{self.address} gives {what}: it is no coordinator, or of another version.",
            hint="Compare the address with what the coordinator's people say.",
            stage="front",
        )


def refusal_of(status: int, content: bytes, address: str) -> FedloopError:
    """The error behind an answer that is not 200; a stranger's page is told by its status alone."""
    try:
        refusal = Refusal.FromString(content)
    except DecodeError:
        refusal = Refusal()
    kind = _KNOWN.get(refusal.code)
    if kind is None and status == httpx.codes.TOO_MANY_REQUESTS:
        return CoordinatorUnreachable(
            f"{address} has had too many requests from this network.", hint="Try again in a minute.", stage="front"
        )
    if kind is None:
        return CoordinatorUnreachable(
            f"{address} answers with status {status} and not as a coordinator does.",
            hint="Try again later; if it stays so, compare the address with what the coordinator's people say.",
            stage="front",
        )
    sentence = printable(refusal.sentence, _LONGEST_SENTENCE)
    return kind(sentence or f"{address} refuses the request.", **heard(refusal.code, refusal.fields).fields)


def for_httpx(proxy: Proxy | None) -> httpx.Proxy | None:
    """The proxy as httpx takes it: the password in a header, not in an address that may be printed."""
    if proxy is None:
        return None
    headers = {"Proxy-Authorization": proxy.authorization} if proxy.authorization else None
    return httpx.Proxy(f"http://{proxy.address}", headers=headers)
