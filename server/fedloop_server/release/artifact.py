"""An artifact with the content of its files, as it is registered and published."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.artifact import ArtifactDescription
from fedloop_core.errors import ArtifactRefused
from fedloop_core.release import DESCRIPTION_FILE, GOLDEN_FILE, PROFILE_FILE
from fedloop_core.task.document import ExportTarget

__all__ = ["PublishedArtifact"]


@dataclass(frozen=True)
class PublishedArtifact:
    """The four files of an artifact; the description is kept as bytes, so that what is signed is what was written."""

    kind: ExportTarget
    description: bytes
    model: bytes
    golden: bytes
    profile: bytes

    @classmethod
    def of(cls, description: ArtifactDescription, *, model: bytes, golden: bytes, profile: bytes) -> PublishedArtifact:
        """From a description and the files that it names."""
        return cls(description.kind, description.to_bytes(), model, golden, profile)

    def checked(self, task: str, version: int) -> ArtifactDescription:
        """The description, once it was seen to be about this task, version and kind and about exactly these files.

        Raises:
            ArtifactRefused: it is not.
        """
        described = ArtifactDescription.from_bytes(self.description)
        said = (described.task, described.version, described.kind)
        if said != (task, version, self.kind):
            raise ArtifactRefused(
                f"artifact.json of {task} version {version} {self.kind} is about {said[0]} version {said[1]} {said[2]}.",
                reason="description",
            )
        where = f"{task} version {version} {self.kind}"
        described.model.check(self.model, f"the model of {where}")
        described.golden.check(self.golden, f"the golden file of {where}")
        described.profile.check(self.profile, f"the profile of {where}")
        return described

    def files(self) -> tuple[tuple[str, bytes], ...]:
        """Name and content of each file of the artifact's folder.

        Raises:
            ArtifactRefused: the description cannot be read.
        """
        model = ArtifactDescription.from_bytes(self.description).model_file
        return (
            (DESCRIPTION_FILE, self.description),
            (model, self.model),
            (GOLDEN_FILE, self.golden),
            (PROFILE_FILE, self.profile),
        )
