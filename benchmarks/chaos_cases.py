"""Who is killed and when: the table of cases, and how a phase of a run is recognised from outside."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from chaos_scene import COORDINATOR, SITES, Scene, children_of

__all__ = ["CASES", "CHAINED", "SHORT", "Case", "Phase", "Victim", "kill", "let_go", "revive", "wait_for_phase"]

_PATIENCE = 300.0
_QUICK = 0.002  # seconds between looks


class Phase(StrEnum):
    """What a run does when somebody dies."""

    WAITING = "waiting"
    TRAINING = "training"
    SENDING = "sending"
    AGGREGATING = "aggregating"
    CHECKPOINTING = "checkpointing"
    EXPORTING = "exporting"


class Victim(StrEnum):
    """Who dies. The first of the two sites stands for both."""

    COORDINATOR = "coordinator"
    SERVICE = "service"
    FRONT = "front"
    SUPERLINK = "superlink"
    SUPEREXEC = "superexec"
    SERVER_APP = "serverapp"
    SUPERNODE = "supernode"
    SITE_SUPEREXEC = "site-superexec"
    RELAY = "relay"
    CLIENT_APP = "clientapp"
    DAEMON = "daemon"
    SITE = "site"


@dataclass(frozen=True)
class Case:
    """One victim in one phase."""

    victim: Victim
    phase: Phase
    private: bool = False

    @property
    def name(self) -> str:
        """As on the command line."""
        return f"{self.victim}-{self.phase}{'-private' if self.private else ''}"


def _possible(victim: Victim, phase: Phase) -> bool:
    """A ClientApp lives only while its site works on a question."""
    return victim is not Victim.CLIENT_APP or phase in {Phase.TRAINING, Phase.SENDING}


_ORDER = (
    Phase.TRAINING,
    Phase.CHECKPOINTING,
    Phase.SENDING,
    Phase.EXPORTING,
    Phase.WAITING,
    Phase.AGGREGATING,
)
CHAINED = frozenset({Phase.TRAINING, Phase.SENDING, Phase.AGGREGATING, Phase.CHECKPOINTING})
"""Phases of a round: several cases share a run, one in each round."""

CASES = (
    *(Case(victim, phase) for phase in _ORDER for victim in Victim if _possible(victim, phase)),
    *(Case(victim, Phase.TRAINING, private=True) for victim in (Victim.SERVER_APP, Victim.DAEMON, Victim.CLIENT_APP)),
)
SHORT = (
    "serverapp-training",
    "daemon-training",
    "front-waiting",
    "superlink-training",
    "clientapp-training",
)

_AT_COORDINATOR = {Victim.SERVICE: "service", Victim.FRONT: "front", Victim.SUPERLINK: "superlink"} | {
    Victim.SUPEREXEC: "superexec"
}
_AT_SITE = {Victim.SUPERNODE: "supernode", Victim.SITE_SUPEREXEC: "superexec", Victim.RELAY: "relay"} | {
    Victim.DAEMON: "daemon"
}


def wait_for_phase(
    scene: Scene, run_id: str, phase: Phase, number: int, answered: Sequence[int], chance: random.Random
) -> None:
    """Returns when the run is in the phase, in a certain round where the phase belongs to a round.

    A ServerApp that writes a checkpoint is halted in it, until ``let_go``.

    Args:
        scene: the deployment.
        run_id: the run.
        phase: which; waiting is the one in which the caller has kept the second site away.
        number: of the round.
        answered: answers in each site's outbox before the run.
        chance: when in a phase that has no beginning to be seen.

    Raises:
        TimeoutError: it did not come.
    """
    match phase:
        case Phase.WAITING:
            _until(phase, lambda: scene.last(run_id) == "attempt-started")
        case Phase.TRAINING:
            _until(phase, lambda: _trains(scene, run_id, number))
        case Phase.SENDING:
            _until_opened(scene, run_id, number)
            _until(phase, lambda: scene.answers(SITES[0]) >= answered[0] + 1 + number)
        case Phase.AGGREGATING:
            _until_opened(scene, run_id, number)
            _until(
                phase,
                lambda: all(
                    scene.answers(site) >= known + 1 + number for site, known in zip(SITES, answered, strict=True)
                ),
            )
            _until(
                phase, lambda: all(scene.client_app(site) is None for site in SITES) or _writes(scene, run_id, number)
            )
            latest = time.monotonic() + chance.uniform(0.1, 0.8)
            _until(phase, lambda: time.monotonic() >= latest or _writes(scene, run_id, number))
        case Phase.CHECKPOINTING:
            _until_opened(scene, run_id, number)
            _until(phase, lambda: _writes(scene, run_id, number))
            _signal_driver(scene, run_id, signal.SIGSTOP)  # it takes some milliseconds only
        case Phase.EXPORTING:
            _until(phase, lambda: scene.last(run_id) == "version-registered" and _converts(scene, run_id))


def let_go(scene: Scene, run_id: str) -> None:
    """Lets a ServerApp that was halted go on, if it lives."""
    _signal_driver(scene, run_id, signal.SIGCONT)


def kill(scene: Scene, victim: Victim, run_id: str) -> None:
    """Kills without a word; a supervisor takes all of its processes along.

    Raises:
        LookupError: the victim does not live.
    """
    if victim is Victim.COORDINATOR:
        scene.kill_all(COORDINATOR)
        return
    if victim is Victim.SITE:
        scene.kill_all(SITES[0])
        return
    pid = _find(scene, victim, run_id)
    if pid is None:
        raise LookupError(f"no {victim} lives")
    os.kill(pid, signal.SIGKILL)


def revive(scene: Scene, victim: Victim) -> None:
    """What an operator or systemd does; all else comes back by itself."""
    if victim is Victim.COORDINATOR:
        scene.start_server()
    if victim is Victim.SITE:
        scene.start_site(SITES[0])


def _find(scene: Scene, victim: Victim, run_id: str) -> int | None:
    if victim is Victim.SERVER_APP:
        return scene.driver(run_id)
    if victim is Victim.CLIENT_APP:
        return scene.client_app(SITES[0])
    of, name = (COORDINATOR, _AT_COORDINATOR.get(victim)) if victim in _AT_COORDINATOR else (SITES[0], _AT_SITE[victim])
    return scene.processes(of).get(str(name))


def _signal_driver(scene: Scene, run_id: str, number: signal.Signals) -> None:
    driver = scene.driver(run_id)
    if driver is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(driver, number)


def _until(phase: Phase, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the run did not come to {phase} within {_PATIENCE:g} s")
        time.sleep(_QUICK)


def _until_opened(scene: Scene, run_id: str, number: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not any(event["round"] == number for event in scene.events(run_id, "round-opened")):
        if time.monotonic() > deadline:
            raise TimeoutError(f"round {number} did not open within {_PATIENCE:g} s")
        time.sleep(0.02)


def _trains(scene: Scene, run_id: str, number: int) -> bool:
    told = scene.status(SITES[0])
    doing = (told.get("activity"), told.get("run_id"), told.get("round"))
    return doing == ("training", run_id, number) and scene.client_app(SITES[0]) is not None


def _writes(scene: Scene, run_id: str, number: int) -> bool:
    """Whether the checkpoint of the round is there, whole or as the file that becomes it."""
    folder = scene.home / "runs" / run_id
    return any(f"round-{number}.safetensors" in file.name for file in folder.iterdir())


def _converts(scene: Scene, run_id: str) -> bool:
    driver = scene.driver(run_id)
    return driver is not None and bool(children_of(driver))
