"""The artifact format: one deployable file of a model version and everything a device must know to trust and run it.

An artifact is a folder of four files, each listed in the signed release metadata: ``artifact.json`` (this document, which
names the other three by digest), the model file, ``golden.safetensors`` and ``profile.json``.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from fedloop_core.errors import ArtifactRefused
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.schema import FeatureSchema
from fedloop_core.strict import Strict
from fedloop_core.task.document import ExportTarget

__all__ = [
    "ArtifactDescription",
    "FileReference",
    "Lineage",
    "TensorSpec",
]

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileReference(Strict):
    """A file by digest and length."""

    sha256: Sha256
    length: Annotated[int, Field(ge=1)]

    @classmethod
    def of(cls, content: bytes) -> Self:
        """The reference that exactly this content meets."""
        return cls(sha256=hashlib.sha256(content).hexdigest(), length=len(content))

    def check(self, content: bytes, what: str) -> None:
        """Refuses content of another length or digest.

        Raises:
            ArtifactRefused: the content is not the one referred to.
        """
        if len(content) != self.length:
            raise ArtifactRefused(f"{what} has {len(content)} bytes; {self.length} are signed.", reason="length")
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ArtifactRefused(f"{what} does not have the signed digest.", reason="digest")


class TensorSpec(Strict):
    """An input or output: the runtime's name for it, dtype and shape of one row."""

    name: str
    dtype: Literal["float32", "int64", "int32"]
    shape: tuple[int, ...]


class Lineage(Strict):
    """Where a version comes from, and the purpose that its sites were told; empty where the task named none."""

    run_id: str
    parent_version: int | None
    task_digest: Sha256
    data_fingerprints: dict[str, Sha256]
    software: dict[str, str]
    purpose: str = ""


class ArtifactDescription(Strict):
    """``artifact.json``. ``rows`` says whether the model takes batches or exactly one row at a time."""

    format: Literal[1]
    task: str
    version: Annotated[int, Field(ge=1)]
    kind: ExportTarget
    runtimes: tuple[Literal["onnxruntime", "litert", "tflite-runtime"], ...]
    cpu_class: Literal["any"]
    rows: Literal["batch", "one"]
    model: FileReference
    golden: FileReference
    profile: FileReference
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    features: FeatureSchema
    operators: tuple[str, ...]
    golden_tolerance: Annotated[float, Field(gt=0, lt=1)]
    privacy: PrivacyStatement
    lineage: Lineage

    def to_bytes(self) -> bytes:
        """Canonical JSON bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what ``to_bytes`` wrote.

        Raises:
            ArtifactRefused: the bytes are not a valid description.
        """
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ArtifactRefused(
                f"artifact.json is not valid at {where}: {first['msg']}.", reason="description"
            ) from error

    @property
    def model_file(self) -> str:
        """Name of the model file inside the artifact's folder."""
        return "model.tflite" if self.kind.startswith("tflite") else "model.onnx"
