"""Answers with the site's signature: neither relay nor SuperLink, nor another site, can write one or change one."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from fedloop_core.errors import AnswerRefused
from fedloop_core.keys import SigningKey, VerifyingKey
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, SignedAnswer

__all__ = ["open_answer", "sign_answer"]


def sign_answer(answer: Answer, key: SigningKey) -> bytes:
    """Serialises and signs an answer with the key that the site registered; returns a serialised ``SignedAnswer``."""
    body = answer.SerializeToString(deterministic=True)
    signed = SignedAnswer(answer=body, signature=key.sign(body), key_id=key.verifying.key_id)
    return signed.SerializeToString(deterministic=True)


def open_answer(content: bytes, key: VerifyingKey, *, site: str) -> Answer:
    """Opens what a site sent. Which question it answers is for the caller to compare.

    Args:
        content: a serialised ``SignedAnswer``.
        key: the key that the site registered.
        site: the site that was asked.

    Raises:
        AnswerRefused: it cannot be read, is not signed by the site's key, or names another site.
    """
    try:
        signed = SignedAnswer.FromString(content)
        if signed.key_id != key.key_id or not key.verifies(signed.signature, signed.answer):
            raise AnswerRefused(
                f"an answer of site {site} is not signed by the key that the site registered.",
                hint="If the site was set up anew, let it join again with a new token.",
            )
        answer = Answer.FromString(signed.answer)
    except DecodeError as error:
        raise AnswerRefused(f"an answer of site {site} cannot be read.") from error
    if answer.site != site:
        raise AnswerRefused(f"an answer of site {site} names site {answer.site!r}.")
    return answer
