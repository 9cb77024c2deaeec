"""Versions on a device: each in a slot of its own, and a pointer that says which one serves.

A slot is filled completely and is on the disk before the pointer names it; the pointer is replaced by a rename. The
version before stays until the next switch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from fedloop_core.artifact import ArtifactDescription, FileReference
from fedloop_core.durable import write_bytes
from fedloop_core.errors import ArtifactRefused, StorageError
from fedloop_core.release import DESCRIPTION_FILE, GOLDEN_FILE, PROFILE_FILE
from fedloop_core.strict import Strict
from fedloop_core.task.document import ExportTarget

__all__ = ["Pointer", "SlotName", "Slots", "StoredArtifact"]


class SlotName(Strict):
    """A version, its kind of artifact, and the reference that its ``artifact.json`` meets."""

    version: Annotated[int, Field(ge=1)]
    kind: ExportTarget
    description: FileReference

    @property
    def folder(self) -> str:
        """Name of the slot's folder."""
        return f"{self.version}-{self.kind}-{self.description.sha256[:16]}"


class Pointer(Strict):
    """Which slot serves, and which one served before it."""

    format: Literal[1]
    active: SlotName
    previous: SlotName | None


@dataclass(frozen=True)
class StoredArtifact:
    """An artifact read from its slot, every file checked against the signed description."""

    slot: SlotName
    description: ArtifactDescription
    model: bytes
    golden: bytes
    profile: bytes


class Slots:
    """The slots in a device's folder (``slots/``, ``current.json``)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "slots"
        self._pointer_path = folder / "current.json"

    @property
    def pointer(self) -> Pointer | None:
        """What serves; None before the first version.

        Raises:
            StorageError: the pointer's file is damaged.
        """
        if not self._pointer_path.exists():
            return None
        try:
            return Pointer.model_validate_json(self._pointer_path.read_bytes())
        except ValidationError as error:
            raise StorageError(
                f"{self._pointer_path} is damaged.", hint="Delete it: the next sync fetches the version again."
            ) from error

    def has(self, slot: SlotName) -> bool:
        """Whether a slot was filled."""
        return (self._folder / slot.folder).is_dir()

    def fill(self, slot: SlotName, files: Mapping[str, Path]) -> None:
        """Moves files, already on the disk, into a slot that appears whole.

        Raises:
            StorageError: the disk fails.
        """
        place = self._folder / slot.folder
        growing = self._folder / f".{slot.folder}"
        try:
            shutil.rmtree(growing, ignore_errors=True)
            growing.mkdir(parents=True)
            for name, path in files.items():
                path.replace(growing / name)
            _sync_folder(growing)
            growing.rename(place)
            _sync_folder(self._folder)
        except OSError as error:
            raise StorageError(f"cannot fill {place}: {error.strerror}.", hint="Free space, then sync.") from error

    def read(self, slot: SlotName) -> StoredArtifact:
        """The artifact in a slot, checked byte for byte.

        Raises:
            ArtifactRefused: a file is not the signed one.
            StorageError: a file cannot be read.
        """
        folder = self._folder / slot.folder
        content = _read(folder / DESCRIPTION_FILE)
        slot.description.check(content, f"{slot.folder}/{DESCRIPTION_FILE}")
        description = ArtifactDescription.from_bytes(content)
        files = (
            (description.model_file, description.model),
            (GOLDEN_FILE, description.golden),
            (PROFILE_FILE, description.profile),
        )
        model, golden, profile = (_checked(folder / name, reference) for name, reference in files)
        return StoredArtifact(slot, description, model, golden, profile)

    def discard(self, slot: SlotName) -> None:
        """Removes a slot that does not serve."""
        shutil.rmtree(self._folder / slot.folder, ignore_errors=True)

    def activate(self, slot: SlotName) -> None:
        """Makes a filled slot the one that serves, keeps the one that served, drops all others."""
        before = self.pointer
        previous = before.active if before and before.active != slot else (before.previous if before else None)
        pointer = Pointer(format=1, active=slot, previous=previous)
        write_bytes(self._pointer_path, pointer.model_dump_json().encode())
        kept = {slot.folder} | ({previous.folder} if previous else set())
        for folder in self._folder.iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)


def _checked(path: Path, reference: FileReference) -> bytes:
    content = _read(path)
    reference.check(content, f"{path.parent.name}/{path.name}")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise ArtifactRefused(f"{path.parent.name}/{path.name} is not there.", reason="absent") from error
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}.") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
