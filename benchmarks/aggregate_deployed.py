"""Part 2 of ``aggregate.py``: the memory of a ServerApp and of a SuperLink over a real deployment's coordinator.

The coordinator is ``fedloop server up`` as always. Its sites are stand-ins (``standin_sites``), each with keys of its own, that
answer with updates as large as the model; one round is driven for each number of sites. Memory is the kernel's: the peak of the
resident set (VmHWM) of the ServerApp's process, found by the run's ``driver.lock``, less the peak of a ServerApp that drove a
model of 30 parameters over the same sites. So everything that the model costs counts: the weights, the sums, the reply
that Flower hands over, and what the allocator keeps.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from deployment import Deployment, wait_until
from standin_sites import StandInSites

__all__ = ["Growth", "Process", "measure"]

_MIB = 2**20
_TASK = """\
format = 1
name = "NAME"
features = [{ kind = "numeric", name = "a", range = [0, 1] }, { kind = "numeric", name = "b", range = [0, 1] }]
label = { kind = "classes", name = "c", classes = ["no", "yes"] }
model = { kind = "mlp", hidden = HIDDEN }
training = { algorithm = "fedavg", local_steps = 1 }
privacy = { epsilon = inf }
rounds = { count = 1, evaluate_every = 0, quorum = 1.0, deadline_seconds = 1800.0 }
"""


@dataclass(frozen=True)
class Process:
    """Bytes: the ServerApp's peak, the SuperLink's peak, and how far that is above what it held before the round."""

    serverapp: int
    superlink: int
    superlink_growth: int


@dataclass(frozen=True)
class Growth:
    """One round with so many replies: growth of ServerApp and SuperLink in models, the SuperLink's peak in MiB, and seconds."""

    replies: int
    model_bytes: int
    serverapp_models: float
    superlink_growth_models: float
    superlink_mib: float
    seconds: float


def measure(folder: Path, replies: tuple[int, ...], hidden: int) -> tuple[Growth, ...]:
    """One round for each number of replies, with a model of about ``hidden ** 2`` parameters.

    Raises:
        RuntimeError: a run did not end well.
    """
    deployment = Deployment(folder)
    try:
        deployment.begin(settings="[limits]\nconnections_per_address = 512\n")  # all sites are of one address
        found = []
        joined: dict[str, str] = {}
        for count in sorted(replies):
            more = [f"site-{number:03}" for number in range(len(joined), count)]
            tokens = {site: deployment.token(site) for site in more}
            joined |= tokens
            with StandInSites(folder / "stand-ins", joined) as sites:
                wait_until("Flower knows all sites", lambda: _registered(deployment) == count)  # noqa: B023  waited for here
                sites.connect()
                small, _ = _round(deployment, folder, f"small-{count}", 5, count)
                large, seconds = _round(deployment, folder, f"large-{count}", hidden, count)
            model = _parameters(hidden) * 4
            found.append(
                Growth(
                    replies=count,
                    model_bytes=model,
                    serverapp_models=(large.serverapp - small.serverapp) / model,
                    superlink_growth_models=large.superlink_growth / model,
                    superlink_mib=large.superlink / _MIB,
                    seconds=seconds,
                )
            )
        return tuple(found)
    finally:
        deployment.close()


def _registered(deployment: Deployment) -> int:
    listed = deployment.fedloop("server", "site", "list", "--home", str(deployment.home), json_output=True)
    return sum(site["node_id"] is not None for site in listed["sites"])


def _parameters(hidden: int) -> int:
    return 2 * hidden + hidden + hidden * hidden + hidden + 2 * hidden + 2


def _round(deployment: Deployment, folder: Path, name: str, hidden: int, sites: int) -> tuple[Process, float]:
    task = folder / f"{name}.toml"
    task.write_text(_TASK.replace("NAME", name).replace("HIDDEN", f"[{hidden}, {hidden}]"))
    run = deployment.start_run(str(task), "--no-export", "--seed", "1", "--name", name, "--sites", str(sites))
    superlink = deployment.processes("coordinator")["superlink"]
    Path(f"/proc/{superlink}/clear_refs").write_text("5")  # its peak starts again from here
    held = _memory(superlink, "VmRSS")
    peaks = _Peaks(deployment.home / "runs" / run / "driver.lock")
    with peaks:
        end = deployment.wait_for_end(run, 3600)
    if end != "run-finished":
        raise RuntimeError(f"{name} ended with {end}: {deployment.journal(run)[-1]}")
    (closed,) = deployment.events(run, "round-closed")
    if len(closed["folded"]) != sites:
        raise RuntimeError(f"{name}: {len(closed['folded'])} of {sites} replies were folded")
    (opened,) = deployment.events(run, "round-opened")
    highest = _memory(superlink, "VmHWM")
    return Process(peaks.highest, highest, highest - held), float(closed["unix"]) - float(opened["unix"])


class _Peaks:
    """Reads the peak of a process again and again, since it is gone when the run has ended."""

    def __init__(self, lock: Path) -> None:
        self.highest = 0
        self._lock = lock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError, ValueError, IndexError):  # not there yet, or gone
                self.highest = max(self.highest, _memory(int(self._lock.read_text().split()[0]), "VmHWM"))
            time.sleep(0.02)


def _memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return 0
