"""The interface of a converter: from a torch model to one kind of artifact."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedloop_core.artifact import TensorSpec
from fedloop_core.task.document import ExportTarget
from fedloop_server.export.source import Source

__all__ = ["RANGE_MARGIN", "Converted", "Converter", "RuntimeName"]

RuntimeName = Literal["onnxruntime", "litert", "tflite-runtime"]

RANGE_MARGIN = 1.5
"""Ranges seen on synthetic inputs are widened by this factor: real rows reach further than drawn ones."""


@dataclass(frozen=True)
class Converted:
    """A model file and its signature; ``rows`` says whether it takes batches or one row at a time."""

    model: bytes
    rows: Literal["batch", "one"]
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    operators: tuple[str, ...]


class Converter(ABC):
    """One kind of artifact and the bounds within which it must agree with torch.

    ``maximum_deviation`` is the largest allowed difference of an output, as a fraction of the range of torch's outputs
    over the golden inputs: 0.1 % for float files, where only the order of additions differs, and 25 % for int8, which is
    far beyond what rounding does and catches wrong kernels. ``minimum_agreement`` is the share of rows with the same
    label, ties aside. ``golden_tolerance`` is what devices allow among themselves.
    """

    kind: ClassVar[ExportTarget]
    runtimes: ClassVar[tuple[RuntimeName, ...]]
    golden_tolerance: ClassVar[float]
    minimum_agreement: ClassVar[float]
    maximum_deviation: ClassVar[float]

    @abstractmethod
    def convert(self, source: Source) -> Converted:
        """Converts; whatever the libraries raise comes through."""
