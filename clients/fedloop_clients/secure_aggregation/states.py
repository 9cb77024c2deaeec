"""Where a site stands in one instance, with the secrets that it holds there. They are neither printed nor serialised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedloop_core.arrays import ArraySpec
from fedloop_core.secure_aggregation.agreement import KeyPair
from fedloop_core.secure_aggregation.messages import Advertisement, Terms

__all__ = ["Advertised", "Agreed", "Confirmed", "Expected", "Masked", "OwnKeys", "Released", "Shared", "State"]


class _Secret:
    """Keeps what derives from it out of pickles, and so out of queues, processes and files."""

    def __reduce__(self) -> str:
        raise TypeError("secrets of secure aggregation are never serialised")


@dataclass(frozen=True)
class Expected:
    """What the site itself knows of the sum that its update is for; the coordinator's terms must say the same.

    ``largest_value`` bounds each value, and with ``bounds_norm`` the update's L2 norm. ``weight`` is the site's own. ``update`` names the very
    update, in 32 bytes: what is agreed holds for this one, and no other is masked.
    """

    task_digest: bytes
    model_digest: bytes
    spec: ArraySpec
    largest_value: float
    weight: int
    update: bytes
    bounds_norm: bool = True


@dataclass(frozen=True, repr=False)
class OwnKeys(_Secret):
    """The site's two key pairs for one instance."""

    mask: KeyPair
    channel: KeyPair


@dataclass(frozen=True, repr=False)
class Advertised(_Secret):
    """Keys are told."""

    keys: OwnKeys
    advertisement: Advertisement


@dataclass(frozen=True, repr=False)
class Agreed(_Secret):
    """What does not change after the cohort was agreed; ``transcript`` is the cohort's."""

    keys: OwnKeys
    expected: Expected
    terms: Terms
    transcript: bytes
    cohort: Mapping[str, Advertisement]
    seed: bytes
    own_share: bytes
    """Of the own seed. The own share of the own mask key is thrown away when it is made."""


@dataclass(frozen=True, repr=False)
class Shared(_Secret):
    """Shares are sealed and given out."""

    agreed: Agreed


@dataclass(frozen=True, repr=False)
class Masked(_Secret):
    """The masked vector is given out; the secrets that made it are let go.

    ``shares`` of each member: of its seed and of its mask key. ``transcript`` is the members'.
    """

    threshold: int
    transcript: bytes
    own_share: bytes
    shares: Mapping[str, tuple[bytes, bytes]]


@dataclass(frozen=True, repr=False)
class Confirmed(_Secret):
    """One list of survivors is signed."""

    masked: Masked
    survivors: tuple[str, ...]


@dataclass(frozen=True)
class Released:
    """Shares are given out; nothing is held any more."""


State = Advertised | Shared | Masked | Confirmed | Released
