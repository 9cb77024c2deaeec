"""Asking sites over Flower's Grid and taking their answers one by one as they arrive.

One message for each site; one message id a pull, since the grid hands over every ready reply of the ids it is given and
memory would grow with the number of sites. A reply that is not what was asked for becomes a failure of that site and never
an exception: one bad site does not stop the others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.errors import FedloopError, UpdateRefused
from fedloop_core.federation.names import is_site_name
from fedloop_core.federation.records import (
    DESCRIBE,
    EVALUATE,
    IDENTIFY,
    MOMENTS,
    TRAIN,
    array_record,
    pack,
    parts,
    unpack,
)
from fedloop_core.keys import SigningKey, seal
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Instruction

__all__ = ["Exchange", "NearGrid", "SiteAnswer", "SiteFailure"]

_LOG = logging.getLogger(__name__)

_KINDS: Mapping[str, tuple[str, str]] = {  # of work: the message's type, and the field of the answer
    "describe_data": (DESCRIBE, "data_description"),
    "collect_moments": (MOMENTS, "moments"),
    "train_locally": (TRAIN, "local_update"),
    "sum_derivatives": (TRAIN, "derivatives"),
    "evaluate_artifact": (EVALUATE, "evaluation"),
}
_NO_REPLY = "FL-RUN-010"
_BROKEN_REPLY = "FL-RUN-011"


@dataclass(frozen=True)
class SiteAnswer:
    """What a site answered, checked to belong to the question."""

    site: str
    answer: Answer
    arrays: dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class SiteFailure:
    """Why a site has no answer: a code, the fields that it sent along, and a sentence."""

    site: str
    code: str
    fields: Mapping[str, str]
    reason: str


@runtime_checkable
class NearGrid(Protocol):
    """A grid over nodes of this machine: each message costs the same alone, and replies are noticed as they come."""

    def wait(self, seconds: float) -> None:
        """Returns when a reply may be there, at the latest after ``seconds``."""


class Exchange:
    """Questions and answers of one attempt of a run.

    ``clock`` is monotonic seconds; ``now_unix`` wall seconds for the expiry of instructions. A grid is asked again every
    ``poll_seconds``; a ``NearGrid`` as soon as a reply comes, and its sites begin before all questions are sealed.
    """

    def __init__(
        self,
        grid: Grid,
        key: SigningKey,
        *,
        run_id: str,
        attempt: int,
        task_digest: bytes,
        clock: Callable[[], float] = time.monotonic,
        now_unix: Callable[[], float] = time.time,
        poll_seconds: float = 0.05,
    ) -> None:
        self._grid = grid
        self._near = grid if isinstance(grid, NearGrid) else None
        self._key = key
        self._run_id = run_id
        self._attempt = attempt
        self._task_digest = task_digest
        self._clock = clock
        self._now_unix = now_unix
        self._poll_seconds = poll_seconds
        self._nodes: dict[str, int] = {}
        self._nameless: set[int] = set()  # nodes of which the log has said that they are taken for no site

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites that identified themselves, sorted."""
        return tuple(sorted(self._nodes))

    def gather(self, expected: int, deadline_seconds: float) -> tuple[str, ...]:
        """Waits until ``expected`` sites are there or the deadline has passed; returns their names, sorted.

        A name belongs to the first node that says it, for as long as that node is there: sites do not sign what they say
        yet, so nobody takes over another's name. Nodes without a name of their own are asked again, since a site that
        was started anew may have to wait until its old node is gone.
        """
        deadline = self._clock() + deadline_seconds
        while True:
            there = set(self._grid.get_node_ids())
            self._nodes = {site: node for site, node in self._nodes.items() if node in there}
            strangers = sorted(there - set(self._nodes.values()))
            if strangers:
                self._identify(strangers, deadline)
            if len(self._nodes) >= expected or self._clock() >= deadline:
                return self.sites
            time.sleep(self._poll_seconds)

    def ask(
        self,
        round_number: int,
        work: Mapping[str, Instruction],
        arrays: NamedArrays,
        *,
        deadline_seconds: float,
    ) -> Iterator[SiteAnswer | SiteFailure]:
        """Asks each site of ``work`` its instruction, in which only the work itself is filled in.

        Yields as answers arrive; after the deadline the silent sites are yielded as failures, so that every site of
        ``work`` is yielded exactly once. The order is not fixed, but that sites without a node come first: a caller who
        gives up then has asked nobody.
        """
        for site in work:
            if site not in self._nodes:
                yield SiteFailure(site, _NO_REPLY, {}, "it is not connected")
        work = {site: instruction for site, instruction in work.items() if site in self._nodes}
        deadline = self._clock() + deadline_seconds
        arrays_digest = digest(arrays)
        record = array_record(arrays)
        results: dict[str, str] = {}

        def messages() -> Iterator[Message]:
            for site, instruction in work.items():
                instruction.run_id = self._run_id
                instruction.attempt = self._attempt
                instruction.round = round_number
                instruction.site = site
                instruction.task_digest = self._task_digest
                instruction.arrays_digest = arrays_digest
                instruction.expires_unix = int(self._now_unix() + deadline_seconds) + 1
                message_type, results[site] = _KINDS[str(instruction.WhichOneof("work"))]
                yield self._message(site, message_type, seal(instruction, self._key), record, deadline_seconds)

        waiting = dict(zip(work, self._push(messages()), strict=True))
        for site, reply in self._replies(waiting, deadline):
            yield self._read(site, round_number, results[site], reply)
        for site in waiting:
            yield SiteFailure(site, _NO_REPLY, {}, f"no answer within {deadline_seconds:g} s")

    def _push(self, messages: Iterator[Message]) -> list[str]:
        if self._near is None:
            return list(self._grid.push_messages(list(messages)))
        return [identifier for message in messages for identifier in self._grid.push_messages([message])]

    def _replies(self, waiting: dict[str, str], deadline: float) -> Iterator[tuple[str, Message]]:
        """Yields replies as they come and takes their sites out of ``waiting``."""
        while waiting:
            arrived = False
            for site, identifier in list(waiting.items()):
                for reply in self._grid.pull_messages([identifier]):
                    del waiting[site]
                    arrived = True
                    yield site, reply
            if not waiting or self._clock() >= deadline:
                return
            if not arrived:
                wait = time.sleep if self._near is None else self._near.wait
                wait(self._poll_seconds)

    def _read(self, site: str, round_number: int, result: str, reply: Message) -> SiteAnswer | SiteFailure:
        if reply.has_error():
            code = reply.error.code
            return SiteFailure(site, _BROKEN_REPLY, {}, f"its client app failed (Flower error {code})")
        try:
            body, arrays = unpack(reply.content)
            answer = Answer.FromString(body)
            if answer.WhichOneof("result") == "refusal":  # also of an instruction that the site could not read
                return _refused(site, answer)
            self._check(site, round_number, result, answer, arrays)
        except DecodeError:
            return SiteFailure(site, _BROKEN_REPLY, {}, "its answer cannot be read")
        except FedloopError as error:
            return SiteFailure(site, error.code, error.wire().fields, error.message)
        return SiteAnswer(site, answer, arrays)

    def _check(
        self,
        site: str,
        round_number: int,
        result: str,
        answer: Answer,
        arrays: NamedArrays,
    ) -> None:
        """Refuses an answer to another question.

        A site that was asked before answers with what it answered then, which may name an earlier attempt and the digest
        of an instruction that expired at another time; so run, round, site and kind of work tell, not that digest.
        """
        if (answer.run_id, answer.round, answer.site) != (self._run_id, round_number, site):
            raise UpdateRefused(
                f"the answer is of run {answer.run_id!r}, round {answer.round}, site {answer.site!r}.",
                reason="question",
            )
        if answer.WhichOneof("result") != result:
            raise UpdateRefused(f"the answer is no {result}.", reason="question")
        if answer.attempt > self._attempt:
            raise UpdateRefused("the answer is of an attempt that has not begun.", reason="question")
        if answer.arrays_digest != digest(arrays):
            raise UpdateRefused("the arrays are not those that the answer names.", reason="digest")

    def _identify(self, nodes: list[int], deadline: float) -> None:
        messages = [
            Message(pack(b"", ArrayRecord()), node, IDENTIFY, ttl=max(deadline - self._clock(), 1.0)) for node in nodes
        ]
        waiting = {
            str(node): identifier for node, identifier in zip(nodes, self._grid.push_messages(messages), strict=True)
        }
        for node, reply in self._replies(waiting, min(deadline, self._clock() + 30.0)):
            self._admit(int(node), reply)

    def _admit(self, node: int, reply: Message) -> None:
        """Takes a node for the site that it says it is; the log says why not."""
        try:
            site = "" if reply.has_error() else parts(reply.content)[0].decode("ascii", "replace")
        except FedloopError:
            site = ""
        if not is_site_name(site):
            why = "it does not say the name of a site"
        elif site in self._nodes:
            why = f"site {site} is there already, as node {self._nodes[site]}"
        else:
            self._nodes[site] = node
            return
        if node not in self._nameless:
            self._nameless.add(node)
            _LOG.warning("node %d is left out: %s", node, why)

    def _message(self, site: str, message_type: str, envelope: bytes, arrays: ArrayRecord, ttl: float) -> Message:
        return Message(pack(envelope, arrays), self._nodes[site], message_type, ttl=ttl)


def _refused(site: str, answer: Answer) -> SiteFailure:
    fields = dict(answer.refusal.fields)
    said = ", ".join(f"{name} {value}" for name, value in sorted(fields.items()))
    return SiteFailure(site, answer.refusal.code, fields, f"it refused{f': {said}' if said else ''}")
