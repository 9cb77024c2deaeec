"""One open round: what is asked, what is folded, and what its close says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.errors import UpdateRefused
from fedloop_core.shuffling import seed_of_round
from fedloop_core.task.document import NewtonRaphson, Task
from fedloop_core.update_gate import check_update
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction, SumDerivatives, TrainLocally
from fedloop_server.aggregation.algorithms import Algorithm
from fedloop_server.aggregation.bounding import bound_from, shortened
from fedloop_server.aggregation.central import Noised
from fedloop_server.runs.answers import evaluation_in, measured_in, spend_in
from fedloop_server.runs.events import (
    CentralRelease,
    LeftOut,
    Measured,
    Member,
    RoundClosed,
    SiteSpend,
    SiteTook,
    UpdateFolded,
)
from fedloop_server.runs.model import RunModel
from fedloop_server.runs.plausible import check_measured
from fedloop_server.runs.replies import SiteAnswer
from fedloop_server.runs.round import RoundProgress
from fedloop_server.runs.sums import Gathered
from fedloop_server.secure_aggregation.machine import Goal, SecureSum

__all__ = ["OpenRound", "question_of"]


def question_of(task: Task, number: int, sites: tuple[str, ...], seed: int, fixed: bytes) -> dict[str, Instruction]:
    """What each site is asked in a round. ``seed`` is the run's: without privacy, two runs with one seed are the same run.

    ``fixed``: digest of the weights that no round moves.
    """
    every = task.rounds.evaluate_every
    evaluate = every > 0 and number > 1 and (number - 1) % every == 0
    if isinstance(task.training, NewtonRaphson):
        return {site: Instruction(sum_derivatives=SumDerivatives(evaluate=evaluate)) for site in sites}
    work = TrainLocally(rounds_planned=task.rounds.count, evaluate=evaluate, fixed_weights=fixed)
    if not task.privacy.private:
        work.shuffle_seed = seed_of_round(seed, number)
    return {site: Instruction(train_locally=work) for site in sites}


@dataclass(frozen=True)
class _Length:
    """The norm of a site's update as it came, and what it was scaled down to."""

    site: str
    came: float
    bounded_to: float | None


class OpenRound:
    """Folds answers as they come and keeps what the algorithm needs of them and what they say in words and numbers.

    ``earlier`` are the rounds that have closed: the bound of this round's norms follows from them.
    """

    def __init__(
        self,
        task: Task,
        number: int,
        members: Mapping[str, Member],
        model: RunModel,
        algorithm: Algorithm,
        clock: Callable[[], float],
        earlier: Sequence[RoundClosed] = (),
    ) -> None:
        self._task = task
        self._number = number
        self._members = members
        self._model = model
        self._clock = clock
        self._began = clock()
        self._ended = self._began
        self._folding = 0.0  # seconds
        rounds = task.rounds
        self.progress = RoundProgress(
            frozenset(members),
            rounds.quorum,
            self._began + rounds.deadline_seconds,
            least=task.aggregation.least_updates,
        )
        self._fold = algorithm.begin(model.trained, sum(member.weight for member in members.values()))
        self._bound = _bound(task, earlier) if self._fold.clip is None else None
        self._lengths: list[_Length] = []
        self._measured: list[Measured] = []
        self._spends: list[SiteSpend] = []
        self._took: list[SiteTook] = []
        self._updates: tuple[UpdateFolded, ...] = ()

    def fold(self, reply: SiteAnswer) -> None:
        """Adds one answer.

        Raises:
            UpdateRefused: it must not be aggregated; nothing of it was.
        """
        before = self._clock()
        member = self._members[reply.site]
        found = measured_in(reply.site, self._task.label, evaluation_in(reply.answer))
        for measured in found:
            check_measured(measured, member, self._task)
        if isinstance(self._task.training, NewtonRaphson):
            self._fold.add(reply.arrays)
        elif self._task.secure:
            _check_kept(reply)
        else:
            self._lengths.append(self._fold_update(reply, member.weight))
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

    def _fold_update(self, reply: SiteAnswer, weight: int) -> _Length:
        came = check_update(reply.arrays, self._fold.spec, maximum_norm=self._task.gates.update.maximum_norm)
        if self._bound is None or came <= self._bound:
            self._fold.add(reply.arrays, weight, norm=came)
            clip = self._fold.clip
            return _Length(reply.site, came, None if clip is None or came <= clip else clip)
        self._fold.add(shortened(reply.arrays, came, self._bound), weight, norm=self._bound)
        return _Length(reply.site, came, self._bound)

    @property
    def goal(self) -> Goal:
        """What secure aggregation is to sum."""
        gate, total = self._task.gates.update, sum(member.weight for member in self._members.values())
        model = digest(self._model.all_arrays())
        return Goal(self._task.digest, model, self._fold.spec.size, gate.maximum_norm, total)

    @property
    def trained(self) -> dict[str, int]:
        """The weights of the sites that have answered."""
        return {site: self._members[site].weight for site in sorted(self.progress.answered)}

    @property
    def gathered(self) -> Gathered:
        """What is known of the round while its sum is made."""
        return Gathered(
            asked=tuple(sorted(self.progress.asked)),
            answered=tuple(sorted(self.progress.answered)),
            measured=tuple(self._measured),
            spends=tuple(self._spends),
            took=tuple(self._took),
        )

    def take_up(self, gathered: Gathered) -> None:
        """Goes on from what an earlier process knew."""
        self.progress.answered.update(gathered.answered)
        self.progress.refused.update(set(gathered.asked).difference(gathered.answered))
        self._measured.extend(gathered.measured)
        self._spends.extend(gathered.spends)
        self._took.extend(gathered.took)

    def fold_sum(self, summed: SecureSum | None) -> None:
        """Adds the sum that secure aggregation gave; sites whose update is not in it have not answered.

        Raises:
            UpdateRefused: it cannot be a sum of updates within the bounds.
        """
        survivors = set(summed.survivors) if summed is not None else set()
        self.progress.refused.update(self.progress.answered - survivors)
        self.progress.answered.intersection_update(survivors)
        if summed is not None:
            self._fold.add_whole(summed.whole, [self._members[site].weight for site in summed.survivors])

    def move_model(self) -> NamedArrays:
        """The step that the answers give; returns all arrays of the model.

        Raises:
            RunError: they give none: the rule's condition does not hold, or they cannot be compared.
        """
        before = self._clock()
        self._model.trained, shares = self._fold.move(self._model.trained)
        if self._lengths:
            self._updates = tuple(
                UpdateFolded(site=of.site, norm=of.came, bounded_to=of.bounded_to, share=min(share, 1.0))
                for of, share in zip(self._lengths, shares, strict=True)
            )
        self._ended = self._clock()
        self._waited = max(before - self._began - self._folding, 0.0)
        self._folding += self._ended - before
        return self._model.all_arrays()

    @property
    def noised(self) -> Noised | None:
        """What noise moved the model with the updates; None: none did."""
        return self._fold.noised

    def closed(
        self,
        checkpoint: str,
        arrays: NamedArrays,
        left_out: tuple[LeftOut, ...],
        checkpointing_seconds: float,
        unix: float,
        central: CentralRelease | None = None,
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
            updates=tuple(sorted(self._updates, key=lambda u: u.site)),
            central=central,
            waiting_seconds=self._waited,
            aggregating_seconds=max(self._folding, 0.0),
            checkpointing_seconds=max(checkpointing_seconds, 0.0),
            unix=unix,
        )


def _check_kept(reply: SiteAnswer) -> None:
    """Where sites mask their updates, no plain one is taken."""
    if reply.arrays:
        raise UpdateRefused(
            f"site {reply.site} sent its update, which it was to keep and to mask.", reason="not-masked"
        )


def _bound(task: Task, earlier: Sequence[RoundClosed]) -> float | None:
    """The greatest norm of this round's updates, by those of earlier rounds."""
    told = [{update.site: update.folded_norm for update in closed.updates} for closed in earlier if closed.updates]
    return bound_from(told, task.gates.update.norm_bound)
