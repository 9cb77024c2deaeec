"""The rival of a deployed round: a Flower app as Flower's documentation writes it, on Flower's own processes.

SuperLink and SuperNodes as the documentation starts them: subprocess isolation, no TLS, no node authentication, which flatters
the rival: ours has both.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["APP", "stock_rounds"]

APP = Path(__file__).parent / "stock_flower"
_SCRIPTS = Path(sys.executable).parent
_PATIENCE_SECONDS = 600.0


@dataclass
class _Processes:
    """What was started, and ends with the block; each is a process group of its own."""

    folder: Path
    environment: Mapping[str, str]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(_SCRIPTS / command[0]), *command[1:]],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.environment) | {"FLWR_HOME": str(self.folder / name)},
                cwd=self.folder,
                start_new_session=True,
            )
        self.running.append(process)

    def stop(self) -> None:
        for process in reversed(self.running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                process.wait()


def stock_rounds(folder: Path, *, sites: int, rounds: int) -> tuple[float, ...]:
    """Seconds of each round, from the end of the one before; the first counts from the evaluation of the initial weights.

    Raises:
        RuntimeError: Flower did not run the app, or not within ten minutes.
    """
    environment = {
        "PATH": f"{_SCRIPTS}:{os.environ.get('PATH', '')}",
        "HOME": str(folder),
        "PYTHONPATH": str(APP),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "OMP_NUM_THREADS": "1",
    }
    file = folder / "rounds.txt"
    with _started(folder, environment, sites) as address:
        _run_app(folder, environment, address, file, rounds)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (lines := file.read_text().splitlines() if file.exists() else []) == [] or len(lines) < rounds + 1:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the stock app had {len(lines)} of {rounds + 1} lines after {_PATIENCE_SECONDS:g} s"
                )
            time.sleep(0.2)
    ends = [float(line.split()[1]) for line in lines]
    return tuple(after - before for before, after in itertools.pairwise(ends))


@contextlib.contextmanager
def _started(folder: Path, environment: Mapping[str, str], sites: int) -> Iterator[str]:
    processes = _Processes(folder, environment)
    ports = [_free_port() for _ in range(sites + 1)]
    address = f"127.0.0.1:{ports[0]}"
    try:
        processes.start(
            "superlink",
            "flower-superlink",
            "--insecure",
            "--port",
            str(ports[0]),
            "--disable-runtime-dependency-installation",
        )
        _wait_for_port(ports[0])
        for number, port in enumerate(ports[1:]):
            processes.start(
                f"supernode-{number}", "flower-supernode", "--insecure", "--superlink", address, "--port", str(port)
            )
        for port in ports[1:]:
            _wait_for_port(port)
        yield address
    finally:
        processes.stop()


def _run_app(folder: Path, environment: Mapping[str, str], address: str, file: Path, rounds: int) -> None:
    home = folder / "cli"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    done = subprocess.run(
        [
            str(_SCRIPTS / "flwr"),
            "run",
            str(APP),
            "here",
            "--format",
            "json",
            "--run-config",
            f'num-server-rounds={rounds} rounds-file="{file}"',
        ],
        capture_output=True,
        env=dict(environment) | {"FLWR_HOME": str(home)},
        text=True,
        check=False,
    )
    try:
        started = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise RuntimeError(f"flwr run said: {done.stdout}{done.stderr}") from None
    if not started.get("success"):
        raise RuntimeError(f"flwr run failed: {done.stdout}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens on port {port} after 60 s")
