"""The sum of a round by secure aggregation: the machine's questions over the exchange, and another try when one is given up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.encoding import decode, decode_masked, encode
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import (
    Advertisement,
    Confirmation,
    Question,
    SharedKeys,
    Unmasking,
)
from fedloop_proto.coordination.v1.coordination_pb2 import AggregateSecurely, Instruction
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.replies import SiteAnswer, SiteFailure
from fedloop_server.secure_aggregation.machine import Goal, SecureRound, SecureSum

__all__ = ["SecureSummation"]

_LOG = logging.getLogger(__name__)
_TRIES = 3
_NUMBERS_OF_AN_ATTEMPT = 16  # a try of a later attempt has a higher number than all of an earlier one


@dataclass(frozen=True)
class SecureSummation:
    """Sums the updates that sites hold for one round.

    ``fail`` is told of each site that does not go through a stage. ``weights`` are the agreed ones of the sites that have trained.
    """

    exchange: Exchange
    run_id: str
    attempt: int
    round: int
    minimum_sites: int
    deadline_seconds: float
    weights: Mapping[str, int]
    fail: Callable[[SiteFailure], None]

    def sum(self, goal: Goal) -> SecureSum:
        """The sum; sites that were lost in one try are not asked in the next.

        Raises:
            AttemptBehind, RunCancelled: as the exchange.
            SecureAggregationRefused: no try came to its end; of the last one, why.
        """
        keys = {site: key for site, key in self.exchange.keys.items() if site in self.weights}
        for number in range(1, _TRIES + 1):
            instance = Instance(self.run_id, self.round, self.attempt * _NUMBERS_OF_AN_ATTEMPT + number)
            machine = SecureRound(instance, keys, minimum_sites=self.minimum_sites)
            try:
                summed = self._through(machine, goal)
            except SecureAggregationRefused as error:
                lost = {dropped.site for dropped in machine.dropped}
                keys = {site: key for site, key in keys.items() if site not in lost}
                if number == _TRIES or len(keys) < self.minimum_sites or not lost:
                    raise
                _LOG.warning("run %s, round %d: %s Another try follows.", self.run_id, self.round, error.message)
                continue
            return summed
        raise SecureAggregationRefused("no sum was tried.", reason="survivors")

    def _through(self, machine: SecureRound, goal: Goal) -> SecureSum:
        """One try, through all stages.

        Raises:
            SecureAggregationRefused: it was given up, or the weights are not the agreed ones.
        """
        self._ask(machine, "advertise_keys", machine.ask_keys(), _take_keys)
        self._ask(machine, "share_keys", machine.ask_shares(goal), _take_shares)
        self._ask(machine, "mask_input", machine.ask_inputs(), _take_input)
        self._ask(machine, "confirm_survivors", machine.ask_survivors(), _take_confirmation)
        self._ask(machine, "unmask", machine.ask_unmasking(), _take_unmasking)
        summed = machine.sum()
        agreed = sum(self.weights[site] for site in summed.survivors)
        if summed.weight != agreed:
            raise SecureAggregationRefused(
                f"the sum has weight {summed.weight}; its sites have {agreed}: one did not mask what was agreed.",
                reason="weight",
            )
        return summed

    def _ask(
        self, machine: SecureRound, field: str, questions: Mapping[str, Question], take: Callable[..., None]
    ) -> None:
        work = {
            site: Instruction(aggregate_securely=AggregateSecurely(**{field: encode(question)}))
            for site, question in questions.items()
        }
        for reply in self.exchange.ask(self.round, work, {}, deadline_seconds=self.deadline_seconds):
            if isinstance(reply, SiteFailure):
                machine.drop(reply.site, reply.fields.get("reason", reply.code), peer=reply.fields.get("peer", ""))
                self.fail(reply)
                continue
            try:
                take(machine, reply.site, _content(reply), reply.arrays)
            except SecureAggregationRefused as error:
                reason = str(error.fields.get("reason", error.code))
                machine.drop(reply.site, reason)
                self.fail(
                    SiteFailure(reply.site, error.code, error.wire().fields, error.message, traffic=reply.traffic)
                )


def _content(reply: SiteAnswer) -> bytes:
    return reply.answer.securely_aggregated.answer


def _take_keys(machine: SecureRound, site: str, content: bytes, _: NamedArrays) -> None:
    machine.take_keys(site, decode(Advertisement, content))


def _take_shares(machine: SecureRound, site: str, content: bytes, _: NamedArrays) -> None:
    machine.take_shares(site, decode(SharedKeys, content))


def _take_input(machine: SecureRound, site: str, content: bytes, arrays: NamedArrays) -> None:
    if tuple(arrays) != ("masked",):
        raise SecureAggregationRefused("an answer brings no masked vector.", reason="format")
    machine.take_input(site, decode_masked(content, arrays["masked"]))


def _take_confirmation(machine: SecureRound, site: str, content: bytes, _: NamedArrays) -> None:
    machine.take_confirmation(site, decode(Confirmation, content))


def _take_unmasking(machine: SecureRound, site: str, content: bytes, _: NamedArrays) -> None:
    machine.take_unmasking(site, decode(Unmasking, content))
