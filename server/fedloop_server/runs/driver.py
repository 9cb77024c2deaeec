"""Drives a run from its journal: gather the sites, fix the scaler, train round by round.

All that is decided is in ``state`` and ``round``; here is the order in which sites are asked and what of their answers
becomes events. A driver may start from any journal: it goes on where the events end.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from fedloop_core.arrays import ArraySpec, NamedArrays, digest
from fedloop_core.errors import (
    ContentDamaged,
    QuorumNotReached,
    RunError,
    SecureAggregationRefused,
    SiteRevoked,
    TooFewUpdates,
    UpdateRefused,
)
from fedloop_core.task.aggregation import RobustRule
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import CollectMoments, Instruction
from fedloop_server.aggregation.algorithms import algorithm_of
from fedloop_server.aggregation.fixed_point import FixedPointSum
from fedloop_server.aggregation.rules import require_updates
from fedloop_server.runs.central import CentralNoise
from fedloop_server.runs.events import AttemptStarted, LeftOut, Member, RoundLost, RoundOpened, ScalerFixed, SiteLeftOut
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.joining import Joining
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.leaving import left_out_of, refused_by_gate, revoked, waits_for_a_person
from fedloop_server.runs.model import RunModel
from fedloop_server.runs.paying import Payments, failure_of, spent_sites
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.replies import SiteAnswer, SiteFailure
from fedloop_server.runs.round import RoundProgress, Verdict
from fedloop_server.runs.rounds import OpenRound, question_of
from fedloop_server.runs.secure import SecureSums, Summed
from fedloop_server.runs.state import Phase
from fedloop_server.secure_aggregation.machine import SecureSum
from fedloop_server.whole_sites.book import WholeSites

__all__ = ["RunDriver"]

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 8


class RunDriver:
    """One attempt of a run, up to the trained model. ``now_unix`` stamps events, ``clock`` measures deadlines.

    ``at_least``: its number is no lower. ``whole_sites``: where it is charged, for a task that hides whole sites.
    """

    def __init__(
        self,
        plan: RunPlan,
        journal: RunJournal,
        model: RunModel,
        connect: Callable[[int], Exchange],
        *,
        now_unix: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        at_least: int = 0,
        whole_sites: WholeSites | None = None,
    ) -> None:
        self._plan = plan
        self._task: Task = plan.task
        self._journal = journal
        self._model = model
        self._now_unix = now_unix
        self._clock = clock
        self._out_before = len(journal.state.left_out)  # in earlier attempts
        attempt = max(journal.state.attempt + 1, at_least)
        journal.record(AttemptStarted(attempt=attempt, unix=now_unix()))
        self.exchange = connect(attempt)
        self._joining = Joining(self._task, journal, self.exchange, model.fixed_digest)
        self._secure: SecureSums | None = None
        self._central = CentralNoise.of(plan, model.trained)
        self._payments: Payments | None = None
        if self._central is not None:
            if whole_sites is None:
                raise ValueError("a run that hides whole sites needs the record of what they have spent")
            self._payments = Payments(plan, self._central.plan, whole_sites, journal, now_unix)

    def train(self) -> NamedArrays:
        """Runs every round that is not safe yet; returns the trained arrays with those of the scaler.

        Raises:
            AttemptBehind: a site knows a later attempt, and the exchange catches up.
            BudgetExhausted: the budget for whole sites of too few sites holds the run.
            ContentDamaged: neither the last checkpoint nor the one before it can be gone on from.
            QuorumNotReached: too few sites at the start or in a round; the journal says who and why.
            RunCancelled: a person wants the run to stop.
            TooFewUpdates: the sites expected, or those asked, are too few for the task's rule, and nobody was asked; or they cannot bear
            the noise that hides a whole site.
        """
        self._check_expected()
        self._gather()
        self._leave_out_spent()
        if self._journal.state.phase is Phase.GATHERING:
            self._joining.describe_all()
            self._check_members(0)
            if self._central is not None:
                self._central.require(len(self._members()))
            self._fix_scaler()
        else:
            self._restore()
        while self._journal.state.completed_rounds < self._task.rounds.count and not self._all_is_spent():
            self._round()
        return self._model.all_arrays()

    def _all_is_spent(self) -> bool:
        """Whether noise at the coordinator is paid for no more rounds: a lost model that had been sent took one of the planned."""
        return self._central is not None and self._central.done(self._journal.state)

    def _leave_out_spent(self) -> None:
        """Sites whose budget as a whole does not hold the run are not even asked for their rows."""
        if self._payments is None:
            return
        sites = self.exchange.active - self._journal.state.barred_sites
        refused = self._payments.refused(sites)
        for site, error in sorted(refused.items()):
            self._leave_out(failure_of(site, error), 0)
        if refused and len(sites) - len(refused) < self._needed:
            raise spent_sites(refused, len(sites) - len(refused), self._needed)

    def _check_expected(self) -> None:
        rule, expected = self._task.aggregation, self._plan.expected_sites
        if self._central is not None and self._journal.state.phase is Phase.GATHERING:
            self._central.require(expected)
        if isinstance(rule, RobustRule) and expected < rule.least_updates:
            raise TooFewUpdates(
                f"{rule.need}; {expected} {'site is' if expected == 1 else 'sites are'} expected.",
                hint="Wait for more sites, lower aggregation.faulty_sites, or choose a rule that needs fewer.",
            )

    def _gather(self) -> None:
        """Waits for all sites that are expected at the start, and for a quorum when training had begun.

        A round waits for members that are on their way back by itself.
        """
        state = self._journal.state
        expected = self._plan.expected_sites if state.phase is Phase.GATHERING else self._needed
        sites = self.exchange.gather(expected, self._task.rounds.deadline_seconds, state.barred_sites)
        if len(sites) < self._needed:
            absent = sorted(self.exchange.active.difference(self.exchange.sites))
            raise QuorumNotReached(
                f"{len(sites)} of {self._plan.expected_sites} sites are connected and may take part; "
                f"{self._needed} are needed. Left out: {_who_is_out(_newest(state.barred), absent)}.",
                hint="See why these sites are missing, or lower rounds.quorum.",
            )

    @property
    def _needed(self) -> int:
        """Sites without which the run does not go on: the quorum of those expected, and as many as the task's rule needs.

        Members that were revoked are no longer expected, unless late ones stand in for them.
        """
        state, expected = self._journal.state, self._plan.expected_sites
        revoked = sum(1 for out in state.barred if out.code == SiteRevoked.code)
        left = min(expected, max(expected, len(state.members)) - revoked)
        return max(self._task.aggregation.least_updates, math.ceil(self._task.rounds.quorum * left))

    def _check_members(self, number: int) -> None:
        """Stops a run that has too few sites left.

        Raises:
            QuorumNotReached: names those left out of this round, or of the run.
        """
        members = self._members()
        if len(members) < self._needed:
            told = {member.site for member in self._journal.state.members}
            absent = sorted(self.exchange.active.difference(self.exchange.sites, told))
            out = self._out_of_run(number)
            raise QuorumNotReached(
                f"{len(members)} of {self._plan.expected_sites} sites may take part; "
                f"{self._needed} are needed. {self._who_waits(out)}Left out: {_who_is_out(out, absent)}.",
                hint="Correct the data at these sites, or lower rounds.quorum.",
            )

    def _fix_scaler(self) -> None:
        if self._model.wants_moments:
            names = ("sum", "sum_of_squares", "count")
            spec = ArraySpec(names, ((self._model.scaled_columns,),) * 3, ("float64",) * 3)
            work = {site: Instruction(collect_moments=CollectMoments()) for site in self._members()}
            total = FixedPointSum(spec, largest_value=self._model.largest_moment, total_weight=max(len(work), 1))
            for reply in self._ask(0, work, {}):
                try:
                    total.add(reply.arrays)
                except UpdateRefused as error:
                    self._leave_out(refused_by_gate(reply, error), 0)
            if total.weight == 0:
                out = self._out_of_round(0)
                raise QuorumNotReached(f"no site sent its moments. {self._who_waits(out)}Left out: {_who_is_out(out)}.")
            sums = total.sum()
            self._model.set_moments(*(sums[name] for name in names))
        checkpoint = self._journal.save_checkpoint("round-0", self._model.all_arrays())
        self._journal.patiently(self.exchange.keep)
        self._journal.record(ScalerFixed(checkpoint=checkpoint, digest=digest(self._model.all_arrays()).hex()))

    def _restore(self) -> None:
        checkpoint = self._journal.state.checkpoint
        if checkpoint is None:
            raise RunError("the journal names no checkpoint although training had begun.")
        try:
            self._model.load(self._journal.load_checkpoint(checkpoint, self._model.names))
        except ContentDamaged as error:
            self._go_back(error)

    def _go_back(self, damaged: ContentDamaged) -> None:
        """Takes the last round back, whose checkpoint is damaged: it is trained again from the one before it.

        The same sites are asked the same question, which they answer from their outboxes and pay for once; then the model is
        the same, bit by bit. Should one of them be away, or no longer keep its answer, it is another one, and whoever had
        answered the round after it answers that anew, and pays for it. A model that was registered is never another one. A round that was
        summed securely cannot be summed again: its sites have released their shares.

        Raises:
            ContentDamaged: the version is registered, the sum was secure, or there is no checkpoint before it that is whole.
        """
        state = self._journal.state
        if state.phase is not Phase.TRAINING or state.checkpoint_before is None or self._task.secure:
            raise damaged
        try:
            self._model.load(self._journal.load_checkpoint(state.checkpoint_before, self._model.names))
        except ContentDamaged as error:
            both = f"{damaged.message.rstrip('.')}, and so is the one before it: {error.message}"
            raise ContentDamaged(both, hint=damaged.hint) from error
        _LOG.warning(
            "run %s: %s Round %d is trained again.", self._plan.run_id, damaged.message, state.completed_rounds
        )
        self._journal.record(RoundLost(round=state.completed_rounds, reason=damaged.message, unix=self._now_unix()))

    def _round(self) -> None:
        number = self._journal.state.completed_rounds + 1
        self._close(number, self._taken_up(number) or self._asked(number))

    def _asked(self, number: int) -> OpenRound:
        """A round whose sites were asked, with what they answered."""
        self.exchange.look()
        self._joining.welcome()
        self._note_revoked(number)
        if self._payments is not None:
            for failure in self._payments.pay(self._members()):
                self._leave_out(failure, number)
        self._check_members(number)
        members = self._members()
        lost = self._journal.state.lost
        asked = self._sample(tuple(members), number) if lost is None else _again(lost.asked or lost.folded, members)
        answering = asked if lost is None else _again(lost.folded, members)
        self._journal.record(RoundOpened(round=number, asked=asked, unix=self._now_unix()))
        chosen = {site: members[site] for site in asked}
        opened = self._opened(number, chosen)
        opened.progress.refused.update(set(asked).difference(answering))
        if isinstance(self._task.aggregation, RobustRule):
            require_updates(self._task.aggregation, [chosen[site].weight for site in answering])
        work = question_of(self._task, number, answering, self._plan.seed, self._model.fixed_digest)
        for reply in self._ask(number, work, self._model.all_arrays(), opened.progress):
            try:
                opened.fold(reply)
            except UpdateRefused as error:
                opened.progress.refused.add(reply.site)
                self._leave_out(refused_by_gate(reply, error), number)
        if self._task.secure and opened.progress.decide(math.inf) is not Verdict.FAIL:
            opened.fold_sum(self._sum_securely(number, opened))
        return opened

    def _opened(self, number: int, chosen: Mapping[str, Member]) -> OpenRound:
        state = self._journal.state
        rows = sum(member.rows for member in state.members)
        algorithm = algorithm_of(self._task, rows) if self._central is None else self._central.algorithm(number, state)
        return OpenRound(self._task, number, chosen, self._model, algorithm, self._clock, state.rounds)

    def _taken_up(self, number: int) -> OpenRound | None:
        """A round whose masked sum an earlier attempt has left, with that very sum; None: there is none that comes about."""
        found = self._journal.sums.find(number) if self._task.secure else None
        members = {member.site: member for member in self._journal.state.members}
        if found is None or not members.keys() >= set(found.gathered.asked):
            return None
        opened = self._opened(number, {site: members[site] for site in found.gathered.asked})
        if opened.goal != found.sum.goal:
            _LOG.warning("run %s, round %d: a masked sum that was kept is of another model", self._plan.run_id, number)
            return None
        self._journal.record(RoundOpened(round=number, asked=found.gathered.asked, unix=self._now_unix()))
        opened.take_up(found.gathered)
        summed = self._sums.finish(found, self._summed(number, opened))
        if summed is None:
            return None
        opened.fold_sum(summed)
        return opened

    def _close(self, number: int, opened: OpenRound) -> None:
        progress, lost = opened.progress, self._journal.state.lost
        if progress.decide(math.inf) is Verdict.FAIL:
            out = self._out_of_round(number)
            rest, rule = sorted(progress.pending), self._task.aggregation
            enough = isinstance(rule, RobustRule) and progress.needed == rule.least_updates
            raise (TooFewUpdates if enough else QuorumNotReached)(
                f"round {number}: {len(progress.answered)} of {len(progress.asked)} sites answered; {progress.needed} are needed"
                f"{f': {rule.need}' if isinstance(rule, RobustRule) and enough else ''}. "
                f"{self._who_waits(out)}{f'Not waited for: {_listed(rest)}. ' if rest else ''}"
                f"Left out: {_who_is_out(out)}."
            )
        arrays = opened.move_model()
        before = self._clock()
        checkpoint = self._journal.save_checkpoint(f"round-{number}", arrays)
        self._journal.patiently(self.exchange.keep)
        took = self._clock() - before
        left_out = tuple(
            out for out in self._journal.state.left_out if out.round == number and out.site in progress.asked
        )
        noised, central = opened.noised, None
        if self._central is not None and noised is not None:
            central = self._central.told(noised, self._journal.state)
        closed = opened.closed(checkpoint, arrays, left_out, took, self._now_unix(), central)
        if lost is not None and closed.digest != lost.digest:
            _LOG.warning("run %s: round %d has another model than when it closed first", self._plan.run_id, number)
        self._journal.record(closed)
        self._journal.thin()

    @property
    def _sums(self) -> SecureSums:
        if self._secure is None:
            self._secure = SecureSums(
                self.exchange,
                self._journal.sums,
                run_id=self._plan.run_id,
                attempt=self._journal.state.attempt,
                minimum_sites=self._task.aggregation.least_updates,
                deadline_seconds=self._task.rounds.deadline_seconds,
                rounds=self._task.rounds.count,
            )
        return self._secure

    def _summed(self, number: int, opened: OpenRound) -> Summed:
        return Summed(
            number, opened.goal, opened.trained, opened.gathered, lambda failure: self._leave_out(failure, number)
        )

    def _sum_securely(self, number: int, opened: OpenRound) -> SecureSum | None:
        """The sum of the updates that sites keep; None when it did not come about, and the journal says who was lost."""
        try:
            return self._sums.sum(self._summed(number, opened))
        except SecureAggregationRefused as error:
            _LOG.warning("run %s, round %d: %s", self._plan.run_id, number, error)
            return None

    def _note_revoked(self, number: int) -> None:
        """Members that are no longer active are not asked, and the quorum does not wait for them."""
        for site in sorted(set(self._members()) - self.exchange.active):
            self._leave_out(revoked(site), number)

    def _ask(
        self, number: int, work: Mapping[str, Instruction], arrays: NamedArrays, progress: RoundProgress | None = None
    ) -> Iterator[SiteAnswer]:
        """Yields answers; sites that fail are journalled, and a round that cannot reach its quorum stops at once."""
        deadline = self._task.rounds.deadline_seconds
        for reply in self.exchange.ask(number, work, arrays, deadline_seconds=deadline):
            if isinstance(reply, SiteAnswer):
                yield reply
                continue
            self._leave_out(reply, number)
            if progress is not None:
                progress.refused.add(reply.site)
                if progress.decide(self._clock()) is Verdict.FAIL:
                    return

    def _leave_out(self, failure: SiteFailure, number: int) -> None:
        self._journal.record(SiteLeftOut(left_out=left_out_of(failure, number)))

    def _out_of_round(self, number: int) -> list[LeftOut]:
        """The newest reason of each site that this attempt left out of a round; an earlier attempt's may have passed."""
        return _newest(out for out in self._journal.state.left_out[self._out_before :] if out.round == number)

    def _out_of_run(self, number: int) -> list[LeftOut]:
        """Those of a round, those left out for good, and those that this attempt did not admit."""
        state = self._journal.state
        members = {member.site for member in state.members}
        refused = (out for out in self._out_of_round(0) if out.site not in members)
        return _newest((*state.barred, *refused, *self._out_of_round(number)))

    def _who_waits(self, out: Sequence[LeftOut]) -> str:
        """What a person is to do where a site waits for one; empty or a sentence with a space behind it."""
        sites = [o.site for o in out if waits_for_a_person(o)]
        if not sites:
            return ""
        many = "waits" if len(sites) == 1 else "wait"
        resume = f"`fedloop run resume {self._plan.run_id}`"
        return f"{_listed(sites)} {many} for a person there; when they have approved, {resume}. "

    def _members(self) -> dict[str, Member]:
        """The members that were not left out for good, in the order of their names."""
        state = self._journal.state
        barred = state.barred_sites
        return {m.site: m for m in sorted(state.members, key=lambda m: m.site) if m.site not in barred}

    def _sample(self, sites: tuple[str, ...], number: int) -> tuple[str, ...]:
        """The sites of a round. No amplification is claimed for this sampling, so any stable choice will do."""
        wanted = self._task.rounds.sites_per_round
        if wanted is None or wanted >= len(sites):
            return sites
        chosen = np.random.default_rng([self._plan.seed, number]).choice(len(sites), wanted, replace=False)
        return tuple(sites[place] for place in sorted(chosen))


def _newest(outs: Iterable[LeftOut]) -> list[LeftOut]:
    """Each site once, with its last reason, by name."""
    return [out for _, out in sorted({out.site: out for out in outs}.items())]


def _who_is_out(outs: Sequence[LeftOut], absent: Sequence[str] = ()) -> str:
    """The sites that are left out and why; of many, the first few and how many more."""
    said = [(o.site, "nobody there has approved it yet" if waits_for_a_person(o) else o.reason, o.code) for o in outs]
    named = [f"{site} ({code}: {reason.rstrip('.')})" for site, reason, code in said]
    out = {o.site for o in outs}
    named += [f"{site} (it is not connected)" for site in absent if site not in out]
    more = [f"and {len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    return "; ".join((*named[:_MOST_NAMED], *more)) or "nobody"


def _listed(sites: Sequence[str]) -> str:
    """Names as people list them; of many, the first few and how many more."""
    named = list(sites[:_MOST_NAMED])
    if len(sites) > _MOST_NAMED:
        named.append(f"{len(sites) - _MOST_NAMED} more")
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _again(sites: tuple[str, ...], members: Mapping[str, Member]) -> tuple[str, ...]:
    """Those of a lost round's sites that are members still."""
    return tuple(site for site in sites if site in members)
