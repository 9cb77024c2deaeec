"""What is asked of an export and what comes out of it, in memory and as folders that two processes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fedloop_core.arrays import NamedArrays, arrays_from_bytes, arrays_to_bytes
from fedloop_core.artifact import ArtifactDescription, Lineage
from fedloop_core.errors import ArtifactRefused, ConversionFailed
from fedloop_core.privacy_statement import PrivacyStatement
from fedloop_core.release import DESCRIPTION_FILE, GOLDEN_FILE, PROFILE_FILE
from fedloop_core.scaling import SCALER_DEVIATION, SCALER_MEAN, Scaler
from fedloop_core.strict import Strict
from fedloop_core.task.document import ExportTarget, Task

__all__ = ["Artifact", "ExportRequest"]

_TASK_FILE = "task.json"
_ARRAYS_FILE = "arrays.safetensors"
_REQUEST_FILE = "request.json"


class _Document(Strict):
    """``request.json``: all of a request but the task and the arrays; ``arrays`` keeps their order."""

    version: int
    seed: int
    arrays: tuple[str, ...]
    lineage: Lineage
    privacy: PrivacyStatement


@dataclass(frozen=True)
class ExportRequest:
    """One model version to be exported.

    ``arrays`` are the trainable arrays in the model's order, then the scaler's where the task has numeric features.
    ``seed`` (not negative) chooses the golden and calibration inputs: the same request gives the same bytes.
    """

    task: Task
    version: int
    arrays: NamedArrays
    lineage: Lineage
    privacy: PrivacyStatement
    seed: int

    @property
    def trainable(self) -> NamedArrays:
        """The arrays without the scaler's."""
        return {name: array for name, array in self.arrays.items() if name not in (SCALER_MEAN, SCALER_DEVIATION)}

    @property
    def scaler(self) -> Scaler:
        """The scaler among the arrays, or else the one of public ranges."""
        if SCALER_MEAN in self.arrays and SCALER_DEVIATION in self.arrays:
            return Scaler.from_arrays(self.arrays)
        return Scaler.from_ranges(self.task.feature_schema)

    def write(self, folder: Path) -> None:
        """Writes the request for another process."""
        document = _Document(
            version=self.version,
            seed=self.seed,
            arrays=tuple(self.arrays),
            lineage=self.lineage,
            privacy=self.privacy,
        )
        (folder / _TASK_FILE).write_bytes(self.task.canonical())
        (folder / _ARRAYS_FILE).write_bytes(arrays_to_bytes(self.arrays))
        (folder / _REQUEST_FILE).write_text(document.model_dump_json(), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads what ``write`` wrote."""
        document = _Document.model_validate_json((folder / _REQUEST_FILE).read_bytes())
        return cls(
            task=Task.from_canonical((folder / _TASK_FILE).read_bytes()),
            version=document.version,
            arrays=arrays_from_bytes((folder / _ARRAYS_FILE).read_bytes(), document.arrays),
            lineage=document.lineage,
            privacy=document.privacy,
            seed=document.seed,
        )


@dataclass(frozen=True)
class Artifact:
    """A description and the three files that it names."""

    description: ArtifactDescription
    model: bytes
    golden: bytes
    profile: bytes

    def write(self, folder: Path) -> None:
        """Writes the four files under their names in a release."""
        folder.mkdir(parents=True)
        (folder / self.description.model_file).write_bytes(self.model)
        (folder / GOLDEN_FILE).write_bytes(self.golden)
        (folder / PROFILE_FILE).write_bytes(self.profile)
        (folder / DESCRIPTION_FILE).write_bytes(self.description.to_bytes())

    @classmethod
    def read(cls, folder: Path, request: ExportRequest, kind: ExportTarget) -> Self:
        """Reads and checks what another process wrote for this request.

        Raises:
            ConversionFailed: a file is missing, is not the described one, or is about something else.
        """
        try:
            description = ArtifactDescription.from_bytes((folder / DESCRIPTION_FILE).read_bytes())
            artifact = cls(
                description=description,
                model=(folder / description.model_file).read_bytes(),
                golden=(folder / GOLDEN_FILE).read_bytes(),
                profile=(folder / PROFILE_FILE).read_bytes(),
            )
            description.model.check(artifact.model, "the model file")
            description.golden.check(artifact.golden, "the golden file")
            description.profile.check(artifact.profile, "the profile")
        except (OSError, ArtifactRefused) as error:
            raise ConversionFailed(f"the conversion to {kind} left no sound artifact: {error}") from error
        wanted = (request.task.name, request.version, kind, request.task.feature_schema)
        if (description.task, description.version, description.kind, description.features) != wanted:
            raise ConversionFailed(f"the conversion to {kind} described another artifact.")
        return artifact
