"""What is signed and hashed, each under a label of its own, each part behind its length: no two things have the same bytes."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import Advertisement, ShareKeys

__all__ = [
    "advertised_text",
    "cohort_transcript",
    "labelled",
    "members_transcript",
    "seed_commitment",
    "share_digest",
    "survivors_text",
]

_DOMAIN = "fedloop secure aggregation 1"


def labelled(label: str, *parts: bytes | str | float) -> bytes:
    """The parts, each with its length (8 bytes, big-endian), behind domain and label; integers are 8 bytes."""
    out = bytearray()
    for part in (_DOMAIN, label, *parts):
        match part:
            case str():
                content = part.encode()
            case int():
                content = struct.pack(">q", part)
            case float():
                content = struct.pack(">d", part)
            case _:
                content = part
        out += struct.pack(">Q", len(content)) + content
    return bytes(out)


def _of(instance: Instance) -> tuple[str, int, int]:
    return instance.run_id, instance.round, instance.number


def advertised_text(instance: Instance, site: str, mask_key: bytes, channel_key: bytes) -> bytes:
    """What a site signs to say that keys are its own, in this instance."""
    return labelled("advertisement", *_of(instance), site, mask_key, channel_key)


def cohort_transcript(question: ShareKeys) -> bytes:
    """SHA-256 over all that sites must agree on before they share: instance, terms, and who takes part with which keys."""
    terms = question.terms
    agreed = labelled(
        "cohort",
        *_of(question.instance),
        terms.task_digest,
        terms.model_digest,
        terms.values,
        terms.largest_value,
        terms.total_weight,
        terms.threshold,
        len(question.cohort),
        *(part for advertisement in question.cohort for part in _keys(advertisement)),
    )
    return hashlib.sha256(agreed).digest()


def _keys(advertisement: Advertisement) -> tuple[str, bytes, bytes]:
    return advertisement.site, advertisement.mask_key, advertisement.channel_key


def members_transcript(cohort: bytes, members: Iterable[str]) -> bytes:
    """SHA-256 over the cohort's transcript and those of them that shared: between them are the masks."""
    return hashlib.sha256(labelled("members", cohort, *members)).digest()


def survivors_text(members: bytes, survivors: Iterable[str]) -> bytes:
    """What a site signs to say that these are the survivors under the members' transcript."""
    return labelled("survivors", members, *survivors)


def seed_commitment(cohort: bytes, site: str, seed: bytes) -> bytes:
    """SHA-256 that lets the coordinator tell whether the seed that it has put together is the site's."""
    return hashlib.sha256(labelled("seed", cohort, site, seed)).digest()


def share_digest(cohort: bytes, owner: str, holder: str, share: bytes) -> bytes:
    """SHA-256 that lets the coordinator tell whether a share is what its owner has dealt to its holder."""
    return hashlib.sha256(labelled("share", cohort, owner, holder, share)).digest()
