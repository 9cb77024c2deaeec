"""Setting up a coordinator's folder: every step makes what is missing and changes nothing that is there."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from fedloop_core.audit import AuditAction
from fedloop_core.durable import write_bytes, write_secret
from fedloop_core.errors import AlreadySetUp, CertificateRefused, UsageError
from fedloop_core.federation.join import authority_fingerprint
from fedloop_server.home import CoordinatorHome
from fedloop_server.membership.pem import read_authorities
from fedloop_server.membership.servers import ServerCertificates
from fedloop_server.settings import SETTINGS_FILE, Listener, OwnCertificate, ServerSettings, load_settings, read_file
from fedloop_server.settings_text import settings_text

__all__ = ["Step", "Wishes", "found", "front_fingerprint"]

_FRONT_PORT = 8443
_HUB_PORT = 8444
_SUPERLINK_PORT = 9092
_HEALTH_PORT = 8480
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Wishes:
    """What a person asked for; None and empty ones were not said. Port 0 takes a free one."""

    name: str = ""
    public_names: tuple[str, ...] = ()
    listen: str | None = None
    front_port: int | None = None
    hub_port: int | None = None
    superlink_port: int | None = None
    health_port: int | None = None
    own: OwnCertificate | None = None


@dataclass(frozen=True)
class Step:
    """A part of a coordinator, and whether it was there before."""

    what: str
    there: bool


@dataclass(frozen=True)
class _Part:
    what: str
    there: Callable[[], bool]
    make: Callable[[], None]


def found(
    folder: Path, wishes: Wishes, *, actor: str, dry_run: bool = False
) -> tuple[ServerSettings, tuple[Step, ...]]:
    """Sets a coordinator up, or completes one; ``actor`` stands in the audit log.

    Raises:
        AlreadySetUp: the folder holds a coordinator with other parameters.
        CertificateRefused: a key is missing that sites rely on.
        UsageError: name, host or port cannot be used.
        SettingsInvalid: server.toml has mistakes.
        StorageError: a file cannot be written.
    """
    existing = (folder / SETTINGS_FILE).exists()
    settings = load_settings(folder) if existing else _settings(wishes)
    if existing:
        _check_same(folder, settings, wishes)
    home = CoordinatorHome(folder)
    _check_not_lost(home)
    if settings.certificate is not None:
        read_authorities(read_file(Path(settings.certificate.authority)), settings.certificate.authority)
    steps = []
    for part in _parts(home, settings, actor):
        there = part.there()
        steps.append(Step(part.what, there))
        if not there and not dry_run:
            part.make()
    return settings, tuple(steps)


def front_fingerprint(home: CoordinatorHome) -> str:
    """Fingerprint of the authority that sites compare by phone.

    Raises:
        CertificateRefused: there is none.
    """
    return authority_fingerprint(home.authorities().token_authority())


def _parts(home: CoordinatorHome, settings: ServerSettings, actor: str) -> tuple[_Part, ...]:
    folder, keys = home.folder, home.keys
    database = folder / "coordinator.db"

    def certificates() -> ServerCertificates:
        return ServerCertificates(folder, settings, home.authorities())

    def settings_file() -> None:
        write_bytes(folder / SETTINGS_FILE, settings_text(settings).encode(), mode=0o644)

    def folders() -> None:
        for path in (keys, home.front):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)

    def superexec() -> None:
        write_secret(keys / "superexec.secret", secrets.token_hex(_SECRET_BYTES).encode())

    def first_entry() -> None:
        home.audit().record(
            actor,
            AuditAction.INITIALISE,
            settings.name,
            authority=front_fingerprint(home),
            key=home.envelope_key.verifying.key_id,
        )

    return (
        _Part("folders keys/ and front/", lambda: keys.is_dir() and home.front.is_dir(), folders),
        _Part(SETTINGS_FILE, (folder / SETTINGS_FILE).exists, settings_file),
        _Part("keys/envelope.pem", (keys / "envelope.pem").exists, lambda: _touch(home.envelope_key)),
        _Part("keys/ca.pem", (keys / "ca.pem").exists, lambda: _touch(home.authorities().create())),
        _Part("keys/superexec.secret", (keys / "superexec.secret").exists, superexec),
        _Part(
            "certificates of front, hub and SuperLink",
            lambda: (keys / "ca.pem").exists() and not certificates().missing(),
            lambda: _touch(certificates().refresh(int(time.time()))),
        ),
        _Part(
            "database",
            lambda: not settings.database and database.exists(),
            lambda: home.database().close(),
        ),
        _Part("audit.jsonl", lambda: home.audit().head().sequence > 0, first_entry),
    )


def _touch(_: object) -> None:
    """What was asked for is on the disk by having been asked for."""


def _settings(wishes: Wishes) -> ServerSettings:
    if not wishes.name or not wishes.public_names:
        raise UsageError(
            "a new coordinator needs a name, and a host name or address by which sites reach it.",
            hint="fedloop server init --home FOLDER --name NAME --public HOST",
        )
    listen = "0.0.0.0" if wishes.listen is None else wishes.listen  # noqa: S104 - sites come from outside
    front = _port(wishes.front_port, _FRONT_PORT)
    hub = _port(wishes.hub_port, _HUB_PORT)
    public = wishes.public_names[0]
    try:
        return ServerSettings(
            name=wishes.name,
            public_names=wishes.public_names,
            front=Listener(address=_at(listen, front), public=_at(public, front)),
            hub=Listener(address=_at(listen, hub), public=_at(public, hub)),
            superlink_port=_port(wishes.superlink_port, _SUPERLINK_PORT),
            health_port=_port(wishes.health_port, _HEALTH_PORT),
            certificate=wishes.own,
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{place}: {first['msg'].removeprefix('Value error, ')}.") from error


def _check_same(folder: Path, settings: ServerSettings, wishes: Wishes) -> None:
    """Whatever was said must be what is there; port 0 fits any."""
    listen = wishes.listen
    compared = (
        ("name", wishes.name or None, settings.name),
        ("public", wishes.public_names or None, settings.public_names),
        ("listen", listen, settings.front.host),
        ("front-port", wishes.front_port or None, settings.front.port),
        ("hub-port", wishes.hub_port or None, settings.hub.port),
        ("superlink-port", wishes.superlink_port or None, settings.superlink_port),
        ("health-port", wishes.health_port or None, settings.health_port),
        ("certificate, --key and --authority", wishes.own, settings.certificate),
    )
    others = [what for what, wished, there in compared if wished is not None and wished != there]
    if others:
        raise AlreadySetUp(
            f"{folder} holds coordinator {settings.name} already, with another --{', --'.join(others)}. Nothing was changed.",
            hint=f"Edit {folder / SETTINGS_FILE}, or choose another --home.",
        )


def _check_not_lost(home: CoordinatorHome) -> None:
    """A new key in the place of a lost one would shut every site out, and look like an attack to them."""
    ca, key = home.keys / "ca.pem", home.keys / "ca.key"
    if ca.exists() and not key.exists():
        raise CertificateRefused(f"{key} is missing beside {ca.name}.", hint="Restore it from a backup.")
    if home.audit().head().sequence == 0:
        return
    for path in (home.keys / "envelope.pem", key, ca):
        if not path.exists():
            raise CertificateRefused(
                f"{path} is missing, and sites may rely on it.",
                hint="Restore it from a backup: `fedloop server restore`.",
            )


def _port(wished: int | None, default: int) -> int:
    if wished is None:
        return default
    if wished:
        return wished
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
