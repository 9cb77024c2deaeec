"""The metadata folder of a release repository: every version of every role is kept; ``timestamp.json`` is what is current."""

from __future__ import annotations

import re
from pathlib import Path

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Root, Snapshot, Timestamp

from fedloop_core.durable import write_bytes
from fedloop_core.errors import MetadataRefused, StorageError
from fedloop_server.release.metadata import Moment, Publication, deserialize

__all__ = ["MetadataFolder"]


class MetadataFolder:
    """Files ``<version>.<role>.json``; what a broken publication left behind is not reachable and is written over."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def exists(self) -> bool:
        """Whether a first publication was completed here."""
        return (self._folder / "timestamp.json").exists()

    def write(self, publication: Publication) -> None:
        """Writes a publication durably, in its order.

        Raises:
            StorageError: the disk is full or the folder cannot be written; what was current stays current.
        """
        for name, content in publication.files:
            write_bytes(self._folder / name, content)

    def read(self, role: str, version: int) -> bytes:
        """One version of a role.

        Raises:
            StorageError: it is not there.
        """
        return self._read(f"{version}.{role}.json")

    def load(self) -> Moment:
        """The current moment, verified.

        Raises:
            StorageError: files are missing.
            MetadataRefused: files do not verify.
        """
        timestamp = self._read("timestamp.json")
        version = deserialize(timestamp, Timestamp, "timestamp").signed.snapshot_meta.version
        snapshot = self.read("snapshot", version)
        pinned = {
            name.removesuffix(".json"): self.read(_role(name), meta.version)
            for name, meta in deserialize(snapshot, Snapshot, "snapshot").signed.meta.items()
        }
        targets = pinned.pop("targets", b"")
        moment = Moment(self._newest_root(), targets, pinned, snapshot, timestamp)
        moment.verify()
        return moment

    def _newest_root(self) -> bytes:
        # Each root is signed by the keys of the one before and by its own, so a chain can be followed without a pointer.
        trusted: Root | None = None
        version = 1
        while True:
            content = self.read("root", version)
            metadata = deserialize(content, Root, "root")
            try:
                for keys in (trusted or metadata.signed, metadata.signed):
                    keys.verify_delegate("root", metadata.signed_bytes, metadata.signatures)
            except RepositoryError as error:
                raise MetadataRefused(
                    f"root {version} is not signed by its keys and those of the root before: {error}.",
                    hint="Restore the release folder from a backup.",
                    reason="signature",
                ) from error
            trusted, version = metadata.signed, version + 1
            if not (self._folder / f"{version}.root.json").exists():
                return content

    def _read(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise StorageError(
                f"release metadata {self._folder / name} cannot be read: {error.strerror}.",
                hint="Restore the release folder from a backup.",
            ) from error


def _role(name: str) -> str:
    role = name.removesuffix(".json")
    if re.fullmatch(r"[a-z][a-z0-9\-]*", role) is None:
        raise StorageError(f"a snapshot names a role {role!r} that no release has.")
    return role
