"""Which protections go together: the table is complete, and the check of a task says what it says."""

from __future__ import annotations

import itertools

import pytest
from tests.task.heads import ONE_NUMBER

from fedloop_core.errors import TaskInvalid
from fedloop_core.task.advice import advice_on
from fedloop_core.task.combinations import COMBINATIONS, RULES, Combination, Fit, Part, cautions, misfits
from fedloop_core.task.document import Task
from fedloop_core.task.reader import parse_task

BASE = """\
[privacy]
epsilon = {epsilon}
[rounds]
weighting = "{weighting}"
[gates.update]
norm_bound = {norm_bound}
{extra}[aggregation]
rule = "{rule}"
secure = {secure}
{central}"""
ASKED_BY_A_TASK = frozenset(
    {*RULES, Part.SITE_NOISE, Part.CENTRAL_NOISE, Part.SECURE, Part.WEIGHTS_BY_ROWS, Part.NORM_BOUND}
)


def text(*parts: Part, extra: str = "") -> str:
    """A task file that asks for these parts."""
    return ONE_NUMBER.format(name="t", feature="age", range="[0, 120]") + BASE.format(
        epsilon=4 if Part.SITE_NOISE in parts else "inf",
        weighting="rows" if Part.WEIGHTS_BY_ROWS in parts else "equal",
        norm_bound=10 if Part.NORM_BOUND in parts else "inf",
        rule=next((part.value for part in parts if part in RULES), "mean"),
        secure=str(Part.SECURE in parts).lower(),
        extra=extra,
        central="[central_privacy]\nepsilon = 1\n" if Part.CENTRAL_NOISE in parts else "",
    )


def named(pair: Combination) -> str:
    return f"{pair.first} with {pair.second}"


def test_every_pair_that_can_be_asked_for_at_once_is_in_the_table_once() -> None:
    told = [frozenset({pair.first, pair.second}) for pair in COMBINATIONS]
    possible = {
        frozenset(pair) for pair in itertools.combinations(Part, 2) if not (pair[0] in RULES and pair[1] in RULES)
    }
    assert len(told) == len(set(told))
    assert set(told) == possible


@pytest.mark.parametrize("pair", COMBINATIONS, ids=named)
def test_a_pair_is_judged_as_the_table_says(pair: Combination) -> None:
    refused, warned = list(misfits({pair.first, pair.second})), list(cautions({pair.first, pair.second}))
    assert bool(refused) == (pair.fit is Fit.REFUSED)
    assert bool(warned) == (pair.fit is Fit.WEAK)
    for sentence in (*refused, *warned):
        assert pair.first in sentence
        assert pair.second in sentence
        assert pair.why in sentence
    assert not list(misfits({pair.first}))
    assert not list(misfits({pair.second}))


@pytest.mark.parametrize(
    "pair", [pair for pair in COMBINATIONS if {pair.first, pair.second} <= ASKED_BY_A_TASK], ids=named
)
def test_the_check_of_a_task_refuses_and_warns_as_the_table_says(pair: Combination) -> None:
    document = text(pair.first, pair.second)
    if pair.fit is Fit.REFUSED:
        with pytest.raises(TaskInvalid) as raised:
            parse_task(document)
        (problem,) = raised.value.problems
        assert problem == f"task.toml:20:1: {pair.second} does not go together with {pair.first}: {pair.why}."
        return
    task = parse_task(document)
    assert {pair.first, pair.second} <= task.parts
    said = [sentence for sentence in advice_on(task) if pair.why in sentence]
    assert len(said) == (pair.fit is Fit.WEAK)


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule is not Part.MEAN])
def test_newton_goes_with_the_mean_alone(rule: Part) -> None:
    with pytest.raises(TaskInvalid) as raised:
        parse_task(text(rule, extra='[training]\nalgorithm = "newton"\n'))
    (problem,) = raised.value.problems
    assert problem.endswith(f"training 'newton' adds sums over rows, which {rule} cannot stand for.")


@pytest.mark.parametrize(
    ("rule", "faulty", "least"),
    [
        ("geometric-median", 1, 3),
        ("trimmed-mean", 1, 3),
        ("median", 2, 5),
        ("krum", 1, 5),
        ("multi-krum", 2, 7),
        ("bulyan", 1, 7),
        ("bulyan", 2, 11),
    ],
)
def test_a_rule_that_no_round_could_have_updates_enough_for_is_a_mistake(rule: str, faulty: int, least: int) -> None:
    def with_sites(count: int) -> Task:
        document = text(Part(rule)).replace('weighting = "equal"', f"sites_per_round = {count}")
        return parse_task(f"{document}faulty_sites = {faulty}\n")

    assert with_sites(least).rounds.sites_per_round == least
    with pytest.raises(TaskInvalid) as raised:
        with_sites(least - 1)
    (problem,) = raised.value.problems
    many = "site" if faulty == 1 else "sites"
    assert problem.startswith(f"task.toml:16:1: {rule} with {faulty} faulty {many} needs {least} updates (n >= ")
    assert problem.endswith(f"rounds.sites_per_round asks {least - 1} sites.")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('rule = "mode"', "aggregation.rule must be 'mean', 'geometric-median', 'trimmed-mean', 'median', 'krum', "),
        ('rule = "mean"\nfaulty_sites = 1', "aggregation.faulty_sites is not a known key"),
        ('rule = "krum"\nfaulty_sites = 0', "aggregation.faulty_sites must be at least 1, not 0."),
        ("faulty_sites = 1", "aggregation.rule is missing."),
    ],
    ids=["unknown rule", "faulty sites of a mean", "no faulty site", "no rule"],
)
def test_mistakes_of_the_section_are_told_in_plain_words(line: str, problem: str) -> None:
    with pytest.raises(TaskInvalid) as raised:
        parse_task(text().replace('rule = "mean"', line))
    assert problem in raised.value.problems[0]


@pytest.mark.parametrize("bound", ["0.5", "nan", "-1", "0"])
def test_a_norm_bound_below_one_would_shorten_honest_updates_and_is_a_mistake(bound: str) -> None:
    with pytest.raises(TaskInvalid, match="1 mistake"):
        parse_task(text().replace("norm_bound = inf", f"norm_bound = {bound}"))


def test_a_task_without_the_section_takes_the_bounded_mean() -> None:
    task = parse_task(text().partition("[gates.update]")[0])
    assert (task.aggregation.rule, task.gates.update.norm_bound) == ("mean", 20.0)
    assert Task.from_canonical(task.canonical()) == task
