"""Drives a run from its journal: gather the sites, fix the scaler, train round by round.

All that is decided is in ``state`` and ``round``; here is the order in which sites are asked and what of their answers
becomes events. A driver may start from any journal: it goes on where the events end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from fedloop_core.arrays import ArraySpec, NamedArrays, digest
from fedloop_core.errors import QuorumNotReached, RunError, UpdateRefused
from fedloop_core.task.document import NewtonRaphson, Task
from fedloop_proto.coordination.v1.coordination_pb2 import (
    CollectMoments,
    DescribeData,
    Instruction,
    SumDerivatives,
    TrainLocally,
)
from fedloop_server.aggregation.algorithms import Algorithm, algorithm_of
from fedloop_server.aggregation.fixed_point import FixedPointSum
from fedloop_server.aggregation.gate import check_update
from fedloop_server.runs.answers import evaluation_in, measured_in, spend_in
from fedloop_server.runs.exchange import Exchange, SiteAnswer
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.model import RunModel
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.round import RoundProgress, Verdict
from fedloop_server.runs.state import (
    AttemptStarted,
    LeftOut,
    Measured,
    Member,
    Phase,
    RoundClosed,
    RoundOpened,
    ScalerFixed,
    SiteAdmitted,
    SiteLeftOut,
    SiteSpend,
)

__all__ = ["RunDriver"]

_MOST_NAMED = 8


class RunDriver:
    """One attempt of a run, up to the trained model. ``now_unix`` stamps events, ``clock`` measures deadlines."""

    def __init__(
        self,
        plan: RunPlan,
        journal: RunJournal,
        model: RunModel,
        connect: Callable[[int], Exchange],
        *,
        now_unix: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._plan = plan
        self._task: Task = plan.task
        self._journal = journal
        self._model = model
        self._now_unix = now_unix
        self._clock = clock
        attempt = journal.state.attempt + 1
        journal.record(AttemptStarted(attempt=attempt, unix=now_unix()))
        self.exchange = connect(attempt)

    def train(self) -> NamedArrays:
        """Runs every round that is not safe yet; returns the trained arrays with those of the scaler.

        Raises:
            QuorumNotReached: too few sites at the start or in a round; the journal says who and why.
        """
        self._gather()
        if self._journal.state.phase is Phase.GATHERING:
            self._describe()
            self._fix_scaler()
        else:
            self._restore()
        algorithm = algorithm_of(self._task, sum(member.rows for member in self._journal.state.members))
        while self._journal.state.completed_rounds < self._task.rounds.count:
            self._round(algorithm)
        return self._model.all_arrays()

    def _gather(self) -> None:
        needed = math.ceil(self._task.rounds.quorum * self._plan.expected_sites)
        sites = self.exchange.gather(self._plan.expected_sites, self._task.rounds.deadline_seconds)
        if len(sites) < max(1, needed):
            raise QuorumNotReached(
                f"{len(sites)} of {self._plan.expected_sites} sites are connected; {needed} are needed.",
                hint="See which sites are missing, or lower rounds.quorum.",
            )

    def _describe(self) -> None:
        document = self._task.canonical()
        work = {s: Instruction(describe_data=DescribeData(task_document=document)) for s in self.exchange.sites}
        for reply in self._ask(0, work, {}):
            description = reply.answer.data_description
            if not description.admitted:
                self._leave_out(reply.site, 0, "FL-DATA-006", f"data gate: {', '.join(description.reasons)}")
                continue
            by_rows = self._task.rounds.weighting == "rows"
            member = Member(
                site=reply.site,
                weight=max(1, description.rows) if by_rows else 1,
                rows=max(1, description.rows),
                rows_noised=description.rows_noised,
                data_fingerprint=description.data_fingerprint.hex(),
            )
            self._journal.record(SiteAdmitted(member=member))
        needed = max(1, math.ceil(self._task.rounds.quorum * self._plan.expected_sites))
        if len(self._journal.state.members) < needed:
            raise QuorumNotReached(
                f"{len(self._journal.state.members)} of {self._plan.expected_sites} sites may take part; "
                f"{needed} are needed. Left out: {self._who_is_out(0)}.",
                hint="Correct the data at these sites, or lower rounds.quorum.",
            )

    def _fix_scaler(self) -> None:
        if self._model.wants_moments:
            names = ("sum", "sum_of_squares", "count")
            total: FixedPointSum | None = None
            work = {m.site: Instruction(collect_moments=CollectMoments()) for m in self._sorted_members()}
            for reply in self._ask(0, work, {}):
                spec = ArraySpec(names, ((self._model.scaled_columns,),) * 3, ("float64",) * 3)
                if total is None:
                    total = FixedPointSum(spec, largest_value=self._model.largest_moment, total_weight=len(work))
                try:
                    total.add(reply.arrays)
                except UpdateRefused as error:
                    self._leave_out(reply.site, 0, error.code, error.message)
            if total is None or total.weight == 0:
                raise QuorumNotReached(f"no site sent its moments. Left out: {self._who_is_out(0)}.")
            sums = total.sum()
            self._model.set_moments(*(sums[name] for name in names))
        checkpoint = self._journal.save_checkpoint("round-0", self._model.all_arrays())
        self._journal.record(ScalerFixed(checkpoint=checkpoint))

    def _restore(self) -> None:
        checkpoint = self._journal.state.checkpoint
        if checkpoint is None:
            raise RunError("the journal names no checkpoint although training had begun.")
        self._model.load(self._journal.load_checkpoint(checkpoint, self._model.names))

    def _round(self, algorithm: Algorithm) -> None:
        number = self._journal.state.completed_rounds + 1
        members = {member.site: member for member in self._sorted_members()}
        asked = self._sample(tuple(members), number)
        self._journal.record(RoundOpened(round=number, asked=asked, unix=self._now_unix()))
        sums = algorithm.accumulator(self._model.trained, sum(members[site].weight for site in asked))
        rounds = self._task.rounds
        progress = RoundProgress(frozenset(asked), rounds.quorum, self._clock() + rounds.deadline_seconds)
        measured: list[Measured] = []
        spends: list[SiteSpend] = []
        work = {site: self._question(number) for site in asked}
        for reply in self._ask(number, work, self._model.all_arrays(), progress):
            try:
                found = measured_in(reply.site, self._task.label, evaluation_in(reply.answer))
                self._fold(sums, reply, members[reply.site])
            except UpdateRefused as error:
                progress.refused.add(reply.site)
                self._leave_out(reply.site, number, error.code, error.message)
                continue
            progress.answered.add(reply.site)
            measured.extend(found)
            spends.extend(spend_in(reply.site, reply.answer))
        if progress.decide(math.inf) is Verdict.FAIL:
            raise QuorumNotReached(
                f"round {number}: {len(progress.answered)} of {len(asked)} sites answered; {progress.needed} are needed. "
                f"Left out: {self._who_is_out(number)}."
            )
        self._model.trained = algorithm.step(self._model.trained, sums)
        arrays = self._model.all_arrays()
        self._journal.record(
            RoundClosed(
                round=number,
                folded=tuple(sorted(progress.answered)),
                checkpoint=self._journal.save_checkpoint(f"round-{number}", arrays),
                digest=digest(arrays).hex(),
                measured=tuple(sorted(measured, key=lambda m: m.site)),
                spends=tuple(sorted(spends, key=lambda s: s.site)),
                unix=self._now_unix(),
            )
        )

    def _question(self, number: int) -> Instruction:
        every = self._task.rounds.evaluate_every
        evaluate = every > 0 and number > 1 and (number - 1) % every == 0
        if isinstance(self._task.training, NewtonRaphson):
            return Instruction(sum_derivatives=SumDerivatives(evaluate=evaluate))
        return Instruction(train_locally=TrainLocally(rounds_planned=self._task.rounds.count, evaluate=evaluate))

    def _fold(self, sums: FixedPointSum, reply: SiteAnswer, member: Member) -> None:
        if isinstance(self._task.training, NewtonRaphson):
            sums.add(reply.arrays)
            return
        check_update(reply.arrays, sums.spec, maximum_norm=self._task.gates.update.maximum_norm)
        sums.add(reply.arrays, member.weight)

    def _ask(
        self, number: int, work: Mapping[str, Instruction], arrays: NamedArrays, progress: RoundProgress | None = None
    ) -> Iterator[SiteAnswer]:
        """Yields answers; sites that fail are journalled, and a round that cannot reach its quorum stops at once."""
        deadline = self._task.rounds.deadline_seconds
        for reply in self.exchange.ask(number, work, arrays, deadline_seconds=deadline):
            if isinstance(reply, SiteAnswer):
                yield reply
                continue
            self._leave_out(reply.site, number, reply.code, reply.reason)
            if progress is not None:
                progress.refused.add(reply.site)
                if progress.decide(self._clock()) is Verdict.FAIL:
                    return

    def _leave_out(self, site: str, number: int, code: str, reason: str) -> None:
        self._journal.record(SiteLeftOut(left_out=LeftOut(site=site, round=number, code=code, reason=reason)))

    def _who_is_out(self, number: int) -> str:
        """The sites left out of a round and why; of many, the first few and how many more."""
        out = [o for o in self._journal.state.left_out if o.round == number]
        named = [f"{o.site} ({o.code}: {o.reason.rstrip('.')})" for o in out[:_MOST_NAMED]]
        more = [f"and {len(out) - _MOST_NAMED} more"] if len(out) > _MOST_NAMED else []
        return "; ".join((*named, *more)) or "nobody"

    def _sorted_members(self) -> list[Member]:
        return sorted(self._journal.state.members, key=lambda member: member.site)

    def _sample(self, sites: tuple[str, ...], number: int) -> tuple[str, ...]:
        """The sites of a round. No amplification is claimed for this sampling, so any stable choice will do."""
        wanted = self._task.rounds.sites_per_round
        if wanted is None or wanted >= len(sites):
            return sites
        chosen = np.random.default_rng([self._plan.seed, number]).choice(len(sites), wanted, replace=False)
        return tuple(sites[place] for place in sorted(chosen))
