"""A coordinator's front and hub as real TLS servers that speak the messages."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate, load_pem_x509_csr
from tests.onboarding.connect_proxy import ConnectProxy

from fedloop_clients.home import SiteHome
from fedloop_clients.joining import join
from fedloop_core.certificates import CertificateAuthority, key_to_pem
from fedloop_core.federation.join import JoinToken
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, VerifyingKey
from fedloop_proto.membership.v1 import membership_pb2_grpc
from fedloop_proto.membership.v1.membership_pb2 import (
    JoinRequest,
    JoinResponse,
    Notice,
    Refusal,
    RenewRequest,
    RenewResponse,
    WatchRequest,
)

DAY = 86_400
LOOPBACK = ("localhost", "127.0.0.1", "coordinator.test")
Reply = tuple[int, bytes]


def now() -> int:
    return int(time.time())


@dataclass
class Pki:
    """An authority and server certificates of it, in files."""

    folder: Path
    name: str = "federation"
    authority: CertificateAuthority = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.authority = CertificateAuthority.create(self.name, now())

    @property
    def der(self) -> bytes:
        return load_pem_x509_certificate(self.authority.certificate).public_bytes(Encoding.DER)

    def server(self, *names: str, at_unix: int | None = None, days: int = 30) -> tuple[bytes, bytes]:
        """Key and certificate, PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        issued = self.authority.issue_server(
            key.public_key(), names or LOOPBACK, now_unix=now() if at_unix is None else at_unix, days=days
        )
        return key_to_pem(key), issued

    def context(self, key: bytes, certificate: bytes) -> ssl.SSLContext:
        file = self.folder / f"server-{time.monotonic_ns()}.pem"
        file.write_bytes(key + certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


class Front:
    """An HTTPS server. ``sent`` is everything that clients sent, heads and bodies."""

    def __init__(self, context: ssl.SSLContext, behave: Callable[[str, bytes], Reply]) -> None:
        self.sent: list[bytes] = []
        self.clock_offset = 0
        self.behave = behave
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def date_time_string(self, timestamp: float | None = None) -> str:
                return super().date_time_string((timestamp or time.time()) + front.clock_offset)

            def do_POST(self) -> None:
                self.answer(self.rfile.read(int(self.headers.get("content-length", 0))))

            def do_GET(self) -> None:
                self.answer(b"")

            def answer(self, body: bytes) -> None:
                front.sent.append(self.requestline.encode() + str(self.headers).encode() + body)
                status, content = front.behave(f"{self.command} {self.path}", body)
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request: Any, client_address: Any) -> None:
                request.settimeout(20)
                try:
                    secured = context.wrap_socket(request, server_side=True)
                except OSError:
                    return
                with contextlib.closing(secured):
                    super().finish_request(secured, client_address)

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class Hub:
    """SiteHub under mutual TLS; ``refusal`` is how each stream ends at once, when it is set."""

    pki: Pki
    clock_offset: int = 0
    protocol: int = PROTOCOL
    refusal: grpc.StatusCode | None = None
    port: int = 0

    def start(self) -> None:
        hub = self

        class Servicer(membership_pb2_grpc.SiteHubServicer):
            def Watch(self, request: WatchRequest, context: Any) -> Iterator[Notice]:  # noqa: N802
                if hub.refusal is not None:
                    context.abort(
                        hub.refusal, "FL-TRUST-008" if hub.refusal is grpc.StatusCode.PERMISSION_DENIED else ""
                    )
                yield Notice(number=0, protocol=hub.protocol, now_unix=now() + hub.clock_offset)

        self._server = grpc.server(ThreadPoolExecutor(4))
        membership_pb2_grpc.add_SiteHubServicer_to_server(Servicer(), self._server)  # type: ignore[no-untyped-call]
        credentials = grpc.ssl_server_credentials(
            [self.pki.server()], root_certificates=self.pki.authority.certificate, require_client_auth=True
        )
        self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    def close(self) -> None:
        self._server.stop(0).wait()


class Coordinator:
    """Front and hub of one federation, with the smallest membership that can be: one token joins one set of keys."""

    def __init__(self, folder: Path) -> None:
        self.pki = Pki(folder / "pki")
        self.key = SigningKey.generate()
        self.host = "127.0.0.1"
        self.joined: dict[str, bytes] = {}
        self.lose_answers = 0
        self.change: Callable[[JoinResponse], None] = lambda response: None
        self.front = Front(self.pki.context(*self.pki.server()), self.behave)
        self.hub = Hub(self.pki)
        self.hub.start()

    def token(self, site: str = "north", *, host: str | None = None, expires_unix: int | None = None) -> JoinToken:
        address = f"{host or self.host}:{self.front.port}"
        return JoinToken(
            site, address, f"secret-of-{site}-{len(self.joined)}", self.pki.der, expires_unix or now() + DAY
        )

    def behave(self, call: str, body: bytes) -> Reply:
        if call == "POST /v1/membership/join":
            reply = self.join(JoinRequest.FromString(body))
            if self.lose_answers:
                self.lose_answers -= 1
                return 200, b"\xff"  # not what was meant: as if the connection had broken
            return reply
        if call == "POST /v1/membership/renew":
            return self.renew(RenewRequest.FromString(body))
        return 404, b"refused\n"

    def join(self, request: JoinRequest) -> Reply:
        unsigned = JoinRequest.FromString(request.SerializeToString())
        unsigned.ClearField("possession")
        signed = unsigned.SerializeToString(deterministic=True)
        assert VerifyingKey(request.signing_key).verifies(request.possession, signed)
        assert request.node_key.startswith(b"ecdsa-sha2-nistp384 ")
        keys = (
            (request.certificate_chain or public_of(request.certificate_request))
            + request.node_key
            + request.signing_key
        )
        if self.joined.setdefault(request.token_secret, keys) != keys:
            return 403, refusal("FL-TRUST-007", "site north: the token was used.", reason="used")
        certificate = b""
        if request.certificate_request:
            certificate = self.pki.authority.issue_client(request.certificate_request, now_unix=now())[1]
        response = JoinResponse(
            site=request.site,
            certificate=certificate,
            certificate_authority=self.pki.authority.certificate,
            coordinator_key=self.key.verifying.raw,
            fleet_address=f"{self.host}:{self.front.port}",
            hub_address=f"{self.host}:{self.hub.port}",
            protocol=PROTOCOL,
            now_unix=now() + self.front.clock_offset,
        )
        self.change(response)
        return 200, response.SerializeToString()

    def renew(self, request: RenewRequest) -> Reply:
        certificate = b""
        if request.certificate_request:
            certificate = self.pki.authority.issue_client(request.certificate_request, now_unix=now(), days=90)[1]
        answer = RenewResponse(
            certificate=certificate, certificate_authority=self.pki.authority.certificate, now_unix=now()
        )
        return 200, answer.SerializeToString()

    def close(self) -> None:
        self.front.close()
        self.hub.close()


def refusal(code: str, sentence: str, **fields: str) -> bytes:
    return Refusal(code=code, sentence=sentence, fields=fields).SerializeToString()


def public_of(request: bytes) -> bytes:
    return load_pem_x509_csr(request).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def closing_down() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with contextlib.closing(Coordinator(tmp_path / "coordinator")) as made:
        yield made


@pytest.fixture
def proxies(closing_down: contextlib.ExitStack) -> Callable[..., ConnectProxy]:
    def make(password: str = "", status: int = 200) -> ConnectProxy:
        return closing_down.enter_context(contextlib.closing(ConnectProxy(password, status)))

    return make


@pytest.fixture
def fronts(tmp_path: Path, closing_down: contextlib.ExitStack) -> Callable[[tuple[bytes, bytes]], Front]:
    """A front with another certificate than the federation's."""

    def make(server: tuple[bytes, bytes]) -> Front:
        context = Pki(tmp_path / f"other-{time.monotonic_ns()}").context(*server)
        made = Front(context, lambda call, body: (404, refusal("FL-NET-002", "no", reason="path")))
        return closing_down.enter_context(contextlib.closing(made))

    return make


@pytest.fixture
def pkis(tmp_path: Path) -> Callable[[str], Pki]:
    return lambda name: Pki(tmp_path / f"pki-{name}", name)


@pytest.fixture
def home(tmp_path: Path) -> SiteHome:
    return SiteHome(tmp_path / "north")


@pytest.fixture
def joined_home(coordinator: Coordinator, home: SiteHome) -> SiteHome:
    join(coordinator.token(), home, proxy="", confirm=lambda token: True)
    return home


@pytest.fixture
def unused_port() -> int:
    """A port on which nothing listened a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
