"""The processes of a site: what each is started with, as whom, and in which folders."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.open_budgets import require_budgets_kept
from fedloop_clients.relay.shim import write_shim
from fedloop_clients.settings import SiteSettings
from fedloop_clients.socket_endpoint import SOCKET_VARIABLE
from fedloop_core.errors import NotSetUp
from fedloop_core.federation.bundle import install_bundle, write_bundle
from fedloop_core.federation.closed_apps import write_app_programs
from fedloop_core.processes.environment import SYSTEM_PATH, flower_environment, passed_on, python_environment
from fedloop_core.processes.ports import check_ports, check_socket_path
from fedloop_core.processes.roles import FLOWER, MAIN, RELAY, Roles
from fedloop_core.processes.spec import HandedFile, KnownDeath, PortOpen, ProcessSpec, SocketAnswers
from fedloop_core.processes.whole import whole

__all__ = ["SITE_USERS", "check_site", "prepare_site", "site_specs"]

SITE_USERS = (MAIN, FLOWER, RELAY)

_COMMAND = "flwr-clientapp"
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "CUDA_HOME")


def check_site(home: SiteHome, health: tuple[str, int] | None) -> None:
    """Finds what would keep the processes from starting.

    Raises:
        NotSetUp: the site has not joined.
        ProcessFailed: the port of the health endpoint is taken.
        SettingsInvalid: the home's path is too long.
        BudgetFixed: site.toml names another budget for an open block.
        StorageError: the ledger cannot be read, or its chain is broken.
    """
    needed = (home.node_key, home.authorities, home.signing_key_file, home.superexec_secret)
    missing = [path for path in needed if not path.exists()]
    if missing:
        raise NotSetUp(f"{missing[0]} is not there.", hint="Run: fedloop site join TOKEN")
    check_socket_path(home.daemon_socket)
    require_budgets_kept(home)
    if health is not None:
        check_ports({"the health endpoint": health})


def prepare_site(home: SiteHome, roles: Roles) -> None:
    """Makes folders, gives them their owners, and installs the one bundle that may run.

    Raises:
        NotSetUp: a user or group is missing.
        ProcessFailed: Flower makes another bundle than is agreed.
    """
    roles.prepare(home.folder)
    node, own = home.flower / "supernode", home.flower / "superexec"
    roles.folder(node, owner=FLOWER)
    roles.folder(node / "given", group=FLOWER, mode=0o750)
    roles.folder(own, mode=0o711)
    for name in ("home", "bin", "closed"):
        roles.folder(own / name, mode=0o755)
    roles.folder(own / "given", group=RELAY, mode=0o750)
    roles.folder(own / "work", owner=RELAY)
    write_bundle(home.flower / "app")
    install_bundle(home.flower / "app", own / "home")
    write_app_programs(own / "closed", [_COMMAND])
    write_app_programs(own / "bin", [])
    write_shim(own / "bin", _relay_socket(home), own / "closed" / _COMMAND)


def site_specs(home: SiteHome, settings: SiteSettings, roles: Roles, *, node_port: int) -> tuple[ProcessSpec, ...]:
    """The processes in the order of their start; the home is absolute and prepared, ``node_port`` a free loopback port.

    They start together, but that superexec, which starts work, waits for those that do it.
    """
    return (
        _daemon(home, roles),
        _relay(home, settings, roles),
        _supernode(home, settings, roles, home.membership(), node_port),
        _superexec(home, settings, roles, node_port),
    )


def _daemon(home: SiteHome, roles: Roles) -> ProcessSpec:
    relay = roles.user(RELAY)
    return ProcessSpec(
        name="daemon",
        command=(
            *(sys.executable, "-m", "fedloop_clients.service", "--home", str(home.folder)),
            *(() if relay is None else ("--allow-user", relay)),
        ),
        environment=python_environment() | passed_on(_GPU_VARIABLES),
        user=roles.user(MAIN),
        working_folder=home.folder,
        ready=SocketAnswers(home.daemon_socket),
        restart_when=(home.membership_file, home.signing_key_file),  # the site has joined anew
    )


def _relay(home: SiteHome, settings: SiteSettings, roles: Roles) -> ProcessSpec:
    socket = _relay_socket(home)
    return ProcessSpec(
        name="relay",
        command=(sys.executable, "-m", "fedloop_clients.relay_server", "--socket", str(socket)),
        environment=python_environment() | _app_environment(home, settings),
        user=roles.user(RELAY),
        working_folder=home.flower / "superexec" / "work",
        ready=SocketAnswers(socket, packets=True),
        confined=True,
    )


def _supernode(
    home: SiteHome, settings: SiteSettings, roles: Roles, membership: Membership, node_port: int
) -> ProcessSpec:
    own = home.flower / "supernode"
    given = own / "given"
    return ProcessSpec(
        name="supernode",
        command=whole(
            "flower-supernode",
            *("--superlink", membership.fleet_address, "--root-certificates", str(given / home.authorities.name)),
            *("--auth-supernode-private-key", str(given / home.node_key.name)),
            *("--host", "127.0.0.1", "--port", str(node_port), "--isolation", "process"),
            *("--superexec-auth-secret-file", str(given / home.superexec_secret.name)),
            *("--node-config", f"site={json.dumps(membership.site)}"),
        ),
        environment=flower_environment(own / "home", settings.proxy),
        user=roles.user(FLOWER),
        working_folder=own,
        ready=PortOpen(node_port),  # which it opens before the coordinator has let it in
        steady_seconds=3.0,
        while_refused=KnownDeath(
            "Failed to activate SuperNode",
            "the coordinator still holds this site's old connection, and lets go of it within a minute",
        ),
        restart_when=(home.authorities,),
        rests_while=home.shut_out_file,
        falls_with=("superexec", "relay"),  # whose client app then ends without the reply that a SuperNode waits for
        handed=tuple(
            HandedFile(path, given / path.name, roles.user(MAIN))
            for path in (home.node_key, home.authorities, home.superexec_secret)
        ),
        confined=True,
    )


def _superexec(home: SiteHome, settings: SiteSettings, roles: Roles, node_port: int) -> ProcessSpec:
    own = home.flower / "superexec"
    secret = own / "given" / home.superexec_secret.name
    return ProcessSpec(
        name="superexec",
        command=(
            _program("flower-superexec"),
            *("--runtime-api-address", f"127.0.0.1:{node_port}", "--insecure"),
            *("--superexec-auth-secret-file", str(secret)),
        ),
        environment=_app_environment(home, settings) | {"PATH": f"{own / 'bin'}:{SYSTEM_PATH}"},
        user=roles.user(RELAY),
        working_folder=own / "work",
        after=("daemon", "relay", "supernode"),
        handed=(HandedFile(home.superexec_secret, secret, roles.user(MAIN)),),
        confined=True,
    )


def _app_environment(home: SiteHome, settings: SiteSettings) -> dict[str, str]:
    own = home.flower / "superexec" / "home"
    return flower_environment(own, settings.proxy) | {SOCKET_VARIABLE: str(home.daemon_socket)}


def _relay_socket(home: SiteHome) -> Path:
    return home.sockets / "relay.sock"


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
