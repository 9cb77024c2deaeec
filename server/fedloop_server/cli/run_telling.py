"""From a run as it stands to what is told of it. Pure but for the clock."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Iterator, Sequence

from fedloop_core.errors import UNKNOWN_CODE, FedloopError, class_of
from fedloop_core.measure import measure_of
from fedloop_server.cli.run_documents import (
    ArtifactDocument,
    EstimateDocument,
    LeftOutDocument,
    RoundDocument,
    RunDocument,
    RunLine,
    SiteDocument,
    UpdateDocument,
)
from fedloop_server.cli.run_words import every_words, took_words, zoned
from fedloop_server.manager.machine import resumed_at
from fedloop_server.manager.state import Job, Wish
from fedloop_server.manager.views import RunView
from fedloop_server.runs.estimates import estimate
from fedloop_server.runs.events import LeftOut, Measured
from fedloop_server.runs.state import Phase
from fedloop_server.runs.statement import latest_spends

__all__ = ["document_of", "line_of", "meaning_of", "next_step", "starts_words", "wished_step"]

_EXCHANGE = {  # codes of the exchange, which no error class carries
    "FL-RUN-010": "The site did not answer.",
    "FL-RUN-011": "The site's answer could not be used.",
    UNKNOWN_CODE: "The site gave a code that this release does not know.",
}


def line_of(view: RunView, now_unix: float | None = None) -> RunLine:
    """The run in one line."""
    now = time.time() if now_unix is None else now_unix
    job = None if view.queued is None else view.queued.job
    begun, ended = view.started_unix, view.ended_unix
    return RunLine(
        run=view.plan.run_id,
        task=view.plan.task.name,
        status=view.status,
        reason=_reason(view),
        round=view.state.completed_rounds,
        rounds=view.plan.task.rounds.count,
        sites=len(view.state.members),
        expected_sites=view.plan.expected_sites,
        version=view.state.version,
        submitted_unix=None if job is None else job.submitted_unix,
        not_before_unix=job.not_before if job is not None and job.status.waiting else None,
        every_seconds=None if job is None else job.every_seconds,
        started_unix=begun,
        ended_unix=ended,
        took=None if begun is None else (now if ended is None else ended) - begun,
    )


def document_of(view: RunView, now_unix: float | None = None) -> RunDocument:
    """Everything."""
    state, task = view.state, view.plan.task
    job = None if view.queued is None else view.queued.job
    line = line_of(view, now_unix)
    rounds = tuple(_rounds(view))
    sites = tuple(_site(view, name, rounds) for name in _site_names(view))
    measured = [r.measured for r in rounds if r.measured is not None]
    failure = state.failure
    return RunDocument(
        line=line,
        phase=state.phase.value,
        attempts=state.attempt,
        driver=view.driver,
        wish=Wish.NONE.value if view.queued is None else view.queued.wish.value,
        problem=view.problem,
        task_digest=task.digest.hex(),
        seed=view.plan.seed,
        warm_from=view.plan.warm_from,
        private=task.privacy.private and view.plan.private,
        planned_epsilon=task.privacy.epsilon if task.privacy.private else None,
        planned_evaluation_epsilon=task.privacy.epsilon_of_evaluations if task.privacy.private else None,
        aggregation=task.aggregation.rule,
        quorum=max(1, math.ceil(task.rounds.quorum * view.plan.expected_sites)),
        deadline_seconds=task.rounds.deadline_seconds,
        measure=measure_of(task.label).value,
        measured=measured[-1] if measured else None,
        rounds=rounds,
        sites=sites,
        left_out=tuple(_left_out(out) for out in state.left_out if not 0 < out.round <= task.rounds.count),
        artifacts=tuple(
            ArtifactDocument(
                version=found.version,
                kind=found.kind,
                measured=_estimate(view, found.measured),
                measured_by_site={m.site: _estimate(view, [m]) for m in found.measured},
            )
            for found in state.artifacts
        ),
        released=None if state.gate is None else state.gate.released,
        gate_reasons=() if state.gate is None else state.gate.reasons,
        failure_code=None if failure is None else failure.code,
        failure=None if failure is None else failure.reason,
        seconds=line.took or 0.0,
        bytes_out=sum(site.bytes_out for site in sites),
        bytes_in=sum(site.bytes_in for site in sites),
        superlink_bytes_in=0 if job is None else job.bytes_in,
        superlink_bytes_out=0 if job is None else job.bytes_out,
        folder=str(view.folder),
        next_step=next_step(view),
    )


def meaning_of(code: str) -> str:
    """What a code stands for: the first sentence about its error; empty for a code that this release does not know."""
    if code in _EXCHANGE:
        return _EXCHANGE[code]
    kind = class_of(code)
    return "" if kind is None else _about(kind)


def next_step(view: RunView) -> str:
    """What the reader may do now."""
    run = view.plan.run_id
    match view.status:
        case "scheduled":
            at = "by itself" if view.queued is None else starts_words(view.queued.job)
            return f"It starts {at}; `fedloop run stop {run}` takes it back."
        case "queued":
            return f"It starts as soon as no other run goes on; `fedloop run watch {run}` follows it."
        case "running" if view.state.phase is Phase.GATHERING and not view.state.members:
            longest = took_words(view.plan.task.rounds.deadline_seconds)
            return (
                f"It waits until {view.plan.expected_sites} sites are connected, at most {longest}, and asks them for their rows; "
                f"`fedloop server status` says who is there, `fedloop run stop {run}` stops it."
            )
        case "starting" | "running":
            return f"`fedloop run watch {run}` follows it, `fedloop run stop {run}` stops it."
        case "stopping":
            return f"Wait until the sites and the coordinator have let go of it; `fedloop run show {run}` says when."
        case "stopped":
            return f"`fedloop run resume {run}` lets it go on after round {view.state.completed_rounds}."
        case "failed":
            return f"See `fedloop run logs {run}`; `fedloop run resume {run}` goes on after round {view.state.completed_rounds}."
        case "finished" if view.state.version is not None and view.state.gate is not None:
            held = "" if view.state.gate.released else ", which the quality gate holds back"
            return f"It made version {view.state.version} of {view.plan.task.name}{held}."
        case "finished":
            return "It made no version: it was started with --no-export."
        case _:
            return "No queue knows it and nobody drives it: it was begun in another way."


def starts_words(job: Job) -> str:
    """When a run that waits for its time starts, and how often then."""
    return f"{zoned(job.not_before)}{'' if job.every_seconds is None else f', then every {every_words(job.every_seconds)}'}"


def wished_step(view: RunView, now_unix: float | None = None) -> str:
    """What comes of a wish that nobody has taken up yet; empty without one."""
    if view.queued is None or view.queued.wish is Wish.NONE:
        return ""
    run, now = view.plan.run_id, time.time() if now_unix is None else now_unix
    at = resumed_at(view.queued.job, now)
    if view.queued.wish is Wish.RESUME and at > now:
        return f"It starts {zoned(at)}; `fedloop run resume {run} --now` starts it at once."
    return f"`fedloop run watch {run}` follows it."


def _reason(view: RunView) -> str:
    """Why it stands where it stands, when that needs saying."""
    if view.problem:
        return view.problem
    if view.cramped and not view.ended:
        return f"No space left on the disk of {view.folder}: it waits until there is, and then goes on by itself."
    if view.state.failure is not None and view.status == "failed":
        return f"{view.state.failure.code}: {view.state.failure.reason}"
    return "" if view.queued is None else view.queued.job.reason


def _rounds(view: RunView) -> Iterator[RoundDocument]:
    for closed in view.state.rounds:
        opened = view.opened_unix(closed.round)
        yield RoundDocument(
            round=closed.round,
            asked=closed.asked or closed.folded,
            answered=closed.folded,
            left_out=_out_of(view, closed.round, closed.folded),
            updates=tuple(
                UpdateDocument(site=u.site, norm=u.norm, bounded_to=u.bounded_to, share=u.share) for u in closed.updates
            ),
            closed=True,
            seconds=None if opened is None else closed.unix - opened,
            waiting_seconds=closed.waiting_seconds,
            aggregating_seconds=closed.aggregating_seconds,
            checkpointing_seconds=closed.checkpointing_seconds,
            bytes_out=sum(t.bytes_out for t in closed.took) + sum(o.bytes_out for o in closed.left_out),
            bytes_in=sum(t.bytes_in for t in closed.took) + sum(o.bytes_in for o in closed.left_out),
            measured=_estimate(view, closed.measured) if closed.measured else None,
            measured_by_site={m.site: _estimate(view, [m]) for m in closed.measured},
            digest=closed.digest,
            central=closed.central,
        )
    opened_round = view.state.open_round
    if opened_round is not None:
        yield RoundDocument(
            round=opened_round.round,
            asked=opened_round.asked,
            answered=(),
            left_out=_out_of(view, opened_round.round, ()),
            updates=(),
            closed=False,
            seconds=None,
            waiting_seconds=0.0,
            aggregating_seconds=0.0,
            checkpointing_seconds=0.0,
            bytes_out=0,
            bytes_in=0,
            measured=None,
            measured_by_site={},
            digest="",
            central=None,
        )


def _out_of(view: RunView, number: int, folded: Sequence[str]) -> tuple[LeftOutDocument, ...]:
    """Each site's last reason; a site that answered an earlier attempt's question late, or again, is not out."""
    last = {out.site: out for out in view.state.left_out if out.round == number and out.site not in folded}
    return tuple(_left_out(out) for _, out in sorted(last.items()))


def _left_out(out: LeftOut) -> LeftOutDocument:
    return LeftOutDocument(
        site=out.site,
        round=out.round,
        code=out.code,
        reason=out.reason,
        meaning=meaning_of(out.code),
        for_good=out.for_good,
    )


def _site_names(view: RunView) -> list[str]:
    members = {member.site for member in view.state.members}
    return sorted(members | {out.site for out in view.state.left_out})


def _site(view: RunView, site: str, rounds: Sequence[RoundDocument]) -> SiteDocument:
    member = view.state.member(site)
    spend = latest_spends(view.state).get(site)
    measured = [r.measured_by_site[site] for r in rounds if site in r.measured_by_site]
    took = [t for closed in view.state.rounds for t in closed.took if t.site == site]
    lost = [out for out in view.state.left_out if out.site == site]
    updates = [u for r in rounds for u in r.updates if u.site == site]
    return SiteDocument(
        site=site,
        member=member is not None,
        rows=None if member is None else member.rows,
        rows_noised=member is not None and member.rows_noised,
        answered=sum(site in r.answered for r in rounds),
        asked=sum(site in r.asked for r in rounds),
        left_out=sum(any(out.site == site for out in r.left_out) for r in rounds),
        measured=measured[-1] if measured else None,
        epsilon=None if spend is None else _finite(spend.run_epsilon),
        lifetime_epsilon=None if spend is None else _finite(spend.lifetime_epsilon),
        evaluation_epsilon=None if spend is None else _finite(spend.evaluation_epsilon),
        budget=None if spend is None or spend.budget is None else _finite(spend.budget),
        delta=None if spend is None else spend.delta,
        share=sum(u.share for u in updates) / len(updates) if updates else None,
        shortened=sum(u.bounded_to is not None for u in updates),
        seconds=sum(t.seconds for t in took) + sum(out.seconds for out in lost),
        bytes_out=sum(t.bytes_out for t in took) + sum(out.bytes_out for out in lost),
        bytes_in=sum(t.bytes_in for t in took) + sum(out.bytes_in for out in lost),
    )


def _estimate(view: RunView, measured: Sequence[Measured]) -> EstimateDocument:
    found = estimate(view.plan.task.label, measured, view.plan.task.gates.quality.confidence)
    return EstimateDocument(value=found.value, low=found.low, high=found.high, rows=found.total)


def _finite(value: float) -> float | None:
    """JSON has no word for infinity."""
    return value if math.isfinite(value) else None


def _about(kind: type[FedloopError]) -> str:
    said = " ".join(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split())
    return said.replace("`", "")  # marks code in documentation, and nothing at a terminal
