"""A site's own rules: each refuses what it must, and no message can loosen one."""

from __future__ import annotations

import datetime as dt
import json
import math
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedloop_clients.approvals import Approvals, ApprovalState, Asked
from fedloop_clients.controls import SiteControls
from fedloop_clients.policy import Hours, SitePolicy, TimeWindow
from fedloop_clients.standing import StandingFile
from fedloop_core.errors import PolicyRefused, StorageError, UsageError
from fedloop_core.federation.rules import PolicyRule, is_temporary
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.document import CustomModel, LogisticModel, Privacy, Purpose, Retraining, Rounds, Task

BERLIN = ZoneInfo("Europe/Berlin")


def make_task(epsilon: float = 2.0, **parts: Any) -> Task:
    base: dict[str, Any] = {
        "format": 1,
        "name": "heart",
        "features": (NumericFeature(kind="numeric", name="x", range=(0.0, 1.0)),),
        "label": ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        "model": LogisticModel(kind="logistic"),
        "privacy": Privacy(epsilon=epsilon, delta=1e-5),
        "rounds": Rounds(count=10),
    }
    return Task(**(base | parts))


def berlin(day: int, time: str) -> int:
    """A moment of the week that begins on Monday, 2 February 2026."""
    hour, minute = time.split(":")
    return int(dt.datetime(2026, 2, 2 + day, int(hour), int(minute), tzinfo=BERLIN).timestamp())


NIGHTS = Hours(time_zone="Europe/Berlin", windows=(TimeWindow(days=("mon", "fri"), start="20:00", end="06:00"),))
NOON = berlin(2, "12:00")
PLAIN = make_task(math.inf)
OURS = make_task(model=CustomModel(kind="custom", factory="our.models:small"))
BY_PATIENT = make_task(privacy=Privacy(epsilon=2.0, delta=1e-5, unit_column="patient"))
CARE = Purpose(name="care", text="Helps physicians.")
ROWS: dict[str, tuple[SitePolicy, Task, PolicyRule | None]] = {
    "nothing set": (SitePolicy(), make_task(), None),
    "a task by name": (SitePolicy(tasks=("heart",)), make_task(), None),
    "another task": (SitePolicy(tasks=("stroke",)), make_task(), PolicyRule.TASKS),
    "no task at all": (SitePolicy(tasks=()), make_task(), PolicyRule.TASKS),
    "a task by its digest": (SitePolicy(tasks=(f"heart@{make_task().digest.hex()}",)), make_task(), None),
    "another document of that name": (
        SitePolicy(tasks=(f"heart@{make_task().digest.hex()}",)),
        make_task(rounds=Rounds(count=11)),
        PolicyRule.TASKS,
    ),
    "a purpose that is allowed": (SitePolicy(purposes=("care", "research")), make_task(purpose=CARE), None),
    "another purpose under an allowed name": (
        SitePolicy(tasks=("heart",), purposes=("research",)),
        make_task(purpose=CARE),
        PolicyRule.PURPOSES,
    ),
    "no purpose where some are allowed": (SitePolicy(purposes=("care",)), make_task(), PolicyRule.PURPOSES),
    "a purpose where only names of tasks decide": (SitePolicy(tasks=("heart",)), make_task(purpose=CARE), None),
    "an allowed purpose under a name that is not": (
        SitePolicy(tasks=("stroke",), purposes=("care",)),
        make_task(purpose=CARE),
        PolicyRule.TASKS,
    ),
    "a model made by a module that nobody named": (SitePolicy(), OURS, PolicyRule.MODEL_MODULES),
    "a model made by a named module": (SitePolicy(model_modules=("our.models",)), OURS, None),
    "a model made by another module of a named package": (
        SitePolicy(model_modules=("our", "our.models.large")),
        OURS,
        PolicyRule.MODEL_MODULES,
    ),
    "a model made by the standard library": (
        SitePolicy(tasks=("heart",), model_modules=("our.models",)),
        make_task(model=CustomModel(kind="custom", factory="os:system")),
        PolicyRule.MODEL_MODULES,
    ),
    "epsilon at the bound": (SitePolicy(maximum_epsilon=2.0), make_task(), None),
    "epsilon above the bound": (SitePolicy(maximum_epsilon=1.9), make_task(), PolicyRule.MAXIMUM_EPSILON),
    "epsilon of evaluations above the bound": (
        SitePolicy(maximum_epsilon=2.0),
        make_task(privacy=Privacy(epsilon=1.0, delta=1e-5, evaluation_epsilon=3.0)),
        PolicyRule.MAXIMUM_EPSILON,
    ),
    "a bound and no privacy": (SitePolicy(maximum_epsilon=1e9), PLAIN, PolicyRule.MAXIMUM_EPSILON),
    "no privacy where it is required": (SitePolicy(require_private=True), PLAIN, PolicyRule.REQUIRE_PRIVATE),
    "privacy where it is required": (SitePolicy(require_private=True), make_task(), None),
    "patients together where the people want it": (SitePolicy(unit_column="patient"), BY_PATIENT, None),
    "row by row where patients are wanted": (SitePolicy(unit_column="patient"), make_task(), PolicyRule.UNIT_COLUMN),
    "another unit than the one that is wanted": (
        SitePolicy(unit_column="household"),
        BY_PATIENT,
        PolicyRule.UNIT_COLUMN,
    ),
    "any unit by the people's own word": (SitePolicy(unit_column=""), make_task(), None),
    "a unit does not matter without privacy": (SitePolicy(unit_column="patient"), PLAIN, None),
    "a unit does not stand in for privacy": (
        SitePolicy(unit_column="patient", require_private=True),
        PLAIN,
        PolicyRule.REQUIRE_PRIVATE,
    ),
    "updates one by one where they must be masked": (
        SitePolicy(require_secure_aggregation=True),
        make_task(),
        PolicyRule.REQUIRE_SECURE_AGGREGATION,
    ),
    "masked updates where they must be": (
        SitePolicy(require_secure_aggregation=True),
        make_task(aggregation=Mean(secure=True)),
        None,
    ),
    "delta above the bound": (SitePolicy(maximum_delta=1e-6), make_task(), PolicyRule.MAXIMUM_DELTA),
    "delta does not matter without privacy": (SitePolicy(maximum_delta=1e-6), PLAIN, None),
    "more rounds than allowed": (SitePolicy(maximum_rounds=9), make_task(), PolicyRule.MAXIMUM_ROUNDS),
    "as many rounds as allowed": (SitePolicy(maximum_rounds=10), make_task(), None),
    "verdicts above the bound": (
        SitePolicy(maximum_verdict_epsilon=0.4),
        make_task(retraining=Retraining(verdict_epsilon=0.5)),
        PolicyRule.VERDICT_EPSILON,
    ),
    "exact verdicts": (SitePolicy(maximum_verdict_epsilon=5.0), PLAIN, PolicyRule.VERDICT_EPSILON),
    "label counts above the bound": (
        SitePolicy(maximum_label_count_epsilon=0.4),
        make_task(retraining=Retraining(label_count_epsilon=0.5)),
        PolicyRule.LABEL_COUNT_EPSILON,
    ),
    "paused": (SitePolicy(paused=True), make_task(), PolicyRule.PAUSED),
    "leaving": (SitePolicy(leaving=True), make_task(), PolicyRule.LEAVING),
    "outside the hours": (SitePolicy(hours=NIGHTS), make_task(), PolicyRule.HOURS),
    "for good comes before for now": (
        SitePolicy(paused=True, hours=NIGHTS, maximum_rounds=1),
        make_task(),
        PolicyRule.MAXIMUM_ROUNDS,
    ),
}


@pytest.mark.parametrize(("policy", "task", "rule"), ROWS.values(), ids=ROWS.keys())
def test_each_rule_refuses_what_it_must(policy: SitePolicy, task: Task, rule: PolicyRule | None) -> None:
    if rule is None:
        policy.check(task, "north", NOON)
        return
    with pytest.raises(PolicyRefused) as caught:
        policy.check(task, "north", NOON)
    assert caught.value.wire().fields == {"rule": rule.value}
    assert "north" in caught.value.message


def test_a_unit_is_refused_in_one_sentence() -> None:
    for wanted, task, protects in (
        ("patient", make_task(), "each row by itself"),
        ("household", BY_PATIENT, "the rows of each 'patient' together"),
    ):
        with pytest.raises(PolicyRefused) as caught:
            SitePolicy(unit_column=wanted).check(task, "north", NOON)
        said = f"site north wants the rows of each {wanted!r} protected together; task 'heart' protects {protects}."
        assert caught.value.message == said
        assert f'unit_column = "{wanted}"' in caught.value.hint
    assert Asked.of("r1", BY_PATIENT, "ab" * 32, 1).unit_column == "patient"  # whoever approves sees it too


def test_a_purpose_is_refused_in_one_sentence_and_is_part_of_the_document() -> None:
    with pytest.raises(
        PolicyRefused, match="site north takes part for research only; task 'heart' is for 'care'"
    ) as caught:
        SitePolicy(purposes=("research",)).check(make_task(purpose=CARE), "north", NOON)
    assert caught.value.message.count(".") == 1
    with pytest.raises(PolicyRefused, match="task 'heart' names no purpose"):
        SitePolicy(purposes=("research",)).check(make_task(), "north", NOON)
    digests = {
        make_task(purpose=purpose).digest for purpose in (None, CARE, Purpose(name="care"), Purpose(name="other"))
    }
    assert len(digests) == 4  # a coordinator cannot change it under a run that was described, or under one approval


@pytest.mark.parametrize(
    ("rule", "temporary"),
    [
        *((rule.value, rule.value in {"paused", "hours", "approval", "settings"}) for rule in PolicyRule),
        ("a rule of a later version", False),
    ],
)
def test_which_refusals_may_pass(rule: str, temporary: bool) -> None:
    assert is_temporary(rule) is temporary


MOMENTS = {
    "Monday before": (0, "19:59", False),
    "Monday at the start": (0, "20:00", True),
    "Monday at midnight": (0, "23:59", True),
    "Tuesday morning, Monday's window": (1, "05:59", True),
    "Tuesday at the end": (1, "06:00", False),
    "Tuesday night": (1, "22:00", False),
    "Saturday morning, Friday's window": (5, "03:00", True),
    "Monday morning, Sunday has none": (0, "03:00", False),
}


@pytest.mark.parametrize(("day", "time", "inside"), MOMENTS.values(), ids=MOMENTS.keys())
def test_hours_are_local_and_may_pass_midnight(day: int, time: str, inside: bool) -> None:
    assert NIGHTS.open_at(berlin(day, time)) is inside


def test_hours_follow_the_clock_change() -> None:
    hours = Hours(time_zone="Europe/Berlin", windows=(TimeWindow(start="02:30", end="04:00"),))
    eve = dt.datetime(2026, 3, 29, 0, 30, tzinfo=dt.UTC)  # 01:30 in Berlin; at 02:00 it is 03:00
    inside = [hours.open_at(int((eve + dt.timedelta(minutes=15 * at)).timestamp())) for at in range(8)]
    assert inside == [False, False, True, True, True, True, False, False]


@given(day=st.integers(0, 6), minute=st.integers(0, 1439), start=st.integers(0, 1439), end=st.integers(0, 1439))
def test_a_window_and_the_one_between_its_ends_cover_the_week(day: int, minute: int, start: int, end: int) -> None:
    def text(at: int) -> str:
        return f"{at // 60:02}:{at % 60:02}"

    if start == end:
        with pytest.raises(ValidationError):
            TimeWindow(start=text(start), end=text(end))
        return
    local = dt.datetime(2026, 2, 2 + day, minute // 60, minute % 60, tzinfo=BERLIN)
    one = TimeWindow(start=text(start), end=text(end)).covers(local)
    assert one is not TimeWindow(start=text(end), end=text(start)).covers(local)


BAD_POLICIES: dict[str, dict[str, Any]] = {
    "a zone that is none": {
        "hours": {"time_zone": "Middle-earth/Shire", "windows": ({"start": "01:00", "end": "02:00"},)}
    },
    "a zone that is a path": {
        "hours": {"time_zone": "../../etc/passwd", "windows": ({"start": "01:00", "end": "02:00"},)}
    },
    "no window": {"hours": {"time_zone": "UTC", "windows": ()}},
    "an hour that is none": {"hours": {"time_zone": "UTC", "windows": ({"start": "25:00", "end": "02:00"},)}},
    "a day that is none": {
        "hours": {"time_zone": "UTC", "windows": ({"days": ("today",), "start": "01:00", "end": "2:00"},)}
    },
    "a digest that is short": {"tasks": ("heart@abc",)},
    "an approval that is none": {"approval": "sometimes"},
    "epsilon 0": {"maximum_epsilon": 0.0},
    "purposes that are none": {"purposes": ()},
    "a purpose in capitals": {"purposes": ("Care",)},
    "an unknown rule": {"allow_everything": True},
}


@pytest.mark.parametrize("policy", BAD_POLICIES.values(), ids=BAD_POLICIES.keys())
def test_policies_that_mean_nothing_are_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SitePolicy.model_validate(policy)


# --- approval by hand ----------------------------------------------------------------------------------------------


def asked(run: str = "run-1", task: Task | None = None) -> Asked:
    return Asked.of(run, task or make_task(), "ab" * 32, 100)


def refusal(approvals: Approvals, mode: Any, what: Asked) -> str:
    with pytest.raises(PolicyRefused) as caught:
        approvals.require(mode, what, "north")
    return str(caught.value.fields["rule"])


def test_a_run_waits_says_what_it_asks_and_is_accepted_after_a_person_approved(tmp_path: Path) -> None:
    daemon, person = Approvals(tmp_path / "approvals.json"), Approvals(tmp_path / "approvals.json")
    assert refusal(daemon, "each-run", asked()) == "approval"
    assert refusal(daemon, "each-run", asked()) == "approval"
    (waiting,) = person.state().waiting
    assert (waiting.task, waiting.rounds, waiting.epsilon, waiting.signed_by) == ("heart", 10, 2.0, "ab" * 32)
    person.decide("run-1", approved=True, by="ada", now_unix=200)
    daemon.require("each-run", asked(), "north")
    assert person.state().waiting == ()
    assert refusal(daemon, "each-run", asked("run-2")) == "approval"
    assert (tmp_path / "approvals.json").stat().st_mode & 0o777 == 0o600


def test_an_approved_run_is_that_task_and_no_other() -> None:
    approvals = Approvals(None)
    refusal(approvals, "each-run", asked())
    approvals.decide("run-1", approved=True, by="ada", now_unix=200)
    assert refusal(approvals, "each-run", asked(task=make_task(8.0))) == "approval"


def test_a_task_is_approved_for_all_its_runs_where_the_policy_says_so() -> None:
    approvals = Approvals(None)
    refusal(approvals, "each-task", asked())
    approvals.decide("run-1", approved=True, by="ada", now_unix=200, every_run_of_task=True)
    approvals.require("each-task", asked("run-2"), "north")
    assert refusal(approvals, "each-task", asked("run-3", make_task(8.0))) == "approval"
    assert refusal(approvals, "each-run", asked("run-2")) == "approval"


def test_the_newest_decision_holds() -> None:
    approvals = Approvals(None)
    refusal(approvals, "each-task", asked())

    def decide(run_id: str, approved: bool, *, every: bool = False) -> None:
        approvals.decide(run_id, approved=approved, by="ada", now_unix=200, every_run_of_task=every)

    decide("run-1", True)
    decide("run-1", False)
    assert refusal(approvals, "each-task", asked()) == "declined"
    decide("run-1", True, every=True)
    approvals.require("each-task", asked(), "north")
    approvals.require("each-task", asked("run-2"), "north")  # let in with its task, and so known by name
    decide("run-2", False)
    assert refusal(approvals, "each-task", asked("run-2")) == "declined"
    approvals.require("each-task", asked(), "north")
    decide("run-2", False, every=True)
    assert refusal(approvals, "each-task", asked()) == "declined"
    assert refusal(approvals, "each-run", asked("run-3")) == "declined"
    decide("run-1", True)
    approvals.require("each-run", asked(), "north")
    standing = [(decision.run_id, decision.approved) for decision in approvals.state().standing()]
    assert standing == [("", False), ("run-1", True)]
    with pytest.raises(UsageError, match="none was decided on"):
        decide("run-9", False)


def test_an_approval_of_an_earlier_release_can_be_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "approvals.json"
    approvals = Approvals(path)
    refusal(approvals, "each-run", asked())
    approvals.decide("run-1", approved=True, by="ada", now_unix=200)
    kept = json.loads(path.read_text())
    del kept["decided_on"]
    path.write_text(json.dumps(kept))
    approvals.decide("run-1", approved=False, by="ada", now_unix=201)
    assert refusal(approvals, "each-run", asked()) == "declined"


def test_what_was_declined_is_refused_for_good_even_without_approval_by_hand() -> None:
    approvals = Approvals(None)
    refusal(approvals, "each-run", asked())
    approvals.decide("run-1", approved=False, by="ada", now_unix=200)
    for mode in ("each-run", "each-task", "none"):
        assert refusal(approvals, mode, asked()) == "declined"


def test_only_what_waits_can_be_decided() -> None:
    with pytest.raises(UsageError, match="run-9"):
        Approvals(None).decide("run-9", approved=True, by="ada", now_unix=0)


def test_questions_cannot_fill_the_file() -> None:
    state = ApprovalState()
    for at in range(300):
        state = state.with_asked(asked(f"run-{at}"))
    assert [one.run_id for one in state.waiting] == [f"run-{at}" for at in range(200, 300)]


def test_a_file_that_was_broken_refuses_everything(tmp_path: Path) -> None:
    (tmp_path / "approvals.json").write_text('{"decisions": "all"}')
    with pytest.raises(StorageError, match=r"approvals\.json"):
        Approvals(tmp_path / "approvals.json").require("each-run", asked(), "north")


def test_pause_and_leave_by_command_add_to_the_policy(tmp_path: Path) -> None:
    controls = SiteControls.of_folder("north", tmp_path, SitePolicy, None)
    person = StandingFile(tmp_path / "standing.json")
    assert not controls.policy().paused
    person.pause(True)
    assert controls.policy().paused
    person.pause(False)
    assert not controls.policy().paused
    person.leave()
    assert controls.policy().leaving
