"""Flower's own commands as calls: each starts a process of ``flwr`` and reads the JSON that it prints.

The commands exit with status 0 whatever happens and say in their JSON whether they succeeded; a call takes about a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from pydantic import ValidationError

from fedloop_core.durable import write_bytes
from fedloop_core.errors import ProcessFailed
from fedloop_core.federation.bundle import write_bundle
from fedloop_core.processes.environment import flower_environment, python_environment
from fedloop_server.manager.flower_replies import ListedRun, Nodes, Registered, Reply, Runs, Started
from fedloop_server.manager.state import FlowerPhase

__all__ = ["FlowerControl", "FlowerNode", "FlowerStatus"]

_CONNECTION = "coordinator"
_LOOK = "See whether the SuperLink runs: `fedloop server status` and its log."
_SECONDS = 60.0
_NOT_FOUND = "[code: 16]"
_MOST_LISTED = 1000
_DECORATION = " \t│╭╮╰╯─✋❌⛔️📄🔍"
_LONGEST_SENTENCE = 300

_Kind = TypeVar("_Kind", bound=Reply)


@dataclass(frozen=True)
class FlowerStatus:
    """What Flower says of one of its runs. ``words`` are its own; bytes are counted by the SuperLink."""

    flower_run: int
    phase: FlowerPhase
    words: str
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True)
class FlowerNode:
    """A registered SuperNode: Flower's id and its word for the state (``registered``, ``online``, ``offline``)."""

    node_id: int
    status: str


class FlowerControl:
    """The SuperLink's control through ``flwr``. Threads may share it: one command runs at a time.

    Every method raises ``ProcessFailed`` when the SuperLink cannot be reached, refuses, or does not answer in time.

    Args:
        home_folder: a folder of its own, for the connection's settings and, unless ``app`` says where it is, the bundle.
        superlink_address: ``127.0.0.1:PORT``.
        authority: PEM file of the authority that certified the SuperLink; None where it has no TLS.
        app: folder of our bundle, written when it is not there.
        environment: variables of the commands beside those that every Flower process gets.
        seconds: how long a command may take.
    """

    def __init__(
        self,
        home_folder: Path,
        superlink_address: str,
        authority: Path | None,
        *,
        app: Path | None = None,
        environment: Mapping[str, str] | None = None,
        seconds: float = _SECONDS,
    ) -> None:
        self._home = home_folder.resolve()
        self._app = (self._home / "app" if app is None else app).resolve()
        self._address = superlink_address
        self._authority = authority
        self._environment = {**python_environment(), **flower_environment(self._home), **(environment or {})}
        self._seconds = seconds
        self._one_at_a_time = threading.Lock()
        self._ready = False

    def start(self, run_config: Mapping[str, str]) -> int:
        """Starts a Flower run of our bundle with these settings; returns Flower's id of it."""
        settings = " ".join(f"{name}={json.dumps(value)}" for name, value in run_config.items())
        return self._call(Started, "run", str(self._app), _CONNECTION, "--run-config", settings).run_id

    def stop(self, flower_run: int) -> None:
        """Ends a Flower run; one that has ended, or that Flower does not know, needs no end."""
        reply = self._run(Reply, "stop", str(flower_run), _CONNECTION)
        if not reply.success and self.status(flower_run).phase is not FlowerPhase.ENDED:
            raise _refused("stop", reply)

    def status(self, flower_run: int) -> FlowerStatus:
        """What Flower says of a run; one that it does not know has ended."""
        reply = self._run(Runs, "list", _CONNECTION, "--run-id", str(flower_run))
        if not reply.success and _NOT_FOUND in reply.error_message:
            return FlowerStatus(flower_run, FlowerPhase.ENDED, "unknown to Flower")
        return _status(_succeeded("list", reply).runs[0])

    def runs(self) -> tuple[FlowerStatus, ...]:
        """The newest runs that Flower knows, at most 1000."""
        return tuple(_status(run) for run in self._call(Runs, "list", _CONNECTION, "--limit", str(_MOST_LISTED)).runs)

    def log(self, flower_run: int) -> tuple[str, ...]:
        """The lines that the ServerApp of a run has printed so far, as far as Flower keeps them."""
        done = self._start_command("flwr log", ("log", str(flower_run), _CONNECTION, "--show"))
        text = done.stdout.decode("utf-8", "replace")
        if done.returncode:
            raise ProcessFailed(f"`flwr log` failed: {_sentence(done.stderr.decode('utf-8', 'replace'))}", hint=_LOOK)
        return tuple(line.rstrip() for line in text.splitlines() if line.strip())

    def register(self, public_key: Path) -> int:
        """Lets a SuperNode in by its public key (OpenSSH form); returns its node id."""
        return self._call(Registered, "supernode", "register", str(public_key), _CONNECTION).node_id

    def register_key(self, public_key: bytes) -> int:
        """Like ``register``, of a key in memory."""
        with tempfile.NamedTemporaryFile(suffix=".pub") as file:
            file.write(public_key)
            file.flush()
            return self.register(Path(file.name))

    def unregister(self, node_id: int) -> None:
        """Shuts a SuperNode out for good: its key can never be registered again."""
        self._call(Reply, "supernode", "unregister", str(node_id), _CONNECTION)

    def nodes(self) -> tuple[FlowerNode, ...]:
        """The registered SuperNodes."""
        found = self._call(Nodes, "supernode", "list", _CONNECTION).nodes
        return tuple(FlowerNode(node.node_id, node.status) for node in found)

    def _call(self, kind: type[_Kind], *words: str) -> _Kind:
        return _succeeded(words[0], self._run(kind, *words))

    def _run(self, kind: type[_Kind], *words: str) -> _Kind:
        """Runs a command that prints JSON; its refusal is a reply too."""
        name = " ".join(("flwr", *words[: 2 if words[0] == "supernode" else 1]))
        done = self._start_command(name, (*words, "--format", "json"))
        return _read(kind, name, done.stdout, done.stderr)

    def _start_command(self, name: str, words: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
        """Runs a command to its end.

        Raises:
            ProcessFailed: it cannot be started, or takes too long.
        """
        with self._one_at_a_time:
            self._prepare()
            try:
                return subprocess.run(  # noqa: S603 - our own words and Flower's program
                    [str(Path(sys.executable).with_name("flwr")), *words],
                    env=self._environment,
                    cwd=self._home,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=self._seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise ProcessFailed(
                    f"`{name}` did not end within {self._seconds:g} s.", hint=_LOOK, command=name
                ) from error
            except OSError as error:
                raise ProcessFailed(
                    f"`{name}` cannot be started: {error.strerror}.", hint="Install fedloop[server] anew.", command=name
                ) from error

    def _prepare(self) -> None:
        if self._ready:
            return
        lines = [f'[superlink]\ndefault = "{_CONNECTION}"\n', f"[superlink.{_CONNECTION}]"]
        lines.append(f"address = {json.dumps(self._address)}")
        if self._authority is None:
            lines.append("insecure = true")
        else:
            lines.append(f"root-certificates = {json.dumps(str(self._authority.resolve()))}")
        write_bytes(self._home / "config.toml", "\n".join((*lines, "")).encode())
        if not (self._app / "pyproject.toml").exists():
            write_bundle(self._app)
        self._ready = True


def _read(kind: type[_Kind], name: str, printed: bytes, complaints: bytes) -> _Kind:
    text = printed.decode("utf-8", "replace").strip()
    try:
        said = Reply.model_validate_json(text)
        if said.success:
            return kind.model_validate_json(text)
        return cast("_Kind", kind.model_construct(success=False, error_message=said.error_message))
    except ValidationError as error:
        found = _sentence(complaints.decode("utf-8", "replace") or text)
        raise ProcessFailed(
            f"`{name}` printed something else than its answer: {found}", hint=_LOOK, command=name
        ) from error


def _succeeded(name: str, reply: _Kind) -> _Kind:
    if not reply.success:
        raise _refused(name, reply)
    return reply


def _refused(name: str, reply: Reply) -> ProcessFailed:
    return ProcessFailed(f"`flwr {name}` failed: {_sentence(reply.error_message)}", hint=_LOOK, command=f"flwr {name}")


def _sentence(text: str) -> str:
    """All that was said, on one line and without the marks that Flower begins its lines with."""
    said = " ".join(line.strip(_DECORATION) for line in text.splitlines()).strip(_DECORATION)
    return f"{said[:_LONGEST_SENTENCE].rstrip('.') or 'it did not say why'}."


def _status(run: ListedRun) -> FlowerStatus:
    match run.status.partition(":")[0]:
        case "finished":
            phase = FlowerPhase.ENDED
        case "running":
            phase = FlowerPhase.RUNNING
        case _:
            phase = FlowerPhase.PENDING
    traffic = run.network_traffic
    return FlowerStatus(run.run_id, phase, run.status, traffic.inbound_bytes, traffic.outbound_bytes)
