"""The work that a site does for a run: one method for each kind of question."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.charging import RunCharges
from fedloop_clients.context import RunContext
from fedloop_clients.data.gate import GateVerdict, check_rows, stricter
from fedloop_clients.data.site_data import RowChoice, SiteData
from fedloop_clients.evaluation import Scores, exact_scores, noised_scores, one_row_per_unit
from fedloop_clients.policy import SiteConfig
from fedloop_clients.privacy.charges import NonPrivateCharge
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_clients.privacy.planning import PrivacyPlan
from fedloop_clients.statistics import exact_moments, noised_moments
from fedloop_clients.training.newton import log_odds, sum_derivatives
from fedloop_clients.training.rows import UnitIndex
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import NamedArrays
from fedloop_core.artifact import ArtifactDescription
from fedloop_core.dataset import Dataset
from fedloop_core.errors import ArtifactRefused, BudgetExhausted, UsageError
from fedloop_core.noise import NoiseSource
from fedloop_core.task.document import NewtonRaphson
from fedloop_edge.agent.runtimes import load_runtime
from fedloop_proto.coordination.v1.coordination_pb2 import (
    EVALUATION_ROWS_FEEDBACK,
    EVALUATION_ROWS_ORIGINAL,
    DataDescription,
    Derivatives,
    Evaluation,
    Instruction,
    LocalUpdate,
    Moments,
)

__all__ = ["Outcome", "SiteWork"]

_MODELS_KEPT = 4
_ROW_CHOICES = {EVALUATION_ROWS_ORIGINAL: RowChoice.ORIGINAL, EVALUATION_ROWS_FEEDBACK: RowChoice.FEEDBACK}
_NON_PRIVATE = NonPrivateCharge()

Result = DataDescription | Moments | LocalUpdate | Derivatives | Evaluation


@dataclass(frozen=True)
class Outcome:
    """A result and the arrays beside it."""

    result: Result
    arrays: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)


class SiteWork:
    """Does the work of instructions that were checked; every release is charged before it is computed."""

    def __init__(self, config: SiteConfig, data: SiteData, ledger: Ledger, noise: NoiseSource) -> None:
        self._config = config
        self._data = data
        self._ledger = ledger
        self._noise = noise
        self._trainers: OrderedDict[bytes, LocalTrainer] = OrderedDict()
        self._software = version("fedloop")

    def describe(self, context: RunContext, instruction: Instruction, arrays: NamedArrays) -> Outcome:  # noqa: ARG002
        """The data gate's verdict, the number of rows, and what the ledger still holds.

        Raises:
            PrivacyParameterInvalid: the task's parameters guard nothing with these rows.
            BudgetExhausted: not even the number of rows can be told.
        """
        task, rows = context.task, context.training
        charges = RunCharges(self._ledger, context)
        verdict = self._verdict(context)
        description = DataDescription(
            admitted=verdict.admitted,
            reasons=verdict.failed,
            spend=charges.spend(context.training_blocks),
            software_version=self._software,
        )
        if not verdict.admitted:
            return Outcome(description)
        plan = charges.plan(task.rounds.count)
        description.rounds_affordable = charges.rounds_affordable(plan)
        description.data_fingerprint = self._data.fingerprint()
        with charges.release(_NON_PRIVATE if plan is None else plan.rows, context.training_blocks, "number of rows"):
            count = len(rows)
            if plan is not None:
                count = len(UnitIndex.of(rows.units))  # one unit moves it by 1, however many rows it has
                (count,) = noised_counts((count,), 1 / plan.rows.epsilon, self._derive(instruction, "rows"))
        description.rows = max(count, 1)
        description.rows_noised = plan is not None
        return Outcome(description)

    def collect_moments(self, context: RunContext, instruction: Instruction, arrays: NamedArrays) -> Outcome:  # noqa: ARG002
        """Sums for a shared scaler.

        Raises:
            UsageError: the task asks for no statistics.
            BudgetExhausted: the run or a block cannot pay for them.
        """
        self._verdict(context).require(self._config.site)
        charges = RunCharges(self._ledger, context)
        plan = charges.plan(context.task.rounds.count)
        if plan is None:
            with charges.release(_NON_PRIVATE, context.training_blocks, "moments"):
                return Outcome(Moments(noised=False), exact_moments(context.task, context.training).arrays())
        if plan.moments is None:
            raise UsageError(f"task {context.task.name!r} has no federated scaling: nothing pays for moments.")
        with charges.release(plan.moments, context.training_blocks, "moments"):
            moments = noised_moments(
                context.task.feature_schema,
                context.training,
                plan.moments.noise_multiplier,
                self._derive(instruction, "moments"),
            )
            return Outcome(Moments(noised=True), moments.arrays())

    def train(self, context: RunContext, instruction: Instruction, arrays: NamedArrays) -> Outcome:
        """A round of federated averaging, and an evaluation of the arrays received when asked for.

        Raises:
            DataGateFailed: the data gate refuses the training rows.
            BudgetExhausted: the run or a block cannot pay for the round.
            UpdateRefused: the arrays do not fit the model, or training gave weights that are not finite.
        """
        self._verdict(context).require(self._config.site)
        charges = RunCharges(self._ledger, context)
        plan = charges.plan(max(instruction.train_locally.rounds_planned, 1))
        trainer = self._trainer(context)
        blocks, purpose = context.training_blocks, f"round {instruction.round}"
        if plan is None:
            with charges.release(_NON_PRIVATE, blocks, purpose):
                seed = self._noise.seed_for(self._purpose(instruction, "training"))
                trained = trainer.train(arrays, context.training, seed)
        else:
            with charges.release(plan.round, blocks, purpose):
                trained = trainer.train_privately(
                    arrays,
                    context.training,
                    plan.round.noise_multiplier,
                    plan.round.sampling_rate,
                    self._derive(instruction, "training"),
                )
        update = LocalUpdate(
            weight=max(context.known.rows_said, 1) if context.task.rounds.weighting == "rows" else 1,
            steps=trained.steps,
            nonfinite_samples=trained.nonfinite_rows,
            private=plan is not None and self._noise.private,
            spend=charges.spend(blocks),
            run_epsilon=charges.run_epsilon(blocks),
        )
        if instruction.train_locally.evaluate:
            update.evaluation.CopyFrom(self._evaluate_model(context, charges, plan, instruction, arrays))
        return Outcome(update, trained.update)

    def sum_derivatives(self, context: RunContext, instruction: Instruction, arrays: NamedArrays) -> Outcome:
        """Exact sums for one step of Newton-Raphson.

        Raises:
            UsageError: the task is not trained by Newton-Raphson.
            UpdateRefused: the arrays do not fit the design.
        """
        if not isinstance(context.task.training, NewtonRaphson):
            raise UsageError(f"task {context.task.name!r} is not trained by Newton-Raphson.")
        self._verdict(context).require(self._config.site)
        charges = RunCharges(self._ledger, context)
        with charges.release(_NON_PRIVATE, context.training_blocks, f"round {instruction.round}"):
            sums = sum_derivatives(context.task, arrays, context.training)
        result = Derivatives()
        if instruction.sum_derivatives.evaluate:
            result.evaluation.CopyFrom(self._evaluate_model(context, charges, None, instruction, arrays))
        return Outcome(result, sums.arrays())

    def evaluate_artifact(self, context: RunContext, instruction: Instruction, arrays: NamedArrays) -> Outcome:
        """Evaluates the file that would ship, with a runtime that devices use.

        Raises:
            ArtifactRefused: the bytes are not those described, or the features are not the task's.
            RuntimeUnavailable: no installed runtime takes this kind of artifact.
            BudgetExhausted: the run or an evaluation block cannot pay for it.
        """
        asked = instruction.evaluate_artifact
        description = ArtifactDescription.from_bytes(asked.description)
        content = arrays.get("artifact")
        if content is None or content.dtype != np.uint8 or content.ndim != 1:
            raise ArtifactRefused("the artifact's bytes do not travel beside its description.", reason="absent")
        model = content.tobytes()
        description.model.check(model, "the artifact")
        if description.features != context.task.feature_schema:
            raise ArtifactRefused("the artifact takes other features than the task has.", reason="description")
        choice = _ROW_CHOICES.get(asked.rows, RowChoice.ALL)
        rows = context.evaluation[choice].rows
        if len(rows) == 0:
            return Outcome(Evaluation(present=False))
        charges = RunCharges(self._ledger, context)
        plan = charges.plan(context.task.rounds.count, asked.evaluations_planned)
        runtime = load_runtime(description, model)
        chosen = rows if plan is None else one_row_per_unit(rows)
        outputs = runtime.run(chosen.inputs)
        return Outcome(self._scored(context, charges, plan, choice, instruction, outputs, chosen))

    def _evaluate_model(
        self,
        context: RunContext,
        charges: RunCharges,
        plan: PrivacyPlan | None,
        instruction: Instruction,
        arrays: NamedArrays,
    ) -> Evaluation:
        """Of the arrays received, on all evaluation rows; absent when their budget is spent: training goes on."""
        rows = context.evaluation[RowChoice.ALL].rows
        if len(rows) == 0:
            return Evaluation(present=False)
        chosen = rows if plan is None else one_row_per_unit(rows)
        if isinstance(context.task.training, NewtonRaphson):
            outputs = log_odds(context.task, arrays, chosen, context.training)
        else:
            outputs = self._trainer(context).outputs(arrays, chosen, context.training)
        try:
            return self._scored(context, charges, plan, RowChoice.ALL, instruction, outputs, chosen)
        except BudgetExhausted:
            return Evaluation(present=False, spend=charges.spend(context.evaluation[RowChoice.ALL].blocks))

    def _scored(
        self,
        context: RunContext,
        charges: RunCharges,
        plan: PrivacyPlan | None,
        choice: RowChoice,
        instruction: Instruction,
        outputs: NDArray[np.float32],
        rows: Dataset,
    ) -> Evaluation:
        blocks, label = context.evaluation[choice].blocks, context.task.label
        if plan is None:
            with charges.release(_NON_PRIVATE, blocks, "evaluation"):
                scores = exact_scores(label, outputs, rows.labels)
        else:
            purpose = f"evaluation {choice.value} {instruction.arrays_digest.hex()[:16]}"
            with charges.release(plan.evaluation, blocks, "evaluation"):
                noise = self._derive(instruction, purpose)
                scores = noised_scores(label, outputs, rows.labels, plan.evaluation.epsilon, noise)
        return _message(scores, charges, blocks, noised=plan is not None)

    def _verdict(self, context: RunContext) -> GateVerdict:
        """The data gate's verdict on the run's training rows, found once."""
        if context.verdict is None:
            task = context.task
            gate = stricter(task.gates.data, self._config.policy.data_gate)
            context.verdict = check_rows(context.training, self._data.skipped, task.feature_schema, gate)
        return context.verdict

    def _trainer(self, context: RunContext) -> LocalTrainer:
        """The task's model, warm."""
        if context.task_digest not in self._trainers:
            self._trainers[context.task_digest] = LocalTrainer(context.task)
            if len(self._trainers) > _MODELS_KEPT:
                self._trainers.popitem(last=False)
        self._trainers.move_to_end(context.task_digest)
        return self._trainers[context.task_digest]

    def _purpose(self, instruction: Instruction, what: str) -> str:
        return f"{self._config.site}/{instruction.run_id}/{instruction.round}/{what}"

    def _derive(self, instruction: Instruction, what: str) -> NoiseSource:
        return self._noise.derive(self._purpose(instruction, what))


def _message(scores: Scores, charges: RunCharges, blocks: tuple[str, ...], *, noised: bool) -> Evaluation:
    return Evaluation(
        present=True,
        correct=scores.correct,
        total=scores.total,
        loss_sum=scores.loss_sum,
        noised=noised,
        noise_scale=scores.noise_scale,
        spend=charges.spend(blocks),
        absolute_error_sum=scores.absolute_error_sum,
        squared_error_sum=scores.squared_error_sum,
    )
