"""A sum that another process unmasks: from its bytes alone, the same to the bit, and with the same refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from tests.secure_aggregation.federation import AT, Federation, names, questions_of, refusal, run, take

from fedloop_core.secure_aggregation.messages import Share, Unmasking
from fedloop_server.runs.secure import SecureSums, Summed
from fedloop_server.runs.sums import Gathered, KeptSums
from fedloop_server.secure_aggregation.machine import SecureRound, SecureSum, Stage
from fedloop_server.secure_aggregation.unmaskable import Unmaskable

if TYPE_CHECKING:
    from fedloop_server.runs.exchange import Exchange

SILENT = {"site-07": Stage.SHARES, "site-08": Stage.INPUTS, "site-05": Stage.SURVIVORS}


def settled(federation: Federation) -> tuple[Unmaskable, np.ndarray]:
    """An instance of ten sites, of which three are lost at three stages, as its process leaves it before shares are asked for."""
    round_ = federation.coordinator(AT)
    run(federation, round_, silent=SILENT, until=Stage.UNMASKING)
    round_.ask_unmasking()
    assert round_.unmaskable is not None
    return Unmaskable.model_validate_json(round_.unmaskable.model_dump_json()), round_.masked.copy()


def unmasked(federation: Federation, kept: Unmaskable, masked: np.ndarray) -> SecureSum:
    round_ = SecureRound.unmasking(kept, masked.copy())
    for site, question in round_.ask_unmasking().items():
        take(round_, site, federation.answer(site, question))
    return round_.sum()


def test_another_process_ends_with_the_plain_sum() -> None:
    federation = Federation(10)
    kept, masked = settled(federation)
    result = unmasked(federation, kept, masked)
    assert result.survivors == tuple(site for site in names(10) if site not in ("site-07", "site-08"))
    direct, expected = federation.empty(), federation.plain(result.survivors)
    direct.add_whole(result.whole, result.weight)
    assert result.weight == sum(federation.weights[site] for site in result.survivors)
    for one, other in zip(direct.sum().values(), expected.sum().values(), strict=True):
        assert one.tobytes() == other.tobytes()
    assert unmasked(federation, kept, masked).whole.tobytes() == result.whole.tobytes()  # answers are given again


def test_fewer_shares_than_the_threshold_sum_nothing() -> None:
    federation = Federation(10)
    kept, masked = settled(federation)
    round_ = SecureRound.unmasking(kept, masked.copy())
    for site, question in list(round_.ask_unmasking().items())[: kept.threshold - 1]:
        take(round_, site, federation.answer(site, question))
    assert not round_.has_enough_shares
    assert set(round_.ask_unmasking()) == round_.waiting
    assert refusal(round_.sum) == "survivors"
    assert round_.masked.tobytes() == masked.tobytes()


def test_what_is_kept_holds_no_secret_of_a_site() -> None:
    """Before sites release shares: neither their vectors, nor sealed shares, nor what opens any."""
    federation = Federation(10)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=Stage.INPUTS)
    sealed = [shares.content for dealt in round_._dealt.values() for shares in dealt.sealed]
    vectors = []
    for site, question in questions_of(round_, Stage.INPUTS, federation.goal()).items():
        answer = federation.answer(site, question)
        vectors.append(answer.masked.tobytes())  # type: ignore[union-attr]
        take(round_, site, answer)
    for stage in (Stage.SURVIVORS, Stage.UNMASKING):
        for site, question in questions_of(round_, stage, federation.goal()).items():
            if stage is Stage.SURVIVORS:
                take(round_, site, federation.answer(site, question))
    kept, masked = round_.unmaskable, round_.masked
    assert kept is not None
    told = [part for dealt in kept.dealt for part in (dealt.mask_key, dealt.seed_commitment, *sum(dealt.digests, ()))]
    told += [signature for _, signature in kept.signed]
    assert not {*sealed, *vectors} & {*told, masked.tobytes()}
    assert {name for name, field in Unmaskable.model_fields.items() if "bytes" in str(field.annotation)} == {
        "task_digest",
        "model_digest",
        "cohort",
        "signed",
    }


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda answer: Unmasking(answer.instance, answer.seeds[:-1], answer.keys), "members"),
        (lambda answer: Unmasking(answer.instance, _turned(answer.seeds), answer.keys), "share"),
    ],
    ids=["too few", "another share"],
)
def test_a_share_that_was_not_dealt_drops_its_holder_there_too(spoil: object, reason: str) -> None:
    federation = Federation(10)
    kept, masked = settled(federation)
    round_ = SecureRound.unmasking(kept, masked)
    site, question = next(iter(round_.ask_unmasking().items()))
    answer = federation.answer(site, question)
    assert callable(spoil)
    assert refusal(lambda: take(round_, site, spoil(answer))) == reason
    assert site not in round_.waiting | round_.helpers


def test_a_vector_of_another_length_is_refused() -> None:
    kept, masked = settled(Federation(10))
    assert refusal(lambda: SecureRound.unmasking(kept, masked[:-1])) == "values"


def _turned(shares: tuple[Share, ...]) -> tuple[Share, ...]:
    first, *rest = shares
    return (Share(first.site, bytes(byte ^ 1 for byte in first.content)), *rest)


def test_s7_sites_that_weigh_more_than_the_fixed_point_holds_are_asked_nothing(tmp_path: Path) -> None:
    """Their sum could wrap around. ``exchange`` has no method: whatever asked would fail otherwise."""
    exchange = cast("Exchange", object())
    kept = KeptSums(tmp_path, durable=False, patiently=lambda write: write())
    sums = SecureSums(exchange, kept, run_id=AT.run_id, attempt=1, minimum_sites=3, deadline_seconds=1.0, rounds=1)
    goal, weights = Federation(3).goal(), dict.fromkeys(names(3), 2**61)
    summed = Summed(1, replace(goal, total_weight=2**62), weights, Gathered(asked=(), answered=()), lambda _: None)
    assert refusal(lambda: sums.sum(summed)) == "weight"
