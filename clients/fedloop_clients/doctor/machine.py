"""The machine: disk, memory, ports, users."""

from __future__ import annotations

import errno
import os
import pwd
import secrets
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.doctor.finding import Finding, fine, problem, warning
from fedloop_clients.doctor.scene import Scene
from fedloop_core.processes import read_status
from fedloop_core.processes.living import supervisor_lives
from fedloop_core.processes.users import as_root

__all__ = ["DiskCheck", "MemoryCheck", "PortsCheck", "UsersCheck"]

_MIB = 1 << 20
_DISK_WANTED = 2048 * _MIB  # an outbox of 1 GiB, logs, and room to replace files whole
_DISK_NEEDED = 256 * _MIB
_MEMORY_WANTED = 2048 * _MIB  # daemon with torch 0.6 GiB, Flower's processes 0.4 GiB, a model and its gradients
_MEMORY_NEEDED = 768 * _MIB
_LONGEST_SOCKET = 107  # sun_path of unix(7)
_USERS = ("fedloop", "fedloop-flower", "fedloop-relay")


@dataclass(frozen=True)
class DiskCheck:
    """Whether the folder's disk takes what a run writes."""

    name: str = "disk"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        folder = scene.home.folder
        if not folder.is_dir():
            return
        refused = _cannot_write(folder)
        if refused:
            yield problem(f"cannot write to {folder}: {refused}.", "Free space, or run as the site's own user.")
            return
        free = shutil.disk_usage(folder).free
        said = f"{free / _MIB:.0f} MiB are free for {folder}"
        if free < _DISK_NEEDED:
            yield problem(f"{said}: too little for a run.", f"Free at least {_DISK_WANTED // _MIB} MiB.")
        elif free < _DISK_WANTED:
            yield warning(f"{said}: little for large models.", f"Free at least {_DISK_WANTED // _MIB} MiB.")
        else:
            yield fine(f"{said}.")


@dataclass(frozen=True)
class MemoryCheck:
    """Whether a model can be trained beside the processes."""

    name: str = "memory"

    def look(self, scene: Scene) -> Iterator[Finding]:  # noqa: ARG002  the machine is the scene
        """See ``Check``."""
        available = _available_memory()
        if available is None:
            return
        said = f"{available / _MIB:.0f} MiB of memory are available"
        if available < _MEMORY_NEEDED:
            yield problem(f"{said}: too little.", f"End other programs: {_MEMORY_WANTED // _MIB} MiB are wanted.")
        elif available < _MEMORY_WANTED:
            yield warning(f"{said}: little for large models.", f"{_MEMORY_WANTED // _MIB} MiB are wanted.")
        else:
            yield fine(f"{said}.")


@dataclass(frozen=True)
class PortsCheck:
    """Whether what the site's own processes listen on is free; nothing of it is reachable from outside."""

    name: str = "ports"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        settings, home = scene.settings(), scene.home
        longest = str(home.daemon_socket.absolute())
        if len(os.fsencode(longest)) > _LONGEST_SOCKET:
            yield problem(
                f"the path {longest} is too long for a socket ({_LONGEST_SOCKET} bytes).", "Move the site's folder."
            )
        status = read_status(home.folder)
        if settings is None or settings.health_port == 0 or (status is not None and supervisor_lives(status)):
            return
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", settings.health_port))
            except OSError as error:
                yield problem(
                    f"port {settings.health_port} cannot be listened on: {error.strerror}.",
                    "Choose another health_port in site.toml.",
                )
                return
        yield fine(f"port {settings.health_port} is free.")


@dataclass(frozen=True)
class UsersCheck:
    """Where root starts the site: whether the users are there that its processes run as."""

    name: str = "users"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        if not as_root():
            yield fine("all processes run as this user.")
            return
        known = {entry.pw_name for entry in pwd.getpwall()}
        missing = [name for name in _USERS if name not in known]
        status = read_status(scene.home.folder)
        if missing and status is not None and status.processes and not any(one.user for one in status.processes):
            yield fine("all processes run as root, as --single-user asks; users of their own would keep them apart.")
        elif missing:
            yield warning(
                f"this machine has no user {', '.join(missing)}.",
                "Install deploy/sysusers.d/fedloop.conf and run systemd-sysusers, or start with --single-user.",
            )
        else:
            yield fine("each process has a user of its own.")


def _cannot_write(folder: Path) -> str:
    probe = folder / f".doctor-{secrets.token_hex(4)}"
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if os.write(descriptor, bytes(4096)) < 4096:
                return os.strerror(errno.ENOSPC)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError as error:
        return error.strerror or type(error).__name__
    return ""


def _available_memory() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
