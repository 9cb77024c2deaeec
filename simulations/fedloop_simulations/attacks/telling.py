"""What is told of an attack, and of updates that were shortened."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fedloop_core.schema import ClassLabel
from fedloop_core.task import Task
from fedloop_core.task.aggregation import RobustRule
from fedloop_server.runs.state import RunState
from fedloop_simulations.attacks.effect import treatment_of
from fedloop_simulations.attacks.kinds import target_of
from fedloop_simulations.attacks.order import Assault
from fedloop_simulations.attacks.trigger import trigger_words
from fedloop_simulations.story import RunTold
from fedloop_simulations.summary import AttackerSummary, AttackSummary, BackdoorSummary, BoundedSummary, Summary

__all__ = ["attack_sentences", "attack_summary", "bounded_in", "bounded_sentences"]


def attack_summary(assault: Assault | None, task: Task, runs: Sequence[RunTold]) -> AttackSummary | None:
    """What sites did and what gate and rule made of it; None when all were honest."""
    if assault is None:
        return None
    states = [run.state for run in runs]
    members = {member.site for state in states for member in state.members}
    rule, bound = task.aggregation, task.gates.update.norm_bound
    return AttackSummary(
        kind=assault.attack.kind,
        strength=assault.attack.strength,
        does=assault.attack.does,
        sites=tuple(_treated(site, states, (site,)) for site in assault.sites),
        honest=_treated("", states, sorted(members - set(assault.sites))),
        rule=rule.rule,
        faulty_sites=rule.faulty_sites if isinstance(rule, RobustRule) else None,
        norm_bound=bound if math.isfinite(bound) else None,
        backdoor=_backdoor(task, runs),
    )


def bounded_in(state: RunState) -> Iterator[BoundedSummary]:
    """The updates of a run that were shortened."""
    for closed in state.rounds:
        for update in closed.updates:
            if update.bounded_to is not None:
                yield BoundedSummary(
                    site=update.site, round=closed.round, norm=update.norm, bounded_to=update.bounded_to
                )


def attack_sentences(summary: Summary) -> Iterator[str]:
    """What happened, a sentence each; none when all sites were honest."""
    attack = summary.attack
    if attack is None:
        return
    names = [line.site for line in attack.sites]
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    yield f"A rehearsal under attack ({attack.kind}): {listed} {'lies: it' if len(names) == 1 else 'lie: each'} {attack.does}."
    door = attack.backdoor
    if door is not None:
        yield (
            f"The backdoor ({door.trigger}) makes {door.success:.1%} of {door.rows} rows of other classes pass for "
            f"{door.target}; without the trigger {door.without_trigger:.1%} do."
        )


def bounded_sentences(summary: Summary) -> Iterator[str]:
    """Whose updates were shortened, how often and how much."""
    for run in summary.runs:
        for site in dict.fromkeys(found.site for found in run.bounded):
            own = [found for found in run.bounded if found.site == site]
            worst = max(own, key=lambda found: found.norm / found.bounded_to)
            rounds = f"{len(own)} {'round' if len(own) == 1 else 'rounds'}"
            yield (
                f"Updates of {site} were shortened in {rounds} of {run.id}, the longest from a norm of {worst.norm:.3g} "
                f"to {worst.bounded_to:.3g}."
            )


def _treated(name: str, states: Sequence[RunState], sites: Sequence[str]) -> AttackerSummary:
    found = treatment_of(states, sites)
    return AttackerSummary(
        site=name,
        folded=found.folded,
        refused=found.refused,
        codes=found.codes,
        bounded=found.bounded,
        norm=found.norm,
        share=found.share,
    )


def _backdoor(task: Task, runs: Sequence[RunTold]) -> BackdoorSummary | None:
    rate = runs[0].backdoor if runs else None
    schema = task.feature_schema
    if rate is None or not isinstance(schema.label, ClassLabel):
        return None
    return BackdoorSummary(
        target=schema.label.classes[target_of(schema)],
        trigger=trigger_words(schema),
        rows=rate.rows,
        success=rate.success,
        without_trigger=rate.without,
    )
