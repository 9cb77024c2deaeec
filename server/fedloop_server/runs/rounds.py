"""One open round: what is asked, what is folded, and what its close says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.shuffling import seed_of_round
from fedloop_core.task.document import NewtonRaphson, Task
from fedloop_core.update_gate import check_update
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction, SumDerivatives, TrainLocally
from fedloop_server.aggregation.algorithms import Algorithm
from fedloop_server.runs.answers import evaluation_in, measured_in, spend_in
from fedloop_server.runs.events import LeftOut, Measured, Member, RoundClosed, SiteSpend, SiteTook
from fedloop_server.runs.model import RunModel
from fedloop_server.runs.plausible import check_measured
from fedloop_server.runs.replies import SiteAnswer
from fedloop_server.runs.round import RoundProgress

__all__ = ["OpenRound", "question_of"]


def question_of(task: Task, number: int, sites: tuple[str, ...], seed: int) -> dict[str, Instruction]:
    """What each site is asked in a round. ``seed`` is the run's: without privacy, two runs with one seed are the same run."""
    every = task.rounds.evaluate_every
    evaluate = every > 0 and number > 1 and (number - 1) % every == 0
    if isinstance(task.training, NewtonRaphson):
        return {site: Instruction(sum_derivatives=SumDerivatives(evaluate=evaluate)) for site in sites}
    work = TrainLocally(rounds_planned=task.rounds.count, evaluate=evaluate)
    if not task.privacy.private:
        work.shuffle_seed = seed_of_round(seed, number)
    return {site: Instruction(train_locally=work) for site in sites}


class OpenRound:
    """Folds answers as they come and keeps nothing of them but the sums and what they say in words and numbers."""

    def __init__(
        self,
        task: Task,
        number: int,
        members: Mapping[str, Member],
        model: RunModel,
        algorithm: Algorithm,
        clock: Callable[[], float],
    ) -> None:
        self._task = task
        self._number = number
        self._members = members
        self._model = model
        self._algorithm = algorithm
        self._clock = clock
        self._began = clock()
        self._ended = self._began
        self._folding = 0.0  # seconds
        rounds = task.rounds
        self.progress = RoundProgress(frozenset(members), rounds.quorum, self._began + rounds.deadline_seconds)
        self._sums = algorithm.accumulator(model.trained, sum(member.weight for member in members.values()))
        self._measured: list[Measured] = []
        self._spends: list[SiteSpend] = []
        self._took: list[SiteTook] = []

    def fold(self, reply: SiteAnswer) -> None:
        """Adds one answer to the sums.

        Raises:
            UpdateRefused: it must not be aggregated; nothing of it was.
        """
        before = self._clock()
        member = self._members[reply.site]
        found = measured_in(reply.site, self._task.label, evaluation_in(reply.answer))
        for measured in found:
            check_measured(measured, member, self._task)
        if isinstance(self._task.training, NewtonRaphson):
            self._sums.add(reply.arrays)
        else:
            length = check_update(reply.arrays, self._sums.spec, maximum_norm=self._task.gates.update.maximum_norm)
            self._sums.add(reply.arrays, member.weight, norm=length)
        self.progress.answered.add(reply.site)
        self._measured.extend(found)
        self._spends.extend(spend_in(reply.site, reply.answer))
        traffic = reply.traffic
        self._took.append(
            SiteTook(
                site=reply.site,
                seconds=max(traffic.seconds, 0.0),
                bytes_out=traffic.bytes_out,
                bytes_in=traffic.bytes_in,
            )
        )
        self._folding += self._clock() - before

    def move_model(self) -> NamedArrays:
        """The step that the sums give; returns all arrays of the model."""
        before = self._clock()
        self._model.trained = self._algorithm.step(self._model.trained, self._sums)
        self._ended = self._clock()
        self._waited = max(before - self._began - self._folding, 0.0)
        self._folding += self._ended - before
        return self._model.all_arrays()

    def closed(
        self,
        checkpoint: str,
        arrays: NamedArrays,
        left_out: tuple[LeftOut, ...],
        checkpointing_seconds: float,
        unix: float,
    ) -> RoundClosed:
        """The event that ends the round."""
        return RoundClosed(
            round=self._number,
            folded=tuple(sorted(self.progress.answered)),
            checkpoint=checkpoint,
            digest=digest(arrays).hex(),
            measured=tuple(sorted(self._measured, key=lambda m: m.site)),
            spends=tuple(sorted(self._spends, key=lambda s: s.site)),
            asked=tuple(sorted(self.progress.asked)),
            took=tuple(sorted(self._took, key=lambda t: t.site)),
            left_out=left_out,
            waiting_seconds=self._waited,
            aggregating_seconds=max(self._folding, 0.0),
            checkpointing_seconds=max(checkpointing_seconds, 0.0),
            unix=unix,
        )
