"""The processes of a trainer's ranks, seen from the trainer: one for each device, started together and ended together.

A GPU that is lost takes its process with it: no call to CUDA works in it any more. That is why no GPU is ever touched in the
daemon's own process, and why a group that lost a rank is ended whole and a smaller one started.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

from pydantic import BaseModel

from fedloop_clients.training.messages import DeviceFault, Ended, Failure, Kind, Setup
from fedloop_clients.training.watching import TrainingWatch
from fedloop_core.arrays import NamedArrays, PackedArrays, pack_arrays, unpack_arrays
from fedloop_core.errors import ProcessFailed
from fedloop_core.federation.frames import Frame, receive, send

__all__ = ["RankFailed", "RankGroup"]

_LOOK_SECONDS = 0.2
_SILENT_SECONDS = (
    600.0  # a rank that computes says every few seconds that it lives, unless one piece of a batch takes longer
)
_CULPRIT_SECONDS = 3.0  # for the rank that failed the others to be found out
_DRAIN_SECONDS = 1.5


class RankFailed(Exception):
    """A device cannot go on: the round is to be repeated on others."""

    def __init__(self, device: str, fault: DeviceFault, said: str) -> None:
        super().__init__(f"{device}: {fault.value}: {said}")
        self.device = device
        self.fault = fault


@dataclass
class _Process:
    """One rank: what was sent and answered, and what it said last."""

    device: str
    process: subprocess.Popen[bytes]
    connection: Connection
    greeted: bool = False
    ready: bool = False
    failed: bool = False
    unanswered: int = 0
    abandoned: bool = False
    ended: tuple[Ended, NamedArrays] | None = None
    heard: float = field(default_factory=time.monotonic)


class RankGroup:
    """Started ranks of one task.

    Args:
        task: the canonical document.
        state: the model's state as safetensors, loaded by each rank.
        devices: one rank on each.
        memory_share: of a device's free memory.
        command: starts a rank; the number of its connection's descriptor comes last.
    """

    def __init__(
        self,
        task: bytes,
        state: bytes,
        devices: tuple[str, ...],
        memory_share: float,
        command: Sequence[str],
    ) -> None:
        self.devices = devices
        self.closed = False
        self._task, self._state, self._memory_share = task, state, memory_share
        self._folder = Path(tempfile.mkdtemp(prefix="fedloop-ranks-"))
        self._ranks: list[_Process] = []
        self._suspect: tuple[float, RankFailed] | None = None
        try:
            for device in devices:
                self._ranks.append(_start(device, command))
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> tuple[int, ...]:
        """Their numbers, by rank."""
        return tuple(rank.process.pid for rank in self._ranks)

    def await_ready(self, watch: TrainingWatch) -> None:
        """Waits until every rank has its device and its model and knows the others; at once when they are there.

        Raises:
            RankFailed: one does not come.
        """
        if not self._ranks[0].ready:
            self._wait(lambda: all(rank.greeted for rank in self._ranks), watch)  # before, nobody reads
            for at, rank in enumerate(self._ranks):
                self.say(at, Kind.SETUP, self._setup(at))
                self._send(rank, Frame(0, 0, Kind.STATE.value, self._state))
        self._wait(lambda: all(rank.ready for rank in self._ranks), watch)

    def say(self, rank: int, kind: Kind, body: BaseModel | None = None, arrays: NamedArrays | None = None) -> None:
        """Tells one rank something.

        Raises:
            RankFailed: it is not there.
        """
        content = b"" if body is None else body.model_dump_json().encode()
        packed = None if arrays is None else pack_arrays(arrays)
        self._send(self._ranks[rank], Frame(0, 0, kind.value, content, packed))

    def say_all(self, kind: Kind, body: BaseModel | None = None, arrays: NamedArrays | None = None) -> None:
        """Tells every rank the same.

        Raises:
            RankFailed: one is not there.
        """
        content = b"" if body is None else body.model_dump_json().encode()
        packed: PackedArrays | None = None if arrays is None else pack_arrays(arrays)
        for rank in self._ranks:
            self._send(rank, Frame(0, 0, kind.value, content, packed))

    def await_steps(self, ahead: int, watch: TrainingWatch) -> None:
        """Waits until no rank has more than so many steps to answer.

        Raises:
            RankFailed: one cannot go on.
        """
        self._wait(lambda: all(rank.unanswered <= ahead for rank in self._ranks), watch)

    def finish(self, watch: TrainingWatch) -> tuple[NamedArrays, tuple[Ended, ...]]:
        """Ends a round: the trained arrays, and what each rank counted.

        Raises:
            RankFailed: one cannot go on.
        """
        for rank in self._ranks:
            rank.ended = None
        self.say_all(Kind.FINISH)
        self._wait(lambda: all(rank.ended is not None for rank in self._ranks), watch)
        ended = [rank.ended for rank in self._ranks if rank.ended is not None]
        return ended[0][1], tuple(counted for counted, _ in ended)

    def abandon(self) -> None:
        """Ends a round that nobody wants any more, within a piece of a batch; a rank that takes longer ends the group."""
        for rank in self._ranks:
            rank.abandoned = False
        deadline = time.monotonic() + _DRAIN_SECONDS
        try:
            self.say_all(Kind.ABANDON)
            while not all(rank.abandoned for rank in self._ranks):
                if time.monotonic() > deadline:
                    self.close()
                    return
                self._listen()
        except (RankFailed, ProcessFailed):
            self.close()

    def close(self) -> None:
        """Ends the processes."""
        self.closed = True
        for rank in self._ranks:
            rank.connection.close()
            rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _setup(self, rank: int) -> Setup:
        return Setup(
            rank=rank,
            ranks=len(self.devices),
            device=self.devices[rank],
            memory_share=self._memory_share,
            store=str(self._folder / "store"),
            task=self._task.decode(),
        )

    def _wait(self, until: Callable[[], bool], watch: TrainingWatch) -> None:
        while not until():
            self._listen()
            watch.between_batches()
            self._check_patience()

    def _listen(self) -> None:
        listening = [rank for rank in self._ranks if not rank.failed]
        spoke = wait([rank.connection for rank in listening], _LOOK_SECONDS)
        for rank in listening:
            if rank.connection in spoke:
                self._hear(rank)

    def _hear(self, rank: _Process) -> None:
        try:
            frame = receive(rank.connection)
        except (EOFError, OSError, ValueError) as error:
            raise RankFailed(rank.device, DeviceFault.ENDED, f"its process ended ({rank.process.poll()})") from error
        rank.heard, rank.greeted = time.monotonic(), True
        match frame.kind:
            case Kind.READY:
                rank.ready = True
            case Kind.STEPPED:
                rank.unanswered -= 1
            case Kind.ABANDONED:
                rank.abandoned, rank.unanswered = True, 0
            case Kind.ENDED:
                arrays = {} if frame.arrays is None else unpack_arrays(frame.arrays)
                rank.ended = (Ended.model_validate_json(frame.body), arrays)
            case Kind.FAILED:
                self._failed(rank, Failure.model_validate_json(frame.body))

    def _failed(self, rank: _Process, failure: Failure) -> None:
        if failure.fault is not None:
            raise RankFailed(rank.device, failure.fault, failure.said)
        if not failure.by_peer:
            raise ProcessFailed(
                f"training on {rank.device} failed: {failure.said}.", hint="The daemon's log says where."
            )
        if self._suspect is None:  # the one that failed it will be heard of, or not
            failed = RankFailed(rank.device, DeviceFault.ENDED, failure.said)
            self._suspect = (time.monotonic() + _CULPRIT_SECONDS, failed)
        rank.failed = True

    def _check_patience(self) -> None:
        now = time.monotonic()
        if self._suspect is not None and now > self._suspect[0]:
            raise self._suspect[1]
        for rank in self._ranks:
            if (rank.unanswered or not rank.ready) and now - rank.heard > _SILENT_SECONDS:
                raise RankFailed(rank.device, DeviceFault.SILENT, f"nothing heard for {_SILENT_SECONDS:.0f} s")

    def _send(self, rank: _Process, frame: Frame) -> None:
        if rank.failed:
            return
        try:
            send(rank.connection, frame)
        except OSError as error:
            while not rank.failed:  # what it said last tells more than that it is gone
                self._hear(rank)
            if self._suspect is None:
                raise RankFailed(rank.device, DeviceFault.ENDED, "its process ended") from error
        if frame.kind == Kind.STEP:
            rank.unanswered += 1


def _start(device: str, command: Sequence[str]) -> _Process:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603  our own module, or the test's
            [*command, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    return _Process(device, process, Connection(ours.detach()))


def _environment() -> dict[str, str]:
    """The daemon's own, with its path for modules; the ranks find each other on this machine alone."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS has no repeatable results
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }
