"""What does not leave a site, what is bound by its signatures, and floors that no message lowers."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
from tests.secure_aggregation.federation import (
    ACCOMPLICE,
    AT,
    RUN,
    VICTIM,
    Federation,
    advertised,
    names,
    refusal,
    run,
    with_keys,
)

from fedloop_clients.secure_aggregation.machine import AggregatingSite
from fedloop_clients.secure_aggregation.policy import AggregationPolicy
from fedloop_clients.secure_aggregation.promises import MemoryPromises, Promise
from fedloop_core.errors import FedloopError, PrivacyParameterInvalid, SecureAggregationRefused
from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.identity import Consortium
from fedloop_core.secure_aggregation.messages import (
    Answer,
    MaskedInput,
    Unmasking,
)
from fedloop_core.secure_aggregation.transcript import cohort_transcript, survivors_text
from fedloop_proto.secure_aggregation.v1 import secure_aggregation_pb2 as pb
from fedloop_server.secure_aggregation.machine import SecureRound, Stage

S, M, C, U = Stage.SHARES, Stage.INPUTS, Stage.SURVIVORS, Stage.UNMASKING


def test_s4_no_message_can_name_a_site_as_alive_and_dead() -> None:
    assert set(pb.Unmask.DESCRIPTOR.fields_by_name) == {"instance", "signatures"}
    federation = Federation(5)
    given: list[Unmasking] = []

    def watch(stage: Stage, site: str, answer: Answer) -> Answer:
        if isinstance(answer, Unmasking):
            given.append(answer)
        return answer

    run(federation, federation.coordinator(AT), silent={ACCOMPLICE: M}, spoil=watch)
    assert len(given) == 4
    for answer in given:
        assert [share.site for share in answer.seeds] == names(4)
        assert [share.site for share in answer.keys] == [ACCOMPLICE]


def test_s9_nothing_secret_is_pickled_printed_or_kept_after_the_round() -> None:
    federation = Federation(4)
    round_ = federation.coordinator(AT)
    for stage in (S, M, C, U):
        run(federation, federation.coordinator(replace(AT, number=3 + stage)), until=stage)
        live = federation.machines[VICTIM]._live[RUN, 1].state
        for leak in (pickle.dumps, copy.deepcopy):
            with pytest.raises(TypeError, match="never serialised"):
                leak(live)
        assert "bytes" not in repr(live)
        assert "b'" not in repr(live)
    round_ = federation.coordinator(replace(AT, number=20))
    run(federation, round_)
    kept = federation.machines[VICTIM]._live[RUN, 1].state
    assert vars(kept) == {}
    assert set(Promise.model_fields) == {"run_id", "round", "number", "update", "transcript", "survivors", "released"}


def test_s9_weights_do_not_travel_in_clear() -> None:
    assert set(pb.MaskedInput.DESCRIPTOR.fields_by_name) == {"instance"}
    federation = Federation(3)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=M)
    masked = federation.answer(VICTIM, round_.ask_inputs()[VICTIM])
    assert isinstance(masked, MaskedInput)
    assert int(masked.masked[-1]) != federation.weights[VICTIM]


@pytest.mark.parametrize("sites", [0, 1, 2])
def test_s3_two_sites_do_not_sum(sites: int) -> None:
    with pytest.raises(PrivacyParameterInvalid):
        AggregationPolicy(sites)
    federation = Federation(3)
    with pytest.raises(PrivacyParameterInvalid):
        SecureRound(AT, {}, minimum_sites=sites)
    round_ = federation.coordinator(AT, names(3)[:sites])
    with pytest.raises(SecureAggregationRefused, match="Nothing was revealed"):
        run(federation, round_)


def test_a_sites_own_floor_holds_whatever_the_coordinator_asks_for() -> None:
    federation = Federation(5)
    federation.machines[VICTIM] = federation.machine(VICTIM, minimum=5)
    round_ = federation.coordinator(AT)
    assert refusal(lambda: run(federation, round_, silent={ACCOMPLICE: M})) == "survivors"
    assert [(d.site, d.stage, d.reason) for d in round_.dropped] == [
        (ACCOMPLICE, M, "silent"),
        (VICTIM, C, "survivors"),
    ]
    federation.machines[VICTIM] = federation.machine(VICTIM, minimum=6)
    round_ = federation.coordinator(replace(AT, number=3))
    assert run(federation, round_) is not None
    assert [(d.site, d.stage, d.reason) for d in round_.dropped] == [(VICTIM, S, "cohort")]


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"a": "one", "b": "one"}, "one key"),
        ({"A site": "one"}, "names no site"),
    ],
    ids=["one key under two names", "no name"],
)
def test_a_consortium_that_cannot_be_one_is_refused(keys: dict[str, str], what: str) -> None:
    made = {name: SigningKey.generate().verifying for name in set(keys.values())}
    with pytest.raises(SecureAggregationRefused, match=what):
        Consortium({site: made[name] for site, name in keys.items()})


def test_a_site_whose_key_the_consortium_does_not_know_takes_no_part() -> None:
    federation = Federation(3)
    with pytest.raises(SecureAggregationRefused, match="another key"):
        AggregatingSite(
            VICTIM,
            SigningKey.generate(),
            consortium=federation.consortium,
            policy=AggregationPolicy(),
            promises=MemoryPromises(),
        )


def test_a_refusal_says_no_more_on_the_wire_than_reason_and_peer() -> None:
    with pytest.raises(FedloopError) as refused:
        Federation(3).consortium.key("site-77")
    assert refused.value.wire().code == "FL-PRIV-010"
    assert dict(refused.value.wire().fields) == {"reason": "unknown-site"}


def test_what_sites_sign_is_bound_to_instance_terms_members_and_survivors() -> None:
    federation = Federation(3)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=S)
    question = round_.ask_shares(federation.goal())[VICTIM]
    changed = [
        replace(question, instance=replace(AT, round=2)),
        replace(question, instance=replace(AT, number=1)),
        replace(question, instance=replace(AT, run_id="other")),
        with_keys(question, without=("site-02",)),
        with_keys(question, advertised(federation, "site-02")),
        *(
            replace(question, terms=terms)
            for terms in (
                replace(question.terms, task_digest=b"t" * 32),
                replace(question.terms, model_digest=b"t" * 32),
                replace(question.terms, values=3),
                replace(question.terms, largest_value=2.0),
                replace(question.terms, total_weight=5),
                replace(question.terms, threshold=2),
            )
        ),
    ]
    assert len({cohort_transcript(q) for q in (question, *changed)}) == len(changed) + 1
    assert survivors_text(b"t", ["a", "b"]) != survivors_text(b"t", ["a"])
