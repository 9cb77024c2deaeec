"""Differential privacy of whole sites in a run: the noise of each round, what it has cost, and whether the sites are enough."""

from __future__ import annotations

import logging

from fedloop_core.arrays import NamedArrays
from fedloop_core.central_privacy import central_plan
from fedloop_core.errors import TooFewUpdates
from fedloop_core.noise import NoiseSource, SeededNoise, SystemNoise
from fedloop_core.task.central import CentralPrivacy
from fedloop_core.task.document import FederatedAveraging
from fedloop_server.aggregation.central import CentralAveraging, Noised
from fedloop_server.runs.events import CentralRelease
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState

__all__ = ["LOUD", "MOST_LOUD", "CentralNoise", "releases_in"]

_LOG = logging.getLogger(__name__)
LOUD, MOST_LOUD = 1.0, 10.0
"""Lengths of the noise on a mean, in clips: above the first a run warns, above the second it does not begin."""
_MOST_COUNT_NOISE = (
    0.5  # deviation of the noise on the share of unclipped updates, above which nothing is learnt from it
)


class CentralNoise:
    """The noise of a run whose task asks for ``[central_privacy]``. In a rehearsal it follows from the run's seed and guards nothing.

    Raises:
        PrivacyParameterInvalid: no noise keeps the run within epsilon.
    """

    def __init__(
        self, plan: RunPlan, central: CentralPrivacy, training: FederatedAveraging, model: NamedArrays
    ) -> None:
        self._run = plan
        self._central = central
        self._rate = training.server_learning_rate
        self._parameters = sum(array.size for array in model.values())
        self.plan = central_plan(central, plan.task.rounds.count)

    @classmethod
    def of(cls, plan: RunPlan, model: NamedArrays) -> CentralNoise | None:
        """Of the run; None where its task does not ask for any."""
        central, training = plan.task.central_privacy, plan.task.training
        if central is None or not isinstance(training, FederatedAveraging):
            return None
        return cls(plan, central, training, model)

    def require(self, sites: int) -> None:
        """Checks that so many sites can bear the noise; warns when they hardly can.

        Raises:
            TooFewUpdates: nothing would be learnt; the message says how many sites would do.
        """
        most = self._run.task.rounds.sites_per_round
        sites = sites if most is None else min(sites, most)
        loudness = self.plan.loudness(self._parameters, sites)
        said = (
            f"central_privacy with epsilon {self._central.epsilon:g} over {self.plan.rounds} rounds puts noise {loudness:.3g} times as "
            f"long as the longest update on the mean of {sites} sites and {self._parameters:,} parameters"
        )
        enough = f"{self.plan.sites_for(self._parameters):,} sites make it as long as one"
        if loudness > MOST_LOUD:
            raise TooFewUpdates(
                f"{said}: nothing would be learnt. {enough}; {self.plan.sites_for(self._parameters, MOST_LOUD):,} let the run begin.",
                hint="Protect rows or patients at the sites instead ([privacy]), or raise central_privacy.epsilon, plan fewer rounds, or take a smaller model.",
            )
        if loudness > LOUD:
            _LOG.warning("run %s: %s. %s.", self._run.run_id, said, enough)
        count = self.plan.count_noise
        if count is not None and count / sites > _MOST_COUNT_NOISE:
            raise TooFewUpdates(
                f"central_privacy.adaptive: the share of unclipped updates of {sites} sites carries noise with deviation "
                f"{count / sites:.3g}, which leaves nothing of it; it needs {count / _MOST_COUNT_NOISE:.0f} sites.",
                hint="Leave central_privacy.adaptive out: the norm is fixed then.",
            )

    def done(self, state: RunState) -> bool:
        """Whether as many models have been sent as are paid for."""
        return releases_in(state) >= self.plan.rounds

    def algorithm(self, number: int, state: RunState) -> CentralAveraging:
        """Of one round, with the clip that the rounds before it have led to."""
        told = state.rounds[-1].central if state.rounds else None
        return CentralAveraging(
            self.plan,
            self._noise(number),
            rate=self._rate,
            clipping_norm=self._central.clipping_norm if told is None else told.next_clipping_norm,
            most=self._run.task.gates.update.maximum_norm,
            adaptive=self._central.adaptive,
        )

    def told(self, noised: Noised, state: RunState) -> CentralRelease:
        """What the close of a round says of its noise; ``state`` is that before it."""
        releases = releases_in(state) + 1
        return CentralRelease(
            epsilon=self.plan.epsilon(releases),
            releases=releases,
            noise_multiplier=self.plan.multiplier,
            clipping_norm=noised.clipping_norm,
            deviation=noised.deviation,
            next_clipping_norm=noised.next_clipping_norm,
        )

    def _noise(self, number: int) -> NoiseSource:
        return SystemNoise() if self._run.private else SeededNoise(self._run.seed, f"central noise of round {number}")


def releases_in(state: RunState) -> int:
    """Noised models that have left the coordinator, or are about to: also those that were lost after they had been sent."""
    return state.completed_rounds + state.lost_releases
