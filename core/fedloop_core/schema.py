"""The feature schema: what a row looks like, with public ranges and vocabularies, and what is predicted from it.

Everything in a schema is public: ranges and vocabularies are written by the task's author from domain knowledge, never
read off a site's data.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedloop_core.strict import Strict

__all__ = [
    "CategoricalFeature",
    "ClassLabel",
    "Feature",
    "FeatureSchema",
    "ImageFeature",
    "Label",
    "NumericFeature",
    "RegressionLabel",
    "SignalFeature",
    "SurvivalLabel",
]

Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_\-]*$", max_length=100)]
Range = tuple[float, float]


def _check_range(bounds: Range) -> None:
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"range must be two finite numbers, low before high, not [{low:g}, {high:g}]")


class NumericFeature(Strict):
    """A number with its unit and public range; values outside the range are clamped to it inside the model."""

    kind: Literal["numeric"]
    name: Name
    unit: str = ""
    range: Range
    missing: Literal["refuse", "mean"] = "refuse"

    @model_validator(mode="after")
    def _range_is_sound(self) -> Self:
        _check_range(self.range)
        return self


class CategoricalFeature(Strict):
    """One of a vocabulary. ``other`` adds a category for values outside it; without it such rows are refused."""

    kind: Literal["categorical"]
    name: Name
    values: Annotated[tuple[str, ...], Field(min_length=2, max_length=10_000)]
    other: bool = False
    missing: Literal["refuse", "category"] = "refuse"

    @model_validator(mode="after")
    def _values_are_distinct(self) -> Self:
        if len(set(self.values)) != len(self.values):
            raise ValueError("values must be distinct")
        return self

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

    @model_validator(mode="after")
    def _range_is_sound(self) -> Self:
        _check_range(self.range)
        return self

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
    sample_rate_hz: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _range_is_sound(self) -> Self:
        _check_range(self.range)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        return (self.channels, self.length)


Feature = Annotated[
    NumericFeature | CategoricalFeature | ImageFeature | SignalFeature,
    Field(discriminator="kind"),
]


class ClassLabel(Strict):
    """One of at least two classes; their order is the order of the model's outputs."""

    kind: Literal["classes"]
    name: Name
    classes: Annotated[tuple[str, ...], Field(min_length=2, max_length=10_000)]

    @model_validator(mode="after")
    def _classes_are_distinct(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must be distinct")
        return self


class RegressionLabel(Strict):
    """A number with a public range."""

    kind: Literal["regression"]
    name: Name
    range: Range
    unit: str = ""

    @model_validator(mode="after")
    def _range_is_sound(self) -> Self:
        _check_range(self.range)
        return self


class SurvivalLabel(Strict):
    """Time to an event, possibly censored: ``event`` is 1 where the event was seen and 0 where it was not."""

    kind: Literal["survival"]
    time: Name
    event: Name
    time_range: Range

    @model_validator(mode="after")
    def _range_is_sound(self) -> Self:
        _check_range(self.time_range)
        return self


Label = Annotated[ClassLabel | RegressionLabel | SurvivalLabel, Field(discriminator="kind")]


class FeatureSchema(Strict):
    """The features in the model's order, and the label."""

    features: Annotated[tuple[Feature, ...], Field(min_length=1, max_length=10_000)]
    label: Label

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        names = [feature.name for feature in self.features]
        match self.label:
            case SurvivalLabel(time=time, event=event):
                names += [time, event]
            case ClassLabel(name=name) | RegressionLabel(name=name):
                names.append(name)
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise ValueError(f"names must be distinct; given twice: {', '.join(doubled)}")
        return self

    @property
    def numeric(self) -> tuple[NumericFeature, ...]:
        """The numeric features, in order: the columns of the input ``numeric``."""
        return tuple(f for f in self.features if isinstance(f, NumericFeature))

    @property
    def categorical(self) -> tuple[CategoricalFeature, ...]:
        """The categorical features, in order: the columns of the input ``categorical``."""
        return tuple(f for f in self.features if isinstance(f, CategoricalFeature))

    @property
    def tensors(self) -> tuple[ImageFeature | SignalFeature, ...]:
        """Images and signals: each is an input of its own, named as the feature."""
        return tuple(f for f in self.features if isinstance(f, ImageFeature | SignalFeature))

    @property
    def outputs(self) -> int:
        """Number of values the model puts out for a row: one logit for each class, else one number."""
        return len(self.label.classes) if isinstance(self.label, ClassLabel) else 1
