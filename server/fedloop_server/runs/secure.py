"""The sum of a round by secure aggregation: the machine's questions over the exchange, and another try when one is given up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.encoding import decode, decode_masked, encode
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import (
    AdvertiseKeys,
    Advertisement,
    Confirmation,
    SharedKeys,
    Unmasking,
)
from fedloop_proto.coordination.v1.coordination_pb2 import AggregateSecurely, Instruction, SecurelyAggregated
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.replies import SiteFailure
from fedloop_server.runs.sums import FoundSum, Gathered, KeptSums
from fedloop_server.secure_aggregation.machine import Goal, SecureRound, SecureSum

__all__ = ["SecureSums", "Summed"]

_LOG = logging.getLogger(__name__)
_TRIES = 3
_Take = Callable[[SecureRound, str, SecurelyAggregated, NamedArrays], None]
_NUMBERS_OF_AN_ATTEMPT = 16  # a try of a later attempt has a higher number than all of an earlier one


@dataclass(frozen=True)
class Summed:
    """What a round has to sum: the agreed weights of the sites that have trained, and who is told of each site that is lost.

    ``gathered`` is what else the round knows.
    """

    round: int
    goal: Goal
    weights: Mapping[str, int]
    gathered: Gathered
    fail: Callable[[SiteFailure], None]


class SecureSums:
    """Sums, round by round, the updates that sites hold, in one attempt of a run.

    With the last question of a round sites tell their keys for the next: a round has four questions, the first one five.

    Args:
        exchange: reaches the sites.
        kept: what another process needs to finish a sum.
        run_id: of the run.
        attempt: its number.
        minimum_sites: fewest behind a sum.
        deadline_seconds: that each question waits.
        rounds: of the run.
    """

    def __init__(
        self,
        exchange: Exchange,
        kept: KeptSums,
        *,
        run_id: str,
        attempt: int,
        minimum_sites: int,
        deadline_seconds: float,
        rounds: int,
    ) -> None:
        self._exchange = exchange
        self._kept = kept
        self._run_id = run_id
        self._attempt = attempt
        self._minimum = minimum_sites
        self._deadline = deadline_seconds
        self._rounds = rounds
        self._next: SecureRound | None = None

    def sum(self, summed: Summed) -> SecureSum:
        """The sum; sites that were lost in one try are not asked in the next.

        None follows one whose shares were asked for: who has released them takes part in no other, and what is missing another attempt
        may still be told.

        Raises:
            AttemptBehind, RunCancelled: as the exchange.
            SecureAggregationRefused: no try came to its end; of the last one, why. Or the weights exceed the goal's, and the sum could wrap
                around: then nobody is asked.
            StorageError: what another process would need cannot be kept.
        """
        sites, total = set(summed.weights), sum(summed.weights.values())
        if total > summed.goal.total_weight:
            raise SecureAggregationRefused(
                f"the sites of the sum weigh {total} together; it was to be {summed.goal.total_weight} at most.",
                reason="weight",
            )
        for number in range(1, _TRIES + 1):
            machine = self._machine(summed.round, number)
            machine.keep_only(sites)
            try:
                return self._through(machine, summed)
            except SecureAggregationRefused as error:
                lost = {dropped.site for dropped in machine.dropped}
                asked = machine.unmaskable is not None
                if asked or number == _TRIES or len(sites - lost) < self._minimum or not lost:
                    raise
                sites -= lost
                _LOG.warning("run %s, round %d: %s Another try follows.", self._run_id, summed.round, error.message)
        raise SecureAggregationRefused("no sum was tried.", reason="survivors")

    def finish(self, found: FoundSum, summed: Summed) -> SecureSum | None:
        """The very sum whose shares an earlier attempt has asked for, or was about to; None: it does not come about.

        Sites that still hold what they had answered answer the same; no more of them are asked than the sum needs.

        Raises:
            AttemptBehind, RunCancelled: as the exchange.
            StorageError: an answer cannot be kept.
        """
        lost: list[SiteFailure] = []
        try:
            machine = SecureRound.unmasking(found.sum, found.masked, minimum_sites=self._minimum)
            for site, answer in found.answers.items():
                machine.take_unmasking(site, decode(Unmasking, answer))
            if not machine.has_enough_shares:
                self._unmask(machine, replace(summed, fail=lost.append))
            result = self._as_agreed(machine.sum(), summed)
        except SecureAggregationRefused as error:  # the round begins another, and says then who is lost
            _LOG.warning(
                "run %s, round %d: the sum of an earlier attempt is given up: %s", self._run_id, summed.round, error
            )
            return None
        for failure in lost:
            summed.fail(failure)
        return result

    def _machine(self, round_: int, number: int) -> SecureRound:
        """That of a try; of the first one, where sites have told keys for it already, with these."""
        told = self._next
        if told is not None and told.instance.round == round_ and number == 1:
            self._next = None
            return told
        instance = Instance(self._run_id, round_, self._attempt * _NUMBERS_OF_AN_ATTEMPT + number)
        return SecureRound(instance, self._exchange.keys, minimum_sites=self._minimum)

    def _through(self, machine: SecureRound, summed: Summed) -> SecureSum:
        """One try, through all stages.

        Raises:
            SecureAggregationRefused: it was given up, or the weights are not the agreed ones.
        """
        keys = machine.ask_keys()
        if keys:
            self._ask(machine, summed, {site: _keys(asked) for site, asked in keys.items()}, _take_keys)
        for field, ask, take in (
            ("share_keys", lambda: machine.ask_shares(summed.goal), _take_shares),
            ("mask_input", machine.ask_inputs, _take_input),
            ("confirm_survivors", machine.ask_survivors, _take_confirmation),
        ):
            work = {site: AggregateSecurely(**{field: encode(asked)}) for site, asked in ask().items()}
            self._ask(machine, summed, work, take)
        machine.ask_unmasking()
        if machine.unmaskable is not None:
            self._kept.keep(machine.unmaskable, summed.gathered, machine.masked)
        self._unmask(machine, summed)
        return self._as_agreed(machine.sum(), summed)

    @staticmethod
    def _as_agreed(result: SecureSum, summed: Summed) -> SecureSum:
        agreed = sum(summed.weights[site] for site in result.survivors)
        if result.weight != agreed:
            raise SecureAggregationRefused(
                f"the sum has weight {result.weight}; its sites have {agreed}: one did not mask what was agreed.",
                reason="weight",
            )
        return result

    def _unmask(self, machine: SecureRound, summed: Summed) -> None:
        """The last question, and beside it that for the keys of the next round."""
        following: dict[str, AdvertiseKeys] = {}
        if summed.round < self._rounds:
            if self._next is None or self._next.instance.round != summed.round + 1:
                self._next = self._machine(summed.round + 1, 1)
            following = self._next.ask_keys()
        work = {}
        for site, asked in machine.ask_unmasking().items():
            work[site] = AggregateSecurely(unmask=encode(asked))
            if site in following:
                work[site].advertise_keys = encode(following[site])
        self._ask(machine, summed, work, self._take_unmasking)

    def _take_unmasking(self, machine: SecureRound, site: str, told: SecurelyAggregated, _: NamedArrays) -> None:
        machine.take_unmasking(site, decode(Unmasking, told.answer))
        self._kept.add(machine.instance.round, site, told.answer)
        if self._next is not None and told.advertisement:
            try:
                self._next.take_keys(site, decode(Advertisement, told.advertisement))
            except SecureAggregationRefused as error:
                _LOG.warning("run %s: site %s has told no keys for the next round: %s", self._run_id, site, error)

    def _ask(self, machine: SecureRound, summed: Summed, asked: Mapping[str, AggregateSecurely], take: _Take) -> None:
        work = {site: Instruction(aggregate_securely=question) for site, question in asked.items()}
        for reply in self._exchange.ask(summed.round, work, {}, deadline_seconds=self._deadline):
            if isinstance(reply, SiteFailure):
                machine.drop(reply.site, reply.fields.get("reason", reply.code), peer=reply.fields.get("peer", ""))
                summed.fail(reply)
                continue
            try:
                take(machine, reply.site, reply.answer.securely_aggregated, reply.arrays)
            except SecureAggregationRefused as error:
                machine.drop(reply.site, str(error.fields.get("reason", error.code)))
                failure = SiteFailure(reply.site, error.code, error.wire().fields, error.message, traffic=reply.traffic)
                summed.fail(failure)


def _keys(asked: AdvertiseKeys) -> AggregateSecurely:
    return AggregateSecurely(advertise_keys=encode(asked))


def _take_keys(machine: SecureRound, site: str, told: SecurelyAggregated, _: NamedArrays) -> None:
    machine.take_keys(site, decode(Advertisement, told.advertisement))


def _take_shares(machine: SecureRound, site: str, told: SecurelyAggregated, _: NamedArrays) -> None:
    machine.take_shares(site, decode(SharedKeys, told.answer))


def _take_input(machine: SecureRound, site: str, told: SecurelyAggregated, arrays: NamedArrays) -> None:
    if tuple(arrays) != ("masked",):
        raise SecureAggregationRefused("an answer brings no masked vector.", reason="format")
    machine.take_input(site, decode_masked(told.answer, arrays["masked"]))


def _take_confirmation(machine: SecureRound, site: str, told: SecurelyAggregated, _: NamedArrays) -> None:
    machine.take_confirmation(site, decode(Confirmation, told.answer))
