"""What says how good a model is, by kind of label: one measure each, with its name, its direction and its scale."""

from __future__ import annotations

from enum import StrEnum

from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel

__all__ = ["Measure", "measure_of", "measure_width"]


class Measure(StrEnum):
    """A measure by its name in documents.

    ``accuracy``: share of rows whose class is named rightly. ``absolute_error``: mean absolute error in the label's unit,
    where an error counts for at most the label's public range. ``concordance``: share of comparable pairs of rows in
    which the row with the earlier event has the higher hazard (Harrell 1982); 0.5 is a guess.
    """

    ACCURACY = "accuracy"
    ABSOLUTE_ERROR = "absolute_error"
    CONCORDANCE = "concordance"

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return "mean absolute error" if self is Measure.ABSOLUTE_ERROR else self.value

    @property
    def rises(self) -> bool:
        """Whether more is better."""
        return self is not Measure.ABSOLUTE_ERROR


def measure_of(label: Label) -> Measure:
    """The measure of models that predict this label."""
    match label:
        case ClassLabel():
            return Measure.ACCURACY
        case RegressionLabel():
            return Measure.ABSOLUTE_ERROR
        case SurvivalLabel():
            return Measure.CONCORDANCE


def measure_width(label: Label) -> float:
    """From the best value of the label's measure to the worst: its range for an error, else 1."""
    match label:
        case RegressionLabel(range=(low, high)):
            return high - low
        case ClassLabel() | SurvivalLabel():
            return 1.0
