"""Evaluations for a run: of the arrays of a round and of artifacts, each charged before it is released."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.charging import RunCharges
from fedloop_clients.context import RunContext
from fedloop_clients.data.site_data import RowChoice
from fedloop_clients.evaluation import exact_scores, noised_scores, one_row_per_unit
from fedloop_clients.privacy.planning import PrivacyPlan
from fedloop_clients.randomness import SiteNoise
from fedloop_clients.scoring.artifact import ArtifactApart
from fedloop_clients.training.devices import DevicePool
from fedloop_clients.training.newton import log_odds
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import NamedArrays
from fedloop_core.artifact import ArtifactDescription
from fedloop_core.dataset import Dataset
from fedloop_core.errors import ArtifactRefused, BudgetExhausted
from fedloop_core.privacy.charges import NonPrivateCharge
from fedloop_core.task.document import NewtonRaphson
from fedloop_core.task.evaluations import planned_evaluations
from fedloop_edge.agent.runtimes import load_runtime
from fedloop_proto.coordination.v1.coordination_pb2 import (
    EVALUATION_ROWS_FEEDBACK,
    EVALUATION_ROWS_ORIGINAL,
    Evaluation,
    Instruction,
)

__all__ = ["SiteEvaluations", "WarmTrainers"]

_MODELS_KEPT = 4
_ROW_CHOICES = {EVALUATION_ROWS_ORIGINAL: RowChoice.ORIGINAL, EVALUATION_ROWS_FEEDBACK: RowChoice.FEEDBACK}


class WarmTrainers:
    """Models of the tasks seen last, built once.

    Args:
        devices: where they are trained.
    """

    def __init__(self, devices: DevicePool) -> None:
        self._devices = devices
        self._trainers: OrderedDict[bytes, LocalTrainer] = OrderedDict()

    def of(self, context: RunContext) -> LocalTrainer:
        """The task's trainer; asked for before a round is charged, it finds out whether there is a device for it.

        Raises:
            SettingsInvalid: site.toml names a device that is not there.
            DeviceLost: none of those that site.toml names is left.
            UsageError: the task is not trained by federated averaging.
            PrivacyParameterInvalid: the task is private and its model mixes the rows of a batch.
        """
        self._devices.left()
        trainer = self._trainers.get(context.task_digest)
        if trainer is None:
            trainer = self._trainers[context.task_digest] = LocalTrainer(context.task, self._devices)
            if len(self._trainers) > _MODELS_KEPT:
                _, oldest = self._trainers.popitem(last=False)
                oldest.close()
        self._trainers.move_to_end(context.task_digest)
        return trainer

    def close(self) -> None:
        """Ends what they started; they can be used again."""
        for trainer in self._trainers.values():
            trainer.close()


class SiteEvaluations:
    """Evaluates what a run sends on the site's evaluation rows."""

    def __init__(self, noise: SiteNoise, trainers: WarmTrainers) -> None:
        self._noise = noise
        self._trainers = trainers

    def of_artifact(self, charges: RunCharges, instruction: Instruction, arrays: NamedArrays) -> Evaluation:
        """Of the file that would ship, with a runtime that devices use.

        Raises:
            ArtifactRefused: the bytes are not those described, the features are not the task's, or, in a private run, the graph
                might keep rows or mix them.
            RuntimeUnavailable: no installed runtime takes this kind of artifact.
            BudgetExhausted: the run or an evaluation block cannot pay for it.
            PolicyRefused: other evaluations are planned than the task has; rule ``planned``.
        """
        context, asked = charges.context, instruction.evaluate_artifact
        description, model = _artifact(asked.description, arrays)
        if description.features != context.task.feature_schema:
            raise ArtifactRefused("the artifact takes other features than the task has.", reason="description")
        choice = _ROW_CHOICES.get(asked.rows, RowChoice.ALL)
        charges.require_planned("evaluations", asked.evaluations_planned, planned_evaluations(context.task))
        plan = charges.plan()
        run = load_runtime(description, model).run if plan is None else ArtifactApart(description, model).outputs
        return self._measured(charges, plan, choice, instruction, lambda rows: run(rows.inputs))

    def of_model(
        self, charges: RunCharges, plan: PrivacyPlan | None, instruction: Instruction, arrays: NamedArrays
    ) -> Evaluation:
        """Of the arrays received, on all evaluation rows; absent when their budget is spent: training goes on.

        Raises:
            UpdateRefused: the arrays do not fit the model.
        """
        context = charges.context

        def outputs(rows: Dataset) -> NDArray[np.float32]:
            if isinstance(context.task.training, NewtonRaphson):
                return log_odds(context.task, arrays, rows, context.training)
            trainer = self._trainers.of(context)
            answer = trainer.outputs if plan is None else trainer.outputs_apart
            return answer(arrays, rows, context.training)

        try:
            return self._measured(charges, plan, RowChoice.ALL, instruction, outputs)
        except BudgetExhausted:
            return Evaluation(present=False, spend=charges.spend(context.evaluation[RowChoice.ALL].blocks))

    def _measured(
        self,
        charges: RunCharges,
        plan: PrivacyPlan | None,
        choice: RowChoice,
        instruction: Instruction,
        outputs: Callable[[Dataset], NDArray[np.float32]],
    ) -> Evaluation:
        """Charges an evaluation, and only then touches rows.

        Of a private run nothing that leaves from here on depends on rows but the noised scores: whether there are rows at all
        is in them, and ``outputs`` refuses nothing.
        """
        context = charges.context
        blocks, rows, label = context.evaluation[choice].blocks, context.evaluation[choice].rows, context.task.label
        if not blocks or (plan is None and len(rows) == 0):
            return Evaluation(present=False)
        charges.release(NonPrivateCharge() if plan is None else plan.evaluation, blocks, "evaluation")
        if plan is None:
            scores = exact_scores(label, outputs(rows), rows.labels)
        else:
            rows = one_row_per_unit(rows)
            purpose = f"evaluation {choice.value} {instruction.arrays_digest.hex()[:16]}"
            noise = self._noise.derive(instruction, purpose)
            scores = noised_scores(label, outputs(rows), rows.labels, plan.evaluation.epsilon, noise)
        evaluation = scores.message()
        evaluation.spend.CopyFrom(charges.spend(blocks))
        return evaluation


def _artifact(document: bytes, arrays: NamedArrays) -> tuple[ArtifactDescription, bytes]:
    description = ArtifactDescription.from_bytes(document)
    content = arrays.get("artifact")
    if content is None or content.dtype != np.uint8 or content.ndim != 1:
        raise ArtifactRefused("the artifact's bytes do not travel beside its description.", reason="absent")
    model = content.tobytes()
    description.model.check(model, "the artifact")
    return description, model
