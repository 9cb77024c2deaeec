"""The work that a site does for a run: one method for each kind of question."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.charging import RunCharges
from fedloop_clients.context import RunContext
from fedloop_clients.counting import count_units, exact_verdict, verdict_of
from fedloop_clients.data.gate import stricter
from fedloop_clients.measuring import SiteEvaluations, WarmTrainers
from fedloop_clients.policy import SitePolicy
from fedloop_clients.randomness import SiteNoise
from fedloop_clients.statistics import exact_moments, noised_moments
from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.newton import sum_derivatives
from fedloop_clients.training.watching import TrainingWatch
from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import EnvelopeRefused, UsageError
from fedloop_core.noise import NoiseSource
from fedloop_core.privacy.charges import NonPrivateCharge
from fedloop_core.task.document import CustomModel, DataGate, NewtonRaphson
from fedloop_proto.coordination.v1.coordination_pb2 import (
    DataDescription,
    Derivatives,
    Evaluation,
    Instruction,
    LocalUpdate,
    Moments,
)

__all__ = ["RESULTS", "Outcome", "SiteWork"]

RESULTS: Mapping[str, str] = {
    "describe_data": "data_description",
    "collect_moments": "moments",
    "train_locally": "local_update",
    "sum_derivatives": "derivatives",
    "evaluate_artifact": "evaluation",
    "aggregate_securely": "securely_aggregated",
}
"""The field of an answer that holds the result of each kind of work."""

_LOG = logging.getLogger(__name__)
_NON_PRIVATE = NonPrivateCharge()

Result = DataDescription | Moments | LocalUpdate | Derivatives | Evaluation


@dataclass(frozen=True)
class Outcome:
    """A result and the arrays beside it."""

    result: Result
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


class SiteWork:
    """Does the work of instructions that were checked; every release is charged before it is computed.

    Args:
        site: the site's name.
        policy: the site's policy as it is when it is called.
        noise: the site's source.
        devices: where models are trained; the CPU when there are none.
    """

    def __init__(
        self,
        site: str,
        policy: Callable[[], SitePolicy],
        noise: NoiseSource,
        devices: DevicePool | None = None,
    ) -> None:
        self._site = site
        self._policy = policy
        self._noise = SiteNoise(site, noise)
        self._trainers = WarmTrainers(devices or DevicePool.cpu())
        self._evaluations = SiteEvaluations(self._noise, self._trainers)
        self._software = version("fedloop")

    def close(self) -> None:
        """Ends the processes that trained."""
        self._trainers.close()

    def perform(
        self, charges: RunCharges, instruction: Instruction, arrays: NamedArrays, watch: TrainingWatch
    ) -> Outcome:
        """Does what an instruction asks; ``watch`` looks on while a round is trained, ``charges`` hold what it releases.

        Raises:
            FedloopError: as the method for this kind of work.
        """
        match instruction.WhichOneof("work"):
            case "describe_data":
                return self.describe(charges, instruction)
            case "collect_moments":
                return self.collect_moments(charges, instruction)
            case "train_locally":
                return self.train(charges, instruction, arrays, watch)
            case "sum_derivatives":
                return self.sum_derivatives(charges, instruction, arrays)
            case "evaluate_artifact":
                return self.evaluate_artifact(charges, instruction, arrays)
            case _:
                raise EnvelopeRefused(
                    f"site {self._site}: an instruction asks for nothing that this version knows.",
                    hint="Bring site and coordinator to neighbouring versions.",
                    reason="work",
                )

    def describe(self, charges: RunCharges, instruction: Instruction) -> Outcome:
        """The data gate's verdict, the number of rows, and what the ledger has spent.

        A private run is judged by, and planned from, numbers that are noised and charged here, before anything is said of the rows:
        ``context.known.counted``. They are told once; who asks again hears the same and pays nothing. Blocks that
        do not hold the run to its end are left out of it here; when the data gate does not admit the rest, the site is
        not in the run.

        Raises:
            ModelDiffers: the model is built with other frozen weights here.
            PrivacyParameterInvalid: the task's parameters guard nothing with so many units as were told.
            BudgetExhausted: no block holds the run to its end. At most the number of rows was charged.
        """
        context = charges.context
        if isinstance(context.task.model, CustomModel):
            self._trainers.of(context).require_fixed(instruction.describe_data.fixed_weights)
        gate = self._gate(context)
        count_units(charges, gate, self._noise.derive(instruction, "rows"))
        if context.task.privacy.private:
            self._warn_of_rows(context)
        verdict = verdict_of(context, gate)
        description = DataDescription(
            admitted=verdict.admitted,
            reasons=verdict.failed,
            spend=charges.spend(context.training_blocks),
            software_version=self._software,
            blocks_left_out=len(context.known.left_out),
        )
        if verdict.admitted:
            description.data_fingerprint = context.told_digest()
            description.rows = context.known.rows_said
            description.rows_noised = context.task.privacy.private
        return Outcome(description)

    def collect_moments(self, charges: RunCharges, instruction: Instruction) -> Outcome:
        """Sums for a shared scaler.

        Raises:
            UsageError: the task asks for no statistics.
            BudgetExhausted: the run or a block cannot pay for them.
        """
        context = charges.context
        verdict_of(context, self._gate(context)).require(self._site)
        plan = charges.plan()
        if plan is None:
            charges.release(_NON_PRIVATE, context.training_blocks, "moments")
            return Outcome(Moments(noised=False), exact_moments(context.task, context.training).arrays())
        if plan.moments is None:
            raise UsageError(f"task {context.task.name!r} has no federated scaling: nothing pays for moments.")
        charges.release(plan.moments, context.training_blocks, "moments")
        moments = noised_moments(
            context.task.feature_schema,
            context.training,
            plan.moments.noise_multiplier,
            self._noise.derive(instruction, "moments"),
        )
        return Outcome(Moments(noised=True), moments.arrays())

    def train(
        self, charges: RunCharges, instruction: Instruction, arrays: NamedArrays, watch: TrainingWatch
    ) -> Outcome:
        """A round of federated averaging, and an evaluation of the arrays received when asked for.

        Raises:
            RunCancelled, PolicyRefused: the run was called off or declined meanwhile; the round stays charged in full. Or
                other rounds are planned than the task has (rule ``planned``); then nothing is charged.
            DataGateFailed: the data gate refuses the training rows.
            ModelDiffers: the model is built with other frozen weights here. Nothing is charged.
            BudgetExhausted: the run or a block cannot pay for the round.
            UpdateRefused: the arrays do not fit the model, or training gave weights that are not finite.
            DeviceLost: no device is left to train on; what was charged stays so.
        """
        context = charges.context
        charges.require_planned("rounds", instruction.train_locally.rounds_planned, context.task.rounds.count)
        verdict_of(context, self._gate(context)).require(self._site)
        plan = charges.plan()
        trainer = self._trainers.of(context)
        trainer.require_fixed(instruction.train_locally.fixed_weights)
        blocks, purpose = context.training_blocks, f"round {instruction.round}"
        if plan is None:
            charges.release(_NON_PRIVATE, blocks, purpose)
            seed = self._noise.shuffle_seed(instruction)
            trained = trainer.train(arrays, context.training, seed, watch)
        else:
            charges.release(plan.round, blocks, purpose)
            trained = trainer.train_privately(
                arrays,
                context.training,
                plan.round.noise_multiplier,
                plan.round.sampling_rate,
                self._noise.derive(instruction, "training"),
                expected_batch_size=plan.expected_batch_size,
                watch=watch,
            )
        if trained.nonfinite_gradients:  # an exact count: for the site's own eyes
            _LOG.warning(
                "site %s: %s of run %s set %d gradients to 0 that were not finite",
                self._site,
                purpose,
                instruction.run_id,
                trained.nonfinite_gradients,
            )
        update = LocalUpdate(
            weight=max(context.known.rows_said, 1) if context.task.rounds.weighting == "rows" else 1,
            steps=trained.steps,
            private=plan is not None and self._noise.private,
            spend=charges.spend(blocks),
            run_epsilon=charges.run_epsilon(blocks),
        )
        if instruction.train_locally.evaluate:
            update.evaluation.CopyFrom(self._evaluations.of_model(charges, plan, instruction, arrays))
        return Outcome(update, trained.update)

    def sum_derivatives(self, charges: RunCharges, instruction: Instruction, arrays: NamedArrays) -> Outcome:
        """Exact sums for one step of Newton-Raphson.

        Raises:
            UsageError: the task is not trained by Newton-Raphson.
            UpdateRefused: the arrays do not fit the design.
        """
        context = charges.context
        if not isinstance(context.task.training, NewtonRaphson):
            raise UsageError(f"task {context.task.name!r} is not trained by Newton-Raphson.")
        verdict_of(context, self._gate(context)).require(self._site)
        charges.release(_NON_PRIVATE, context.training_blocks, f"round {instruction.round}")
        sums = sum_derivatives(context.task, arrays, context.training)
        result = Derivatives()
        if instruction.sum_derivatives.evaluate:
            result.evaluation.CopyFrom(self._evaluations.of_model(charges, None, instruction, arrays))
        return Outcome(result, sums.arrays())

    def evaluate_artifact(self, charges: RunCharges, instruction: Instruction, arrays: NamedArrays) -> Outcome:
        """Evaluates the file that would ship, with a runtime that devices use.

        Raises:
            ArtifactRefused: the bytes are not those described, or the features are not the task's.
            RuntimeUnavailable: no installed runtime takes this kind of artifact.
            BudgetExhausted: the run or an evaluation block cannot pay for it.
        """
        return Outcome(self._evaluations.of_artifact(charges, instruction, arrays))

    def _gate(self, context: RunContext) -> DataGate:
        """The task's rules and the site's together."""
        return stricter(context.task.gates.data, self._policy().data_gate)

    def _warn_of_rows(self, context: RunContext) -> None:
        """Tells the site's own people what its rows break; nothing of it leaves."""
        exact = exact_verdict(context, self._gate(context))
        if not exact.admitted:
            _LOG.warning(
                "site %s: the training rows of run %s break these rules of the data gate: %s. Only this log says so; the run goes on or "
                "not by numbers with noise",
                self._site,
                context.known.run_id,
                ", ".join(exact.failed),
            )
