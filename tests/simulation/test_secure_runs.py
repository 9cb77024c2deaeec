"""A run whose updates are masked ends with the very model of a run whose updates are not, and nobody saw one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.simulation.secure_sites import SEED, Watched, rows_of, task_of

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.endpoint import SiteEndpoint
from fedloop_clients.outbox import Outbox
from fedloop_clients.secure_aggregation.updates import SecureUpdates
from fedloop_core.errors import PolicyRefused
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, SignedAnswer
from fedloop_server.runs.events import RoundClosed
from fedloop_simulations.keys import rehearsal_key

Make = Callable[..., Any]


def finished(federation: Make, task: Task, count: int, watched: Watched, **more: Any) -> Any:
    members = federation(task, rows_of(task, count), SEED, **more)
    closed: list[RoundClosed] = []

    def observe(_: object, event: object) -> None:
        if isinstance(event, RoundClosed):
            closed.append(event)

    state = members.run(observe=observe, wrap=watched.wrap)
    return members, state, closed


@pytest.mark.parametrize("epsilon", [float("inf"), 5.0], ids=["without privacy", "private"])
def test_masked_and_plain_runs_end_with_the_same_model(federation: Make, epsilon: float) -> None:
    plain, masked = Watched(), Watched()
    first, state, _ = finished(federation, task_of(False, epsilon=epsilon), 5, plain)
    assert state.failure is None
    second, state, closed = finished(federation, task_of(True, epsilon=epsilon), 5, masked)
    assert state.failure is None
    before, after = (dict(members.home.trained_arrays("run-1")) for members in (first, second))
    assert all(after[name].tobytes() == array.tobytes() for name, array in before.items())
    assert all(arrays for arrays in plain.arrays("train_locally"))
    assert not any(arrays for arrays in masked.arrays("train_locally"))  # the update stays
    updates = plain.arrays("train_locally")
    for vector in masked.arrays("mask_input"):
        assert list(vector) == ["masked"]
        assert vector["masked"].size == sum(array.size for array in updates[0].values()) + 1
    asked = Counter((round_, kind) for _, kind, round_, _ in masked.replies if round_ > 0)
    secure = ("share_keys", "mask_input", "confirm_survivors", "unmask")
    assert {at: count for at, count in asked.items() if at[1] != "train_locally"} == {
        (1, "advertise_keys"): 5,  # later keys are told beside the last answer of the round before
        **{(round_, kind): 5 for round_ in (1, 2, 3) for kind in secure},
    }
    assert [len(told.folded) for told in closed] == [5, 5, 5]
    assert not any(told.updates for told in closed)  # no norm of a single update is known
    spent = [{site: ledger.head().sequence for site, ledger in members.ledgers.items()} for members in (first, second)]
    assert spent[0] == spent[1]  # masking is no release of its own


@pytest.mark.parametrize("kind", ["advertise_keys", "share_keys", "mask_input", "confirm_survivors", "unmask"])
def test_a_site_that_is_lost_at_any_stage_is_named_and_the_others_go_on(federation: Make, kind: str) -> None:
    first = (
        1 if kind == "advertise_keys" else 2
    )  # which is a question of its own in the first round, and for who missed it
    watched = Watched({"ward-4": (kind, first)})
    _, state, closed = finished(federation, task_of(True), 5, watched)
    assert state.failure is None
    late = kind in ("confirm_survivors", "unmask")  # its vector had arrived
    assert [len(told.folded) for told in closed] == [5 if late or at < first else 4 for at in (1, 2, 3)]
    assert {out.site for told in closed[first - 1 :] for out in told.left_out} == {"ward-4"}


def test_two_sites_that_are_left_sum_nothing_and_the_run_says_why(federation: Make) -> None:
    watched = Watched({"ward-2": ("mask_input", 2)})
    _, state, closed = finished(federation, task_of(True), 3, watched)
    assert state.failure is not None
    assert len(closed) == 1
    assert "ward-2" in state.failure.reason
    released = [round_ for _, told, round_, _ in watched.replies if told == "unmask"]
    assert set(released) == {1}


def test_a_site_whose_people_named_no_consortium_is_left_out_for_good(federation: Make) -> None:
    watched = Watched()

    def wrap(site: SiteEndpoint) -> SiteEndpoint:
        assert isinstance(site, SiteDaemon)
        if site.site == "ward-4":
            key = rehearsal_key(site.site)
            site._secure = SecureUpdates(site.site, key, lambda: None, lambda: None, Outbox(":memory:"))
        return watched.wrap(site)

    task = task_of(True)
    members = federation(task, rows_of(task, 5), SEED)
    state = members.run(wrap=wrap)
    assert state.failure is None
    assert [(out.site, out.code, out.for_good) for out in state.barred] == [("ward-4", PolicyRefused.code, True)]
    assert "consortium" in state.barred[0].reason


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"training": {"algorithm": "newton", "ridge": 0.1}}, "newton"),
        ({"rounds": {"sites_per_round": 2}}, "a sum needs 3 sites"),
        ({"aggregation": {"rule": "mean", "secure": True, "minimum_sites": 2}}, "minimum_sites"),
        ({"aggregation": {"rule": "median", "secure": True}}, "secure"),
    ],
    ids=["newton", "too few sites a round", "two sites", "a rule that compares updates"],
)
def test_tasks_whose_parts_do_not_fit_are_refused(changes: dict[str, dict[str, object]], what: str) -> None:
    document = task_of(True).model_dump()
    for part, values in changes.items():
        if part == "training" or part == "aggregation":
            document[part] = values
        else:
            document[part] |= values
    with pytest.raises(ValueError, match=what):
        Task.model_validate(document, strict=False)


def test_an_answer_of_a_daemon_is_signed_like_any_other(federation: Make) -> None:
    watched = Watched()
    finished(federation, task_of(True), 3, watched)
    for site, kind, round_, reply in watched.replies:
        answer = Answer.FromString(SignedAnswer.FromString(reply.answer).answer)
        assert (answer.site, answer.round) == (site, round_)
        if kind == "unmask":
            assert answer.WhichOneof("result") == "securely_aggregated"
