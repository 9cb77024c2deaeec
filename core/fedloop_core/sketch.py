"""Sketches: what a device tells about its inputs and answers, as counts in bins and never as values.

A ``Sketch`` holds exact integer counts over a ``Profile``. Merging is addition, so the order in which devices report
never matters. Every row falls into exactly one bin of every column, hence the counts of each column add up to ``rows``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedloop_core.encoding import Inputs
from fedloop_core.errors import SketchRefused
from fedloop_core.profile import Profile
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = ["MAXIMUM_ROWS", "Profile", "Sketch"]

MAXIMUM_ROWS = 1_000_000_000
"""Rows that one sketch may claim: sums of a billion such sketches still fit into int64."""


@dataclass(frozen=True)
class Sketch:
    """Exact counts of rows over a profile's bins. ``flat`` holds the counts of all columns one after another.

    ``missing`` counts cells without a value, ``out_of_range`` numbers outside their public range.
    """

    profile: Profile
    flat: NDArray[np.int64]
    rows: int
    missing: int
    out_of_range: int

    @classmethod
    def empty(cls, profile: Profile) -> Self:
        """Nothing counted yet."""
        return cls(profile, np.zeros(int(profile.offsets[-1]), dtype=np.int64), 0, 0, 0)

    @property
    def counts(self) -> tuple[NDArray[np.int64], ...]:
        """The counts of each column, in the profile's order."""
        return tuple(self.flat[a:b] for a, b in pairwise(self.profile.offsets))

    def column(self, name: str) -> NDArray[np.int64]:
        """The counts of one column by name."""
        at = self.profile.names.index(name)
        return self.flat[self.profile.offsets[at] : self.profile.offsets[at + 1]]

    def add(self, inputs: Inputs, predicted: NDArray[np.generic], confidence: NDArray[np.generic]) -> Sketch:
        """A new sketch with these rows too.

        Args:
            inputs: encoded rows.
            predicted: the predicted class of each row, int64; the predicted number where the label is one.
            confidence: the probability of the predicted class, float; ones where the label is a number.

        Raises:
            ValueError: lengths differ, or a code or class is not one of the profile's.
        """
        lengths = {len(predicted), len(confidence), *(len(array) for array in inputs.values())}
        if len(lengths) != 1:
            raise ValueError(f"inputs, predictions and confidences have unequal lengths: {sorted(lengths)}")
        if len(predicted) == 0:
            return self
        places = self.profile.places(inputs, predicted, confidence) + self.profile.offsets[:-1]
        added = np.bincount(places.ravel(), minlength=len(self.flat)).astype(np.int64)
        return Sketch(
            self.profile,
            self.flat + added,
            self.rows + len(predicted),
            self.missing + self.profile.missing(inputs),
            self.out_of_range + self.profile.out_of_range(inputs),
        )

    def merge(self, other: Sketch) -> Sketch:
        """A new sketch of the rows of both.

        Raises:
            SketchRefused: the other counts over another profile.
        """
        if other.profile is not self.profile and other.profile.digest != self.profile.digest:
            raise SketchRefused("sketches over different profiles cannot be merged.", reason="profile")
        return Sketch(
            self.profile,
            self.flat + other.flat,
            self.rows + other.rows,
            self.missing + other.missing,
            self.out_of_range + other.out_of_range,
        )

    def to_message(self, *, task: str, version: int, window: int) -> fleet_pb2.Sketch:
        """The message that a device sends to its hub; ``window`` is numbered by the device."""
        return fleet_pb2.Sketch(
            task=task,
            version=version,
            window=window,
            profile_digest=bytes.fromhex(self.profile.digest),
            columns=[fleet_pb2.Counts(counts=counts.tolist()) for counts in self.counts],
            rows=self.rows,
            missing=self.missing,
            out_of_range=self.out_of_range,
        )

    @classmethod
    def from_message(cls, message: fleet_pb2.Sketch, profile: Profile) -> Self:
        """Checks and reads a message against the profile that its version has.

        Raises:
            SketchRefused: another profile's bins, or counts that no rows can give. ``reason`` says which.
        """
        if message.profile_digest != bytes.fromhex(profile.digest):
            raise SketchRefused("the sketch was counted over another profile.", reason="profile")
        if message.rows > MAXIMUM_ROWS:
            raise SketchRefused(f"the sketch claims {message.rows} rows.", reason="rows")
        if len(message.columns) != len(profile.columns):
            raise SketchRefused(
                f"the sketch has {len(message.columns)} columns; the profile has {len(profile.columns)}.",
                reason="columns",
            )
        for column, counted in zip(profile.columns, message.columns, strict=True):
            if len(counted.counts) != column.bins:
                raise SketchRefused(
                    f"column {column.name!r} has {len(counted.counts)} counts; {column.bins} are needed.",
                    reason="bins",
                )
            if sum(counted.counts) != message.rows:
                raise SketchRefused(
                    f"the counts of column {column.name!r} add up to {sum(counted.counts)}, not {message.rows} rows.",
                    reason="sum",
                )
        if max(message.missing, message.out_of_range) > message.rows * len(profile.columns):
            raise SketchRefused("the sketch counts more cells than its rows have.", reason="cells")
        flat = np.concatenate([np.array(counted.counts, dtype=np.int64) for counted in message.columns])
        return cls(profile, flat, message.rows, message.missing, message.out_of_range)
