"""Numbers of a report as text."""

from __future__ import annotations

from fedloop_core.measure import Measure

__all__ = ["percent", "spelled", "with_value"]

_JOINT = "\u00a0"  # keeps a number and its unit on one line


def percent(share: float) -> str:
    """A share in per cent with one decimal."""
    return f"{100 * share:.1f}{_JOINT}%"


def spelled(measure: Measure, value: float, unit: str = "") -> str:
    """A value of the measure: accuracy in per cent, concordance as a share, an error in the label's unit."""
    match measure:
        case Measure.ACCURACY:
            return percent(value)
        case Measure.CONCORDANCE:
            return f"{value:.3f}"
        case Measure.ABSOLUTE_ERROR:
            return f"{value:.4g}{_JOINT}{unit}" if unit else f"{value:.4g}"


def with_value(measure: Measure, value: float, unit: str = "") -> str:
    """The end of a sentence about answers."""
    shown = spelled(measure, value, unit)
    return f"with {shown} accuracy" if measure is Measure.ACCURACY else f"with a {measure.words} of {shown}"
