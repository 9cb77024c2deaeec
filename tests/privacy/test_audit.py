"""``fedloop privacy audit``: the paper's bounds, broken noise that is caught, and a correct run that is not accused."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom
from tests.privacy.test_planning import planned_task
from tests.site.test_daemon import some_rows

from fedloop_core.cli import main
from fedloop_core.dataset import Dataset
from fedloop_core.errors import UsageError
from fedloop_core.models import initial_arrays
from fedloop_core.noise import NoiseSource, SeededNoise
from fedloop_core.privacy.audit import AuditResult
from fedloop_core.scaling import Scaler
from fedloop_core.task import Task
from fedloop_simulations.auditing.adversary import RowGradients
from fedloop_simulations.auditing.audit import audit_training, canaries_a_run
from fedloop_simulations.auditing.bound import epsilon_lower_bound, highest_bound, p_value
from fedloop_simulations.data import load_world
from fedloop_simulations.tasks import chosen_task

PINS = {
    "the paper's 0.673": (1000, 100, 75, 1e-4, 0.67298),
    "the paper's 2.675": (100_000, 1510, 1439, 1e-5, 2.67585),
    "all right, without delta": (100, 100, 100, 0.0, 3.49297),
    "all right": (1000, 100, 100, 1e-5, 3.46538),
    "many guesses": (1000, 1000, 600, 1e-5, 0.29723),
    "some guesses": (1000, 200, 150, 1e-5, 0.81997),
    "few guesses": (1000, 50, 50, 1e-5, 2.75622),
    "by chance": (1000, 1000, 500, 1e-5, 0.0),
}


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta", "bound"), PINS.values(), ids=PINS.keys())
def test_the_bound_is_the_papers(canaries: int, guesses: int, correct: int, delta: float, bound: float) -> None:
    assert epsilon_lower_bound(canaries, guesses, correct, delta) == pytest.approx(bound, abs=1e-4)


def test_without_delta_the_bound_has_a_closed_form() -> None:
    right = 0.05 ** (1 / 100)
    assert highest_bound(100, 100, 0.0) == pytest.approx(math.log(right / (1 - right)), abs=1e-6)
    assert p_value(100, 100, 60, 0.3, 0.0) == pytest.approx(float(binom.sf(59, 100, 1 / (1 + math.exp(-0.3)))))


def test_more_right_guesses_never_lower_the_bound() -> None:
    bounds = [epsilon_lower_bound(400, 200, correct, 1e-4) for correct in range(100, 201, 10)]
    assert bounds == sorted(bounds)
    assert bounds[0] == 0


class Silent(NoiseSource):
    """Draws samples as it should, and adds no noise: what a broken trainer would do."""

    private = True

    def __init__(self, real: NoiseSource) -> None:
        self._real = real
        super().__init__()

    def _make_generator(self) -> np.random.Generator:
        return self._real._make_generator()

    def derive(self, purpose: str) -> NoiseSource:
        return Silent(self._real.derive(purpose))

    def seed_for(self, purpose: str) -> int:
        return self._real.seed_for(purpose)

    def normal(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float64]:
        return np.zeros(shape)


def audited(noise: NoiseSource, *, seed: int, canaries: int = 400) -> AuditResult:
    task = chosen_task("breast-cancer", epsilon=1.0, rounds=4)
    rows = load_world(task, sites=3, seed=0).sites[0].train
    return audit_training(task, rows, canaries, noise, coins=SeededNoise(seed, "coins"))


def test_noise_of_zero_is_caught() -> None:
    found = audited(Silent(SeededNoise(1)), seed=1)
    assert found.refuted
    assert found.bound > 2 * found.claimed
    assert found.correct > 0.9 * found.guesses


def test_noise_of_zero_is_caught_behind_the_noise_of_sampling_too() -> None:
    """Each unit is in a step with probability 0.4: that alone blurs every update."""
    task = chosen_task("digits", epsilon=1.0, rounds=4)
    rows = load_world(task, sites=3, seed=0).sites[0].train
    found = audit_training(task, rows, 200, Silent(SeededNoise(1)), coins=SeededNoise(2))
    assert found.sampling_rate < 0.5
    assert found.refuted
    assert found.bound > 1.3 * found.claimed


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_correct_run_is_not_accused(seed: int) -> None:
    found = audited(SeededNoise(seed), seed=seed)
    assert not found.refuted
    assert 0.9 <= found.claimed <= 1.0
    assert found.highest > 3
    assert not found.private


def test_a_small_model_is_trained_several_times() -> None:
    """Canaries beyond what a model has room for hide each other."""
    task = planned_task("federated").model_copy(
        update={"rounds": planned_task().rounds.model_copy(update={"count": 1})}
    )
    found = audit_training(task, one_column(60), 8, SeededNoise(1), coins=SeededNoise(2))
    assert found.runs == 8 // canaries_a_run(4) == 8
    assert (found.canaries, found.guesses) == (8, 4)


def one_column(count: int) -> Dataset:
    rows = some_rows(count, "t")
    return Dataset({"numeric": rows.inputs["numeric"][:, :1]}, rows.labels, rows.units)


def test_gradients_are_those_of_units_and_clipped() -> None:
    """Against finite differences, for a unit with one row and for one with two."""
    task = planned_task("range")
    rows = one_column(3)
    rows = Dataset(rows.inputs, rows.labels, ("a", "b", "b"))
    arrays: dict[str, NDArray[Any]] = {**initial_arrays(task, 1), **Scaler.from_ranges(task.feature_schema).arrays()}
    found = RowGradients(task).of(arrays, rows)
    assert found.shape[0] == 2
    alone = [RowGradients(task).of(arrays, rows.take([at])) for at in range(3)]
    assert np.allclose(found[0], alone[0])
    if np.linalg.norm(alone[1]) < 1 and np.linalg.norm(alone[2]) < 1:
        assert np.allclose(found[1], (alone[1] + alone[2])[0] / 2)
    assert (np.linalg.norm(found, axis=1) <= task.privacy.clipping_norm * (1 + 1e-9)).all()
    tight = task.model_copy(update={"privacy": task.privacy.model_copy(update={"clipping_norm": 1e-3})})
    assert np.allclose(np.linalg.norm(RowGradients(tight).of(arrays, rows), axis=1), 1e-3)


def not_private() -> Task:
    return chosen_task("breast-cancer", epsilon=math.inf)


def test_what_cannot_be_audited_is_refused() -> None:
    rows = one_column(60)
    with pytest.raises(UsageError, match="cannot be audited"):
        audit_training(not_private(), rows, 100, SeededNoise(1), coins=SeededNoise(2))
    with pytest.raises(UsageError, match="8 at least"):
        audit_training(planned_task("range"), rows, 7, SeededNoise(1), coins=SeededNoise(2))


def run(*words: str, expect: int = 0) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main(["privacy", "audit", *words])
    assert ended.value.code == expect, said.getvalue()
    return said.getvalue()


def test_the_command_says_what_is_claimed_what_is_shown_and_what_that_proves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("breast-cancer", "--rounds", "2", "--canaries", "100", "--seed", "3")
    said = run(*words)
    assert "Claimed:     epsilon 7.600 at delta 0.0001 for these rounds." in said
    assert "Lower bound: epsilon " in said
    assert "This is a lower bound, not a proof" in said
    assert "With so few guesses no audit could have shown more than" in said
    assert "shows nothing about the noise that a site draws" in said
    assert "Audited: the updates of training, at the weights of an honest run. Not audited: counts, " in said
    assert "and weights that a coordinator has made by hand." in said
    told = json.loads(run(*words, "--json"))
    assert told["refuted"] is False
    assert told["bound"] < told["claimed"]
    assert list(tmp_path.iterdir()) == []  # no ledger, nor anything else


def test_a_task_without_privacy_is_refused_before_its_data_are_looked_for() -> None:
    assert "there is nothing to audit" in run("heart", "--epsilon", "inf", expect=UsageError.exit_status)


def test_the_command_ends_with_a_status_when_the_claim_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededNoise, "normal", lambda self, shape, deviation: np.zeros(shape))
    said = run("breast-cancer", "--rounds", "4", "--epsilon", "1", "--seed", "3", expect=1)
    assert "The claim is refuted" in said
