"""The data gate: whether a site's rows are fit to take part, decided at the site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedloop_core.dataset import Dataset
from fedloop_core.errors import DataGateFailed
from fedloop_core.schema import ClassLabel, FeatureSchema
from fedloop_core.task.document import DataGate

__all__ = ["GateVerdict", "check_rows", "stricter"]


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
    ``all-classes``, and ``finite-labels``. Taking part or not is the site's own decision and is not noised: a site that
    must hide even that declines by policy.

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
