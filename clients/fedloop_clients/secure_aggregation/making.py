"""What a site makes: shares of its two secrets, and its masked vector."""

from __future__ import annotations

import secrets

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.secure_aggregation.states import Agreed, Expected, OwnKeys
from fedloop_core.arrays import NamedArrays
from fedloop_core.fixed_point import FixedPoint
from fedloop_core.secure_aggregation.agreement import open_shares, pair_key, seal_shares, self_key
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.masks import MaskStream
from fedloop_core.secure_aggregation.messages import SEED_BYTES, SealedShares, ShareDigests, SharedKeys, ShareKeys
from fedloop_core.secure_aggregation.sharing import split_secret
from fedloop_core.secure_aggregation.transcript import cohort_transcript, seed_commitment, share_digest
from fedloop_core.update_gate import check_update

__all__ = ["masked_vector", "opened", "share_out", "whole_vector"]


def share_out(site: str, question: ShareKeys, expected: Expected, keys: OwnKeys) -> tuple[Agreed, SharedKeys]:
    """Draws the seed of the self-mask and shares it and the mask key out, sealed for each other site of the cohort.

    Raises:
        SecureAggregationRefused: a channel key gives everybody the same secret.
    """
    instance, terms, transcript = question.instance, question.terms, cohort_transcript(question)
    cohort = {advertisement.site: advertisement for advertisement in question.cohort}
    seed = secrets.token_bytes(SEED_BYTES)
    of_seed = dict(zip(cohort, split_secret(seed, terms.threshold, len(cohort)), strict=True))
    of_key = dict(zip(cohort, split_secret(keys.mask.secret(), terms.threshold, len(cohort)), strict=True))

    def sealed_for(other: str) -> SealedShares:
        shares = (of_seed[other], of_key[other])
        peer, way = cohort[other].channel_key, (site, other)
        return SealedShares(
            other, seal_shares(keys.channel, peer, shares, cohort=transcript, instance=instance, way=way)
        )

    def digests_of(holder: str) -> ShareDigests:
        shares = (of_seed[holder], of_key[holder])
        return ShareDigests(holder, *(share_digest(transcript, site, holder, share) for share in shares))

    answer = SharedKeys(
        instance,
        tuple(sealed_for(other) for other in cohort if other != site),
        tuple(digests_of(holder) for holder in cohort),
        seed_commitment(transcript, site, seed),
    )
    return Agreed(keys, expected, terms, transcript, cohort, seed, of_seed[site]), answer


def opened(site: str, instance: Instance, agreed: Agreed, sealed: SealedShares) -> tuple[bytes, bytes]:
    """The shares of another site's seed and mask key.

    Raises:
        SecureAggregationRefused: they were not sealed by that site for this one under this transcript.
    """
    return open_shares(
        agreed.keys.channel,
        agreed.cohort[sealed.site].channel_key,
        sealed.content,
        cohort=agreed.transcript,
        instance=instance,
        way=(sealed.site, site),
    )


def whole_vector(agreed: Agreed, arrays: NamedArrays) -> NDArray[np.int64]:
    """The update times the agreed weight in whole numbers, and behind them the weight. [values + 1].

    Raises:
        UpdateRefused: names, shapes, dtypes, values or norm of the update do not fit.
    """
    expected, terms = agreed.expected, agreed.terms
    point = FixedPoint(expected.spec.dtypes, largest_value=terms.largest_value, total_weight=terms.total_weight)
    if expected.bounds_norm:
        check_update(arrays, expected.spec, maximum_norm=expected.largest_value)
    else:
        expected.spec.check_layout(arrays)
        point.check_range(arrays)
    whole = np.zeros(expected.spec.size + 1, dtype=np.int64)
    start = 0
    for array in arrays.values():
        point.add(array, expected.weight, whole[start : start + array.size])
        start += array.size
    whole[-1] = expected.weight
    return whole


def masked_vector(
    site: str, instance: Instance, agreed: Agreed, members: tuple[str, ...], transcript: bytes, whole: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Adds the self-mask and one mask for each other member, in place; ``transcript`` is the members'.

    Raises:
        SecureAggregationRefused: a mask key gives everybody the same secret; what was masked until then is useless.
    """
    keys = [
        pair_key(
            agreed.keys.mask,
            agreed.cohort[other].mask_key,
            members=transcript,
            instance=instance,
            site=site,
            other=other,
        )
        for other in members
        if other != site
    ]
    vector, stream = whole.view(np.uint64), MaskStream()
    stream.apply(self_key(agreed.seed, members=transcript, instance=instance, site=site), vector, add=True)
    for other, key in zip((other for other in members if other != site), keys, strict=True):
        stream.apply(key, vector, add=site < other)
    return vector
