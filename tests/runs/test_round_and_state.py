from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.errors import StorageError
from fedloop_server.runs.events import (
    AttemptStarted,
    Event,
    LeftOut,
    Member,
    RoundClosed,
    RoundOpened,
    RunFailed,
    RunFinished,
    RunReopened,
    RunStopped,
    ScalerFixed,
    SiteAdmitted,
    SiteLeftOut,
    VersionRegistered,
)
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.round import RoundProgress, Verdict
from fedloop_server.runs.state import Phase, RunState, apply

SITES = frozenset({"a", "b", "c", "d", "e"})


@given(
    quorum=st.floats(0, 1),
    answered=st.sets(st.sampled_from(sorted(SITES))),
    refused=st.sets(st.sampled_from(sorted(SITES))),
    late=st.booleans(),
)
def test_a_round_closes_with_its_quorum_and_never_without(
    quorum: float, answered: set[str], refused: set[str], late: bool
) -> None:
    refused = refused - answered
    progress = RoundProgress(SITES, quorum, deadline=10.0, answered=answered, refused=refused)
    verdict = progress.decide(11.0 if late else 0.0)
    enough = len(answered) >= max(1, math.ceil(quorum * len(SITES)))
    if verdict is Verdict.CLOSE:
        assert enough
        assert late or not progress.pending
    if verdict is Verdict.FAIL:
        assert not enough
    if verdict is Verdict.WAIT:
        assert not late
        assert progress.pending


def closed(number: int) -> RoundClosed:
    return RoundClosed(round=number, folded=("a",), checkpoint=f"round-{number}.safetensors", digest="00", unix=0.0)


STORY: tuple[Event, ...] = (
    AttemptStarted(attempt=1, unix=0.0),
    SiteAdmitted(member=Member(site="a", weight=3, rows=3, rows_noised=False, data_fingerprint="f")),
    SiteLeftOut(left_out=LeftOut(site="b", round=0, code="FL-DATA-006", reason="one class")),
    ScalerFixed(checkpoint="round-0.safetensors"),
    RoundOpened(round=1, asked=("a",), unix=1.0),
    closed(1),
    RoundOpened(round=2, asked=("a",), unix=2.0),
    AttemptStarted(attempt=2, unix=3.0),
    RoundOpened(round=2, asked=("a",), unix=4.0),
    closed(2),
    RunFinished(unix=5.0),
)


def test_a_journal_replays_to_the_same_state_after_every_event(tmp_path: Path) -> None:
    state = RunState()
    for length, event in enumerate(STORY):
        journal = RunJournal(tmp_path)
        assert journal.state == state, f"after {length} events"
        state = journal.record(event)
    assert state.phase is Phase.FINISHED
    assert state.completed_rounds == 2
    assert state.attempt == 2
    assert [out.site for out in state.left_out] == ["b"]


@pytest.mark.parametrize("torn", [b'{"event": "round-clo', b"\x00\xff", b'{"event":"run-finished","unix":1.0}'])
def test_a_torn_last_line_never_counted(tmp_path: Path, torn: bytes) -> None:
    journal = RunJournal(tmp_path)
    for event in STORY[:5]:
        journal.record(event)
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert RunJournal(tmp_path).state == journal.state
    assert path.read_bytes() == whole


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("truncates", [True, False], ids=["taken back", "the torn line stays"])
def test_an_event_that_was_torn_by_a_full_disk_is_followed_by_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truncates: bool, durable: bool
) -> None:
    journal = RunJournal(tmp_path, durable=durable)
    for event in STORY[:5]:
        journal.record(event)
    real, calls = os.write, 0

    def half(descriptor: int, content: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content[: len(content) // 2])

    def broken(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        if not truncates:
            patch.setattr(os, "ftruncate", broken)
        with pytest.raises(StorageError, match="No space left"):
            journal.record(closed(1))
    assert journal.state.completed_rounds == 0
    state = journal.record(RunFailed(code="FL-STO-001", reason="the disk is full", unix=2.0))
    again = RunJournal(tmp_path)
    assert again.state == state
    assert again.state.phase is Phase.FAILED
    assert len((tmp_path / "journal.jsonl").read_bytes().splitlines()) == 6


def test_a_journal_that_was_mended_goes_on_after_its_next_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = RunJournal(tmp_path)
    for event in STORY[:4]:
        journal.record(event)
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"event": "round-op')
    journal = RunJournal(tmp_path)

    def full(descriptor: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError):
            journal.record(STORY[4])
    for event in STORY[4:6]:
        journal.record(event)
    assert RunJournal(tmp_path).state == journal.state
    assert journal.state.completed_rounds == 1


def test_an_altered_line_is_an_error_that_names_it(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path)
    for event in STORY[:5]:
        journal.record(event)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"attempt":1', b'"attempt":"x"'))
    with pytest.raises(StorageError, match="line 1"):
        RunJournal(tmp_path)


@pytest.mark.parametrize(
    "event",
    [
        AttemptStarted(attempt=1, unix=9.0),
        RoundOpened(round=3, asked=("a",), unix=9.0),
        closed(2),
    ],
    ids=["a lower attempt", "a round too far", "a round that is not open"],
)
def test_events_out_of_place_are_refused(event: Event) -> None:
    state = RunState()
    for earlier in STORY[:6]:
        state = apply(state, earlier)
    with pytest.raises(ValueError, match=r"attempt|round"):
        apply(state, event)


def test_nothing_follows_the_end() -> None:
    state = RunState()
    for earlier in (*STORY[:6], RunFailed(code="FL-RUN-001", reason="no quorum", unix=2.0)):
        state = apply(state, earlier)
    with pytest.raises(ValueError, match="after the end"):
        apply(state, RunFinished(unix=3.0))


def state_after(*events: Event) -> RunState:
    state = RunState()
    for event in events:
        state = apply(state, event)
    return state


FAILED = RunFailed(code="FL-RUN-001", reason="no quorum", unix=2.0)
REGISTERED = VersionRegistered(version=1)


@pytest.mark.parametrize("end", [FAILED, RunStopped(unix=2.0)], ids=["failed", "stopped"])
@pytest.mark.parametrize(
    ("length", "more", "phase"),
    [(3, (), Phase.GATHERING), (5, (), Phase.TRAINING), (6, (), Phase.TRAINING), (6, (REGISTERED,), Phase.RELEASING)],
)
def test_a_run_that_a_person_opens_again_is_where_it_was(
    end: Event, length: int, more: tuple[Event, ...], phase: Phase
) -> None:
    before = state_after(*STORY[:length], *more)
    ended = apply(before, end)
    assert ended.ended
    assert ended.completed_rounds == before.completed_rounds
    again = apply(ended, RunReopened(unix=3.0))
    assert again == before.model_copy(update={"open_round": None})
    assert (again.phase, again.ended) == (phase, False)
    assert apply(again, AttemptStarted(attempt=2, unix=4.0)).attempt == 2


def test_who_was_left_out_for_good_is_so_until_the_run_is_opened_again() -> None:
    out = LeftOut(site="b", round=0, code="FL-DATA-006", reason="one class", for_good=True)
    passing = LeftOut(site="a", round=1, code="FL-RUN-010", reason="no answer")
    state = state_after(*STORY[:5], SiteLeftOut(left_out=out), SiteLeftOut(left_out=passing), SiteLeftOut(left_out=out))
    assert state.barred == (out,)
    assert state.barred_sites == {"b"}
    state = apply(apply(state, FAILED), RunReopened(unix=3.0))
    assert state.barred == ()
    assert out in state.left_out


@pytest.mark.parametrize("events", [STORY[:5], STORY], ids=["an open run", "a finished one"])
def test_only_what_failed_or_was_stopped_is_opened_again(events: tuple[Event, ...]) -> None:
    with pytest.raises(ValueError, match="run-reopened"):
        apply(state_after(*events), RunReopened(unix=9.0))


def test_a_journal_of_the_first_release_is_read(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text(
        """{"event":"attempt-started","attempt":1,"unix":1.0}
{"event":"site-admitted","member":{"site":"a","weight":1,"rows":9,"rows_noised":false,"data_fingerprint":"00"}}
{"event":"site-left-out","left_out":{"site":"b","round":0,"code":"FL-DATA-006","reason":"data gate: one class"}}
{"event":"scaler-fixed","checkpoint":"round-0.safetensors"}
{"event":"round-opened","round":1,"asked":["a"],"unix":2.0}
{"event":"round-closed","round":1,"folded":["a"],"checkpoint":"round-1.safetensors","digest":"00","measured":[],"spends":[],"unix":3.0}
{"event":"run-finished","unix":4.0}
"""
    )
    state = RunJournal(tmp_path).state
    assert (state.phase, state.completed_rounds, state.barred) == (Phase.FINISHED, 1, ())
    assert (state.rounds[0].asked, state.rounds[0].took, state.left_out[0].for_good) == ((), (), False)


def test_a_checkpoint_gives_back_the_same_bits(tmp_path: Path) -> None:
    journal = RunJournal(tmp_path)
    arrays: dict[str, Any] = {"z": np.array([[1.5, -0.0]], np.float32), "a": np.array([np.pi], np.float64)}
    file = journal.save_checkpoint("round-1", arrays)
    back = journal.load_checkpoint(file, ("z", "a"))
    assert list(back) == ["z", "a"]
    assert all(back[name].tobytes() == arrays[name].tobytes() for name in arrays)
    with pytest.raises(StorageError, match=r"round-9"):
        journal.load_checkpoint("round-9.safetensors", ("z",))
