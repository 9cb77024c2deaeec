"""``fedloop privacy plan``: what it says of a run is what a site would charge for it."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.privacy.test_planning import planned_task

from fedloop_clients.privacy.forecast import Lifetime, Loudness, alternatives_to, forecast
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.cli import main
from fedloop_core.errors import BudgetExhausted, PrivacyParameterInvalid, UsageError

TASK = planned_task()  # 10 rounds of 10 steps with 50 units, epsilon 3, shared scaling
LIFETIME = Lifetime(10.0, 1e-6)


def run(*words: str, expect: int = 0) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(["privacy", "plan", *words])
    assert ended.value.code == expect, said.getvalue()
    return said.getvalue()


def test_epsilon_rises_with_each_round_to_what_the_task_allows() -> None:
    found = forecast(TASK, 1000, LIFETIME, parameters=4)
    assert [one.round for one in found.by_round] == list(range(1, 11))
    epsilons = [one.epsilon for one in found.by_round]
    assert epsilons == sorted(epsilons)
    assert 2.99 <= found.epsilon <= 3.0 * (1 + 1e-6)
    assert 0 < found.by_loss() < found.epsilon


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--lifetime", "1000000", "--rounds", "1000"),
        (
            "--epsilon",
            "0.02",
        ),
    ],
    ids=["plain", "wide numbers", "loud noise"],
)
def test_nothing_is_cut_off_in_a_terminal_of_80_columns(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = run("breast-cancer", "--rows", "300", *words)
    assert "…" not in said
    assert max(map(len, said.splitlines())) <= 80
    for heading in ("choice", "rounds", "batch", "epsilon", "sigma", "noise,", "step", "runs in"):
        assert heading in said
    assert {"as it is", "1.5 times the noise"} <= {line[:19].strip() for line in said.splitlines()}


def test_so_many_runs_fit_into_a_ledger_and_no_more() -> None:
    found = forecast(TASK, 1000, LIFETIME, parameters=4)
    assert found.runs >= 2
    ledger = Ledger(":memory:", lambda: 0)
    ledger.open_block("original", LIFETIME.epsilon, LIFETIME.delta)

    def run_once() -> None:
        for charge in (*found.plan.others, *[found.plan.round] * found.rounds):
            ledger.reserve(charge, ("original",), "a run", "a part")

    for _ in range(found.runs):
        run_once()
    with pytest.raises(BudgetExhausted):
        run_once()


def test_other_choices_buy_what_one_expects() -> None:
    found = {one.name: one.forecast for one in alternatives_to(TASK, 1000, LIFETIME, parameters=4)}
    assert None not in found.values()
    noise = {name: one.plan.round.noise_multiplier for name, one in found.items() if one is not None}
    runs = {name: one.runs for name, one in found.items() if one is not None}
    assert noise["half the rounds"] < noise["as it is"] < noise["twice the rounds"]
    assert noise["half the batch"] < noise["as it is"] < noise["twice the batch"]
    assert noise["twice the epsilon"] < noise["as it is"] < noise["half the epsilon"]
    assert runs["twice the epsilon"] < runs["as it is"] < runs["half the epsilon"]
    louder = found["1.5 times the noise"]
    assert louder is not None
    assert louder.epsilon < 3.0 * 0.9
    assert louder.runs > runs["as it is"]


LOUD: dict[str, tuple[float, str]] = {
    "quiet": (0.3, ""),
    "loud": (1.0, "the noise is loud"),
    "drowning": (3.0, "the noise drowns the signal"),
}


@pytest.mark.parametrize(("per_run", "said"), LOUD.values(), ids=LOUD.keys())
def test_noise_that_drowns_the_signal_is_warned_of(per_run: float, said: str) -> None:
    assert Loudness(1000, 1.0, per_run).warning.startswith(said)
    assert bool(Loudness(1000, 1.0, per_run).warning) is bool(said)


def test_loudness_follows_model_batch_sites_and_steps() -> None:
    few, many, four = (
        forecast(TASK, 1000, LIFETIME, parameters=parameters, sites=sites).loudness
        for parameters, sites in ((100, 1), (10_000, 1), (10_000, 4))
    )
    noise = forecast(TASK, 1000, LIFETIME, parameters=1).plan.round.noise_multiplier
    assert few.per_step == pytest.approx(noise * 10 / 50)
    assert few.per_run == pytest.approx(few.per_step / 10)
    assert many.per_step == pytest.approx(10 * few.per_step)
    assert four.per_step == pytest.approx(many.per_step / 2)


def test_a_delta_that_guards_nothing_is_refused_and_a_large_one_warned_of() -> None:
    with pytest.raises(PrivacyParameterInvalid, match="guards nothing"):
        forecast(TASK, 100_000, LIFETIME, parameters=4)
    assert "is above a tenth of one in 20,000 units" in forecast(TASK, 20_000, LIFETIME, parameters=4).warnings[0]
    assert forecast(TASK, 1000, LIFETIME, parameters=4).warnings == ()
    tiny = forecast(TASK, 1000, Lifetime(1.0, 1e-6), parameters=4)
    assert tiny.runs == 0
    assert "does not hold this run once" in tiny.warnings[-1]


def test_the_command_shows_a_table_a_picture_and_json(tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    said = run("heart", "--rows", "200", "--epsilon", "5", "--plot", str(picture))
    assert "heart: a run at a site with 200 training units" in said
    assert "A lifetime budget of 10 at 1e-06 holds 2 such runs." in said
    assert "twice the batch" in said
    drawn = picture.read_text()
    assert drawn.startswith("<svg ")
    assert "var(--" not in drawn
    told: dict[str, Any] = json.loads(run("heart", "--rows", "200", "--epsilon", "5", "--rounds", "6", "--json"))
    assert [one["round"] for one in told["by_round"]] == [1, 2, 3, 4, 5, 6]
    assert told["alternatives"][0]["epsilon"] == pytest.approx(5.0, rel=1e-3)


BAD: dict[str, tuple[tuple[str, ...], int, str]] = {
    "not private": (("heart", "--rows", "200", "--epsilon", "inf"), UsageError.exit_status, "is not private"),
    "a picture of another kind": (
        ("heart", "--rows", "200", "--plot", "plan.png"),
        UsageError.exit_status,
        "ends in .svg",
    ),
    "rows that are no number": (("heart", "--rows", "abc"), UsageError.exit_status, "'abc' is not a whole number."),
    "an epsilon that only another delta allows": (
        ("heart", "--rows", "200", "--epsilon", "0.001"),
        5,
        "and however few the rounds: raise privacy.epsilon, of which this is the whole or a part, or privacy.delta.",
    ),
    "no rows": (("heart", "--rows", "0"), UsageError.exit_status, "--rows"),
    "more rows than delta guards": (("heart", "--rows", "20000"), 5, "guards nothing"),
    "a lifetime that holds nothing": (("heart", "--rows", "200", "--lifetime", "0.0001"), 5, "holds no charge"),
}


@pytest.mark.parametrize(("words", "status", "said"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_planned_is_said_in_a_sentence(words: tuple[str, ...], status: int, said: str) -> None:
    assert said in run(*words, expect=status)
