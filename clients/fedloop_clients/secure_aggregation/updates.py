"""Secure aggregation as a site's daemon does it: which update a question is about, and the machine of its run."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedloop_clients.outbox import KeptResult, Outbox
from fedloop_clients.secure_aggregation.machine import AggregatingSite
from fedloop_clients.secure_aggregation.policy import AggregationPolicy, floor_of
from fedloop_clients.secure_aggregation.promises import Promise
from fedloop_clients.secure_aggregation.states import Expected
from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.errors import EnvelopeRefused, PolicyRefused, SecureAggregationRefused
from fedloop_core.federation.rules import PolicyRule
from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.encoding import decode, encode
from fedloop_core.secure_aggregation.identity import Consortium, Instance
from fedloop_core.secure_aggregation.messages import (
    AdvertiseKeys,
    Answer,
    ConfirmSurvivors,
    MaskedInput,
    MaskInput,
    Question,
    ShareKeys,
    Unmask,
)
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer as Stored
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction, SecurelyAggregated

__all__ = ["ConsortiumSource", "SecureUpdates"]

ConsortiumSource = Callable[[], Consortium | None]
"""With whom the site sums, as its people have it now; None: with nobody."""

_LOG = logging.getLogger(__name__)
_KINDS: dict[str, type[Question]] = {
    "share_keys": ShareKeys,
    "mask_input": MaskInput,
    "confirm_survivors": ConfirmSurvivors,
    "unmask": Unmask,
}
_RUNS_KEPT = 4
_UPDATES_KEPT = 8


class _Kept:
    """Promises in the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def read(self, instance: Instance) -> Promise:
        return self._outbox.read_promise(instance)

    def write(self, promise: Promise) -> None:
        self._outbox.write_promise(promise)


@dataclass(frozen=True)
class _Bound:
    """The machine of a run, and the rules under which it began: digest of the consortium and fewest sites."""

    rules: tuple[str, int]
    machine: AggregatingSite


class SecureUpdates:
    """The updates of one site that leave it masked only. Calls must not overlap.

    Args:
        site: its name.
        key: its identity.
        consortium: says with whom it sums at the moment, as its people were told; None: with nobody, and such tasks are refused.
        asked: says the fewest sites behind a sum that its people ask for; None: more than two thirds of the consortium. A task may ask for more,
            never for fewer.
        outbox: where its updates and promises are.
    """

    def __init__(
        self,
        site: str,
        key: SigningKey,
        consortium: ConsortiumSource,
        asked: Callable[[], int | None],
        outbox: Outbox,
    ) -> None:
        self._site = site
        self._key = key
        self._consortium = consortium
        self._asked = asked
        self._outbox = outbox
        self._machines: OrderedDict[str, _Bound] = OrderedDict()
        self._updates: OrderedDict[tuple[str, int], Expected] = OrderedDict()

    def require_consortium(self, task: Task) -> Consortium | None:
        """The consortium of a task that asks for secure aggregation; None for other tasks.

        Raises:
            PolicyRefused: nobody at the site has said who is in it, it has another key for the site itself, too few sites for any sum, or the
                task asks too few of them a round.
            SecureAggregationRefused: two sites of it have one key.
            StorageError: it cannot be read.
        """
        if not task.secure:
            return None
        consortium = self._consortium()
        if consortium is None:
            raise self._refused(
                f"task {task.name!r} asks for secure aggregation, and this site knows no consortium.",
                "At the site: fedloop site consortium accept FILE, after its people have compared it with the other sites'.",
            )
        own = consortium.keys.get(self._site)
        if own is None or own.raw != self._key.verifying.raw:
            raise self._refused(
                "the consortium that was accepted here has not this site's own key.",
                "At the site: accept a newer file, written after the site has joined.",
            )
        least, most = self._floor(task, consortium), task.rounds.sites_per_round
        if len(consortium.keys) < least:
            raise self._refused(
                f"the consortium that was accepted here has {len(consortium.keys)} sites, and each sum needs {least}.",
                "At the site: accept a file with more sites, or lower policy.minimum_sites.",
            )
        if most is not None and most < least:
            raise self._refused(
                f"task {task.name!r} asks {most} sites a round, and each sum that this site is in needs {least}.",
                "At the site: lower policy.minimum_sites, where its people want that. In the task: raise rounds.sites_per_round.",
            )
        return consortium

    def _refused(self, why: str, hint: str) -> PolicyRefused:
        return PolicyRefused(f"site {self._site}: {why}", hint=hint, rule=PolicyRule.CONSORTIUM.value)

    def _floor(self, task: Task, consortium: Consortium) -> int:
        """Fewest sites behind a sum: those that the site asks for, or more where the task does."""
        by_task = task.aggregation.minimum_sites if isinstance(task.aggregation, Mean) else 0
        return max(floor_of(self._asked(), len(consortium.keys)), by_task)

    def require_same(self, instruction: Instruction, task: Task, key: bytes) -> None:
        """Refuses another training of a round than the one, ``key``, that an instance of it was agreed on for, before anything is charged.

        Raises:
            SecureAggregationRefused: reason ``update``.
            StorageError: what was agreed cannot be read.
        """
        if not task.secure:
            return
        agreed = self._outbox.read_promise(Instance(instruction.run_id, instruction.round, 1)).update
        if agreed not in ("", key.hex()):
            raise SecureAggregationRefused(
                f"site {self._site} has agreed to sum its update of round {instruction.round}, and trains the round on nothing else.",
                hint="Ask for the round as it was asked for first, or start a new run.",
                reason="update",
            )

    def keep(self, instruction: Instruction, task: Task, key: bytes, stored: KeptResult) -> None:
        """Remembers the update of a round, which the outbox keeps under ``key``, as what may leave masked."""
        weight = Stored.FromString(stored.answer).local_update.weight
        self._updates[instruction.run_id, instruction.round] = Expected(
            task.digest,
            instruction.arrays_digest,
            ArraySpec.of(stored.arrays),
            task.gates.update.maximum_norm,
            weight,
            key,
        )
        while len(self._updates) > _UPDATES_KEPT:
            self._updates.popitem(last=False)

    def answer(self, instruction: Instruction, task: Task) -> tuple[SecurelyAggregated, NamedArrays]:
        """Answers a question; the answer and its arrays.

        Keys that are asked for beside a question are for the round after it. When they are refused the question is answered all the
        same: what it releases is released once.

        Raises:
            EnvelopeRefused: the task asks for no secure aggregation, or the question is of another round than its instruction.
            PolicyRefused: the site knows no consortium.
            SecureAggregationRefused: the question does not fit, or there is no update of this round.
            StorageError: what the site binds itself to cannot be kept; nothing leaves.
        """
        consortium = self.require_consortium(task)
        if consortium is None:
            raise EnvelopeRefused(f"site {self._site}: this task asks for no secure aggregation.", reason="work")
        asked, machine = instruction.aggregate_securely, self._machine(instruction.run_id, task, consortium)
        which = asked.WhichOneof("question")
        if which is None:
            keys = decode(AdvertiseKeys, asked.advertise_keys)
            self._require_round(instruction, keys, 0)
            return SecurelyAggregated(advertisement=encode(machine.advertise(keys))), {}
        question = decode(_KINDS[which], getattr(asked, which))
        self._require_round(instruction, question, 0)
        answer = self._answer(machine, question)
        vector = {"masked": answer.masked.view(np.int64)} if isinstance(answer, MaskedInput) else {}
        told = SecurelyAggregated(answer=encode(answer))
        if asked.advertise_keys:
            told.advertisement = self._next_keys(machine, instruction)
        return told, vector

    def _next_keys(self, machine: AggregatingSite, instruction: Instruction) -> bytes:
        try:
            keys = decode(AdvertiseKeys, instruction.aggregate_securely.advertise_keys)
            self._require_round(instruction, keys, 1)
            return encode(machine.advertise(keys))
        except (EnvelopeRefused, SecureAggregationRefused) as error:
            _LOG.warning("site %s tells no keys for the next round: %s", self._site, error)
            return b""

    def _require_round(self, instruction: Instruction, question: Question, later: int) -> None:
        instance = question.instance
        if (instance.run_id, instance.round) != (instruction.run_id, instruction.round + later):
            raise EnvelopeRefused(f"site {self._site}: a question is of another run or round.", reason="altered")

    def _answer(self, machine: AggregatingSite, question: Question) -> Answer:
        match question:
            case ShareKeys():
                return machine.share_keys(question, self._trained(question.instance))
            case MaskInput():
                return machine.mask(question, lambda key: self._arrays(question.instance, key))
            case ConfirmSurvivors():
                return machine.confirm(question)
            case Unmask():
                return machine.unmask(question)
            case AdvertiseKeys():
                raise EnvelopeRefused(f"site {self._site}: keys are asked for beside a question.", reason="work")

    def _machine(self, run_id: str, task: Task, consortium: Consortium) -> AggregatingSite:
        """The run's machine; with it go the secrets of a run that was not asked about for long, or whose rules are others now.

        A sum that was begun under other rules is given up: its promises are in the outbox, and hold.
        """
        rules = consortium.digest, self._floor(task, consortium)
        bound = self._machines.get(run_id)
        if bound is None or bound.rules != rules:
            policy, kept = AggregationPolicy(rules[1]), _Kept(self._outbox)
            machine = AggregatingSite(self._site, self._key, consortium=consortium, policy=policy, promises=kept)
            bound = self._machines[run_id] = _Bound(rules, machine)
        self._machines.move_to_end(run_id)
        while len(self._machines) > _RUNS_KEPT:
            self._machines.popitem(last=False)
        return bound.machine

    def _trained(self, instance: Instance) -> Expected:
        trained = self._updates.get((instance.run_id, instance.round))
        if trained is None:
            raise self._none(instance)
        return trained

    def _arrays(self, instance: Instance, key: bytes) -> NamedArrays:
        kept = self._outbox.find(key)
        if kept is None:
            raise self._none(instance)
        return kept.arrays

    def _none(self, instance: Instance) -> SecureAggregationRefused:
        return SecureAggregationRefused(
            f"site {self._site} has no update of round {instance.round} at hand.",
            hint="Ask it for the round first: an update that it has trained is kept, and costs nothing more.",
            reason="no-update",
        )
