"""What one private run will charge at a site, found before its first release."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_clients.privacy.calibration import find_gaussian_multiplier, find_noise_multiplier, noise_within
from fedloop_core.errors import PrivacyParameterInvalid, UsageError
from fedloop_core.privacy.accounting import best_order
from fedloop_core.privacy.charges import Charge, GaussianCharge, PureCharge, SampledGaussianCharge
from fedloop_core.task.document import FederatedAveraging, Task
from fedloop_core.task.evaluations import planned_evaluations

__all__ = ["Ceiling", "PrivacyPlan", "count_charge", "evaluation_charge", "moments_charge", "plan_run"]

_COUNT_SHARE = 0.05  # of epsilon, for the number of training units: from it, everything else is planned
_MOST_EXTRA_NOISE = 1.1  # noise may grow by a tenth so that a run fits a block's registered order


@dataclass(frozen=True)
class Ceiling:
    """What a block holds for this run: an RDP at its registered order."""

    order: float
    divergence: float


@dataclass(frozen=True)
class PrivacyPlan:
    """Charges of a run. ``round`` is one round of training; ``moments`` is absent where no statistics are asked.

    ``expected_batch_size`` divides the noised sum of a step: the sampling rate times the number of units told. ``order`` is
    the one at which the run's rounds and statistics are added up: it is fixed before the first of them.
    """

    round: SampledGaussianCharge
    expected_batch_size: float
    rows: PureCharge
    moments: GaussianCharge | None
    evaluation: PureCharge
    order: float

    @property
    def others(self) -> tuple[Charge, ...]:
        """What the run charges to training rows beside its rounds."""
        return (self.rows,) if self.moments is None else (self.rows, self.moments)


def count_charge(task: Task) -> PureCharge:
    """For telling the number of training units: a share of the task's epsilon that no row decides."""
    return PureCharge(epsilon=_COUNT_SHARE * task.privacy.epsilon)


def moments_charge(task: Task) -> GaussianCharge | None:
    """For the sums of a shared scaler, where the task asks for them: a share of its epsilon that no row decides."""
    if task.preprocessing.scaling != "federated" or not task.feature_schema.numeric:
        return None
    target = task.privacy.statistics_share * task.privacy.epsilon
    return GaussianCharge(noise_multiplier=find_gaussian_multiplier(target, task.privacy.delta))


def evaluation_charge(task: Task) -> PureCharge:
    """For one of the evaluations that the task plans."""
    return PureCharge(epsilon=task.privacy.epsilon_of_evaluations / planned_evaluations(task))


def plan_run(task: Task, units: int, rounds: int, ceilings: tuple[Ceiling, ...] = ()) -> PrivacyPlan:
    """Finds the noise with which a run's rounds, statistics and count of units stay within the task's epsilon together.

    The count's epsilon is taken off plainly and the rest composed at its best order: everything after the count is
    planned from the number that was told, so which order is best may follow from that number. It follows from nothing that
    comes later, so that what comes may be composed at it, whatever is asked meanwhile.

    The task's epsilon is met at the best order; a block's filter uses another order. Where that difference alone would
    keep the last round out, noise grows by up to a tenth. A block that holds far less changes no plan: it does not hold
    the run, which ``affording`` finds out before the first round.

    Args:
        task: private, trained by federated averaging.
        units: the number of training units here, as it was told: with noise, and charged.
        rounds: of the whole run.
        ceilings: what the training blocks hold for this run.

    Raises:
        PrivacyParameterInvalid: rows are scaled per site, or no noise is enough.
        UsageError: the task is not private.
    """
    if not (task.privacy.private and isinstance(task.training, FederatedAveraging)):
        raise UsageError(f"task {task.name!r} is not private.")
    if task.preprocessing.scaling == "per-site":
        raise PrivacyParameterInvalid(
            "scaling per site reads every row without noise, which a private run excludes.",
            hint='Set preprocessing.scaling to "range" or "federated".',
            parameter="scaling",
        )
    target, delta = task.privacy.epsilon, task.privacy.delta
    rows = count_charge(task)
    moments = moments_charge(task)
    statistics: tuple[Charge, ...] = () if moments is None else (moments,)
    rate = min(1.0, task.training.batch_size / units)
    steps = rounds * task.training.local_steps
    noise = find_noise_multiplier(target - rows.epsilon, delta, rate, steps, statistics)
    whole = SampledGaussianCharge(noise_multiplier=noise, sampling_rate=rate, steps=steps)
    order = best_order((whole, *statistics), delta)
    fitting = [noise_within(c.order, c.divergence, rate, steps, (rows, *statistics)) for c in ceilings]
    noise = max([noise, *(found for found in fitting if found <= noise * _MOST_EXTRA_NOISE)])
    return PrivacyPlan(
        SampledGaussianCharge(noise_multiplier=noise, sampling_rate=rate, steps=task.training.local_steps),
        rate * units,
        rows,
        moments,
        evaluation_charge(task),
        order,
    )
