"""Signed answers: what is opened is what was signed, and anything else is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedloop_core.errors import AnswerRefused
from fedloop_core.federation.answers import open_answer, sign_answer
from fedloop_core.keys import SigningKey
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Moments, SignedAnswer

KEY, OTHER = SigningKey.generate(), SigningKey.generate()
ANSWER = Answer(run_id="run-1", attempt=2, round=3, site="north", instruction_digest=b"d" * 32, moments=Moments())


def test_what_is_opened_is_what_was_signed() -> None:
    assert open_answer(sign_answer(ANSWER, KEY), KEY.verifying, site="north") == ANSWER


def altered(change: Callable[[SignedAnswer], None]) -> bytes:
    signed = SignedAnswer.FromString(sign_answer(ANSWER, KEY))
    change(signed)
    return signed.SerializeToString()


def another_answer(signed: SignedAnswer) -> None:
    answer = Answer.FromString(signed.answer)
    answer.round = 4
    signed.answer = answer.SerializeToString()


def borrowed_key_id(signed: SignedAnswer) -> None:
    signed.CopyFrom(SignedAnswer.FromString(sign_answer(ANSWER, OTHER)))
    signed.key_id = KEY.verifying.key_id


def no_signature(signed: SignedAnswer) -> None:
    signed.signature = b""


def short_signature(signed: SignedAnswer) -> None:
    signed.signature = signed.signature[:-1]


@pytest.mark.parametrize(
    ("what", "content"),
    [
        ("nothing", b""),
        ("no message", b"\xff" * 40),
        ("an answer without a signature around it", ANSWER.SerializeToString()),
        ("another site's key", sign_answer(ANSWER, OTHER)),
        ("another site's key under this one's id", altered(borrowed_key_id)),
        ("changed after it was signed", altered(another_answer)),
        ("no signature", altered(no_signature)),
        ("a signature that is too short", altered(short_signature)),
    ],
)
def test_what_the_site_did_not_sign_is_refused(what: str, content: bytes) -> None:
    with pytest.raises(AnswerRefused, match="north"):
        open_answer(content, KEY.verifying, site="north")


def test_an_answer_that_names_another_site_is_refused() -> None:
    with pytest.raises(AnswerRefused, match="names site 'north'"):
        open_answer(sign_answer(ANSWER, KEY), KEY.verifying, site="south")


def test_signed_bytes_that_are_no_answer_are_refused() -> None:
    signed = SignedAnswer(answer=b"\xff" * 9, signature=KEY.sign(b"\xff" * 9), key_id=KEY.verifying.key_id)
    with pytest.raises(AnswerRefused, match="cannot be read"):
        open_answer(signed.SerializeToString(), KEY.verifying, site="north")
