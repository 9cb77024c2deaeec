"""The questions and answers of secure aggregation, checked for form when they are made.

A message that exists is well-formed: lengths are exact, names are names of sites, lists are sorted and name nobody twice. Whether it
fits what was agreed is for site and coordinator to judge.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.federation.names import is_site_name
from fedloop_core.secure_aggregation.identity import MOST_SITES, Instance

__all__ = [
    "DIGEST_BYTES",
    "KEY_BYTES",
    "SEALED_BYTES",
    "SEED_BYTES",
    "AdvertiseKeys",
    "Advertisement",
    "Answer",
    "ConfirmSurvivors",
    "Confirmation",
    "MaskInput",
    "MaskedInput",
    "Question",
    "SealedShares",
    "Share",
    "ShareDigests",
    "ShareKeys",
    "SharedKeys",
    "SiteSignature",
    "Terms",
    "Unmask",
    "Unmasking",
]

KEY_BYTES = 32
"""Of an X25519 key, private or public."""

SEED_BYTES = 16
"""Of the seed of a self-mask: one block of Shamir's scheme as the library has it."""

DIGEST_BYTES = 32
_SIGNATURE_BYTES = 64
SEALED_BYTES = 12 + SEED_BYTES + KEY_BYTES + 16
"""Of two shares, sealed: nonce, content, tag."""

_MOST_VALUES = 2**40
_MOST_WEIGHT = 2**62


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise SecureAggregationRefused(f"a message of secure aggregation {what}.", reason="format")


def _check_sites(sites: Iterable[str], *, least: int = 0) -> None:
    named = tuple(sites)
    _require(least <= len(named) <= MOST_SITES, f"names {len(named)} sites")
    _require(all(is_site_name(site) for site in named), "names something else than sites")
    _require(all(one != next_ for one, next_ in itertools.pairwise(named)), "names a site twice")
    _require(all(one < next_ for one, next_ in itertools.pairwise(named)), "does not name sites in their order")


def _check_length(content: bytes, length: int, what: str) -> None:
    _require(len(content) == length, f"has {what} of {len(content)} bytes instead of {length}")


@dataclass(frozen=True)
class AdvertiseKeys:
    """First question: make keys."""

    instance: Instance


@dataclass(frozen=True)
class Advertisement:
    """A site's fresh public keys; ``signature`` is its identity's over instance, site and keys."""

    instance: Instance
    site: str
    mask_key: bytes
    channel_key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        _check_sites([self.site])
        _check_length(self.mask_key, KEY_BYTES, "a key")
        _check_length(self.channel_key, KEY_BYTES, "a key")
        _check_length(self.signature, _SIGNATURE_BYTES, "a signature")


@dataclass(frozen=True)
class Terms:
    """What is summed, the same for all sites.

    ``values`` counts the values of an update. ``largest_value`` and ``total_weight`` decide the fixed point. ``threshold`` shares give
    a secret back.
    """

    task_digest: bytes
    model_digest: bytes
    values: int
    largest_value: float
    total_weight: int
    threshold: int

    def __post_init__(self) -> None:
        _check_length(self.task_digest, DIGEST_BYTES, "a digest")
        _check_length(self.model_digest, DIGEST_BYTES, "a digest")
        _require(1 <= self.values <= _MOST_VALUES, f"is about {self.values} values")
        _require(math.isfinite(self.largest_value) and self.largest_value > 0, "bounds no values")
        _require(1 <= self.total_weight <= _MOST_WEIGHT, "bounds no weight")
        _require(1 <= self.threshold <= MOST_SITES, "has a threshold that none can meet")


@dataclass(frozen=True)
class ShareKeys:
    """Second question: who takes part under which terms."""

    instance: Instance
    terms: Terms
    cohort: tuple[Advertisement, ...]

    def __post_init__(self) -> None:
        _check_sites((advertisement.site for advertisement in self.cohort), least=1)


@dataclass(frozen=True)
class SealedShares:
    """Shares of one site for another, sealed; ``site`` is the other end: the receiver in an answer, the sender in a question."""

    site: str
    content: bytes

    def __post_init__(self) -> None:
        _check_length(self.content, SEALED_BYTES, "sealed shares")


@dataclass(frozen=True)
class ShareDigests:
    """Digests of the shares that ``site`` holds of one owner's seed and mask key."""

    site: str
    seed: bytes
    key: bytes

    def __post_init__(self) -> None:
        _check_length(self.seed, DIGEST_BYTES, "a digest")
        _check_length(self.key, DIGEST_BYTES, "a digest")


@dataclass(frozen=True)
class SharedKeys:
    """Answer: sealed shares for every other site, digests of all shares, and a commitment to the seed."""

    instance: Instance
    sealed: tuple[SealedShares, ...]
    digests: tuple[ShareDigests, ...]
    seed_commitment: bytes

    def __post_init__(self) -> None:
        _check_sites(shares.site for shares in self.sealed)
        _check_sites(digests.site for digests in self.digests)
        _check_length(self.seed_commitment, DIGEST_BYTES, "a digest")


@dataclass(frozen=True)
class MaskInput:
    """Third question: what each other site has sealed for this one. With this one, they are who masks are between."""

    instance: Instance
    sealed: tuple[SealedShares, ...]

    def __post_init__(self) -> None:
        _check_sites(shares.site for shares in self.sealed)


@dataclass(frozen=True, eq=False)
class MaskedInput:
    """Answer: the masked vector, of ``values + 1`` words."""

    instance: Instance
    masked: NDArray[np.uint64]


@dataclass(frozen=True)
class ConfirmSurvivors:
    """Fourth question: whose vectors have arrived."""

    instance: Instance
    survivors: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_sites(self.survivors, least=1)


@dataclass(frozen=True)
class Confirmation:
    """Answer: the site's signature over transcript and survivors."""

    instance: Instance
    signature: bytes

    def __post_init__(self) -> None:
        _check_length(self.signature, _SIGNATURE_BYTES, "a signature")


@dataclass(frozen=True)
class SiteSignature:
    """A confirmation as the coordinator shows it to other sites."""

    site: str
    signature: bytes

    def __post_init__(self) -> None:
        _check_length(self.signature, _SIGNATURE_BYTES, "a signature")


@dataclass(frozen=True)
class Unmask:
    """Fifth question: what sites signed. It lists neither survivors nor others: they follow from the list that the site signed."""

    instance: Instance
    signatures: tuple[SiteSignature, ...]

    def __post_init__(self) -> None:
        _check_sites((signature.site for signature in self.signatures), least=1)


@dataclass(frozen=True)
class Share:
    """A share of a secret of ``site``."""

    site: str
    content: bytes


@dataclass(frozen=True)
class Unmasking:
    """Answer: of each survivor the share of its seed, of each other one the share of its mask key; of nobody both."""

    instance: Instance
    seeds: tuple[Share, ...]
    keys: tuple[Share, ...]

    def __post_init__(self) -> None:
        _check_sites(share.site for share in self.seeds)
        _check_sites(share.site for share in self.keys)
        for share in self.seeds:
            _check_length(share.content, SEED_BYTES, "a share")
        for share in self.keys:
            _check_length(share.content, KEY_BYTES, "a share")
        _require(not {s.site for s in self.seeds} & {s.site for s in self.keys}, "holds both shares of a site")


Question = AdvertiseKeys | ShareKeys | MaskInput | ConfirmSurvivors | Unmask
Answer = Advertisement | SharedKeys | MaskedInput | Confirmation | Unmasking
