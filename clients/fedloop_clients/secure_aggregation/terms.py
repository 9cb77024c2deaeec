"""What a site checks before it takes part: who else does, with which keys, and what is summed."""

from __future__ import annotations

from fedloop_clients.secure_aggregation.states import Expected
from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.identity import Consortium
from fedloop_core.secure_aggregation.messages import Advertisement, ShareKeys
from fedloop_core.secure_aggregation.transcript import advertised_text

__all__ = ["check_cohort", "check_terms"]


def check_cohort(question: ShareKeys, own: Advertisement, consortium: Consortium) -> None:
    """Refuses strangers, keys that their site has not signed for this instance, keys that come twice, and a cohort without ``own``.

    Raises:
        SecureAggregationRefused: ``reason`` says which, ``peer`` whose key it is.
    """
    seen: set[bytes] = set()
    for advertisement in question.cohort:
        site, known = advertisement.site, consortium.key(advertisement.site)
        text = advertised_text(question.instance, site, advertisement.mask_key, advertisement.channel_key)
        keys = {advertisement.mask_key, advertisement.channel_key}
        if advertisement.instance != question.instance:
            raise _refused("instance", site, "has told keys for another instance")
        if not known.verifies(advertisement.signature, text):
            raise _refused("signature", site, "has not signed its keys")
        if len(keys) != 2 or keys & seen:
            raise _refused("key", site, "has a key that was seen already")
        seen |= keys
    if own not in question.cohort:
        raise SecureAggregationRefused("the cohort lacks the keys that this site has told.", reason="own-keys")


def check_terms(question: ShareKeys, expected: Expected) -> None:
    """Refuses terms that are not those of the update that this site has.

    Of the other sites' weights a site knows that each is 1 at least: their sum with its own must be within the total, so that where all
    weigh the same no sum leaves the fixed point. The coordinator, which knows all weights, checks the whole sum.

    Raises:
        SecureAggregationRefused: ``reason`` says what is another.
    """
    terms = question.terms
    same = {
        "task": terms.task_digest == expected.task_digest,
        "model": terms.model_digest == expected.model_digest,
        "values": terms.values == expected.spec.size,
        "largest-value": terms.largest_value == expected.largest_value,
        "weight": 1 <= expected.weight <= terms.total_weight - (len(question.cohort) - 1),
    }
    for reason, holds in same.items():
        if not holds:
            raise SecureAggregationRefused(
                f"the terms of the sum do not fit what this site knows: {reason}.",
                hint="Sites may have been sent different models or tasks.",
                reason=reason,
            )


def _refused(reason: str, peer: str, what: str) -> SecureAggregationRefused:
    return SecureAggregationRefused(f"site {peer} {what}.", reason=reason, peer=peer)
