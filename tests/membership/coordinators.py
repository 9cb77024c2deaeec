"""A coordinator that serves, sites that join it over TLS, and a terminator in the front's place."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedloop_core.certificates import certificate_request, key_to_pem
from fedloop_core.federation.join import JoinToken
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_proto.membership.v1 import membership_pb2_grpc
from fedloop_server.founding import Wishes, found
from fedloop_server.home import CoordinatorHome
from fedloop_server.membership import Members, Notices
from fedloop_server.membership.inviting import issue_join_token
from fedloop_server.service import NodeRegistrar, Service, Ticker

DEADLINE = 60.0


def wait_until(ready: Callable[[], Any], what: str) -> Any:
    """Asks again and again until the answer is true."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        answer = ready()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


class Refused(Exception):
    """What a door said."""

    def __init__(self, status: int, refusal: messages.Refusal) -> None:
        super().__init__(f"{status} {refusal.code} {dict(refusal.fields)} {refusal.sentence}")
        self.status, self.code, self.reason = status, refusal.code, refusal.fields.get("reason", "")
        self.refusal = refusal


@dataclass
class SiteEnd:
    """What lies at a site: keys that never leave it."""

    name: str
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    node: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP384R1()))
    signing: SigningKey = field(default_factory=SigningKey.generate)
    certificate: bytes = b""
    authorities: bytes = b""

    @property
    def node_key(self) -> bytes:
        return self.node.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)

    def join_request(self, secret: str, **changes: Any) -> messages.JoinRequest:
        """A request to join; ``changes`` are made before it is signed."""
        request = messages.JoinRequest(
            token_secret=secret,
            certificate_request=certificate_request(self.key),
            node_key=self.node_key,
            signing_key=self.signing.verifying.raw,
            protocol=PROTOCOL,
            software_version="0.2.0",
            site=self.name,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        request.possession = self.signing.sign(request.SerializeToString(deterministic=True))
        return request

    def renew_request(self, signed_unix: int | None = None, **changes: Any) -> messages.RenewRequest:
        """A request to renew; likewise."""
        request = messages.RenewRequest(
            site=self.name,
            certificate_request=certificate_request(self.key),
            signed_unix=int(time.time()) if signed_unix is None else signed_unix,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        request.signature = self.signing.sign(request.SerializeToString(deterministic=True))
        return request

    def report(self, **told: Any) -> messages.SiteReport:
        """A report of an idle site."""
        given = {"now_unix": int(time.time()), "activity": messages.SITE_ACTIVITY_IDLE, "protocol": PROTOCOL}
        return messages.SiteReport(**(given | told))

    def leaving(self, key: SigningKey | None = None, **told: Any) -> messages.SiteReport:
        """A report that the site leaves, signed by its key or another."""
        report = self.report(leaving=True, **told)
        report.signature = (key or self.signing).sign(report.SerializeToString(deterministic=True))
        return report


class Coordinator:
    """A coordinator's folder, its service in this process, and a TLS terminator before its socket."""

    def __init__(self, folder: Path, **wishes: Any) -> None:
        self.home = CoordinatorHome(folder)
        given = {"name": "hearts", "public_names": ("localhost", "127.0.0.1"), "listen": "127.0.0.1"}
        ports = dict.fromkeys(("front_port", "hub_port", "superlink_port", "health_port"), 0)
        found(folder, Wishes(**(given | ports | wishes)), actor="operator:test")
        self.service: Service | None = None
        self._door: ThreadingHTTPServer | None = None
        self.members: Members = self.home.members()
        self.notices = Notices(self.members.database)

    def start(self, registrar: NodeRegistrar | None = None, ticker: Ticker | None = None) -> Coordinator:
        self.service = Service(self.home, registrar=registrar, ticker=ticker)
        self.service.start()
        self.open_door()
        return self

    def open_door(self) -> None:
        """The front's place: TLS outside, the service's socket inside."""
        self._door = _terminator(self.home)

    def stop(self) -> None:
        if self._door is not None:
            self._door.shutdown()
            self._door.server_close()
        if self.service is not None:
            self.service.stop()
        self.members.database.close()

    def invite(self, name: str, *, seconds: int = 3600, authority: bytes = b"") -> JoinToken:
        """Adds a site, or gives one that is there a new token."""
        if self.members.find(name) is None:
            self.members.add(name, authority=authority)
        return issue_join_token(self.members, self.home.authorities(), self.home.settings, name, valid_seconds=seconds)

    def joined(self, name: str) -> SiteEnd:
        """A site that has joined."""
        site = SiteEnd(name)
        token = self.invite(name)
        answer = self.join(token, site.join_request(token.secret))
        site.certificate, site.authorities = answer.certificate, answer.certificate_authority
        return site

    def join(self, token: JoinToken, request: messages.JoinRequest) -> messages.JoinResponse:
        content = self.post("join", request.SerializeToString(deterministic=True), token.authority_pem())
        return messages.JoinResponse.FromString(content)

    def renew(self, site: SiteEnd, request: messages.RenewRequest) -> messages.RenewResponse:
        content = self.post("renew", request.SerializeToString(deterministic=True), site.authorities)
        return messages.RenewResponse.FromString(content)

    def post(self, what: str, body: bytes, authorities: bytes) -> bytes:
        context = ssl.create_default_context(cadata=authorities.decode())
        url = f"https://{self.home.settings.front.public}/v1/membership/{what}"
        answer = httpx.post(url, content=body, verify=context, trust_env=False, timeout=DEADLINE)
        if answer.status_code != httpx.codes.OK:
            raise Refused(answer.status_code, messages.Refusal.FromString(answer.content))
        return answer.content

    @contextmanager
    def hub(
        self, site: SiteEnd, *, certificate: bytes | None = None, key: ec.EllipticCurvePrivateKey | None = None
    ) -> Iterator[membership_pb2_grpc.SiteHubStub]:
        """A site's channel to the hub."""
        credentials = grpc.ssl_channel_credentials(
            site.authorities, key_to_pem(key or site.key), site.certificate if certificate is None else certificate
        )
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        with grpc.secure_channel(self.home.settings.hub.public, credentials, options=options) as channel:
            yield membership_pb2_grpc.SiteHubStub(channel)  # type: ignore[no-untyped-call]


def _terminator(home: CoordinatorHome) -> ThreadingHTTPServer:
    socket = str(home.folder / "sockets" / "service.sock")

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with httpx.Client(transport=httpx.HTTPTransport(uds=socket), timeout=DEADLINE) as client:
                path = self.path.removeprefix("/v1")
                answer = client.post(
                    f"http://service{path}", content=body, headers={"fedloop-peer": self.client_address[0]}
                )
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.send_header("connection", "close")
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's signature
            return

    settings = home.settings
    server = ThreadingHTTPServer((settings.front.host, settings.front.port), Door)

    accept = server.get_request

    def get_request() -> Any:
        """Reads the files at each connection: they are renewed meanwhile."""
        fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        fresh.load_cert_chain(home.front / "tls.pem", home.front / "tls.key")
        connection, address = accept()
        return fresh.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    server.get_request = get_request  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, name="terminator", daemon=True).start()
    return server
