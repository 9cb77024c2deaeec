"""Who attacks: strangers with the authority's file, a site that was taken over, its relay, and users of the machines."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable
from typing import Any

import grpc
import httpx
from cryptography.hazmat.primitives.asymmetric import ec

from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.home import SiteHome
from fedloop_clients.socket_endpoint import SocketEndpoint
from fedloop_clients.socket_server import SocketServer
from fedloop_core.certificates import key_to_pem
from fedloop_proto.membership.v1 import membership_pb2 as messages
from fedloop_proto.membership.v1 import membership_pb2_grpc

__all__ = ["NOBODY", "HostileRelay", "Stranger", "as_nobody"]

NOBODY = 65534
SECONDS = 60.0


class Stranger:
    """Has the addresses of front (``host:port``) and hub, and the authority's file (PEM)."""

    def __init__(self, front: str, hub: str, authority: bytes) -> None:
        self.front = front
        self.hub = hub
        self.authority = authority

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> httpx.Response:
        """One request to the front."""
        context = ssl.create_default_context(cadata=self.authority.decode())
        with httpx.Client(verify=context, timeout=SECONDS, trust_env=False) as client:
            return client.request(method, f"https://{self.front}{path}", content=body, headers=headers)

    def membership(self, what: str, request: Any) -> messages.Refusal:
        """A request to join or to renew that is refused; how."""
        answer = self.call("POST", f"/v1/membership/{what}", request.SerializeToString(deterministic=True))
        assert answer.status_code >= 400, answer.content
        return messages.Refusal.FromString(answer.content)

    def watch(self, key: ec.EllipticCurvePrivateKey | None = None, certificate: bytes = b"") -> tuple[str, str]:
        """Tries to follow the hub's notices, with a certificate or without; status and details of the refusal."""
        shown = (key_to_pem(key), certificate) if key is not None else (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority, *shown)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        with grpc.secure_channel(self.hub, credentials, options=options) as channel:
            stub = membership_pb2_grpc.SiteHubStub(channel)  # type: ignore[no-untyped-call]
            try:
                notice = next(stub.Watch(messages.WatchRequest(protocol=1), timeout=SECONDS))
            except grpc.RpcError as error:
                return error.code().name, error.details() or ""
        raise AssertionError(f"the hub answered: {notice}")


class HostileRelay:
    """Stands between a site's relay and its daemon. It hears all that is said, and changes answers by ``meddle``."""

    def __init__(self, home: SiteHome) -> None:
        self.heard: list[Question] = []
        self.told: list[Reply] = []
        self.meddle: Callable[[Reply], Reply] = lambda reply: reply
        self._path = home.daemon_socket
        self._real = self._path.with_name("real.sock")
        self._path.rename(self._real)
        self._server = SocketServer(self._path, self, allowed_users=frozenset({os.getuid()}))

    def answer(self, question: Question) -> Reply:
        """What the site's relay asks."""
        reply = self.ask(question)
        self.heard.append(question)
        self.told.append(reply)
        return self.meddle(reply)

    def ask(self, question: Question) -> Reply:
        """The daemon's own answer."""
        return SocketEndpoint(self._real, patience=5.0).answer(question)

    def close(self) -> None:
        """Puts the daemon's socket back."""
        self._server.close()
        self._real.rename(self._path)


def as_nobody(tries: Callable[[], object]) -> str:
    """What comes of a try by another user of this machine: the error's name, or what was had."""
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
                said = repr(tries())
            except BaseException as error:  # noqa: BLE001  the child must not go on with the tests
                said = type(error).__name__
            told.write(said.encode())
            told.flush()
            os._exit(0)
        os.waitpid(child, 0)
        told.seek(0)
        return told.read().decode()
