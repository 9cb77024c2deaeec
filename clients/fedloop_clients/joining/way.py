"""The way to the coordinator, one stage after the other: name, route, proxy, TLS. Each failure is one clear sentence."""

from __future__ import annotations

import errno
import queue
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum

from fedloop_clients.joining.address import Address, Proxy
from fedloop_clients.joining.seen import SeenCertificate, refused_certificate
from fedloop_core.errors import CertificateRefused, CoordinatorUnreachable

__all__ = ["Stage", "Step", "connect", "resolve", "trusting", "tunnel", "walk"]

_LONGEST_ANSWER = 16_384
_REPLY_END = b"\r\n\r\n"


class Stage(StrEnum):
    """What stands between a site and its coordinator."""

    NAME = "name"
    ROUTE = "route"
    PROXY = "proxy"
    TLS = "tls"


@dataclass(frozen=True)
class Step:
    """One stage of a way: what was found, or why it ends here."""

    stage: Stage
    found: str
    error: CoordinatorUnreachable | None = None


def trusting(authorities: bytes) -> ssl.SSLContext:
    """TLS that trusts these authorities (PEM) and no other, not those of the system.

    An authority need not be a root: whoever pins one that an institution's root signed trusts that one alone.

    Raises:
        CertificateRefused: these are no authorities.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=authorities.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise CertificateRefused(
            "the authorities that this site trusts cannot be read.",
            hint="Restore keys/authorities.pem from a backup, or join again.",
        ) from error
    return context


def walk(target: Address, proxy: Proxy | None, context: ssl.SSLContext, seconds: float) -> Iterator[Step]:
    """Goes the way once, as far as it leads, and tells each stage; the last one has the error, if there is one.

    Args:
        target: the coordinator's front or hub.
        proxy: the proxy between; then the target's name is the proxy's to resolve.
        context: whom to trust, and the certificate to show.
        seconds: for each stage.
    """
    first = target if proxy is None else proxy.address
    stage = Stage.NAME
    try:
        found = ", ".join(resolve(first, seconds))
        yield Step(stage, f"{first.host} needs no DNS." if found == first.host else f"{first.host} is {found}.")
        stage = Stage.ROUTE
        with closing(connect(first, seconds)) as plain:
            yield Step(stage, f"{first} accepts connections.")
            if proxy is not None:
                stage = Stage.PROXY
                tunnel(plain, proxy, target)
                yield Step(stage, f"the proxy {first} leads to {target}.")
            stage = Stage.TLS
            with closing(_shake_hands(plain, target, proxy, context, seconds)) as secured:
                seen = SeenCertificate.of(secured.getpeercert(binary_form=True) or b"")
                yield Step(stage, f"{target} shows the certificate of {seen.subject} by {seen.issuer}.")
    except CoordinatorUnreachable as error:
        yield Step(stage, "", error)


def resolve(address: Address, seconds: float) -> tuple[str, ...]:
    """The IP addresses of a name.

    Raises:
        CoordinatorUnreachable: stage ``name``.
    """
    answers: queue.Queue[tuple[str, ...] | str] = queue.Queue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            answers.put(tuple(dict.fromkeys(str(entry[4][0]) for entry in found)))
        except (OSError, UnicodeError) as error:
            answers.put(error.strerror or "" if isinstance(error, OSError) else "it is no host name")

    threading.Thread(target=ask, daemon=True).start()  # the system's resolver knows no deadline
    try:
        answer = answers.get(timeout=seconds)
    except queue.Empty:
        answer = f"no answer within {seconds:g} s"
    if isinstance(answer, str):
        raise CoordinatorUnreachable(
            f"the name {address.host!r} cannot be resolved: {answer}.",
            hint="Compare it with what the coordinator's people say, and ask your network's people for its DNS entry"
            " or for the proxy to name in site.toml.",
            stage=Stage.NAME.value,
        )
    return answer


def connect(address: Address, seconds: float) -> socket.socket:
    """A TCP connection.

    Raises:
        CoordinatorUnreachable: stage ``route``.
    """
    try:
        return socket.create_connection((address.host, address.port), timeout=seconds)
    except OSError as error:
        refused = error.errno == errno.ECONNREFUSED
        why = error.strerror or ("no answer" if isinstance(error, TimeoutError) else str(error))
        hint = (
            "The machine is there, and nothing listens on this port: compare the port, and ask whether it is started."
            if refused
            else f"Ask your network's people to let this machine out to {address} (TCP), or for the proxy to name in site.toml."
        )
        raise CoordinatorUnreachable(
            f"{address} cannot be reached: {why}.", hint=hint, stage=Stage.ROUTE.value
        ) from error


def tunnel(plain: socket.socket, proxy: Proxy, target: Address) -> None:
    """Asks a proxy for the way to a target (CONNECT, RFC 9110 §9.3.6).

    Raises:
        CoordinatorUnreachable: stage ``proxy``: it refuses, wants a password, cannot go on, or is no proxy.
    """
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"Proxy-Authorization: {proxy.authorization}"] if proxy.authorization else []
    try:
        plain.sendall("\r\n".join([*lines, "", ""]).encode())
        answer = _answer(plain)
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise _proxy_fails(proxy, f"does not answer as one: {why}", "Compare the proxy's port in site.toml.") from error
    version, _, rest = answer.partition(b" ")
    status = int(rest[:3]) if rest[:3].isdigit() else 0
    if not version.startswith(b"HTTP/1.") or status == 0:
        raise _proxy_fails(proxy, "does not answer as a proxy does", "Compare the proxy's host and port in site.toml.")
    if status == 407:
        told = (
            "does not accept the name and password given" if proxy.authorization else "asks for a name and a password"
        )
        hint = 'Write proxy = "http://user:password@host:port" in site.toml.'
        raise _proxy_fails(proxy, told, hint)
    if status in {502, 503, 504}:
        hint = "It lets you through and cannot go on itself: ask its people whether it resolves and reaches that name."
        raise _proxy_fails(proxy, f"cannot reach {target} (status {status})", hint)
    if not 200 <= status < 300:
        hint = f"Ask the proxy's people to allow CONNECT to {target}."
        raise _proxy_fails(proxy, f"refuses the way to {target} (status {status})", hint)


def _answer(plain: socket.socket) -> bytes:
    answer = b""
    while _REPLY_END not in answer and len(answer) < _LONGEST_ANSWER:
        # one byte at a time: what follows the head belongs to TLS
        byte = plain.recv(1)
        if not byte:
            break
        answer += byte
    return answer


def _proxy_fails(proxy: Proxy, told: str, hint: str) -> CoordinatorUnreachable:
    return CoordinatorUnreachable(f"the proxy {proxy.address} {told}.", hint=hint, stage=Stage.PROXY.value)


def _shake_hands(
    plain: socket.socket, target: Address, proxy: Proxy | None, context: ssl.SSLContext, seconds: float
) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(plain, server_hostname=target.host)
    except ssl.SSLCertVerificationError as error:
        seen = _look(target, proxy, seconds)
        raise refused_certificate(error, str(target), seen, by_proxy=proxy is not None) from error
    except (ssl.SSLError, OSError) as error:
        why = "no answer" if isinstance(error, TimeoutError) else getattr(error, "reason", None) or error.strerror
        raise CoordinatorUnreachable(
            f"{target} does not speak TLS as a coordinator does: {str(why).lower().replace('_', ' ')}.",
            hint="Compare the port; a firewall that ends TLS may stand between.",
            stage=Stage.TLS.value,
        ) from error


def _look(target: Address, proxy: Proxy | None, seconds: float) -> SeenCertificate | None:
    """Whose certificate is shown there: looked at and not trusted, nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with closing(connect(target if proxy is None else proxy.address, seconds)) as plain:
            if proxy is not None:
                tunnel(plain, proxy, target)
            with closing(context.wrap_socket(plain, server_hostname=target.host)) as secured:
                return SeenCertificate.of(secured.getpeercert(binary_form=True) or b"")
    except (CoordinatorUnreachable, OSError, ValueError):
        return None
