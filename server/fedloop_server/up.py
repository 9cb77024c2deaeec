"""The processes of a coordinator: what each is started with, as whom, and in which folders."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from fedloop_core.errors import NotSetUp
from fedloop_core.federation.bundle import install_bundle, write_bundle
from fedloop_core.federation.closed_apps import APP_LOG, write_app_programs
from fedloop_core.processes.environment import SYSTEM_PATH, flower_environment, passed_on, python_environment
from fedloop_core.processes.ports import check_ports, check_socket_path
from fedloop_core.processes.roles import FLOWER, FRONT, MAIN, Roles
from fedloop_core.processes.spec import HandedFile, PortOpen, ProcessSpec, SocketAnswers
from fedloop_core.processes.users import own_file, own_tree
from fedloop_server.settings import ServerSettings

__all__ = ["SERVER_USERS", "ServerFolders", "check_server", "prepare_server", "server_specs"]

SERVER_USERS = (MAIN, FLOWER, FRONT)

_STORE_VARIABLES = (  # credentials of an S3-compatible store, and of PostgreSQL, that are given to `fedloop server up`
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_SHARED_CREDENTIALS_FILE",
    "PGPASSFILE",
    "PGSSLROOTCERT",
)


@dataclass(frozen=True)
class ServerFolders:
    """Where what of Flower lies in a coordinator's home (an absolute path)."""

    home: Path

    @property
    def superlink(self) -> Path:
        """SuperLink's own."""
        return self.home / "flower" / "superlink"

    @property
    def superexec(self) -> Path:
        """``home`` with the closed apps, ``bin`` with the programs, ``work`` to run in."""
        return self.home / "flower" / "superexec"

    @property
    def cli(self) -> Path:
        """Of ``flwr``, for the service."""
        return self.home / "flower" / "cli"

    @property
    def app(self) -> Path:
        """The bundle as ``flwr run`` takes it."""
        return self.home / "flower" / "app"

    @property
    def service_socket(self) -> Path:
        """Where the service listens."""
        return self.home / "sockets" / "service.sock"

    @property
    def app_logs(self) -> Path:
        """What ServerApps print."""
        return self.home / "logs" / "apps"


def check_server(home: Path, settings: ServerSettings, health: tuple[str, int] | None) -> None:
    """Finds what would keep the processes from starting.

    Raises:
        NotSetUp: keys are missing.
        ProcessFailed: a port is taken.
        SettingsInvalid: the home's path is too long.
    """
    missing = [name for name in ("envelope.pem", "ca.pem", "superexec.secret") if not (home / "keys" / name).exists()]
    if missing:
        raise NotSetUp(f"{home / 'keys'} has no {missing[0]}.", hint="`fedloop server init` completes what is missing.")
    check_socket_path(ServerFolders(home).service_socket)
    ports = {
        "the front": (settings.front.host, settings.front.port),
        "the hub": (settings.hub.host, settings.hub.port),
        "SuperLink": ("127.0.0.1", settings.superlink_port),
    }
    check_ports(ports | ({} if health is None else {"the health endpoint": health}))


def prepare_server(home: Path, roles: Roles) -> None:
    """Makes folders, gives them their owners, and installs the one bundle that may run.

    Raises:
        NotSetUp: a user or group is missing.
        ProcessFailed: Flower makes another bundle than is agreed.
    """
    folders = ServerFolders(home)
    roles.prepare(home)
    roles.folder(folders.superlink, owner=FLOWER)
    roles.folder(folders.superlink / "given", group=FLOWER, mode=0o750)
    roles.folder(folders.superexec, mode=0o711)
    roles.folder(folders.superexec / "home", mode=0o755)
    roles.folder(folders.superexec / "bin", mode=0o755)
    roles.folder(folders.superexec / "work", owner=MAIN)
    roles.folder(folders.superexec / "given", group=MAIN, mode=0o750)
    roles.folder(folders.app_logs, owner=MAIN, mode=0o750)
    roles.folder(folders.cli, owner=MAIN)
    roles.folder(home / "flower" / "nodes", owner=MAIN)  # public keys, for `flwr supernode register`
    roles.folder(folders.app, owner=MAIN)
    write_bundle(folders.app)
    for folder in (folders.app, folders.cli):
        own_tree(folder, user=roles.user(MAIN))
    install_bundle(folders.app, folders.superexec / "home")
    write_app_programs(folders.superexec / "bin", ["flwr-serverapp"])
    roles.folder(home / "front", owner=MAIN, group=FRONT, mode=0o2750)
    for file in (home / "front").iterdir():
        if roles.separate:
            own_file(file, mode=0o640, user=MAIN, group=FRONT)


def server_specs(home: Path, settings: ServerSettings, roles: Roles) -> tuple[ProcessSpec, ...]:
    """The processes in the order of their start; ``home`` is absolute and prepared.

    They start together, but that the service first makes certificates that are missing.
    """
    return (
        _service(home, settings, roles),
        _superlink(home, settings, roles),
        _front(home, settings, roles),
        _superexec(home, settings, roles),
    )


def _service(home: Path, settings: ServerSettings, roles: Roles) -> ProcessSpec:
    return ProcessSpec(
        name="service",
        command=(sys.executable, "-m", "fedloop_server.service", "--home", str(home)),
        environment=python_environment() | _store(settings),
        user=roles.user(MAIN),
        working_folder=home,
        ready=SocketAnswers(ServerFolders(home).service_socket),
    )


def _superlink(home: Path, settings: ServerSettings, roles: Roles) -> ProcessSpec:
    own = ServerFolders(home).superlink
    given = own / "given"
    names = ("superlink.key", "superlink.pem", "superlink-ca.pem", "superexec.secret")
    key, certificate, authority, secret = (str(given / name) for name in names)
    return ProcessSpec(
        name="superlink",
        command=(
            _program("flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(settings.superlink_port)),
            *("--ssl-keyfile", key, "--ssl-certfile", certificate, "--ssl-ca-certfile", authority),
            *("--enable-supernode-auth", "--isolation", "process", "--superexec-auth-secret-file", secret),
            *("--database", str(own / "state.db"), "--disable-runtime-dependency-installation"),
        ),
        environment=flower_environment(own / "home"),
        user=roles.user(FLOWER),
        working_folder=own,
        ready=PortOpen(settings.superlink_port),
        after=_after_service(home / "keys", names),
        handed=_handed(home, given, names, roles),
        confined=True,
    )


def _front(home: Path, settings: ServerSettings, roles: Roles) -> ProcessSpec:
    host = settings.front.host
    return ProcessSpec(
        name="front",
        command=(sys.executable, "-m", "fedloop_server.front", "--home", str(home)),
        environment=python_environment(),
        user=roles.user(FRONT),
        working_folder=home / "front",
        after=_after_service(home / "front", ("tls.key", "tls.pem")),
        ready=PortOpen(settings.front.port, {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)),  # noqa: S104
    )


def _superexec(home: Path, settings: ServerSettings, roles: Roles) -> ProcessSpec:
    folders = ServerFolders(home)
    own, given = folders.superexec, folders.superexec / "given"
    return ProcessSpec(
        name="superexec",
        command=(
            _program("flower-superexec"),
            *("--runtime-api-address", f"127.0.0.1:{settings.superlink_port}"),
            *("--root-certificates", str(given / "superlink-ca.pem")),
            *("--superexec-auth-secret-file", str(given / "superexec.secret")),
        ),
        environment=python_environment()
        | flower_environment(own / "home")
        | {"PATH": f"{own / 'bin'}:{SYSTEM_PATH}", APP_LOG: str(folders.app_logs / "serverapp.log")}
        | _store(settings),
        user=roles.user(MAIN),
        working_folder=own / "work",
        after=("superlink",),
        handed=_handed(home, given, ("superlink-ca.pem", "superexec.secret"), roles),
        confined=True,
    )


def _after_service(folder: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    return () if all((folder / name).exists() for name in names) else ("service",)


def _handed(home: Path, given: Path, names: tuple[str, ...], roles: Roles) -> tuple[HandedFile, ...]:
    return tuple(HandedFile(home / "keys" / name, given / name, roles.user(MAIN)) for name in names)


def _store(settings: ServerSettings) -> dict[str, str]:
    return passed_on(_STORE_VARIABLES) if settings.blobs or settings.database else {}


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
