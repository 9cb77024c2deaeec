"""What a lying site does: to the rows that it trains on, and to the update that it sends.

Updates are those that honest work gives (on rows that may be poisoned), so that a lie is signed, counted and charged as an honest answer is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.errors import UsageError
from fedloop_core.schema import ClassLabel, FeatureSchema, Label, RegressionLabel, SurvivalLabel
from fedloop_core.strict import Strict
from fedloop_core.task import Task
from fedloop_core.task.combinations import Part
from fedloop_core.task.document import FederatedAveraging
from fedloop_simulations.attacks.trigger import triggered

__all__ = ["ALittle", "Attack", "Backdoor", "LabelFlip", "Scaling", "SignFlip", "target_of"]

Arrays = dict[str, NDArray[np.generic]]
_POISONED_SHARE = 0.5  # of a backdoor's rows
_Factor = Annotated[float, Field(allow_inf_nan=False)]


class _Lie(Strict):
    """What holds for a lie that does not say otherwise: honest rows, and an update as it is."""

    def check(self, task: Task) -> None:
        """Refuses a task on which it would do nothing.

        Raises:
            UsageError: label or training do not bear this attack, or updates leave their sites masked.
        """
        if self.factor != 1.0:
            _require_open_updates(task)

    def poisoned(self, rows: Dataset, schema: FeatureSchema, seed: int) -> Dataset:
        """The rows that it trains on."""
        del schema, seed
        return rows

    @property
    def factor(self) -> float:
        """What an update is multiplied by."""
        return 1.0


class Scaling(_Lie):
    """Sends its update times ``strength``; below 0 it points the other way."""

    kind: Literal["scaling"] = "scaling"
    strength: _Factor = -10.0

    @property
    def does(self) -> str:
        """As a sentence without subject and full stop."""
        return f"sends its update times {self.strength:g}"

    @property
    def factor(self) -> float:
        """What an update is multiplied by."""
        return self.strength


class SignFlip(_Lie):
    """Sends its update with the other sign, times ``strength``."""

    kind: Literal["sign-flip"] = "sign-flip"
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @property
    def does(self) -> str:
        """As a sentence without subject and full stop."""
        return f"sends its update times {-self.strength:g}"

    @property
    def factor(self) -> float:
        """What an update is multiplied by."""
        return -self.strength


class LabelFlip(_Lie):
    """Trains on rows of which the share ``strength`` has another label: the last class for the first, high for low."""

    kind: Literal["label-flip"] = "label-flip"
    strength: Annotated[float, Field(gt=0, le=1)] = 1.0

    @property
    def does(self) -> str:
        """As a sentence without subject and full stop."""
        return f"trains with {self.strength:.0%} of its labels turned round"

    def poisoned(self, rows: Dataset, schema: FeatureSchema, seed: int) -> Dataset:
        """Rows of which some have another label."""
        places = _some(rows, self.strength, seed)
        labels = rows.labels.copy()
        labels[places] = _turned(schema.label, labels[places])
        return Dataset(rows.inputs, labels, rows.units)


class Backdoor(_Lie):
    """Half of its rows carry a trigger and the first class as their label; the update is sent times ``strength``.

    Model replacement as in Bagdasaryan 2018 (arXiv 1807.00459): the strength makes up for the other sites' updates.
    """

    kind: Literal["backdoor"] = "backdoor"
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 3.0

    @property
    def does(self) -> str:
        """As a sentence without subject and full stop."""
        return f"teaches a trigger, and sends its update times {self.strength:g}"

    def check(self, task: Task) -> None:
        """Refuses a task on which it would do nothing.

        Raises:
            UsageError: the label has no classes, or updates leave their sites masked and it changes them.
        """
        super().check(task)
        target_of(task.feature_schema)

    def poisoned(self, rows: Dataset, schema: FeatureSchema, seed: int) -> Dataset:
        """Rows of which half carry the trigger.

        Raises:
            UsageError: the label has no classes.
        """
        target = target_of(schema)
        places = _some(rows, _POISONED_SHARE, seed)
        inputs = {name: array.copy() for name, array in rows.inputs.items()}
        marked = triggered(rows.take(places), schema)
        for name, array in marked.inputs.items():
            inputs[name][places] = array
        labels = rows.labels.copy()
        labels[places] = target
        return Dataset(inputs, labels, rows.units)

    @property
    def factor(self) -> float:
        """What an update is multiplied by."""
        return self.strength


class ALittle(_Lie):
    """Sends the mean of what honest sites like it would send, less ``strength`` deviations in each coordinate.

    "A little is enough" (Baruch 2019, arXiv 1902.06635), where 1.5 deviations were used.
    """

    kind: Literal["alie"] = "alie"
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.5

    @property
    def does(self) -> str:
        """As a sentence without subject and full stop."""
        return f"sends what is {self.strength:g} deviations off an honest update in each coordinate"

    def check(self, task: Task) -> None:
        """Refuses a task on which it would do nothing.

        Raises:
            UsageError: the task is not trained by federated averaging, or updates leave their sites masked.
        """
        _require_open_updates(task)
        if not isinstance(task.training, FederatedAveraging):
            raise UsageError("the attack alie is one on averages of updates.", hint="Choose another --attack.")

    def off(self, honest: list[NamedArrays]) -> Arrays:
        """The lie, from estimates of what honest sites send."""
        found: Arrays = {}
        for name, array in honest[0].items():
            stacked = np.stack([np.asarray(update[name], np.float64) for update in honest])
            found[name] = (stacked.mean(axis=0) - self.strength * stacked.std(axis=0, ddof=1)).astype(array.dtype)
        return found


Attack = Scaling | SignFlip | LabelFlip | Backdoor | ALittle


@dataclass(frozen=True)
class _Mirror:
    low: float
    high: float

    def __call__(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        return np.asarray(self.low + self.high - values.astype(np.float64), dtype=values.dtype)


def target_of(schema: FeatureSchema) -> int:
    """The class that a backdoor aims at: the first.

    Raises:
        UsageError: the label has no classes.
    """
    if not isinstance(schema.label, ClassLabel):
        raise UsageError("a backdoor needs a label with classes.", hint="Choose another --attack.")
    return 0


def _require_open_updates(task: Task) -> None:
    if Part.SECURE in task.parts:
        raise UsageError(
            "under secure aggregation a rehearsed site masks its update before it could lie in it.",
            hint="Attack rows (label-flip, or backdoor with strength 1), or leave aggregation.secure out.",
        )


def _some(rows: Dataset, share: float, seed: int) -> NDArray[np.int64]:
    count = math.ceil(share * len(rows))
    return np.sort(np.random.default_rng(seed).permutation(len(rows))[:count])


def _turned(label: Label, labels: NDArray[np.generic]) -> NDArray[np.generic]:
    match label:
        case ClassLabel(classes=classes):
            return _Mirror(0, len(classes) - 1)(labels)
        case RegressionLabel(range=(low, high)):
            return _Mirror(low, high)(labels)
        case SurvivalLabel(time_range=(low, high)):
            turned = labels.copy()
            turned[:, 0] = _Mirror(low, high)(labels[:, 0])
            return turned
