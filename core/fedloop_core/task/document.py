"""The task document: what is learned and how. One ``task.toml`` holds one task.

A site and a coordinator that hold the same bytes hold the same task: ``Task.digest`` is over the canonical JSON of the
checked document, so that comments and spacing do not matter.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fedloop_core.schema import (
    ClassLabel,
    Feature,
    FeatureSchema,
    ImageFeature,
    Label,
    RegressionLabel,
    SignalFeature,
    SurvivalLabel,
    misplaced_names,
)
from fedloop_core.strict import Misfit, Place, Strict
from fedloop_core.task.aggregation import Aggregation, Mean, RobustRule
from fedloop_core.task.central import CentralPrivacy
from fedloop_core.task.combinations import Part, misfits
from fedloop_core.task.purpose import Purpose

__all__ = [
    "CnnModel",
    "CustomModel",
    "DataGate",
    "Export",
    "ExportTarget",
    "FederatedAveraging",
    "Feedback",
    "Gates",
    "LogisticModel",
    "MlpModel",
    "Model",
    "NewtonRaphson",
    "Preprocessing",
    "Privacy",
    "Purpose",
    "QualityGate",
    "Retraining",
    "Rollout",
    "Rounds",
    "SignalCnnModel",
    "Task",
    "Training",
    "UpdateGate",
]

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
ClippingNorm = Annotated[float, Field(ge=1e-4, le=1e6)]
"""Where the float32 numbers of training keep to it, whatever the gradients: see ``fedloop_clients.training.bounding``."""
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]
ExportTarget = Literal["onnx-fp32", "onnx-int8", "tflite-int8"]
Wave = Annotated[float, Field(gt=0, le=1)]


def _guards_something(epsilon: float) -> float:
    if math.isnan(epsilon) or epsilon <= 0:
        raise ValueError(f"must be above 0 (inf trains without privacy), not {epsilon:g}")
    return epsilon


def _distinct(targets: tuple[ExportTarget, ...]) -> tuple[ExportTarget, ...]:
    if len(set(targets)) != len(targets):
        raise ValueError("must be distinct")
    return targets


def _rising_to_all(waves: tuple[float, ...]) -> tuple[float, ...]:
    if list(waves) != sorted(set(waves)) or waves[-1] != 1.0:
        raise ValueError(f"must rise and end with 1.0, not [{', '.join(f'{wave:g}' for wave in waves)}]")
    return waves


class LogisticModel(Strict):
    """Logistic regression (linear regression for a number) on scaled numbers and one-hot categories."""

    kind: Literal["logistic"]


class MlpModel(Strict):
    """Fully connected layers with ReLU; categories enter through embeddings."""

    kind: Literal["mlp"]
    hidden: Annotated[tuple[Annotated[int, Field(ge=1, le=8192)], ...], Field(min_length=1, max_length=16)] = (32,)
    embedding: Annotated[int, Field(ge=1, le=512)] = 4


class CnnModel(Strict):
    """Two-dimensional convolutions with GroupNorm, for one image feature."""

    kind: Literal["cnn"]
    channels: Annotated[tuple[Annotated[int, Field(ge=4, le=1024)], ...], Field(min_length=1, max_length=8)] = (16, 32)
    hidden: Annotated[int, Field(ge=1, le=8192)] = 64


class SignalCnnModel(Strict):
    """One-dimensional convolutions with GroupNorm, for one signal feature."""

    kind: Literal["signal-cnn"]
    channels: Annotated[tuple[Annotated[int, Field(ge=4, le=1024)], ...], Field(min_length=1, max_length=8)] = (16, 32)
    kernel: Annotated[int, Field(ge=3, le=63)] = 7
    hidden: Annotated[int, Field(ge=1, le=8192)] = 64


class CustomModel(Strict):
    """The user's own: ``module:factory``, called with the feature schema, returns a ``torch.nn.Module``."""

    kind: Literal["custom"]
    factory: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]

    @property
    def module(self) -> str:
        """What is imported; a site names the modules that it allows."""
        return self.factory.partition(":")[0]


Model = Annotated[
    LogisticModel | MlpModel | CnnModel | SignalCnnModel | CustomModel,
    Field(discriminator="kind"),
]


class Preprocessing(Strict):
    """Where the scaling of numeric features comes from.

    ``range``: the public ranges, costs nothing. ``federated``: means and deviations over all sites' training rows, exact
    without privacy and otherwise noised and charged. ``per-site``: each site by its own rows; such a model cannot be
    released, since a device would need its site's scaler.
    """

    scaling: Literal["range", "federated", "per-site"] = "range"


class FederatedAveraging(Strict):
    """FedAvg (McMahan 2017, arXiv 1602.05629); ``proximal`` above 0 makes it FedProx (arXiv 1812.06127).

    ``local_steps`` optimisation steps a round at each site, over Poisson batches of expected size ``batch_size`` in
    private runs and shuffled batches otherwise. ``server_learning_rate`` scales the averaged update.
    """

    algorithm: Literal["fedavg"]
    local_steps: Annotated[int, Field(ge=1, le=100_000)] = 10
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 32
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NotNegative = 0.0
    proximal: NotNegative = 0.0
    server_learning_rate: Positive = 1.0
    physical_batch_size: Annotated[int, Field(ge=1)] = 256


class NewtonRaphson(Strict):
    """Newton-Raphson for logistic regression by exact sums of gradient and Hessian; not private, two classes.

    The update is ``solve(H + ridge * I, g)`` on scaled features with an intercept, starting at 0.
    """

    algorithm: Literal["newton"]
    ridge: NotNegative = 1.0


Training = Annotated[FederatedAveraging | NewtonRaphson, Field(discriminator="algorithm")]


class Privacy(Strict):
    """Differential privacy of one run at each site: (epsilon, delta) for adding or removing one unit.

    ``epsilon = inf`` trains without privacy. Training rows and evaluation rows are different units, so each spends its
    own epsilon. ``statistics_share`` of the training rows' epsilon pays for federated statistics when a task asks for
    them. ``unit_column`` names the patient or customer whose rows are protected together.
    """

    epsilon: Annotated[float, AfterValidator(_guards_something)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clipping_norm: ClippingNorm = 1.0
    evaluation_epsilon: Annotated[float, Field(gt=0)] | None = None
    statistics_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    unit_column: str | None = None

    @property
    def private(self) -> bool:
        """Whether the run trains under differential privacy."""
        return math.isfinite(self.epsilon)

    @property
    def epsilon_of_evaluations(self) -> float:
        """Epsilon that the evaluation rows may spend in one run."""
        return self.epsilon if self.evaluation_epsilon is None else self.evaluation_epsilon


class Rounds(Strict):
    """How many rounds, and when a round closes: at the quorum and the deadline, or when all asked sites answered."""

    count: Annotated[int, Field(ge=1, le=100_000)] = 10
    quorum: Fraction = 0.5
    deadline_seconds: Positive = 300.0
    evaluate_every: Annotated[int, Field(ge=0)] = 5
    sites_per_round: Count | None = None
    weighting: Literal["equal", "rows"] = "equal"


class DataGate(Strict):
    """A site whose data break one of these may not train; a site may be stricter, never looser."""

    minimum_rows: Count = 10
    maximum_rows: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1_000_000
    maximum_skipped: Fraction = 0.05
    all_classes: bool = True


class UpdateGate(Strict):
    """An update beyond ``maximum_norm`` (L2, of the update as sent) is refused.

    One longer than ``norm_bound`` times the median norm of the updates of recent rounds is scaled down to that; inf: none is.
    """

    maximum_norm: Positive = 1000.0
    norm_bound: Annotated[float, Field(ge=1)] = 20.0


class QualityGate(Strict):
    """What a version must show on evaluation rows before it is released.

    Bounds are on estimates with intervals at ``confidence``: a bound fails when the whole interval is on the wrong side,
    holds when the whole interval is on the right side, and is undecidable in between. ``minimum_accuracy`` is for classes,
    ``maximum_error`` for a regression (mean absolute error, as a share of the label's range), ``minimum_concordance`` for
    survival. A loss is of accuracy or of concordance, or a growth of the error as a share of the label's range.
    """

    minimum_accuracy: Fraction = 0.0
    maximum_error: Fraction = 1.0
    minimum_concordance: Fraction = 0.0
    maximum_loss_to_float: Fraction = 0.02
    maximum_loss_to_production: Fraction = 0.02
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    when_undecidable: Literal["release", "hold"] = "release"


class Gates(Strict):
    """Conditions that must hold before a step."""

    data: DataGate = DataGate()
    update: UpdateGate = UpdateGate()
    quality: QualityGate = QualityGate()


class Export(Strict):
    """Which artifacts a version gets."""

    targets: Annotated[tuple[ExportTarget, ...], Field(min_length=1), AfterValidator(_distinct)] = (
        "onnx-fp32",
        "onnx-int8",
        "tflite-int8",
    )
    maximum_bytes: Annotated[int, Field(ge=1)] = 100_000_000


class Rollout(Strict):
    """Waves as rising shares of the fleet, the last of them 1; silent devices have until the deadline."""

    waves: Annotated[tuple[Wave, ...], Field(min_length=1), AfterValidator(_rising_to_all)] = (0.34, 1.0)
    deadline_seconds: Positive = 600.0
    maximum_refused: Fraction = 0.0


class Feedback(Strict):
    """What devices send to their own site: sketches after ``sketch_rows`` predictions, and examples with labels.

    ``rows_per_unit`` is the most rows of one patient or customer that a site's devices see while a version serves. Devices
    do not know units, so it is the author's word, on which the privacy of verdicts rests where ``unit_column`` is set.
    """

    sketch_rows: Count = 25
    rows_per_unit: Count = 1
    evaluation_share: Annotated[float, Field(gt=0, lt=1)] = 0.25
    retention_days: Count = 365


class Retraining(Strict):
    """What starts the next run by itself.

    ``false_alarm`` is the probability that an unchanged world starts a run during the life of a version;
    ``verdict_epsilon`` pays for all of a site's verdicts about one version, ``label_count_epsilon`` for each time that a site
    tells how many labels have come back; ``minimum_labels`` over all sites must have come back; at most ``maximum_runs`` follow one another without a person.
    """

    enabled: bool = True
    false_alarm: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    verdict_epsilon: Annotated[float, Field(gt=0)] = 0.5
    label_count_epsilon: Annotated[float, Field(gt=0)] = 0.5
    minimum_labels: Count = 40
    rounds: Count | None = None
    maximum_runs: Annotated[int, Field(ge=0)] = 1
    approval: Literal["human", "within-plan"] = "within-plan"


class Task(Strict):
    """The whole document."""

    format: Literal[1]
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9\-]{0,62}$")]
    description: str = ""
    purpose: Purpose | None = None
    features: Annotated[tuple[Feature, ...], Field(min_length=1, max_length=10_000)]
    label: Label
    model: Model
    preprocessing: Preprocessing = Preprocessing()
    training: Training = FederatedAveraging(algorithm="fedavg")
    privacy: Privacy
    rounds: Rounds = Rounds()
    aggregation: Aggregation = Mean()
    central_privacy: CentralPrivacy | None = None
    gates: Gates = Gates()
    export: Export = Export()
    rollout: Rollout = Rollout()
    feedback: Feedback = Feedback()
    retraining: Retraining = Retraining()

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        problems = [
            *misplaced_names(self.features, self.label),
            *self._model_misfits(),
            *self._training_misfits(),
            *self._aggregation_misfits(),
            *self._central_misfits(),
            *self._gate_misfits(),
        ]
        if problems:
            raise Misfit(*problems)
        return self

    def _model_misfits(self) -> Iterator[tuple[Place, str]]:
        tensors = [feature.kind for feature in self.features if isinstance(feature, ImageFeature | SignalFeature)]
        match self.model:
            case LogisticModel() | MlpModel() if tensors:
                yield ("model", "kind"), f"model {self.model.kind!r} takes numeric and categorical features only"
            case CnnModel() if tensors != ["image"]:
                yield ("model", "kind"), "model 'cnn' takes exactly one image feature"
            case SignalCnnModel() if tensors != ["signal"]:
                yield ("model", "kind"), "model 'signal-cnn' takes exactly one signal feature"
            case _:
                pass

    def _training_misfits(self) -> Iterator[tuple[Place, str]]:
        if isinstance(self.training, NewtonRaphson):
            two = isinstance(self.label, ClassLabel) and len(self.label.classes) == 2
            if not (two and isinstance(self.model, LogisticModel)):
                place = ("training", "algorithm")
                yield place, "training 'newton' needs model 'logistic' and a label with two classes"
            if self.privacy.private:
                yield ("privacy", "epsilon"), "training 'newton' sends exact sums: it needs privacy.epsilon = inf"
        if isinstance(self.label, SurvivalLabel) and self.privacy.private:
            why = "a survival label is trained by a partial likelihood over batches, which clipping does not bound"
            yield ("privacy", "epsilon"), f"{why}: it needs privacy.epsilon = inf"

    def _aggregation_misfits(self) -> Iterator[tuple[Place, str]]:
        """Protections that cancel each other, and a rule that no round of this task could have updates enough for."""
        for sentence in misfits(self.parts):
            yield ("aggregation", "rule"), sentence
        rule, most = self.aggregation, self.rounds.sites_per_round
        if isinstance(rule, Mean) and rule.secure:
            if isinstance(self.training, NewtonRaphson):
                yield ("aggregation", "secure"), "secure aggregation of training 'newton' is not built"
            if most is not None and most < rule.minimum_sites:
                why = f"a sum needs {rule.minimum_sites} sites; rounds.sites_per_round asks {most}"
                yield ("rounds", "sites_per_round"), why
        if not isinstance(rule, RobustRule):
            return
        if isinstance(self.training, NewtonRaphson):
            yield ("aggregation", "rule"), f"training 'newton' adds sums over rows, which {rule.rule} cannot stand for"
        if most is not None and most < rule.least_updates:
            yield ("rounds", "sites_per_round"), f"{rule.need}; rounds.sites_per_round asks {most} sites"

    def _central_misfits(self) -> Iterator[tuple[Place, str]]:
        """What noise on the mean of updates would not cover."""
        central = self.central_privacy
        if central is None:
            return
        if isinstance(self.training, NewtonRaphson):
            why = "training 'newton' sends sums over rows, which have no clip; central_privacy needs 'fedavg'"
            yield ("training", "algorithm"), why
        if self.preprocessing.scaling == "federated":
            why = "puts sums of the sites into the model, which the noise of central_privacy does not cover"
            yield ("preprocessing", "scaling"), f'preprocessing.scaling = "federated" {why}'
        if central.clipping_norm > self.gates.update.maximum_norm:
            above = f"{central.clipping_norm:g}, above gates.update.maximum_norm, {self.gates.update.maximum_norm:g}"
            place = ("central_privacy", "clipping_norm")
            yield place, f"central_privacy.clipping_norm is {above}: the noise would be for updates that are refused"

    def _gate_misfits(self) -> Iterator[tuple[Place, str]]:
        """Bounds that no site could meet, and those that this label's models could never meet or break."""
        data, gate = self.gates.data, self.gates.quality
        if data.maximum_rows < data.minimum_rows:
            below = f"{data.maximum_rows}, below gates.data.minimum_rows, {data.minimum_rows}: no site could take part"
            yield ("gates", "data", "maximum_rows"), f"gates.data.maximum_rows is {below}"
        bounds = (
            ("minimum_accuracy", gate.minimum_accuracy > 0, ClassLabel, "accuracy", "a label with classes"),
            ("maximum_error", gate.maximum_error < 1, RegressionLabel, "the mean absolute error", "a regression"),
            ("minimum_concordance", gate.minimum_concordance > 0, SurvivalLabel, "concordance", "a survival label"),
        )
        own = next(key for key, _, kind, _, _ in bounds if isinstance(self.label, kind))
        for key, bounding, kind, what, whose in bounds:
            if bounding and not isinstance(self.label, kind):
                where = ("gates", "quality", key)
                yield where, f"gates.quality.{key} bounds {what}, which {whose} has; for this label it is {own!r}"

    @property
    def feature_schema(self) -> FeatureSchema:
        """Features and label together, which fit since the task was checked."""
        return FeatureSchema.model_construct(features=self.features, label=self.label)

    @property
    def parts(self) -> frozenset[Part]:
        """The protections that the task asks for, and its rule."""
        asked = {
            Part(self.aggregation.rule): True,
            Part.SITE_NOISE: self.privacy.private,
            Part.CENTRAL_NOISE: self.central_privacy is not None,
            Part.SECURE: self.aggregation.secure,
            Part.WEIGHTS_BY_ROWS: self.rounds.weighting == "rows",
            Part.NORM_BOUND: math.isfinite(self.gates.update.norm_bound),
        }
        return frozenset(part for part, is_asked in asked.items() if is_asked)

    @property
    def purpose_name(self) -> str:
        """What the task is for; empty where it does not say."""
        return "" if self.purpose is None else self.purpose.name

    @property
    def secure(self) -> bool:
        """Whether updates leave their sites masked only."""
        return isinstance(self.aggregation, Mean) and self.aggregation.secure

    def canonical(self) -> bytes:
        """The document as canonical JSON: what is stored, sent and digested."""
        return self.model_dump_json().encode()

    @property
    def digest(self) -> bytes:
        """SHA-256 of the canonical document."""
        return hashlib.sha256(self.canonical()).digest()

    @classmethod
    def from_canonical(cls, document: bytes) -> Self:
        """Reads what ``canonical`` wrote."""
        return cls.model_validate_json(document)
