"""Which sum is meant, and who may take part in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.federation.names import is_site_name
from fedloop_core.keys import VerifyingKey

__all__ = ["LEAST_SITES", "MOST_SITES", "Consortium", "Instance", "least_threshold"]

LEAST_SITES = 3
"""With two sites each learns the other's update from the sum."""

MOST_SITES = 500
"""Of one sum."""

_LONGEST_RUN_ID = 128  # characters
_MOST_ROUNDS = 2**31


def least_threshold(sites: int) -> int:
    """Shares that must be needed to give a secret back among so many sites: more than two thirds.

    Then two sets of that size have more than a third of the sites in common, so that a coordinator with fewer than a third of them on
    its side cannot have two lists of survivors confirmed (Bonawitz et al. 2017, eprint 2017/281).
    """
    return 2 * sites // 3 + 1


@dataclass(frozen=True, order=True)
class Instance:
    """One try to sum one round; a try that was given up is followed by one with a higher ``number``.

    Raises:
        SecureAggregationRefused: it cannot be one.
    """

    run_id: str
    round: int
    number: int

    def __post_init__(self) -> None:
        named = 0 < len(self.run_id) <= _LONGEST_RUN_ID and self.run_id.isascii() and self.run_id.isprintable()
        if not named or not 0 <= self.round < _MOST_ROUNDS or not 1 <= self.number < _MOST_ROUNDS:
            raise SecureAggregationRefused(
                "an instance is named by a run, a round and a number from 1.", reason="format"
            )


@dataclass(frozen=True)
class Consortium:
    """The identity keys of all sites, as people at a site were told them; never from a message of the coordinator.

    Raises:
        SecureAggregationRefused: a name is none, or two sites have one key.
    """

    keys: Mapping[str, VerifyingKey]
    digest: str = field(init=False)
    """Hex SHA-256 over names and keys, for people to compare."""

    def __post_init__(self) -> None:
        names = sorted(self.keys)
        if not all(is_site_name(name) for name in names):
            raise SecureAggregationRefused("a name in the consortium names no site.", reason="consortium")
        if len({self.keys[name].raw for name in names}) != len(names):
            raise SecureAggregationRefused("two sites of the consortium have one key.", reason="consortium")
        lines = "".join(f"{name} {self.keys[name].raw.hex()}\n" for name in names)
        object.__setattr__(self, "digest", hashlib.sha256(lines.encode()).hexdigest())

    def key(self, site: str) -> VerifyingKey:
        """The identity key of a site.

        Raises:
            SecureAggregationRefused: the consortium does not know the site.
        """
        if site not in self.keys:
            raise SecureAggregationRefused(f"site {site!r} is not in the consortium.", reason="unknown-site")
        return self.keys[site]
