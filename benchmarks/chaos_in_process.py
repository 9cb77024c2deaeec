"""Kills the process of a run at random moments and starts it again, until the run ends; then compares.

Coordinator and sites live in one child process, with journal, checkpoints, ledgers and outboxes on disk. The child is
killed with SIGKILL after a random time, as often as it takes. What must hold at the end:

- without privacy and seeded: the weights are those of the uninterrupted run, to the bit;
- with privacy: every ledger's chain verifies, and no site has spent less than in the uninterrupted run (what was reserved
  when the process died stays charged, and carries the same release when it is asked for again), nor more than its budget.

``python benchmarks/chaos_in_process.py FOLDER [--private]`` is the child; ``benchmarks/chaos.py`` starts it.
"""

from __future__ import annotations

import argparse
import math
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import ORIGINAL, SiteData
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import digest
from fedloop_core.noise import SeededNoise
from fedloop_core.task import Task
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import Phase
from fedloop_simulations.data import load_world
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_key
from fedloop_simulations.tasks import chosen_task

__all__ = ["Verdict", "schedules"]

RUN = "chaos"
SITES = 3
BUDGET = 20.0


@dataclass(frozen=True)
class Ending:
    """What a run ended with."""

    phase: str
    failure: str
    rounds: int
    attempts: int
    weights: str
    spent: tuple[float, ...]


@dataclass(frozen=True)
class Verdict:
    """One schedule: how often the process died, and what did not hold (nothing, when all is well)."""

    private: bool
    seed: int
    kills: int
    wrong: tuple[str, ...]


def chaos_task(private: bool) -> Task:
    """Many short rounds, so that a kill may fall anywhere."""
    return chosen_task("breast-cancer", rounds=40, epsilon=8.0 if private else math.inf)


def drive(folder: Path, private: bool) -> None:
    """What the child does: takes the run up where it is and drives it to its end."""
    task = chaos_task(private)
    home = CoordinatorHome(folder / "coordinator")
    budget = Budget(epsilon=BUDGET if private else math.inf, delta=task.privacy.delta)
    endpoints = {}
    for site in load_world(task, sites=SITES, seed=1).sites:
        own = folder / "sites" / site.name
        endpoints[site.name] = SiteDaemon(
            SiteConfig(site=site.name, training_budget=budget, evaluation_budget=budget),
            SiteData(site.train, site.evaluation, secret=bytes(16)),
            Ledger(own / "ledger.db", lambda: int(time.time())),
            Outbox(own / "outbox.db"),
            SeededNoise(1, site.name),
            home.envelope_key.verifying,
            lambda: int(time.time()),
            signing_key=rehearsal_key(site.name),
        )
    plan = RunPlan(run_id=RUN, task=task, seed=1, private=False, expected_sites=SITES, export=False)
    run_in_process(home, plan, endpoints, lambda _state, _event: None)


def ending(folder: Path, private: bool) -> Ending:
    """Reads what is on the disk; verifies every ledger."""
    home = CoordinatorHome(folder / "coordinator")
    state = home.journal(RUN).state
    spent = []
    for path in sorted((folder / "sites").glob("*/ledger.db")):
        ledger = Ledger(path, lambda: 0)
        ledger.verify()
        spent.append(ledger.spend(ORIGINAL).epsilon if private else 0.0)
        ledger.close()
    return Ending(
        phase=state.phase.value,
        failure=state.failure.reason if state.failure else "",
        rounds=state.completed_rounds,
        attempts=state.attempt,
        weights=digest(home.trained_arrays(RUN)).hex() if state.completed_rounds else "",
        spent=tuple(spent),
    )


def child(folder: Path, private: bool) -> subprocess.Popen[bytes]:
    """Starts the child process."""
    command = [sys.executable, __file__, str(folder), *(["--private"] if private else [])]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(folder: Path) -> bool:
    """Whether the journal says that the run is over."""
    if not (folder / "coordinator" / "runs" / RUN / "plan.json").exists():
        return False
    return CoordinatorHome(folder / "coordinator").journal(RUN).state.ended


def schedule(seed: int, private: bool, whole: Ending, seconds: float) -> Verdict:
    """Kills at random moments of about ``seconds``, until the run ends by itself."""
    folder = Path(tempfile.mkdtemp(prefix="fedloop-chaos-"))
    chance = random.Random(seed)  # noqa: S311  moments of a kill guard nothing
    kills = 0
    try:
        while not ended(folder):
            process = child(folder, private)
            try:
                # The more often it died, the longer it lives: every schedule ends.
                _, said = process.communicate(timeout=chance.uniform(0.2, 1.0) * seconds * (1 + kills / 4))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                kills += 1
                continue
            if process.returncode != 0:
                last = said.decode(errors="replace").strip().splitlines()[-1:]
                return Verdict(private, seed, kills, (f"the process failed by itself: {''.join(last)}",))
        return Verdict(private, seed, kills, tuple(_wrong(ending(folder, private), whole, private)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wrong(broken: Ending, whole: Ending, private: bool) -> list[str]:
    if private:
        wrong = [f"a site spent {spent:.4f} of {BUDGET:g}" for spent in broken.spent if spent > BUDGET]
        if broken.phase == Phase.FINISHED:
            pairs = zip(broken.spent, whole.spent, strict=True)
            wrong += [f"spent {own:.4f}, less than {least:.4f}" for own, least in pairs if own < least - 1e-9]
        elif "BudgetExhausted" not in broken.failure and "FL-PRIV-002" not in broken.failure:
            wrong.append(f"ended {broken.phase}: {broken.failure}")
        return wrong
    if broken.phase != Phase.FINISHED:
        return [f"ended {broken.phase}: {broken.failure}"]
    return [] if broken.weights == whole.weights else ["other weights than the uninterrupted run"]


def schedules(count: int, tell: Callable[[str], None]) -> list[Verdict]:
    """So many schedules of each kind.

    Raises:
        SystemExit: the uninterrupted run did not finish.
    """
    verdicts: list[Verdict] = []
    for private in (False, True):
        with tempfile.TemporaryDirectory(prefix="fedloop-chaos-") as name:
            started = time.perf_counter()
            child(Path(name), private).communicate()
            seconds = time.perf_counter() - started
            whole = ending(Path(name), private)
        if whole.phase != Phase.FINISHED:
            sys.exit(f"the uninterrupted run ended {whole.phase}: {whole.failure}")
        for seed in range(count):
            verdict = schedule(seed, private, whole, seconds)
            verdicts.append(verdict)
            kind = "private" if private else "exact"
            tell(f"{kind} schedule {seed}: {verdict.kills} kills, {'; '.join(verdict.wrong) or 'all holds'}")
    return verdicts


def main() -> None:
    """What the child does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--private", action="store_true")
    chosen = parser.parse_args()
    drive(chosen.folder, chosen.private)


if __name__ == "__main__":
    main()
