"""What came of a question to a site, and the check that an answer is this site's answer to this very question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import RecordDict
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from fedloop_core.arrays import PackedArrays, digest, unpack_arrays
from fedloop_core.errors import (
    DataGateFailed,
    FedloopError,
    LedgerRolledBack,
    PolicyRefused,
    UpdateRefused,
    heard,
)
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import check_protocol
from fedloop_core.federation.records import parts
from fedloop_core.federation.rules import is_temporary
from fedloop_core.keys import VerifyingKey
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, LogHead
from fedloop_server.runs.heads import HeadsOfRun, LedgerHead

__all__ = [
    "BROKEN_REPLY",
    "MAXIMUM_BODY_BYTES",
    "NO_REPLY",
    "NO_TRAFFIC",
    "Question",
    "SiteAnswer",
    "SiteFailure",
    "Traffic",
    "read_reply",
]

NO_REPLY = "FL-RUN-010"
BROKEN_REPLY = "FL-RUN-011"

MAXIMUM_BODY_BYTES = 64 << 10
"""Of a signed answer, arrays not counted: an honest one has some hundreds."""

_HEAD_DIGEST = 32  # bytes
_LARGEST_NUMBER = 2**63 - 1  # that databases keep
# Not SiteRevoked: that a site was revoked is the directory's word, after which the quorum no longer expects it.
_FOR_GOOD = frozenset({DataGateFailed.code, LedgerRolledBack.code})


@dataclass(frozen=True)
class Traffic:
    """Seconds from the first sending to the reply, and bytes of messages and arrays there and back."""

    seconds: float = 0.0
    bytes_out: int = 0
    bytes_in: int = 0


NO_TRAFFIC = Traffic()


@dataclass(frozen=True)
class SiteAnswer:
    """What a site answered, checked to belong to the question. ``signed`` is its ``SignedAnswer``, checked with ``key``."""

    site: str
    answer: Answer
    arrays: dict[str, NDArray[np.generic]]
    signed: bytes = b""
    traffic: Traffic = NO_TRAFFIC
    key: VerifyingKey | None = None


@dataclass(frozen=True)
class SiteFailure:
    """Why a site has no answer: a code, fields of it, and a sentence.

    Code and fields are those of an error class of this release, also where the site sent them. ``for_good``: asking it again in this run leads nowhere.
    """

    site: str
    code: str
    fields: Mapping[str, str]
    reason: str
    for_good: bool = False
    traffic: Traffic = NO_TRAFFIC


@dataclass(frozen=True)
class Question:
    """What a reply must belong to.

    ``result`` is the field of the answer; ``ledger`` is the newest head of the site's ledger that was known when it was
    asked.
    """

    run_id: str
    attempt: int
    round: int
    site: str
    result: str
    instruction_digest: bytes
    ledger: LedgerHead | None


def read_reply(
    question: Question, key: VerifyingKey, content: RecordDict, heads: HeadsOfRun, traffic: Traffic
) -> SiteAnswer | SiteFailure:
    """Opens a reply; whatever is wrong with it becomes a failure of its site and never an exception."""
    site = question.site
    try:
        body, packed = parts(content)
        traffic = replace(traffic, bytes_in=len(body) + (len(packed.content) if packed else 0))
        if len(body) > MAXIMUM_BODY_BYTES:
            raise UpdateRefused(f"its answer has {len(body)} bytes beside the arrays.", reason="size")
        answer = open_answer(body, key, site=site)
        if answer.WhichOneof("result") == "refusal" and not answer.instruction_digest:
            return _refused(site, answer, traffic, final=False)  # of an instruction that the site could not read
        _check_binding(question, answer)
        for name in ("ledger", "audit"):
            if answer.HasField(name):
                _check_head(name, getattr(answer, name))
        if answer.HasField("ledger"):
            heads.see(site, question.ledger, LedgerHead(answer.ledger.sequence, answer.ledger.digest))
        if answer.WhichOneof("result") == "refusal":
            return _refused(site, answer, traffic, final=True)
        return SiteAnswer(site, answer, _arrays(question, answer, packed), body, traffic, key)
    except DecodeError:
        return SiteFailure(site, BROKEN_REPLY, {}, "its answer cannot be read", traffic=traffic)
    except FedloopError as error:
        for_good = error.code in _FOR_GOOD
        return SiteFailure(site, error.code, error.wire().fields, error.message, for_good, traffic)


def _check_binding(question: Question, answer: Answer) -> None:
    """Refuses an answer to another question, and one in another generation of the protocol."""
    check_protocol(answer.protocol, peer=f"site {question.site}")
    if (answer.run_id, answer.round) != (question.run_id, question.round):
        raise UpdateRefused(f"the answer is of run {answer.run_id!r}, round {answer.round}.", reason="question")
    if answer.attempt != question.attempt:
        raise UpdateRefused(
            f"the answer is of attempt {answer.attempt}; this is attempt {question.attempt}.", reason="question"
        )
    if answer.instruction_digest != question.instruction_digest:
        raise UpdateRefused("the answer names another instruction than the one that was sent.", reason="question")


def _check_head(name: str, head: LogHead) -> None:
    """Refuses a head that cannot be one: it is kept."""
    if head.sequence > _LARGEST_NUMBER or (head.sequence > 0 and len(head.digest) != _HEAD_DIGEST):
        raise UpdateRefused(f"the answer names a head of its {name} log that is none.", reason=name)


def _arrays(question: Question, answer: Answer, packed: PackedArrays | None) -> dict[str, NDArray[np.generic]]:
    if answer.WhichOneof("result") != question.result:
        raise UpdateRefused(f"the answer is no {question.result}.", reason="question")
    arrays = {} if packed is None else unpack_arrays(packed)
    if answer.arrays_digest != digest(arrays):
        raise UpdateRefused("the arrays are not those that the answer names.", reason="digest")
    return arrays


def _refused(site: str, answer: Answer, traffic: Traffic, *, final: bool) -> SiteFailure:
    """A refusal as far as this release knows it; ``final``: it is of this question, and may be for the whole run."""
    told = heard(answer.refusal.code, answer.refusal.fields)
    said = ", ".join(f"{name} {value}" for name, value in sorted(told.fields.items()))
    for_good = told.code in _FOR_GOOD or (
        told.code == PolicyRefused.code and not is_temporary(told.fields.get("rule", ""))
    )
    return SiteFailure(
        site, told.code, told.fields, f"it refused{f': {said}' if said else ''}", final and for_good, traffic
    )
