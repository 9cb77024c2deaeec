"""What a site, or somebody between, can change in its answers: there is a right sum or none, and a name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.secure_aggregation.federation import (
    ACCOMPLICE,
    AT,
    RUN,
    VICTIM,
    Federation,
    Spoil,
    Update,
    names,
    refusal,
    run,
)

from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.agreement import KeyPair, seal_shares
from fedloop_core.secure_aggregation.messages import (
    Advertisement,
    Answer,
    Confirmation,
    MaskedInput,
    MaskInput,
    Question,
    SealedShares,
    Share,
    ShareDigests,
    SharedKeys,
    Unmasking,
)
from fedloop_core.secure_aggregation.sharing import split_secret
from fedloop_core.secure_aggregation.transcript import share_digest
from fedloop_server.secure_aggregation.machine import SecureRound, Stage

S, M, C, U = Stage.SHARES, Stage.INPUTS, Stage.SURVIVORS, Stage.UNMASKING


def first_of(changed: Callable[[Answer], Answer], at: Stage, who: str = ACCOMPLICE) -> Spoil:
    return lambda stage, site, answer: changed(answer) if (stage, site) == (at, who) else answer


def other_vector(answer: Answer) -> Answer:
    assert isinstance(answer, MaskedInput)
    return MaskedInput(answer.instance, answer.masked + np.uint64(2**33))


def other_share(answer: Answer) -> Answer:
    assert isinstance(answer, Unmasking)
    first, *rest = answer.seeds
    return replace(answer, seeds=(Share(first.site, bytes(16)), *rest))


def fewer_shares(answer: Answer) -> Answer:
    assert isinstance(answer, Unmasking)
    return replace(answer, seeds=answer.seeds[1:])


def shorter(answer: Answer) -> Answer:
    assert isinstance(answer, MaskedInput)
    return MaskedInput(answer.instance, answer.masked[:-1])


def other_commitment(answer: Answer) -> Answer:
    assert isinstance(answer, SharedKeys)
    return replace(answer, seed_commitment=bytes(32))


def other_digests(answer: Answer) -> Answer:
    assert isinstance(answer, SharedKeys)
    return replace(answer, digests=tuple(ShareDigests(d.site, bytes(32), bytes(32)) for d in answer.digests))


def for_fewer(answer: Answer) -> Answer:
    assert isinstance(answer, SharedKeys)
    return replace(answer, sealed=answer.sealed[1:])


def other_signature(answer: Answer) -> Answer:
    assert isinstance(answer, Confirmation)
    return replace(answer, signature=bytes(64))


def stolen_keys(answer: Answer) -> Answer:
    assert isinstance(answer, Advertisement)
    return replace(answer, mask_key=KeyPair.generate().public)


@dataclass(frozen=True)
class Answered:
    """An answer that a site, or somebody between, has changed; ``summed``: the others' sum comes about without it."""

    name: str
    spoil: Spoil
    stage: Stage
    reason: str
    summed: bool = True


ANSWERED = [
    Answered("keys that the site has not signed", first_of(stolen_keys, Stage.KEYS), Stage.KEYS, "signature"),
    Answered("shares for fewer than the cohort", first_of(for_fewer, S), S, "members"),
    Answered("S7 a vector that is too short", first_of(shorter, M), M, "values"),
    Answered("another signature", first_of(other_signature, C), C, "signature"),
    Answered("S7 a wrong share", first_of(other_share, U), U, "share"),
    Answered("S7 shares of fewer than were asked for", first_of(fewer_shares, U), U, "members"),
    Answered("S7 a vector that is not masked as agreed", first_of(other_vector, M), Stage.OVER, "weight", False),
    Answered("S7 a commitment to another seed", first_of(other_commitment, S), Stage.OVER, "reconstruction", False),
    Answered("S7 digests of other shares", first_of(other_digests, S), Stage.OVER, "survivors", False),
]


@pytest.mark.parametrize("row", ANSWERED, ids=lambda row: row.name)
def test_s7_a_coordinator_gives_no_wrong_sum(row: Answered) -> None:
    federation = Federation(5)
    round_ = federation.coordinator(AT)
    if not row.summed:
        with pytest.raises(SecureAggregationRefused) as refused:
            run(federation, round_, spoil=row.spoil)
        assert refused.value.fields["reason"] == row.reason
        return
    summed = run(federation, round_, spoil=row.spoil)
    assert [(d.site, d.stage, d.reason) for d in round_.dropped] == [(ACCOMPLICE, row.stage, row.reason)]
    assert summed is not None
    masked, plain = federation.empty(), federation.plain(summed.survivors)
    masked.add_whole(summed.whole, summed.weight)
    assert all(masked.sum()[name].tobytes() == array.tobytes() for name, array in plain.sum().items())


def test_s7_a_mask_key_that_is_not_its_owners_is_named() -> None:
    federation = Federation(5)
    round_ = federation.coordinator(AT)

    def deal_another_key(stage: Stage, site: str, answer: Answer) -> Answer:
        if (stage, site) != (S, ACCOMPLICE):
            return answer
        assert isinstance(answer, SharedKeys)
        return dealt_anew(federation, round_, answer)

    with pytest.raises(SecureAggregationRefused) as refused:
        run(federation, round_, spoil=deal_another_key, silent={ACCOMPLICE: M})
    assert refused.value.fields == {"reason": "reconstruction", "peer": ACCOMPLICE}


def dealt_anew(federation: Federation, round_: SecureRound, answer: SharedKeys) -> SharedKeys:
    """Shares of random secrets, well sealed and with their own digests: the accomplice knows its channel key."""
    state = federation.machines[ACCOMPLICE]._live[RUN, 1].state
    agreed = state.agreed  # type: ignore[union-attr]
    seeds, keys = split_secret(bytes(16), 4, 5), split_secret(b"x" * 32, 4, 5)
    digests, sealed_shares = [], []
    for holder, seed, key in zip(names(5), seeds, keys, strict=True):
        digests.append(
            ShareDigests(holder, *(share_digest(agreed.transcript, ACCOMPLICE, holder, s) for s in (seed, key)))
        )
        if holder != ACCOMPLICE:
            peer = agreed.cohort[holder].channel_key
            way = (ACCOMPLICE, holder)
            content = seal_shares(
                agreed.keys.channel, peer, (seed, key), cohort=agreed.transcript, instance=AT, way=way
            )
            sealed_shares.append(SealedShares(holder, content))
    return replace(answer, sealed=tuple(sealed_shares), digests=tuple(digests))


BAD_UPDATES: dict[str, tuple[Callable[[Update], object], str]] = {
    "S7 not a number": (lambda a: a["bias"].__setitem__(0, np.nan), "not-finite"),
    "S7 infinite": (lambda a: a["weight"].__setitem__((0, 0), np.inf), "not-finite"),
    "S7 beyond the norm": (lambda a: a["weight"].__setitem__((0, 0), 11.0), "norm"),
    "an array is missing": (lambda a: a.pop("bias"), "names"),
}


@pytest.mark.parametrize("name", BAD_UPDATES)
def test_s7_a_site_masks_nothing_that_the_gate_would_refuse(name: str) -> None:
    federation = Federation(5)
    federation.updates[VICTIM] = copy.deepcopy(federation.updates[VICTIM])
    spoil, reason = BAD_UPDATES[name]
    spoil(federation.updates[VICTIM])
    round_ = federation.coordinator(AT)
    summed = run(federation, round_)
    assert summed is not None
    assert [(d.site, d.stage, d.reason) for d in round_.dropped] == [(VICTIM, M, reason)]
    assert VICTIM not in summed.survivors


def test_sites_that_were_sent_different_models_do_not_sum() -> None:
    """A coordinator that tells each site what it expects: no message of one fits another."""
    federation = Federation(5)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=S)
    for site, question in round_.ask_shares(federation.goal()).items():
        model = b"m" * 32 if site == VICTIM else question.terms.model_digest
        asked = replace(question, terms=replace(question.terms, model_digest=model))
        expected = replace(federation.expected(site), model_digest=model)
        round_.take_shares(site, federation.machines[site].share_keys(asked, expected))
    for site, mask in round_.ask_inputs().items():
        with pytest.raises(SecureAggregationRefused) as refused:
            federation.answer(site, mask)
        assert refused.value.fields["reason"] == "shares"
        assert VICTIM in (site, refused.value.fields["peer"])


def test_s5_sites_that_were_told_different_members_release_nothing() -> None:
    federation = Federation(5)
    round_ = federation.coordinator(AT)

    def tamper(stage: Stage, site: str, question: Question) -> Question:
        if isinstance(question, MaskInput) and site == VICTIM:
            return replace(question, sealed=question.sealed[:-1])
        return question

    assert refusal(lambda: run(federation, round_, tamper=tamper)) == "weight"
    assert [(d.site, d.stage, d.reason) for d in round_.dropped] == [(VICTIM, C, "members")]
    assert not federation.promises[VICTIM].read(AT).released
