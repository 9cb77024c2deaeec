"""How masks come off a sum: secrets from shares, each compared with what its owner has committed to, and the masks they make.

Of a survivor the seed of its self-mask is put together, of a member whose vector is missing its mask key. ``k`` survivors and ``d``
others take ``k + k * d`` masks off, piece by piece.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.agreement import KeyPair, pair_key, self_key
from fedloop_core.secure_aggregation.masks import MaskStream
from fedloop_core.secure_aggregation.messages import Share, Unmasking
from fedloop_core.secure_aggregation.sharing import join_shares
from fedloop_core.secure_aggregation.transcript import members_transcript, seed_commitment, share_digest
from fedloop_server.secure_aggregation.unmaskable import Unmaskable

__all__ = ["Unmasker"]


class Unmasker:
    """Collects shares and takes masks off; a share's place is its holder's."""

    def __init__(self, kept: Unmaskable) -> None:
        self._instance = kept.instance
        self._cohort = kept.cohort
        self._places = {holder: place for place, holder in enumerate(kept.holders)}
        self._dealt = {dealt.site: dealt for dealt in kept.dealt}
        self._survivors = kept.survivors
        self._missing = tuple(site for site in sorted(self._dealt) if site not in kept.survivors)
        self._threshold = kept.threshold
        self._members = members_transcript(kept.cohort, sorted(self._dealt))
        self._shares: dict[str, dict[int, bytes]] = {site: {} for site in self._dealt}
        self._helpers: set[str] = set()

    @property
    def helpers(self) -> Collection[str]:
        """Sites whose shares are here."""
        return self._helpers

    def take(self, holder: str, answer: Unmasking) -> None:
        """Takes a holder's shares, all or none.

        Raises:
            SecureAggregationRefused: they are not of exactly the sites that were asked for, or not what their owners dealt.
        """
        for shares, sites, which in ((answer.seeds, self._survivors, 0), (answer.keys, self._missing, 1)):
            if tuple(share.site for share in shares) != sites:
                raise SecureAggregationRefused(f"site {holder} gave shares of other sites.", reason="members")
            for share in shares:
                self._check(holder, share, which)
        for share in (*answer.seeds, *answer.keys):
            self._shares[share.site][self._places[holder]] = share.content
        self._helpers.add(holder)

    def unmask(self, total: NDArray[np.uint64]) -> None:
        """Takes all masks off a sum, in place. Nothing is changed before every secret is there and right.

        Raises:
            SecureAggregationRefused: a secret cannot be put together, or is not its owner's.
        """
        seeds = {site: self._seed(site) for site in self._survivors}
        keys = {site: self._key(site) for site in self._missing}
        stream = MaskStream()
        for site, seed in seeds.items():
            stream.apply(self_key(seed, members=self._members, instance=self._instance, site=site), total, add=False)
        for missing, key in keys.items():
            for survivor in self._survivors:
                mask = pair_key(
                    key,
                    self._dealt[survivor].mask_key,
                    members=self._members,
                    instance=self._instance,
                    site=missing,
                    other=survivor,
                )
                stream.apply(mask, total, add=survivor > missing)

    def _check(self, holder: str, share: Share, which: int) -> None:
        told = self._dealt[share.site].digests[self._places[holder]][which]
        if share_digest(self._cohort, share.site, holder, share.content) != told:
            raise SecureAggregationRefused(
                f"site {holder} gave a share of site {share.site} that is not what that site dealt.",
                reason="share",
                peer=share.site,
            )

    def _joined(self, site: str) -> bytes:
        if len(self._shares[site]) < self._threshold:
            raise SecureAggregationRefused(f"too few shares of site {site} are here.", reason="survivors", peer=site)
        return join_shares(self._shares[site], self._threshold)

    def _seed(self, site: str) -> bytes:
        seed = self._joined(site)
        if seed_commitment(self._cohort, site, seed) != self._dealt[site].seed_commitment:
            raise _not_its_own("seed", site)
        return seed

    def _key(self, site: str) -> KeyPair:
        key = KeyPair.from_secret(self._joined(site))
        if key.public != self._dealt[site].mask_key:
            raise _not_its_own("mask key", site)
        return key


def _not_its_own(what: str, site: str) -> SecureAggregationRefused:
    return SecureAggregationRefused(
        f"the shares that site {site} has dealt give back another {what} than its own.",
        hint="The sum is given up. Begin another instance without this site.",
        reason="reconstruction",
        peer=site,
    )
