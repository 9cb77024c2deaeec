"""What is to be supervised: one process, how one knows that it is ready, and the files that it is given."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["FileThere", "HandedFile", "KnownDeath", "PortOpen", "ProcessSpec", "ReadyProbe", "SocketAnswers"]

_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
_PROBE_SECONDS = 0.2  # on loopback: it answers at once or it does not


class ReadyProbe(Protocol):
    """A quick question whether a started process does its work yet."""

    def ready(self) -> bool:
        """Answers within a fraction of a second and raises nothing."""
        ...


@dataclass(frozen=True)
class PortOpen:
    """Ready when something listens on a TCP port."""

    port: int
    host: str = "127.0.0.1"

    def ready(self) -> bool:
        """Connects and hangs up."""
        try:
            with socket.create_connection((self.host, self.port), timeout=_PROBE_SECONDS):
                return True
        except OSError:
            return False


@dataclass(frozen=True)
class SocketAnswers:
    """Ready when something listens on a unix socket: a file that a dead process left does not answer.

    ``packets``: the socket is one of packets (SOCK_SEQPACKET), not of a stream.
    """

    path: Path
    packets: bool = False

    def ready(self) -> bool:
        """Connects and hangs up."""
        kind = socket.SOCK_SEQPACKET if self.packets else socket.SOCK_STREAM
        with socket.socket(socket.AF_UNIX, kind) as caller:
            caller.settimeout(_PROBE_SECONDS)
            try:
                caller.connect(str(self.path))
            except OSError:
                return False
            return True


@dataclass(frozen=True)
class FileThere:
    """Ready when a file is there."""

    path: Path

    def ready(self) -> bool:
        """Looks."""
        return self.path.exists()


@dataclass(frozen=True)
class HandedFile:
    """A file that is copied for a process before each start, so that its user can read it and nothing around it.

    ``owner`` is the user who must own the source when the supervisor is root: what somebody else put there is not handed on.
    """

    source: Path
    target: Path
    owner: str | None = None


@dataclass(frozen=True)
class KnownDeath:
    """Why a process dies soon after its start, when a line of its output says so: what a person is told instead of its status.

    Attributes:
        sign: text in a line that this incarnation wrote.
        sentence: what it means, and what happens next; no full stop at its end.
        within_seconds: an incarnation that lived longer died of something else.
    """

    sign: str
    sentence: str
    within_seconds: float = 30.0


@dataclass(frozen=True)
class ProcessSpec:
    """A process of a coordinator or a site.

    Attributes:
        name: small letters, digits and ``-``; the log is ``logs/<name>.log``.
        command: program (an absolute path) and arguments. No secrets: every user of the machine can read them.
        environment: all that the process sees, beside PATH, LANG and HOME where they are not in it.
        user: who runs it when the supervisor is root; None is the supervisor's own user.
        working_folder: must be there and open to the user.
        stop_seconds: time to end by itself after SIGTERM, then SIGKILL.
        ready: when it does its work, and those after it may start; None is at once.
        steady_seconds: how long it must live on, after ``ready`` has said so, until it counts as ready.
        while_refused: the early death that is no fault of this machine.
        after: names of those that must have been ready once, or had their time to become so, before it starts.
        restart_when: files whose change restarts the process.
        rests_while: while this file is there, the process does not run.
        falls_with: names of those whose end restarts it: it may wait for ever for what they had begun.
        handed: files that are copied for it before each start.
        confined: it has no capabilities, so that the rights of files hold for it even when it runs as root.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    user: str | None
    working_folder: Path
    stop_seconds: float = 10.0
    ready: ReadyProbe | None = None
    steady_seconds: float = 0.0
    while_refused: KnownDeath | None = None
    after: tuple[str, ...] = ()
    restart_when: tuple[Path, ...] = ()
    rests_while: Path | None = None
    falls_with: tuple[str, ...] = ()
    handed: tuple[HandedFile, ...] = ()
    confined: bool = False

    def __post_init__(self) -> None:
        """Refuses names that could not be file names, and programs that would be looked for.

        Raises:
            ValueError: such a name or program.
        """
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"a process cannot be named {self.name!r}")
        if not self.command or not Path(self.command[0]).is_absolute():
            raise ValueError(f"process {self.name} needs the absolute path of its program")
