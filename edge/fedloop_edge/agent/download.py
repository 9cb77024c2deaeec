"""Downloads by digest that go on where they were cut off.

A file grows as ``<sha256>.part`` and gets its name only when length and digest are the signed ones. What is not is thrown
away; what is merely incomplete stays for the next try.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tuf.api.exceptions import LengthOrHashMismatchError
from tuf.api.metadata import TargetFile

from fedloop_core.errors import ArtifactRefused, StorageError
from fedloop_proto.fleet.v1 import fleet_pb2

__all__ = ["BlobSource", "Downloads"]

BlobSource = Callable[[bytes, int], Iterator[fleet_pb2.BlobChunk]]
"""Chunks of a blob by digest from an offset. Raises HubUnreachable when it breaks off."""


class Downloads:
    """Files on their way in; ``folder`` holds nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, target: TargetFile, source: BlobSource, *, maximum_bytes: int) -> Path:
        """The file that a signed target names, from the disk if it is there, and else from the hub.

        Raises:
            ArtifactRefused: it is longer than allowed, the hub sends more or less than was signed, or other bytes.
            HubUnreachable: the hub broke off; the part stays.
            StorageError: the disk fails.
        """
        if target.length > maximum_bytes:
            raise ArtifactRefused(
                f"{target.path} has {target.length} bytes; this device takes {maximum_bytes}.",
                hint="Raise AgentLimits.artifact_bytes or publish a smaller artifact.",
                reason="length",
            )
        path = self._folder / target.hashes["sha256"]
        part = path.with_suffix(".part")
        try:
            if not path.exists():
                self._folder.mkdir(parents=True, exist_ok=True)
                self._complete(part, target, source)
                _verify(part, target)
                part.replace(path)
            else:
                _verify(path, target)
        except ArtifactRefused:
            path.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            raise
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}.", hint="Free space; the download then goes on."
            ) from error
        return path

    def read(self, target: TargetFile, source: BlobSource, *, maximum_bytes: int) -> bytes:
        """The content of a small target; its file stays. Raises as ``fetch``."""
        path = self.fetch(target, source, maximum_bytes=maximum_bytes)
        try:
            return path.read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}.") from error

    def take(self, target: TargetFile, source: BlobSource, *, maximum_bytes: int) -> bytes:
        """The content of a small target; its file goes. Raises as ``fetch``."""
        content = self.read(target, source, maximum_bytes=maximum_bytes)
        (self._folder / target.hashes["sha256"]).unlink(missing_ok=True)
        return content

    def keep_only(self, targets: Iterable[TargetFile]) -> None:
        """Drops files and parts of anything else."""
        kept = {target.hashes["sha256"] for target in targets}
        for path in self._folder.glob("*"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)

    def _complete(self, part: Path, target: TargetFile, source: BlobSource) -> None:
        offset = part.stat().st_size if part.exists() else 0
        if offset > target.length:
            part.unlink()
            offset = 0
        with part.open("ab") as file:
            if offset < target.length:
                for chunk in source(bytes.fromhex(target.hashes["sha256"]), offset):
                    if chunk.offset != offset or offset + len(chunk.content) > target.length:
                        raise ArtifactRefused(
                            f"{target.path}: the hub sends more than the {target.length} signed bytes, "
                            "or another part than was asked for.",
                            reason="length",
                        )
                    file.write(chunk.content)
                    offset += len(chunk.content)
            file.flush()
            os.fsync(file.fileno())
        if offset < target.length:
            raise ArtifactRefused(
                f"{target.path}: the hub's copy ends after {offset} of {target.length} signed bytes.", reason="length"
            )


def _verify(path: Path, target: TargetFile) -> None:
    try:
        with path.open("rb") as file:
            target.verify_length_and_hashes(file)
    except LengthOrHashMismatchError as error:
        raise ArtifactRefused(f"{target.path} does not have the signed digest.", reason="digest") from error
