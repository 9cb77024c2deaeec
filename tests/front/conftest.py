"""A real coordinator's front: SuperLink, front and SuperNodes as processes; of ours only the service is played, in a thread."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse, PullMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedloop_core.certificates import CertificateAuthority, key_to_pem

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
PATIENCE = 60.0


def wait_for(what: Callable[[], Any], seconds: float = PATIENCE, why: str = "") -> Any:
    """The first true answer of ``what``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := what():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"nothing after {seconds:g} s: {why or what}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Program:
    """A process with its output, line by line with the time at which each came."""

    command: tuple[str, ...]
    environment: dict[str, str]
    lines: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append((time.time(), line.rstrip()))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def wait_for(self, word: str, seconds: float = PATIENCE) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self.text
            return word in self.text

        wait_for(there, seconds, f"{word!r} from {self.command}")

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class PlayedService:
    """The coordinator's service, as the front sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.revision = 1
        self.nodes: dict[str, str] = {}
        self.shut_out: dict[str, str] = {}
        self.joins: list[tuple[str, str, bytes]] = []
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        async def allowed(request: Request) -> Response:
            for _ in range(200):
                if str(self.revision) != request.query_params["known"]:
                    break
                await asyncio.sleep(0.02)
            return JSONResponse({"revision": self.revision, "nodes": self.nodes, "shut_out": self.shut_out})

        async def membership(request: Request) -> Response:
            self.joins.append((request.url.path, request.headers["fedloop-peer"], await request.body()))
            return Response(b"joined", 200, media_type="application/x-protobuf")

        app = Starlette(routes=[Route("/allowed", allowed), Route("/membership/{call}", membership, methods=["POST"])])
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self.path))
        self._server = uvicorn.Server(
            uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [listener]}, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server is not None and self._server.started)

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join()
            self._server = self._thread = None
            self.path.unlink(missing_ok=True)

    def allow(self, nodes: dict[str, str]) -> None:
        self.shut_out = {key: site for key, site in (self.nodes | self.shut_out).items() if key not in nodes}
        self.nodes = nodes
        self.revision += 1


class NodeKey:
    """A node's key, and calls that are signed with it."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP384R1())

    @property
    def pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def openssh(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)

    def write(self, path: Path) -> None:
        path.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        path.chmod(0o600)
        path.with_suffix(".pub").write_bytes(self.openssh)

    def headers(self, *, ahead: float = 0.0, forged: bool = False) -> dict[str, str]:
        moment = (datetime.now(UTC) + timedelta(seconds=ahead)).isoformat()
        signer = ec.generate_private_key(ec.SECP384R1()) if forged else self.key
        return {
            "flwr-public-key": b64encode(self.pem).decode(),
            "flwr-timestamp": moment,
            "flwr-signature": b64encode(signer.sign(moment.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
            "content-type": "application/protobuf",
        }


class World:
    """A folder with keys, and the processes that were started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = int(time.time())
        self.authority = CertificateAuthority.create("test", self.now)
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self.authority.certificate)
        self.issue("internal", ("localhost", "127.0.0.1"))
        self.issue("tls", ("localhost", "127.0.0.1"))
        self.secret = folder / "secret"
        self.secret.write_text("a" * 64)
        self.secret.chmod(0o600)
        self.superlink_port = free_port()
        self.front_port = free_port()
        self.front_socket = folder / "front.sock"
        self.service = PlayedService(folder / "service.sock")
        self.programs: list[Program] = []

    def issue(self, name: str, names: tuple[str, ...]) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        (self.folder / f"{name}.key").write_bytes(key_to_pem(key))
        certificate = self.authority.issue_server(key.public_key(), names, now_unix=self.now)
        (self.folder / f"{name}.pem").write_bytes(certificate)

    def environment(self, name: str, **more: str) -> dict[str, str]:
        flower = self.folder / f"flwr-{name}"
        flower.mkdir(exist_ok=True)
        return {
            "PATH": os.pathsep.join((str(BIN), "/usr/bin", "/bin")),
            "HOME": str(self.folder),
            "FLWR_HOME": str(flower),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(HERE),
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
        } | more

    def start(self, name: str, *command: str, **environment: str) -> Program:
        program = Program(command, self.environment(name, **environment))
        self.programs.append(program)
        return program

    def start_superlink(self) -> Program:
        program = self.start(
            "superlink",
            *(str(BIN / "flower-superlink"), "--ssl-ca-certfile", str(self.ca)),
            *("--ssl-certfile", str(self.folder / "internal.pem"), "--ssl-keyfile", str(self.folder / "internal.key")),
            *("--enable-supernode-auth", "--host", "127.0.0.1", "--port", str(self.superlink_port)),
            *("--isolation", "process", "--database", str(self.folder / "superlink.db")),
            *("--superexec-auth-secret-file", str(self.secret), "--disable-runtime-dependency-installation"),
            FLWR_LOG_LEVEL="DEBUG",
        )
        wait_for(lambda: self._listens(self.superlink_port), why="SuperLink")
        return program

    def start_front(self, *, ulimit: str = "", **overrides: Any) -> Program:
        """``ulimit`` is what the shell sets before it, such as "-Sn 100"."""
        config = {
            "listen": ["127.0.0.1", self.front_port],
            "superlink_port": self.superlink_port,
            "internal_authority": str(self.ca),
            "certificate": str(self.folder / "tls.pem"),
            "key": str(self.folder / "tls.key"),
            "service_socket": str(self.service.path),
            "own_socket": str(self.front_socket),
        } | overrides
        shell = ("/bin/sh", "-c", f'ulimit {ulimit}; exec "$0" "$@"') if ulimit else ()
        program = self.start("front", *shell, sys.executable, str(HERE / "front_process.py"), json.dumps(config))
        program.wait_for("the front listens")
        wait_for(lambda: self._listens(self.front_port), why="front")
        return program

    def start_supernode(self, name: str, key: NodeKey) -> tuple[Program, int]:
        path = self.folder / f"{name}.nodekey"
        key.write(path)
        port = free_port()
        program = self.start(
            f"node-{name}",
            *(str(BIN / "flower-supernode"), "--superlink", f"127.0.0.1:{self.front_port}"),
            *("--root-certificates", str(self.ca), "--auth-supernode-private-key", str(path)),
            *("--port", str(port), "--isolation", "process", "--superexec-auth-secret-file", str(self.secret)),
            *("--node-config", f'site="{name}"'),
        )
        return program, port

    def start_superexec(self, name: str, port: int, *, secure: bool, **environment: str) -> Program:
        trust = ("--root-certificates", str(self.ca)) if secure else ("--insecure",)
        return self.start(
            name,
            *(str(BIN / "flower-superexec"), "--runtime-api-address", f"127.0.0.1:{port}", *trust),
            *("--superexec-auth-secret-file", str(self.secret)),
            **environment,
        )

    def flwr(self, *words: str) -> dict[str, Any]:
        home = self.folder / "flwr-cli"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "127.0.0.1:{self.superlink_port}"\n'
            f'root-certificates = "{self.ca}"\n'
        )
        command = (str(BIN / "flwr"), *words, "--format", "json")
        done = subprocess.run(
            command, env=self.environment("cli"), capture_output=True, text=True, timeout=60, check=False
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        assert answer["success"], answer
        return answer

    def register(self, name: str, key: NodeKey) -> int:
        path = self.folder / f"{name}.nodekey"
        key.write(path)
        return int(self.flwr("supernode", "register", str(path.with_suffix(".pub")), "x")["node-id"])

    def allow(self, **keys: NodeKey) -> None:
        self.service.allow({b64encode(key.pem).decode(): name.replace("_", "-") for name, key in keys.items()})
        wait_for(lambda: self.health().get("nodes") == len(keys), why="the front to learn of the nodes")

    wait = staticmethod(wait_for)

    def health(self) -> dict[str, Any]:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(self.front_socket))) as client:
            content: dict[str, Any] = client.get("http://front/healthz").json()
            return content

    def client(self, **options: Any) -> httpx.Client:
        context = ssl.create_default_context(cafile=str(self.ca))
        address = f"https://127.0.0.1:{self.front_port}"
        return httpx.Client(base_url=address, verify=context, timeout=40.0, trust_env=False, **options)

    def connect_raw(self, address: str = "127.0.0.1") -> socket.socket:
        """A connection from an address of this machine, before TLS."""
        return socket.create_connection(("127.0.0.1", self.front_port), PATIENCE, (address, 0))

    def connect(self, address: str = "127.0.0.1") -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(self.ca))
        return context.wrap_socket(self.connect_raw(address), server_hostname="localhost")

    def begin(self, path: str, length: int, headers: dict[str, str], address: str = "127.0.0.1") -> ssl.SSLSocket:
        """A request of which only the head is sent."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection = self.connect(address)
        connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {length}\r\n\r\n".encode())
        return connection

    def activate(self, client: httpx.Client, key: NodeKey) -> int:
        body = ActivateNodeRequest(public_key=key.pem, heartbeat_interval=30).SerializeToString()
        answer = client.post("/v1/fleet/activate-node", content=body, headers=key.headers())
        assert answer.status_code == 200, answer.text
        return int(ActivateNodeResponse.FromString(answer.content).node_id)

    def beat(self, client: httpx.Client, key: NodeKey, node: int) -> int:
        """A call that any allowed node may make; returns the status."""
        body = SendNodeHeartbeatRequest(node=Node(node_id=node), heartbeat_interval=30).SerializeToString()
        return client.post("/v1/fleet/send-node-heartbeat", content=body, headers=key.headers()).status_code

    def poll(self, client: httpx.Client, key: NodeKey, node: int, **headers: Any) -> httpx.Response:
        body = PullMessagesRequest(node=Node(node_id=node)).SerializeToString()
        return client.post("/v1/fleet/pull-messages", content=body, headers=key.headers(**headers))

    def _listens(self, port: int) -> bool:
        for program in self.programs:
            assert program.process.poll() is None, program.text
        with socket.socket() as caller:
            caller.settimeout(1.0)
            return caller.connect_ex(("127.0.0.1", port)) == 0

    def close(self) -> None:
        for program in reversed(self.programs):
            program.stop()
        self.service.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world in which nothing runs yet but the service."""
    made = World(tmp_path)
    made.service.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """SuperLink and front with small limits, and two sites, whose keys are ``running.north`` and ``running.south``."""
    made: Any = World(tmp_path_factory.mktemp("running"))
    made.service.start()
    made.superlink = made.start_superlink()
    made.front = made.start_front(
        body_bytes=1 << 20, reply_bytes=2 << 20, body_grace_seconds=1.0, head_seconds=2.0, hold_seconds=2.0,
        requests_per_second=5.0, burst=400, join_burst=3, joins_per_second=0.01, handshake_seconds=2.0,
        buffered_bytes=4 << 20, membership_buffered_bytes=128 << 10, memberships_per_address=2, room_seconds=1.0,
        connections=32, connections_per_address=16,
    )  # fmt: skip
    made.north, made.south = NodeKey(), NodeKey()
    made.north_id = made.register("north", made.north)
    made.south_id = made.register("south", made.south)
    made.allow(north=made.north, south=made.south)
    yield made
    made.close()


@pytest.fixture(scope="session")
def world_in() -> type[World]:
    """Makes a world in a folder, in which nothing runs yet."""
    return World


@pytest.fixture(scope="session")
def new_key() -> Callable[[], NodeKey]:
    """Makes node keys."""
    return NodeKey
