"""Kills one process of a real deployment in one phase of a run, case by case, and looks what became of the run.

What must hold after each case: the run finished; the exact one has the weights of the uninterrupted run, to the bit; each
site answered as many questions as in that run; a training that was begun is charged once, and at most once more for each
kill; ledgers and audit logs verify; ServerApps of runs that have ended are gone.
"""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from chaos_cases import CHAINED, Case, Phase, kill, let_go, revive, wait_for_phase
from chaos_moves import MOVES, ROUNDS
from chaos_scene import SITES, Scene, scene
from deployment import CommandFailed
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.audit import AuditLog
from fedloop_core.errors import FedloopError

__all__ = ["Outcome", "chaos"]

_END_SECONDS = 420.0
_GONE_SECONDS = 60.0
_LONGEST = 6

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Whole:
    """A run that nobody disturbed: digest of the weights after each round, and the seconds that a round took."""

    digests: tuple[str, ...]
    seconds_per_round: float


@dataclass(frozen=True)
class Outcome:
    """One case. ``wrong`` is empty when all holds.

    ``at``: the newest event when the victim died; ``outage_seconds``: from then to the close of the round or the end of the run;
    0 where the round closed as if nothing had happened, which a checkpoint does that nobody else takes part in;
    ``attempts``: those that began meanwhile.
    """

    case: str
    at: str
    outage_seconds: float
    attempts: int
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class _Kill:
    """What was seen when a victim died: wall seconds, and the events that there were."""

    case: Case
    unix: float
    events: int


def chaos(cases: Sequence[Case], moves: Sequence[str], tell: Tell) -> list[Outcome]:
    """One deployment for all cases, in order; a case that fails does not stop the others.

    Args:
        cases: of victims and phases.
        moves: names in ``chaos_moves.MOVES``, done last.
        tell: is given a line of progress after each.

    Raises:
        CommandFailed, TimeoutError: the deployment or the uninterrupted run did not come about.
    """
    outcomes: list[Outcome] = []
    folder = Path(tempfile.mkdtemp(prefix="fedloop-chaos-"))

    def note(found: Sequence[Outcome]) -> None:
        for outcome in found:
            outcomes.append(outcome)
            tell(_line(outcome))

    try:
        with scene(folder) as place:
            chains = _chains(cases)
            whole = _uninterrupted(place, max([ROUNDS if moves else 2, *(len(chain) + 1 for chain in chains)]))
            tell(f"deployed; a round takes {whole.seconds_per_round:.1f} s")
            for number, chain in enumerate(chains):
                note(_guarded(chain[0].name, partial(_chain, place, chain, f"chain-{number}", whole)))
            for name in moves:
                note(_guarded(name, partial(_move, place, name, whole)))
        left = place.left()
        if left:
            note([Outcome("the end", "", 0.0, 0, (f"processes were left: {left}",))])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outages = [outcome.outage_seconds for outcome in outcomes if outcome.outage_seconds]
    if outages:
        tell(f"outage: median {statistics.median(outages):.1f} s, worst {max(outages):.1f} s, {len(outages)} cases")
    return outcomes


def _line(outcome: Outcome) -> str:
    held = "; ".join(outcome.wrong) or "all holds"
    return (
        f"{outcome.case}: {held} (at {outcome.at}, out for {outcome.outage_seconds:.1f} s, {outcome.attempts} attempts)"
    )


def _chains(cases: Sequence[Case]) -> list[tuple[Case, ...]]:
    """Cases that share a run: phases of a round, one case in each round."""
    chains: list[tuple[Case, ...]] = []
    for private in (False, True):
        rounds = [case for case in cases if case.phase in CHAINED and case.private is private]
        chains += [tuple(rounds[at : at + _LONGEST]) for at in range(0, len(rounds), _LONGEST)]
    return chains + [(case,) for case in cases if case.phase not in CHAINED]


def _guarded(name: str, do: Callable[[], list[Outcome]]) -> list[Outcome]:
    try:
        return do()
    except (CommandFailed, TimeoutError, LookupError, OSError, TimeoutExpired, FedloopError) as error:
        return [Outcome(name, "", 0.0, 0, (f"{type(error).__name__}: {error}",))]


def _uninterrupted(place: Scene, rounds: int) -> Whole:
    run_id = place.begin_run("whole", rounds)
    end = place.wait_for_end(run_id, _END_SECONDS)
    if end != "run-finished":
        raise CommandFailed(f"the uninterrupted run ended as {end}: {place.journal(run_id)[-1]}")
    closed = place.events(run_id, "round-closed")
    took = (closed[-1]["unix"] - closed[0]["unix"]) / (len(closed) - 1)
    return Whole(tuple(event["digest"] for event in closed), took)


def _chain(place: Scene, chain: tuple[Case, ...], name: str, whole: Whole) -> list[Outcome]:
    """One run with a kill in each of its rounds after the first; or, before and after its rounds, with one kill."""
    exports, private = chain[0].phase is Phase.EXPORTING, chain[0].private
    rounds = len(chain) + 1
    if chain[0].phase is Phase.WAITING:
        place.stop(SITES[1])
    kills: list[_Kill] = []
    try:
        before = [place.answers(site) for site in SITES]
        run_id = place.begin_run(name, rounds, private=private, export=exports)
        for number, case in enumerate(chain, 2):
            wait_for_phase(place, run_id, case.phase, number, before, random.Random(number))  # noqa: S311
            try:
                kill(place, case.victim, run_id)
                kills.append(_Kill(case, time.time(), len(place.journal(run_id))))
            finally:
                let_go(place, run_id)
            revive(place, case.victim)
            if case.phase in CHAINED:
                place.wait_for_rounds(run_id, number, _END_SECONDS)
    finally:
        if SITES[1] not in place.running:
            place.start_site(SITES[1])
    end = place.wait_for_end(run_id, _END_SECONDS)
    journal = place.journal(run_id)
    wrong = [] if end == "run-finished" else [f"ended as {end}: {journal[-1]}"]
    wrong += [f"left out: {event['left_out']}" for event in journal if event["event"] == "site-left-out"]
    wrong += _counted(place, run_id, before, questions=1 + rounds + exports, rounds=rounds, kills=len(chain))
    wrong += _verified(place)
    wrong += _gone(place)
    outcomes = [_outcome(kill, journal, whole) for kill in kills]
    last = outcomes[-1]
    return [*outcomes[:-1], replace(last, wrong=(*last.wrong, *wrong))]


def _outcome(died: _Kill, journal: Sequence[dict[str, Any]], whole: Whole) -> Outcome:
    """The weights of the first round that closed after a kill, or of the last one, are those of the same round."""
    before, after = journal[: died.events], journal[died.events :]
    closes = [event for event in after if event["event"] == "round-closed"]
    judged = closes[0] if closes else [event for event in before if event["event"] == "round-closed"][-1]
    right = died.case.private or judged["digest"] == whole.digests[judged["round"] - 1]
    ends = [at for at, event in enumerate(after) if event["event"] in {"round-closed", "run-finished"}]
    back = after[ends[0]]["unix"] if ends else died.unix
    tried = after[: ends[0]] if ends else after
    attempts = sum(1 for event in tried if event["event"] == "attempt-started")
    wrong: tuple[str, ...] = (
        () if right else (f"other weights after round {judged['round']} than in the uninterrupted run",)
    )
    at = str(before[-1]["event"]) if before else "nothing"
    if died.case.phase is Phase.CHECKPOINTING and at != "round-opened":
        wrong = (*wrong, "the round had closed before the kill, which proves nothing")
    return Outcome(died.case.name, at, max(back - died.unix, 0.0), attempts, wrong)


def _counted(place: Scene, run_id: str, before: Sequence[int], *, questions: int, rounds: int, kills: int) -> list[str]:
    """Each question has one answer; each round one charge, and one more at most for the training that a kill has undone."""
    wrong = []
    for site, known in zip(SITES, before, strict=True):
        answers = place.answers(site) - known
        if answers != questions:
            wrong.append(f"{site} gave {answers} answers to {questions} questions")
        charges = place.charges(site, run_id)
        if not rounds <= charges <= rounds + kills:
            wrong.append(f"{site} has {charges} charges for {rounds} rounds")
    return wrong


def _verified(place: Scene) -> list[str]:
    wrong = []
    for home in (place.home, *(place.site_home(site) for site in SITES)):
        try:
            AuditLog(home / "audit.jsonl").verify()
            if (home / "ledger.db").exists():
                with closing(Ledger(home / "ledger.db", lambda: 0)) as ledger:
                    ledger.verify()
        except FedloopError as error:
            wrong.append(f"{home.name}: {error}")
    return wrong


def _gone(place: Scene) -> list[str]:
    deadline = time.monotonic() + _GONE_SECONDS
    while (left := place.server_apps()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return [f"ServerApps of runs that have ended live: {left}"] if left else []


def _move(place: Scene, name: str, whole: Whole) -> list[Outcome]:
    run_id, wrong = MOVES[name](place, whole.digests)
    attempts = len(place.events(run_id, "attempt-started"))
    return [Outcome(name, "", 0.0, attempts, (*wrong, *_verified(place)))]
