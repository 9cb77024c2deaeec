"""What a driver decides, as the coordinator's audit log keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedloop_core.audit import AuditAction
from fedloop_core.errors import BudgetExhausted, LedgerRolledBack, PolicyRefused
from fedloop_server.runs.events import Event, RunFailed, RunFinished, RunStopped, SiteLeftOut, WholeSitesCharged
from fedloop_server.runs.room import Room, with_room
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import Audit

__all__ = ["audited"]

_ACTOR = "driver"
_ACTIONS: Mapping[str, AuditAction] = {
    BudgetExhausted.code: AuditAction.BUDGET_REFUSED,
    LedgerRolledBack.code: AuditAction.LEDGER_ROLLED_BACK,
    PolicyRefused.code: AuditAction.POLICY_REFUSED,
}


def audited(
    run_id: str, audit: Audit | None, observe: Callable[[RunState, Event], None] | None, room: Room | None = None
) -> Callable[[RunState, Event], None] | None:
    """An observer of a journal that also writes to the audit log, when there is one.

    Raises (when it is called):
        StorageError: the log cannot be written, and ``room`` does not wait until it can.
    """
    if audit is None:
        return observe

    def told(state: RunState, event: Event) -> None:
        with_room(lambda: _record(run_id, audit, state, event), room)
        if observe is not None:
            observe(state, event)

    return told


def _record(run_id: str, audit: Audit, state: RunState, event: Event) -> None:
    match event:
        case SiteLeftOut(left_out=out):
            action = _ACTIONS.get(out.code, AuditAction.SITE_LEFT_OUT)
            audit.record(_ACTOR, action, out.site, run=run_id, round=out.round, code=out.code, reason=out.reason)
        case WholeSitesCharged():
            audit.record(
                _ACTOR,
                AuditAction.WHOLE_SITES_CHARGED,
                run_id,
                sites=len(event.sites),
                noise_multiplier=event.noise_multiplier,
                releases=event.releases,
                spent=event.spent,
            )
        case RunFinished():
            audit.record(_ACTOR, AuditAction.RUN_FINISHED, run_id, rounds=state.completed_rounds)
        case RunFailed(code=code, reason=reason):
            audit.record(_ACTOR, AuditAction.RUN_FAILED, run_id, code=code, reason=reason)
        case RunStopped():
            audit.record(_ACTOR, AuditAction.RUN_STOPPED, run_id, rounds=state.completed_rounds)
        case _:
            pass
