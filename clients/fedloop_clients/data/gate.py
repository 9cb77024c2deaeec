"""The data gate: whether a site's rows are fit to take part, decided at the site.

A coordinator writes the task, and with it the vocabularies, ranges and bounds by which rows are judged. An exact verdict would
answer any question about any row, one bit each. So in a private run the verdict that leaves the site is worked out from
noised numbers that were charged (``check_count``); the exact one is for the site's own people (``check_rows``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fedloop_core.dataset import Dataset
from fedloop_core.errors import DataGateFailed
from fedloop_core.schema import ClassLabel, FeatureSchema
from fedloop_core.task.document import DataGate

__all__ = ["GateVerdict", "NoisedCount", "check_count", "check_rows", "stricter"]

_DEVIATIONS = 4  # of the noise: so far off is a share of skipped rows before it counts as too large


@dataclass(frozen=True)
class GateVerdict:
    """Names of the rules that failed; none of them means admitted."""

    failed: tuple[str, ...]

    @property
    def admitted(self) -> bool:
        """Whether every rule holds."""
        return not self.failed

    def require(self, site: str) -> None:
        """Goes on only when every rule holds.

        Raises:
            DataGateFailed: names the first rule that failed.
        """
        if self.failed:
            raise DataGateFailed(
                f"site {site}: the data gate refuses the training rows ({', '.join(self.failed)}).",
                hint="Correct the data, or agree on another gate in the task.",
                rule=self.failed[0],
            )


@dataclass(frozen=True)
class NoisedCount:
    """A private run's numbers of training units and of skipped rows, with noise; ``skipped`` is absent where it was not counted."""

    units: int
    skipped: int | None


def stricter(task: DataGate, site: DataGate | None) -> DataGate:
    """The task's gate with the site's own rules on top: a site may be stricter, never looser."""
    if site is None:
        return task
    return DataGate(
        minimum_rows=max(task.minimum_rows, site.minimum_rows),
        maximum_rows=min(task.maximum_rows, site.maximum_rows),
        maximum_skipped=min(task.maximum_skipped, site.maximum_skipped),
        all_classes=task.all_classes or site.all_classes,
    )


def check_rows(rows: Dataset, skipped_share: float, schema: FeatureSchema, gate: DataGate) -> GateVerdict:
    """Judges training rows.

    Rules are ``minimum-rows``, ``maximum-rows``, ``maximum-skipped`` (share of the source's rows that could not be read),
    ``all-classes``, and ``finite-labels``. Exact: it leaves a site in a run without privacy only.

    Args:
        rows: training rows.
        skipped_share: of the source's rows, those that could not be read.
        schema: the task's.
        gate: the task's and the site's rules together.
    """
    failed: list[str] = []
    if len(rows) < gate.minimum_rows:
        failed.append("minimum-rows")
    if len(rows) > gate.maximum_rows:
        failed.append("maximum-rows")
    if skipped_share > gate.maximum_skipped:
        failed.append("maximum-skipped")
    if isinstance(schema.label, ClassLabel):
        present = len(np.unique(rows.labels))
        if gate.all_classes and present < len(schema.label.classes):
            failed.append("all-classes")
    elif not np.isfinite(rows.labels).all():
        failed.append("finite-labels")
    return GateVerdict(tuple(failed))


def check_count(count: NoisedCount, scale: float, gate: DataGate) -> GateVerdict:
    """Judges a private run by nothing but its noised numbers, so that the verdict tells no more than they do.

    ``minimum-rows`` and ``maximum-rows`` hold for the number of units. ``maximum-skipped`` fails when the share is larger than noise
    alone would make it, of training units and skipped rows together. Classes are not judged: whether a class has one
    unit or none is what the promise hides, and noise that hides it leaves a toss of a coin. Neither are labels that are not
    finite, whose gradients count as 0.

    Args:
        count: of the run.
        scale: of the discrete Laplace noise on each number.
        gate: the task's and the site's rules together.
    """
    failed: list[str] = []
    if count.units < gate.minimum_rows:
        failed.append("minimum-rows")
    if count.units > gate.maximum_rows:
        failed.append("maximum-rows")
    if count.skipped is not None:
        beyond = count.skipped - gate.maximum_skipped * (count.units + count.skipped)
        if beyond > _DEVIATIONS * math.sqrt(2) * scale:
            failed.append("maximum-skipped")
    return GateVerdict(tuple(failed))
