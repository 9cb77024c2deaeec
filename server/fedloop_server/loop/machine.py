"""One step of the loop: an event in, a decision out. Pure: who calls it stores the state and does what it says.

Rule for drift: one site's verdict is enough. The sites' monitors share the task's ``false_alarm`` among them, so the
probability that an unchanged world calls for a run stays at most that, however many sites there are; asking for more
sites would only delay a shift that is local to one. A verdict stands until the version is replaced.
"""

from __future__ import annotations

from fedloop_core.errors import UsageError
from fedloop_server.loop.decisions import AskHuman, Decision, Refuse, StartRun, Wait
from fedloop_server.loop.events import (
    Approval,
    Clock,
    Event,
    LabelCount,
    LedgerHeadroom,
    RunEnded,
    SiteSilent,
    SiteVerdict,
)
from fedloop_server.loop.state import Explanation, LoopState

__all__ = ["decide", "step"]


def step(state: LoopState, event: Event) -> tuple[LoopState, Decision]:
    """Learns from the event and decides. A ``StartRun`` is given once: until ``RunEnded`` every decision is to wait.

    Raises:
        UsageError: the event is about a site that is not in this loop.
    """
    learnt = _learn(state, event)
    decision = decide(learnt)
    if isinstance(decision, StartRun):
        learnt = _begin(learnt)
    if not learnt.history or learnt.history[-1].decision != decision:
        explanation = Explanation(at=learnt.now, event=str(event), decision=decision)
        learnt = learnt.model_copy(update={"history": (*learnt.history, explanation)})
    return learnt, decision


def decide(state: LoopState) -> Decision:
    """The decision that the state calls for: the first condition that does not hold, or the start of a run."""
    policy = state.policy
    if not policy.enabled:
        return Wait(reason="Retraining is off in the task.")
    if state.running:
        return Wait(reason="A run is in progress.")
    if not state.drifted:
        return Wait(reason=f"No site reports drift under version {state.version}{_without(state.silent, 'of it')}.")
    drift = _told(state)
    if state.label_total < policy.minimum_labels:
        return Wait(
            reason=f"{drift}; {state.label_total} of at least {policy.minimum_labels} labelled examples have come back"
            f"{_without(state.uncounted, 'how many')}."
        )
    unknown = tuple(site for site in state.sites if site not in state.affordable)
    if unknown:
        return Wait(reason=f"{drift}; the ledgers of {_listed(unknown)} are asked.", ask_ledgers=unknown)
    payers = tuple(site for site in state.sites if state.affordable[site])
    spent = tuple(site for site in state.sites if site not in payers)
    if len(payers) < policy.needed(len(state.sites)):
        return Refuse(
            reason=f"{drift}; {_why_spent(state, spent)}, and {policy.needed(len(state.sites))} of {len(state.sites)} sites are "
            f"needed.{_what_helps(state, spent)}",
            sites=spent,
        )
    if policy.approval == "human" and state.approved_by is None:
        return AskHuman(reason=f"{drift}; the task asks a person to approve each run.")
    if state.approved_by is None and state.runs_alone >= policy.maximum_runs:
        return AskHuman(
            reason=f"{drift}; {state.runs_alone} of at most {policy.maximum_runs} runs have followed one "
            "another without a person."
        )
    reasons: tuple[str, ...] = (drift, f"{state.label_total} labelled examples have come back")
    if spent:
        reasons += (f"left out for want of privacy budget: {_listed(spent)}",)
    if state.approved_by is not None:
        reasons += (f"approved by {state.approved_by}",)
    return StartRun(reasons=reasons, warm_from=state.version, rounds=policy.rounds, sites=payers)


def _begin(state: LoopState) -> LoopState:
    """A run has started: one approval is worth one run, and ledgers are asked anew for the next."""
    alone = state.runs_alone + 1 if state.approved_by is None else state.runs_alone
    return state.model_copy(update={"running": True, "runs_alone": alone, "approved_by": None, "affordable": {}})


def _learn(state: LoopState, event: Event) -> LoopState:
    match event:
        case Clock(now=now):
            return state.model_copy(update={"now": max(now, state.now)})
        case SiteVerdict():
            return _learn_verdict(state, event)
        case LabelCount(site=site, count=count):
            _check_site(state, site)
            labels = {**state.labels, site: count}
            return state.model_copy(update={"labels": labels, "uncounted": state.uncounted - {site}})
        case LedgerHeadroom(site=site, affordable=affordable, hidden=hidden):
            _check_site(state, site)
            out = state.unhidden | {site} if affordable and not hidden else state.unhidden - {site}
            return state.model_copy(
                update={"affordable": {**state.affordable, site: affordable and hidden}, "unhidden": out}
            )
        case SiteSilent():
            return _learn_silence(state, event)
        case Approval(by=by):
            return state.model_copy(update={"approved_by": by, "runs_alone": 0})
        case RunEnded(version=None):
            return state.model_copy(update={"running": False, "affordable": {}})
        case RunEnded(version=version):
            forgotten: dict[str, object] = {"verdicts": {}, "labels": {}, "affordable": {}}
            forgotten |= {"silent": frozenset(), "uncounted": frozenset()}
            return state.model_copy(update={"version": version, "running": False, **forgotten})


def _learn_verdict(state: LoopState, verdict: SiteVerdict) -> LoopState:
    """Keeps the newest verdict about the version in service; drift, once told, is not taken back."""
    _check_site(state, verdict.site)
    known = state.verdicts.get(verdict.site)
    outdated = known is not None and (known.drifted or known.window >= verdict.window)
    if verdict.version != state.version or outdated:
        return state
    return state.model_copy(update={"verdicts": {**state.verdicts, verdict.site: verdict}})


def _learn_silence(state: LoopState, silence: SiteSilent) -> LoopState:
    """What the site told of this version before stands."""
    _check_site(state, silence.site)
    if silence.version != state.version:
        return state
    match silence.about:
        case "drift":
            return state.model_copy(update={"silent": state.silent | {silence.site}})
        case "labels":
            return state.model_copy(update={"uncounted": state.uncounted | {silence.site}})


def _without(sites: frozenset[str], what: str) -> str:
    """Who is not heard, and why: nobody waits for them."""
    if not sites:
        return ""
    return f"; {_listed(tuple(sorted(sites)))} cannot tell {what}: what it would be charged to is spent"


def _why_spent(state: LoopState, spent: tuple[str, ...]) -> str:
    """Whose budget does not admit another run: the sites' own, or the coordinator's for whole sites."""
    own = tuple(site for site in spent if site not in state.unhidden)
    whole = tuple(site for site in spent if site in state.unhidden)
    parts = [f"the privacy budget of {_listed(own)} does not admit another run"] if own else []
    if whole:
        parts.append(f"the coordinator's budget for whole sites does not admit another run with {_listed(whole)}")
    return " and ".join(parts)


def _what_helps(state: LoopState, spent: tuple[str, ...]) -> str:
    return "" if state.unhidden.issuperset(spent) else " Only a site can raise its budget, or add rows of new units."


def _told(state: LoopState) -> str:
    """Which sites report drift, and of what where they may tell."""
    kinds = sorted({verdict.drift or "" for verdict in state.drifted})
    parts = []
    for kind in kinds:
        sites = tuple(verdict.site for verdict in state.drifted if (verdict.drift or "") == kind)
        parts.append(
            f"{_listed(sites)} {'reports' if len(sites) == 1 else 'report'} {f'{kind} drift' if kind else 'drift'}"
        )
    return f"{_listed(tuple(parts))} under version {state.version}"


def _check_site(state: LoopState, site: str) -> None:
    if site not in state.sites:
        raise UsageError(f"site {site!r} is not in this loop; its sites are {_listed(state.sites)}.")


def _listed(parts: tuple[str, ...]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
