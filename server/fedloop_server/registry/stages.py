"""Which way a version may go: candidate, canary, production, retired; and back from retired in a rollback. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fedloop_core.errors import RegistryError
from fedloop_server.registry.records import GateResult, Stage, StageChange, Verdict

__all__ = ["check_gates", "check_step", "live_version"]

_NEXT = {
    Stage.CANDIDATE: (Stage.CANARY, Stage.RETIRED),
    Stage.CANARY: (Stage.PRODUCTION, Stage.RETIRED),
    Stage.PRODUCTION: (Stage.RETIRED,),
    Stage.RETIRED: (Stage.PRODUCTION,),
}


def check_step(what: str, before: Stage, after: Stage, reason: str) -> None:
    """Refuses a step that is not on the way.

    Raises:
        RegistryError: no such step, or a rollback without a reason.
    """
    if after not in _NEXT[before]:
        raise RegistryError(
            f"{what} is {before} and cannot become {after}.",
            hint=f"It can become {' or '.join(_NEXT[before])}.",
        )
    if before is Stage.RETIRED and not reason.strip():
        raise RegistryError(f"{what} is retired: taking it back into production needs a reason.")


def check_gates(what: str, gates: Iterable[GateResult]) -> None:
    """Refuses a version whose last word from any gate is "fail".

    Raises:
        RegistryError: a gate failed; the message names it.
    """
    last = {gate.name: gate for gate in gates}
    failed = [gate for gate in last.values() if gate.verdict is Verdict.FAIL]
    if failed:
        names = "; ".join(f"gate {gate.name}: {gate.detail.rstrip('.')}" for gate in failed)
        raise RegistryError(f"{what} may not go to devices: {names}.", hint="Retire it, or decide the gate again.")


def live_version(history: Iterable[StageChange], at: int) -> int | None:
    """The version in production at a moment, given a task's history in order; None when there was none."""
    live: int | None = None
    for change in history:
        if change.at > at:
            break
        if change.after is Stage.PRODUCTION:
            live = change.version
        elif change.before is Stage.PRODUCTION and live == change.version:
            live = None
    return live
