"""Profiles: the bins in which a model version's inputs and answers are counted.

A profile lies in the artifact as ``profile.json``, so that devices, site hubs and coordinators count in the same bins.
Its edges come from the shared scaler, whose statistics are already charged, or from public ranges: it holds nothing
else about data.

Columns, in this order: each numeric feature, each categorical feature, ``<name>:mean`` and ``<name>:deviation`` of each
image or signal, then ``prediction`` and ``confidence``. Every row falls into exactly one bin of every column.
"""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from itertools import pairwise
from statistics import NormalDist
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from fedloop_core.encoding import CATEGORICAL, NUMERIC, Inputs
from fedloop_core.errors import ArtifactRefused
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel, FeatureSchema, RegressionLabel
from fedloop_core.strict import Strict

__all__ = [
    "CategoricalColumn",
    "ClassesColumn",
    "Column",
    "FeatureColumn",
    "NumericColumn",
    "Profile",
    "ScoreColumn",
    "SummaryColumn",
]

_NORMAL_EDGES = tuple(NormalDist().inv_cdf(part / 10) for part in range(1, 10))
"""Inner edges of ten bins that a normal distribution fills equally, in deviations from the mean."""

_EVEN_BINS = 20
_CONFIDENCE_BINS = 10

Edges = Annotated[tuple[float, ...], Field(min_length=1, max_length=1000)]


class _Binned(Strict):
    """Inner edges of bins with open ends: bin k holds ``edges[k - 1] <= value < edges[k]``; one more bin for missing."""

    name: str
    edges: Edges

    @model_validator(mode="after")
    def _edges_rise(self) -> Self:
        if not all(math.isfinite(edge) for edge in self.edges) or any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError(f"edges of {self.name!r} must be finite and rise")
        return self

    @property
    def bins(self) -> int:
        """Number of counts: the bins, then missing."""
        return len(self.edges) + 2

    def places(self, values: NDArray[np.generic]) -> NDArray[np.int64]:
        """The bin of each value ``[rows]``; a missing value (NaN) goes to the last."""
        numbers = values.astype(np.float64)
        places = np.searchsorted(np.asarray(self.edges), numbers, side="right")
        return np.where(np.isnan(numbers), len(self.edges) + 1, places).astype(np.int64)


class NumericColumn(_Binned):
    """A numeric feature; ``range`` is its public range."""

    kind: Literal["numeric"]
    range: tuple[float, float]


class CategoricalColumn(Strict):
    """A categorical feature: one count for each code, the last of them "missing" if it may be missing."""

    kind: Literal["categorical"]
    name: str
    cardinality: Annotated[int, Field(ge=2, le=10_002)]
    may_be_missing: bool

    @property
    def bins(self) -> int:
        """Number of counts."""
        return self.cardinality


class SummaryColumn(_Binned):
    """Mean or standard deviation over the cells of one image or signal."""

    kind: Literal["summary"]
    feature: str
    statistic: Literal["mean", "deviation"]
    range: tuple[float, float]

    def summarize(self, cells: NDArray[np.generic]) -> NDArray[np.float64]:
        """The statistic of each row of ``cells`` ``[rows, cells]``."""
        numbers = cells.astype(np.float64)
        result: NDArray[np.float64] = numbers.mean(axis=1) if self.statistic == "mean" else numbers.std(axis=1)
        return result


class ClassesColumn(Strict):
    """The predicted class: one count for each."""

    kind: Literal["classes"]
    name: str
    classes: Annotated[int, Field(ge=2, le=10_000)]

    @property
    def bins(self) -> int:
        """Number of counts."""
        return self.classes


class ScoreColumn(_Binned):
    """A number that the model puts out: a predicted value, or the confidence in the predicted class."""

    kind: Literal["score"]


FeatureColumn = NumericColumn | CategoricalColumn | SummaryColumn
Column = FeatureColumn | ClassesColumn | ScoreColumn


class Profile(Strict):
    """``profile.json``: the bins of every column of a model version's sketches."""

    format: Literal[1]
    features: Annotated[
        tuple[Annotated[FeatureColumn, Field(discriminator="kind")], ...], Field(min_length=1, max_length=20_000)
    ]
    prediction: Annotated[ClassesColumn | ScoreColumn, Field(discriminator="kind")]
    confidence: ScoreColumn

    @classmethod
    def for_schema(cls, schema: FeatureSchema, scaler: Scaler) -> Self:
        """Bins from the scaler's means and deviations and from public ranges; no data enters."""
        columns: list[FeatureColumn] = [
            NumericColumn(
                kind="numeric",
                name=feature.name,
                range=feature.range,
                edges=tuple(float(mean) + z * float(deviation) for z in _NORMAL_EDGES),
            )
            for feature, mean, deviation in zip(schema.numeric, scaler.mean, scaler.deviation, strict=True)
        ]
        columns += [
            CategoricalColumn(
                kind="categorical",
                name=feature.name,
                cardinality=feature.cardinality,
                may_be_missing=feature.missing == "category",
            )
            for feature in schema.categorical
        ]
        for tensor in schema.tensors:
            low, high = tensor.range
            columns += [
                SummaryColumn(
                    kind="summary",
                    name=f"{tensor.name}:mean",
                    feature=tensor.name,
                    statistic="mean",
                    range=tensor.range,
                    edges=_even_edges(low, high, _EVEN_BINS),
                ),
                SummaryColumn(
                    kind="summary",
                    name=f"{tensor.name}:deviation",
                    feature=tensor.name,
                    statistic="deviation",
                    range=tensor.range,
                    # half the width is the largest deviation that values in a range can have
                    edges=_even_edges(0.0, (high - low) / 2, _EVEN_BINS),
                ),
            ]
        prediction, confidence = _output_columns(schema)
        return cls(format=1, features=tuple(columns), prediction=prediction, confidence=confidence)

    def to_bytes(self) -> bytes:
        """Canonical JSON bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what ``to_bytes`` wrote.

        Raises:
            ArtifactRefused: the bytes are not a valid profile.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ArtifactRefused(f"profile.json is not valid at {where}: {first['msg']}.", reason="profile") from error

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of the canonical bytes."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Every column, in the order of a sketch's counts."""
        return (*self.features, self.prediction, self.confidence)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where each column's counts begin when all counts lie in one row, and the total: int64 ``[columns + 1]``."""
        return np.cumsum([0, *(column.bins for column in self.columns)], dtype=np.int64)

    @cached_property
    def _numeric(self) -> tuple[NumericColumn, ...]:
        return tuple(column for column in self.features if isinstance(column, NumericColumn))

    @cached_property
    def _categorical(self) -> tuple[CategoricalColumn, ...]:
        return tuple(column for column in self.features if isinstance(column, CategoricalColumn))

    @cached_property
    def _summaries(self) -> tuple[SummaryColumn, ...]:
        return tuple(column for column in self.features if isinstance(column, SummaryColumn))

    def places(
        self, inputs: Inputs, predicted: NDArray[np.generic], confidence: NDArray[np.generic]
    ) -> NDArray[np.int64]:
        """The bin of every row in every column, int64 ``[rows, columns]``.

        Raises:
            ValueError: lengths differ, or a code or class is not one of the profile's.
        """
        parts: list[NDArray[np.int64]] = [self._numeric_places(inputs[NUMERIC])] if self._numeric else []
        parts += [
            _codes(inputs[CATEGORICAL][:, at], column.cardinality, column.name)[:, None]
            for at, column in enumerate(self._categorical)
        ]
        for summary in self._summaries:
            cells = inputs[summary.feature].reshape(len(predicted), -1)
            parts.append(summary.places(summary.summarize(cells))[:, None])
        if isinstance(self.prediction, ClassesColumn):
            parts.append(_codes(predicted, self.prediction.classes, self.prediction.name)[:, None])
        else:
            parts.append(self.prediction.places(predicted)[:, None])
        parts.append(self.confidence.places(confidence)[:, None])
        return np.concatenate(parts, axis=1)

    def _numeric_places(self, values: NDArray[np.generic]) -> NDArray[np.int64]:
        """All numeric columns at once: this is on the path of every prediction."""
        numbers = values.astype(np.float64)
        edges, inner = self._numeric_edges
        places = np.minimum((numbers[:, :, None] >= edges).sum(axis=2), inner)
        return np.where(np.isnan(numbers), inner + 1, places).astype(np.int64)

    @cached_property
    def _numeric_bounds(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        low, high = zip(*(column.range for column in self._numeric), strict=True)
        return np.array(low, dtype=np.float32), np.array(high, dtype=np.float32)

    @cached_property
    def _numeric_edges(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Edges ``[numeric columns, most edges]``, shorter ones filled up with infinity, and how many each has."""
        inner = np.array([len(column.edges) for column in self._numeric], dtype=np.int64)
        edges = np.full((len(inner), int(inner.max())), np.inf)
        for at, column in enumerate(self._numeric):
            edges[at, : inner[at]] = column.edges
        return edges, inner

    def missing(self, inputs: Inputs) -> int:
        """Cells that are missing."""
        cells = int(np.isnan(inputs[NUMERIC].astype(np.float64)).sum()) if self._numeric else 0
        for at, column in enumerate(self._categorical):
            if column.may_be_missing:
                cells += int((inputs[CATEGORICAL][:, at] == column.cardinality - 1).sum())
        return cells

    def out_of_range(self, inputs: Inputs) -> int:
        """Numbers outside their public range; an image or signal with any such cell counts once."""
        cells = 0
        if self._numeric:
            low, high = self._numeric_bounds
            numbers = inputs[NUMERIC].astype(np.float32)
            cells += int(((numbers < low) | (numbers > high)).sum())
        for summary in self._summaries:
            if summary.statistic == "mean":
                tensor = inputs[summary.feature]
                values = tensor.reshape(len(tensor), -1).astype(np.float32)
                low_cell, high_cell = np.float32(summary.range[0]), np.float32(summary.range[1])
                cells += int(((values < low_cell) | (values > high_cell)).any(axis=1).sum())
        return cells


def _output_columns(schema: FeatureSchema) -> tuple[ClassesColumn | ScoreColumn, ScoreColumn]:
    label = schema.label
    if isinstance(label, ClassLabel):
        classes = len(label.classes)
        return (
            ClassesColumn(kind="classes", name="prediction", classes=classes),
            # the largest of n probabilities is at least 1/n
            ScoreColumn(kind="score", name="confidence", edges=_even_edges(1 / classes, 1.0, _CONFIDENCE_BINS)),
        )
    # a survival model puts out a log hazard ratio, which has no public range: beyond a factor of 20 lie open ends
    low, high = label.range if isinstance(label, RegressionLabel) else (-3.0, 3.0)
    return (
        ScoreColumn(kind="score", name="prediction", edges=_even_edges(low, high, _EVEN_BINS)),
        ScoreColumn(kind="score", name="confidence", edges=_even_edges(0.0, 1.0, _CONFIDENCE_BINS)),
    )


def _even_edges(low: float, high: float, bins: int) -> tuple[float, ...]:
    return tuple(low + (high - low) * part / bins for part in range(1, bins))


def _codes(values: NDArray[np.generic], codes: int, name: str) -> NDArray[np.int64]:
    places = values.astype(np.int64)
    if len(places) and (places.min() < 0 or places.max() >= codes):
        raise ValueError(f"column {name!r} holds a code outside 0..{codes - 1}")
    return places
