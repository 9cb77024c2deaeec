"""What a site does once, whatever it is asked, and through restarts and full disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.secure_aggregation.federation import (
    AT,
    RUN,
    TRAINED,
    VICTIM,
    Federation,
    Update,
    names,
    refusal,
    run,
)

from fedloop_clients.outbox import Outbox
from fedloop_clients.secure_aggregation.promises import MemoryPromises, Promise
from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import (
    AdvertiseKeys,
    Answer,
    ConfirmSurvivors,
    MaskedInput,
    Question,
    SiteSignature,
    Unmask,
)
from fedloop_server.secure_aggregation.machine import SecureRound, Stage

S, M, C, U = Stage.SHARES, Stage.INPUTS, Stage.SURVIVORS, Stage.UNMASKING


def released(federation: Federation) -> SecureRound:
    round_ = federation.coordinator(AT)
    run(federation, round_)
    return round_


@pytest.mark.parametrize("restarted", [False, True], ids=["in memory", "after a restart"])
def test_shares_of_a_round_leave_once_for_ever(restarted: bool) -> None:
    federation = Federation(5)
    released(federation)
    machine = federation.machine(VICTIM) if restarted else federation.machines[VICTIM]
    federation.machines[VICTIM] = machine
    for number in (1, 2, 3, 2**30):
        at = replace(AT, number=number)
        questions: tuple[Question, ...] = (
            AdvertiseKeys(at),
            ConfirmSurvivors(at, tuple(names(5))),
            Unmask(at, (SiteSignature(VICTIM, bytes(64)),)),
        )
        for question in questions:
            with pytest.raises(SecureAggregationRefused) as refused:
                federation.answer(VICTIM, question)
            assert refused.value.fields["reason"] == "released"
    assert machine.advertise(AdvertiseKeys(replace(AT, round=2))).site == VICTIM


@pytest.mark.parametrize("stage", [S, M, C, U], ids=lambda stage: stage.name.lower())
def test_a_site_that_was_restarted_gives_the_instance_up(stage: Stage) -> None:
    federation = Federation(5)
    round_ = federation.coordinator(AT)

    def restart(at: Stage, site: str, question: Question) -> Question:
        if (at, site) == (stage, VICTIM):
            federation.machines[VICTIM] = federation.machine(VICTIM)
        return question

    run(federation, round_, tamper=restart)
    assert [(d.site, d.stage, d.reason) for d in round_.dropped] == [(VICTIM, stage, "instance")]
    again = federation.machine(VICTIM)
    assert refusal(lambda: again.advertise(AdvertiseKeys(AT))) == "instance"
    assert again.advertise(AdvertiseKeys(replace(AT, number=3))).instance.number == 3


def test_a_question_that_is_asked_again_gets_its_answer_again_and_another_none() -> None:
    federation = Federation(5)
    round_ = federation.coordinator(AT)
    seen: list[Stage] = []

    def ask_twice(stage: Stage, site: str, answer: Answer) -> Answer:
        if site != VICTIM:
            return answer
        again = federation.answer(VICTIM, asked[stage])
        seen.append(stage)
        if isinstance(answer, MaskedInput) and isinstance(again, MaskedInput):
            assert answer.masked.tobytes() == again.masked.tobytes()
        else:
            assert answer == again
        return answer

    asked: dict[Stage, Question] = {}

    def keep(stage: Stage, site: str, question: Question) -> Question:
        if site == VICTIM:
            asked[stage] = question
        return question

    assert run(federation, round_, tamper=keep, spoil=ask_twice) is not None
    assert len(seen) == 5


def test_another_list_of_survivors_is_not_signed() -> None:
    federation = Federation(6)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=C)
    machine = federation.machines[VICTIM]
    machine.confirm(round_.ask_survivors()[VICTIM])
    assert refusal(lambda: machine.confirm(ConfirmSurvivors(AT, tuple(names(5))))) == "stage"
    federation.promises[VICTIM].write(federation.promises[VICTIM].read(AT))
    assert federation.promises[VICTIM].read(AT).survivors


def test_an_instance_that_was_given_up_for_another_is_never_unmasked() -> None:
    federation = Federation(5)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=U)
    unmask = round_.ask_unmasking()[VICTIM]
    federation.machines[VICTIM].advertise(AdvertiseKeys(replace(AT, number=3)))
    assert refusal(lambda: federation.machines[VICTIM].unmask(unmask)) == "instance"
    assert not federation.promises[VICTIM].read(AT).released


class FailingPromises(MemoryPromises):
    """A disk that is full when ``failing`` is set."""

    failing = False

    def write(self, promise: Promise) -> None:
        if self.failing:
            raise OSError("no space is left")
        super().write(promise)


@pytest.mark.parametrize("stage", [Stage.KEYS, S, C, U], ids=lambda stage: stage.name.lower())
def test_nothing_leaves_before_it_is_kept(stage: Stage) -> None:
    federation = Federation(5)
    promises = FailingPromises()
    federation.promises[VICTIM] = promises
    federation.machines[VICTIM] = federation.machine(VICTIM)
    round_ = federation.coordinator(AT)
    failed: list[Stage] = []

    def fail(at: Stage, site: str, question: Question) -> Question:
        if (at, site) == (stage, VICTIM):
            promises.failing = True
            with pytest.raises(OSError, match="no space"):
                federation.answer(site, question)
            promises.failing = False
            failed.append(at)
        return question

    assert run(federation, round_, tamper=fail) is not None  # asked again, when there is space, it answers
    assert failed == [stage]
    assert round_.dropped == ()


def test_promises_outlive_the_process_in_the_outbox(tmp_path: Path) -> None:
    at = Instance(RUN, 3, 2)
    first = Outbox(tmp_path / "outbox.db")
    assert first.read_promise(at) == Promise.of(at)
    kept = Promise(run_id=RUN, round=3, number=2, transcript="ab" * 32, survivors="cd" * 32, released=True)
    first.write_promise(kept)
    first.close()
    again = Outbox(tmp_path / "outbox.db")
    assert again.read_promise(at) == kept
    assert again.read_promise(Instance(RUN, 4, 2)) == Promise.of(Instance(RUN, 4, 2))
    again.close()


@pytest.mark.parametrize("restarted", [False, True], ids=["in one process", "after a restart"])
def test_s4_a_round_is_agreed_on_for_one_update_for_ever(restarted: bool) -> None:
    federation = Federation(3)
    run(federation, federation.coordinator(AT), until=M)
    if restarted:
        federation.machines[VICTIM] = federation.machine(VICTIM)
    later = federation.coordinator(replace(AT, number=3))
    run(federation, later, until=S)
    question = later.ask_shares(federation.goal())[VICTIM]
    other = replace(federation.expected(VICTIM), update=b"o" * 32)
    assert refusal(lambda: federation.machines[VICTIM].share_keys(question, other)) == "update"
    assert federation.machines[VICTIM].share_keys(question, federation.expected(VICTIM))
    following = federation.coordinator(replace(AT, round=2))
    run(federation, following, until=S)
    asked = following.ask_shares(federation.goal())[VICTIM]
    assert federation.machines[VICTIM].share_keys(asked, other)  # another round has another one


def test_s4_the_update_that_is_masked_is_asked_for_by_the_name_that_was_agreed_on() -> None:
    federation = Federation(3)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=M)
    asked: list[bytes] = []

    def find(name: bytes) -> Update:
        asked.append(name)
        return federation.updates[VICTIM]

    federation.machines[VICTIM].mask(round_.ask_inputs()[VICTIM], find)
    assert asked == [TRAINED]
