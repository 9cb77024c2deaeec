"""Decides on a request's head alone whether it goes on: which call it is, and which site sends it."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from fedloop_server.front.allowed import AllowedNodes, Node
from fedloop_server.front.flower_wire import (
    CLOCK_AHEAD_SECONDS,
    CLOCK_BEHIND_SECONDS,
    FLEET_CALLS,
    KEY_HEADER,
    SIGNATURE_HEADER,
    TIME_HEADER,
    signed,
    signed_unix,
)
from fedloop_server.front.refusals import Denial, Reason

__all__ = ["MEMBERSHIP_CALLS", "Head", "authenticate", "body_length", "check_call"]

MEMBERSHIP_CALLS = frozenset({b"/v1/membership/join", b"/v1/membership/renew"})
_LONGEST_TIME = 64
_LONGEST_SIGNATURE = 256


@dataclass(frozen=True)
class Head:
    """Method, target as it came over the wire, and headers (names in lower case)."""

    method: str
    path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    def one(self, name: bytes) -> bytes | None:
        """The value of a header that stands there exactly once."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None


def check_call(head: Head) -> None:
    """Lets through what is served, compared byte by byte: nothing is decoded or made canonical first.

    Raises:
        Denial: anything else.
    """
    if head.method != "POST" or head.query or head.path not in FLEET_CALLS | MEMBERSHIP_CALLS:
        raise Denial(404, Reason.PATH)
    if _twice(name for name, _ in head.headers if name.startswith(b"flwr-") or name in _SINGLE):
        raise Denial(400, Reason.HEADERS)


_SINGLE = frozenset({b"content-length", b"content-type", b"host"})


def body_length(head: Head) -> int:
    """Declared length of the body.

    Raises:
        Denial: there is none.
    """
    text = head.one(b"content-length")
    if text is None or not text.isdigit() or len(text) > 18 or head.one(b"transfer-encoding") is not None:
        raise Denial(411, Reason.HEADERS)
    return int(text)


def authenticate(head: Head, allowed: AllowedNodes | None, now_unix: float) -> Node:
    """The node that signed this request.

    Its signature covers only the time: TLS keeps others from reading it. SuperLink checks it again, and that the node's
    number in the message belongs to the key.

    Raises:
        Denial: nobody knows yet who is allowed (503), or the caller has not shown that it is one of them (401).
    """
    if allowed is None:
        raise Denial(503, Reason.NOT_READY)
    header = head.one(KEY_HEADER) or b""
    node = allowed.nodes.get(header) or allowed.shut_out.get(header)
    if node is None:
        raise Denial(401, Reason.KEY)
    timestamp, signature = head.one(TIME_HEADER), head.one(SIGNATURE_HEADER)
    if timestamp is None or signature is None or len(timestamp) > _LONGEST_TIME or len(signature) > _LONGEST_SIGNATURE:
        raise Denial(401, Reason.SIGNATURE)
    try:
        ahead = signed_unix(timestamp) - now_unix
        proof = b64decode(signature, validate=True)
    except (ValueError, Base64Error) as error:
        raise Denial(401, Reason.SIGNATURE) from error
    if not signed(node.key, timestamp, proof):
        raise Denial(401, Reason.SIGNATURE)
    if header not in allowed.nodes:
        raise Denial(401, Reason.REVOKED, site=node.site)
    if not -CLOCK_BEHIND_SECONDS < ahead < CLOCK_AHEAD_SECONDS:
        raise Denial(401, Reason.CLOCK, site=node.site, seconds=ahead)
    return node


def _twice(names: Iterable[bytes]) -> bool:
    return any(count > 1 for count in Counter(names).values())
