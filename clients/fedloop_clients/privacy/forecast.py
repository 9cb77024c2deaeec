"""What a private run would cost and how loud its noise would be, before there is any row: from the task and a number of units."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedloop_clients.privacy.loss_distribution import epsilon_by_loss
from fedloop_clients.privacy.planning import Ceiling, PrivacyPlan, plan_run
from fedloop_core.errors import PrivacyParameterInvalid, UsageError
from fedloop_core.privacy.accounting import check_delta, conversion, epsilon, rdp_at, registered_order
from fedloop_core.privacy.charges import Charge
from fedloop_core.task.document import FederatedAveraging, Task

__all__ = ["Alternative", "Forecast", "Lifetime", "Loudness", "RoundCost", "alternatives_to", "forecast", "loudness_of"]

_POINTS = 40  # rounds at which epsilon is worked out, at most
_LOUD, _DROWNING = 0.5, 2.0
_NOISIER = 1.5


@dataclass(frozen=True)
class Lifetime:
    """A block's budget for life."""

    epsilon: float
    delta: float

    @property
    def order(self) -> float:
        """The order at which a block with this budget adds up."""
        return registered_order(self.epsilon, self.delta)

    @property
    def capacity(self) -> float:
        """The divergence at that order that it holds."""
        return self.epsilon - conversion(self.order, self.delta)


@dataclass(frozen=True)
class Loudness:
    """The noise's length against the longest signal there can be, both in units of the clipping norm.

    ``per_step``: ``sigma * sqrt(d) / B``, of a step's mean gradient, over the sites together. ``per_run``: of the sum over
    all steps, where noise grows with their root and a steady signal with their number.
    """

    parameters: int
    per_step: float
    per_run: float

    @property
    def warning(self) -> str:
        """What to expect of it, or nothing.

        In a trial with 2,949 parameters a model lost a tenth of its accuracy at 1.6, and half of what it had learnt above
        chance at 4.
        """
        if self.per_run > _DROWNING:
            return (
                f"the noise drowns the signal: over the run it is {self.per_run:.1f} times as long as the longest way that "
                f"clipped gradients of {self.parameters:,} parameters can go. Take a smaller model, a larger batch, more rows "
                "or more sites."
            )
        if self.per_run > _LOUD:
            return (
                f"the noise is loud: over the run it is {self.per_run:.1f} times as long as the longest way that clipped "
                f"gradients of {self.parameters:,} parameters can go. The model will be clearly worse than without privacy."
            )
        return ""


@dataclass(frozen=True)
class RoundCost:
    """What a run has cost after a round, with its statistics and its count of units."""

    round: int
    epsilon: float


@dataclass(frozen=True)
class Forecast:
    """A run as a site with ``units`` units would plan it.

    ``epsilon`` is what the run is held to. ``runs`` is how often a block with the lifetime's budget holds it.
    """

    units: int
    rounds: int
    plan: PrivacyPlan
    delta: float
    epsilon: float
    by_round: tuple[RoundCost, ...]
    runs: int
    loudness: Loudness

    def by_loss(self) -> float:
        """Epsilon by loss distributions, which is lower; it takes a second to work out."""
        return epsilon_by_loss((_rounds_of(self.plan, self.rounds), *self.plan.others), self.delta)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and will not work well."""
        said = [self.loudness.warning] if self.loudness.warning else []
        if self.delta * self.units * 10 > 1:
            said.append(
                f"delta {self.delta:g} is above a tenth of one in {self.units:,} units: {0.1 / self.units:.1g} or less is usual."
            )
        if self.runs < 1:
            said.append("the lifetime budget does not hold this run once: a site with it refuses the run.")
        return tuple(said)


@dataclass(frozen=True)
class Alternative:
    """Another way to run the task; ``forecast`` is absent where no noise is enough."""

    name: str
    forecast: Forecast | None


def forecast(task: Task, units: int, lifetime: Lifetime, *, parameters: int, sites: int = 1) -> Forecast:
    """Plans a run as a site would whose blocks are all fresh.

    Args:
        task: private, trained by federated averaging.
        units: training units of the site.
        lifetime: budget for life of its blocks.
        parameters: that are trained.
        sites: that average their updates.

    Raises:
        PrivacyParameterInvalid: delta guards nothing at so many units, or no noise is enough.
        UsageError: the task is not private.
    """
    check_delta(task.privacy.delta, units)
    plan = plan_run(task, units, task.rounds.count, ceilings=(Ceiling(lifetime.order, lifetime.capacity),))
    return _forecast_of(task, units, plan, lifetime, parameters, sites)


def alternatives_to(
    task: Task, units: int, lifetime: Lifetime, *, parameters: int, sites: int = 1
) -> Iterator[Alternative]:
    """The run as it is, and what other rounds, batches, budgets and noise would buy; one change at a time.

    Where not the noise itself is changed, it is found anew for the run's epsilon.

    Raises:
        PrivacyParameterInvalid, UsageError: as ``forecast``, for the task as it is.
    """
    present = forecast(task, units, lifetime, parameters=parameters, sites=sites)
    yield Alternative("as it is", present)
    for name, changed in _changed(task, units):
        try:
            yield Alternative(name, forecast(changed, units, lifetime, parameters=parameters, sites=sites))
        except PrivacyParameterInvalid:
            yield Alternative(name, None)
    louder = present.plan.round.model_copy(update={"noise_multiplier": present.plan.round.noise_multiplier * _NOISIER})
    plan = replace(present.plan, round=louder)
    yield Alternative(f"{_NOISIER:g} times the noise", _forecast_of(task, units, plan, lifetime, parameters, sites))


def loudness_of(plan: PrivacyPlan, rounds: int, parameters: int, sites: int) -> Loudness:
    """How loud a plan's noise is."""
    steps = plan.round.steps * rounds
    per_step = plan.round.noise_multiplier * math.sqrt(parameters / sites) / plan.expected_batch_size
    return Loudness(parameters, per_step, per_step / math.sqrt(steps))


def _changed(task: Task, units: int) -> Iterator[tuple[str, Task]]:
    training, count = task.training, task.rounds.count
    if not isinstance(training, FederatedAveraging):
        raise UsageError(f"task {task.name!r} is not trained by federated averaging.")
    for name, rounds in (("half the rounds", count // 2), ("twice the rounds", count * 2)):
        if rounds:
            yield name, task.model_copy(update={"rounds": task.rounds.model_copy(update={"count": rounds})})
    for name, batch in (("half the batch", training.batch_size // 2), ("twice the batch", training.batch_size * 2)):
        if 0 < batch <= units:
            yield name, task.model_copy(update={"training": training.model_copy(update={"batch_size": batch})})
    for name, factor in (("half the epsilon", 0.5), ("twice the epsilon", 2.0)):
        privacy = task.privacy.model_copy(update={"epsilon": task.privacy.epsilon * factor})
        yield name, task.model_copy(update={"privacy": privacy})


def _forecast_of(
    task: Task, units: int, plan: PrivacyPlan, lifetime: Lifetime, parameters: int, sites: int
) -> Forecast:
    rounds, delta = task.rounds.count, task.privacy.delta
    whole: tuple[Charge, ...] = (_rounds_of(plan, rounds), *plan.others)
    cost = math.fsum(rdp_at(charge, lifetime.order) for charge in whole)
    by_round = tuple(RoundCost(number, _epsilon_after(plan, number, delta)) for number in _some(rounds))
    return Forecast(
        units=units,
        rounds=rounds,
        plan=plan,
        delta=delta,
        epsilon=by_round[-1].epsilon,
        by_round=by_round,
        runs=math.floor(lifetime.capacity / cost * (1 + 1e-9)),
        loudness=loudness_of(plan, rounds, parameters, sites),
    )


def _rounds_of(plan: PrivacyPlan, rounds: int) -> Charge:
    return plan.round.model_copy(update={"steps": plan.round.steps * rounds})


def _epsilon_after(plan: PrivacyPlan, rounds: int, delta: float) -> float:
    """As a site adds a run up: the count plainly, the rest at its best order."""
    rest: tuple[Charge, ...] = (_rounds_of(plan, rounds), *(() if plan.moments is None else (plan.moments,)))
    return plan.rows.epsilon + epsilon(rest, delta)


def _some(rounds: int) -> tuple[int, ...]:
    """Rounds from 1 to the last, evenly, at most ``_POINTS``."""
    points = min(rounds, _POINTS)
    return tuple(sorted({max(1, round(rounds * at / points)) for at in range(1, points + 1)}))
