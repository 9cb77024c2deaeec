"""What each attack does to each way of aggregating: measured on a small federation of seven sites, row by row.

"broken" is where an attack wins, and is as much a promise as "holds": it says what does not help. ``away`` is the distance of the
weights from those of an honest run, as a share of the way that the honest run went.
"""

from __future__ import annotations

import math

import pytest
from tests.attacks_simulated.scene import ending

ROBUST = ("geometric-median", "trimmed-mean", "median", "krum", "multi-krum", "bulyan")
ONE_LIAR = ("scaling:1:-10", "scaling:1:-100", "sign-flip:1", "label-flip:1", "backdoor:1:5", "backdoor:1:1", "alie:1")


def test_the_honest_run_learns() -> None:
    honest = ending("")
    assert honest.accuracy >= 0.92
    assert honest.backdoor <= 0.05
    assert (ending("", "mean", 20.0).weights == honest.weights).all()  # nobody is above the default bound


@pytest.mark.parametrize("rule", ROBUST)
def test_without_a_liar_a_rule_costs_little(rule: str) -> None:
    found = ending("", rule)
    assert found.accuracy >= 0.92
    assert found.backdoor <= 0.06


@pytest.mark.parametrize("rule", ROBUST)
@pytest.mark.parametrize("attack", ONE_LIAR)
def test_one_liar_of_seven_is_withstood_by_every_robust_rule(attack: str, rule: str) -> None:
    found = ending(attack, rule)
    assert found.accuracy >= 0.92
    assert found.away <= 0.15
    assert found.backdoor <= 0.1


UNBOUNDED_MEAN = (
    # attack, accuracy from and to, away from and to, backdoor from and to
    ("scaling:1:-10", (0, 0.6), (3, math.inf), (0, 1)),
    ("scaling:1:-100", (0, 0.6), (50, math.inf), (0, 1)),
    ("sign-flip:1", (0.9, 1), (0.1, 0.3), (0, 0.15)),
    ("label-flip:1", (0.9, 0.93), (0.3, 0.6), (0, 0.2)),
    ("backdoor:1:5", (0.85, 0.92), (0.1, 0.4), (0.6, 1)),
    ("alie:1", (0.92, 1), (0.05, 0.2), (0, 0.1)),
    ("alie:2", (0.92, 1), (0.15, 0.3), (0, 0.1)),
)


@pytest.mark.parametrize(
    ("attack", "accuracy", "away", "backdoor"), UNBOUNDED_MEAN, ids=[row[0] for row in UNBOUNDED_MEAN]
)
def test_the_mean_without_a_bound_is_as_wrong_as_its_worst_update(
    attack: str, accuracy: tuple[float, float], away: tuple[float, float], backdoor: tuple[float, float]
) -> None:
    found = ending(attack)
    for value, (low, high) in ((found.accuracy, accuracy), (found.away, away), (found.backdoor, backdoor)):
        assert low <= value <= high


BOUNDED_MEAN = (
    ("the default keeps a liar from going far, and not from winning", "scaling:1:-100", 20.0, (0, 0.6), (5, 30)),
    ("a tight bound", "scaling:1:-10", 2.0, (0.8, 1), (0, 0.6)),
    ("the first round has no bound", "scaling:1:-100", 2.0, (0, 0.6), (1, 5)),
    ("a short lie is not bounded", "sign-flip:1", 2.0, (0.9, 1), (0.1, 0.3)),
    ("a little is enough", "alie:2", 2.0, (0.92, 1), (0.15, 0.3)),
)


@pytest.mark.parametrize(
    ("what", "attack", "bound", "accuracy", "away"), BOUNDED_MEAN, ids=[row[0] for row in BOUNDED_MEAN]
)
def test_the_mean_with_a_bound_on_norms(
    what: str, attack: str, bound: float, accuracy: tuple[float, float], away: tuple[float, float]
) -> None:
    found, unbounded = ending(attack, "mean", bound), ending(attack)
    assert accuracy[0] <= found.accuracy <= accuracy[1], what
    assert away[0] <= found.away <= away[1], what
    assert found.away <= unbounded.away


def test_a_bound_shuts_a_boosted_backdoor_more_than_half() -> None:
    assert ending("backdoor:1:5", "mean", 2.0).backdoor <= 0.5 * ending("backdoor:1:5").backdoor


def test_more_liars_than_the_task_names_are_not_withstood_and_as_many_are() -> None:
    assert ending("label-flip:2", "trimmed-mean", faulty=1).away >= 0.4
    assert ending("label-flip:2", "trimmed-mean", faulty=2).away <= 0.2


def test_a_little_moves_coordinate_rules_nearly_as_far_as_the_mean() -> None:
    """Baruch 2019: within the honest values' spread no rule of this kind tells a lie."""
    assert ending("alie:2", "median").away >= 0.5 * ending("alie:2").away
