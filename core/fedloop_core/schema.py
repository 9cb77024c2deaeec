"""The feature schema: what a row looks like, with public ranges and vocabularies, and what is predicted from it.

Everything in a schema is public: ranges and vocabularies are written by the task's author from domain knowledge, never
read off a site's data.
"""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, date, datetime
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from fedloop_core.strict import Misfit, Place, Strict

__all__ = [
    "CategoricalFeature",
    "ClassLabel",
    "DateFeature",
    "DateFormat",
    "Feature",
    "FeatureSchema",
    "ImageFeature",
    "Label",
    "NumericFeature",
    "RegressionLabel",
    "SignalFeature",
    "SurvivalLabel",
    "days_since_1970",
    "label_columns",
    "misplaced_names",
]

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_\-]*$", max_length=100)]
_INPUT_NAMES = frozenset({"numeric", "categorical"})  # the encoder's inputs for all such features together


def _sound_range(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"must be two finite numbers, low before high, not [{low:g}, {high:g}]")
    return bounds


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    doubled = sorted(value for value, times in Counter(values).items() if times > 1)
    if doubled:
        raise ValueError(f"must be distinct; given twice: {', '.join(doubled)}")
    return values


Range = Annotated[tuple[float, float], AfterValidator(_sound_range)]
Vocabulary = Annotated[tuple[str, ...], Field(min_length=2, max_length=10_000), AfterValidator(_distinct)]


class NumericFeature(Strict):
    """A number with its unit and public range; values outside the range are clamped to it inside the model."""

    kind: Literal["numeric"]
    name: Name
    unit: str = ""
    range: Range
    missing: Literal["refuse", "mean"] = "refuse"


def days_since_1970(text: str, date_format: str) -> float:
    """Days from the start of 1970 to a date, or to a date and time, as one format writes it.

    Raises:
        ValueError: the text is no date in that format, or there is no such day.
    """
    if not text.isascii():
        raise ValueError(f"{text!r} is no date")
    told = datetime.strptime(text, date_format)  # noqa: DTZ007  most formats say no zone: then it is UTC
    zoned = told if told.tzinfo is not None else told.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() / 86400


def _sound_format(text: str) -> str:
    day = datetime(2004, 11, 29, 13, 5, 7, tzinfo=UTC)
    try:
        known = math.floor(days_since_1970(day.strftime(text), text)) == math.floor(day.timestamp() / 86400)
    except ValueError:
        known = False
    if not known:
        raise ValueError('must say year, month and day, such as "%Y-%m-%d"')
    return text


DateFormat = Annotated[str, Field(max_length=100), AfterValidator(_sound_format)]


class DateFeature(Strict):
    """A date in the federation's one format; the model gets days since 1970-01-01, clamped to the public range.

    ``range`` is written as 2004-11-29, whatever the format.
    """

    kind: Literal["date"]
    name: Name
    format: DateFormat = "%Y-%m-%d"
    range: tuple[str, str]
    missing: Literal["refuse", "mean"] = "refuse"

    @model_validator(mode="after")
    def _range_is_sound(self) -> Self:
        try:
            first, last = (date.fromisoformat(bound) for bound in self.range)
        except ValueError:
            raise Misfit((("range",), "must be two dates such as 2004-11-29")) from None
        if first >= last:
            raise Misfit((("range",), f"must be two dates, early before late, not {self.range[0]} and {self.range[1]}"))
        return self

    @property
    def as_number(self) -> NumericFeature:
        """The number that stands for it."""
        low, high = (days_since_1970(bound, "%Y-%m-%d") for bound in self.range)
        return NumericFeature(
            kind="numeric", name=self.name, unit="days since 1970-01-01", range=(low, high), missing=self.missing
        )


class CategoricalFeature(Strict):
    """One of a vocabulary. ``other`` adds a category for values outside it; without it such rows are refused."""

    kind: Literal["categorical"]
    name: Name
    values: Vocabulary
    other: bool = False
    missing: Literal["refuse", "category"] = "refuse"

    @property
    def cardinality(self) -> int:
        """Number of codes: the vocabulary, then "other", then "missing", where declared."""
        return len(self.values) + int(self.other) + int(self.missing == "category")


class ImageFeature(Strict):
    """An image as float32 ``[channels, height, width]`` with values in ``range``."""

    kind: Literal["image"]
    name: Name
    height: Annotated[int, Field(ge=4, le=4096)]
    width: Annotated[int, Field(ge=4, le=4096)]
    channels: Annotated[int, Field(ge=1, le=16)] = 1
    range: Range = (0.0, 1.0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return (self.channels, self.height, self.width)


class SignalFeature(Strict):
    """A signal as float32 ``[channels, length]`` with values in ``range``."""

    kind: Literal["signal"]
    name: Name
    length: Annotated[int, Field(ge=8, le=1_000_000)]
    channels: Annotated[int, Field(ge=1, le=64)] = 1
    range: Range
    unit: str = ""
    sample_rate_hz: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return (self.channels, self.length)


Feature = Annotated[
    NumericFeature | DateFeature | CategoricalFeature | ImageFeature | SignalFeature,
    Field(discriminator="kind"),
]


class ClassLabel(Strict):
    """One of at least two classes; their order is the order of the model's outputs."""

    kind: Literal["classes"]
    name: Name
    classes: Vocabulary


class RegressionLabel(Strict):
    """A number with a public range."""

    kind: Literal["regression"]
    name: Name
    range: Range
    unit: str = ""


class SurvivalLabel(Strict):
    """Time to an event, possibly censored: ``event`` is 1 where the event was seen and 0 where it was not."""

    kind: Literal["survival"]
    time: Name
    event: Name
    time_range: Range


Label = Annotated[ClassLabel | RegressionLabel | SurvivalLabel, Field(discriminator="kind")]


def label_columns(label: Label) -> dict[str, str]:
    """Name of each column that the label is read from, by the key of the label that names it."""
    if isinstance(label, SurvivalLabel):
        return {"time": label.time, "event": label.event}
    return {"name": label.name}


def misplaced_names(features: tuple[Feature, ...], label: Label) -> list[tuple[Place, str]]:
    """Places of names that an earlier feature has already, or that the encoded inputs need for themselves."""
    named: list[tuple[Place, str]] = [(("features", at, "name"), feature.name) for at, feature in enumerate(features)]
    named += [(("label", key), name) for key, name in label_columns(label).items()]
    seen: set[str] = set()
    problems: list[tuple[Place, str]] = []
    for place, name in named:
        if name in seen:
            problems.append((place, f"the name {name!r} is given twice; features and label need names of their own"))
        seen.add(name)
    for at, feature in enumerate(features):
        if feature.kind in {"image", "signal"} and feature.name in _INPUT_NAMES:
            why = f"an image or signal may not be named {feature.name!r}, as the input of all such features is"
            problems.append((("features", at, "name"), why))
    return problems


class FeatureSchema(Strict):
    """The features in the model's order, and the label."""

    features: Annotated[tuple[Feature, ...], Field(min_length=1, max_length=10_000)]
    label: Label

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        problems = misplaced_names(self.features, self.label)
        if problems:
            raise Misfit(*problems)
        return self

    @property
    def numeric(self) -> tuple[NumericFeature, ...]:
        """The numbers, in order: the columns of the input ``numeric``; a date is the number that stands for it."""
        return tuple(
            f.as_number if f.kind == "date" else f for f in self.features if f.kind == "numeric" or f.kind == "date"
        )

    @property
    def dates(self) -> dict[str, DateFeature]:
        """The dates by name."""
        return {f.name: f for f in self.features if f.kind == "date"}

    @property
    def categorical(self) -> tuple[CategoricalFeature, ...]:
        """The categorical features, in order: the columns of the input ``categorical``."""
        return tuple(f for f in self.features if f.kind == "categorical")

    @property
    def tensors(self) -> tuple[ImageFeature | SignalFeature, ...]:
        """Images and signals: each is an input of its own, named as the feature."""
        return tuple(f for f in self.features if f.kind == "image" or f.kind == "signal")

    @property
    def outputs(self) -> int:
        """Number of values the model puts out for a row: one logit for each class, else one number."""
        return len(self.label.classes) if isinstance(self.label, ClassLabel) else 1
