"""The current release as hubs read it."""

from __future__ import annotations

import threading

from tuf.api.metadata import TargetFile, Targets

from fedloop_core.release import (
    ASSIGNMENTS_ROLE,
    Assignment,
    assignment_path,
    parse_artifact_path,
    task_role,
)
from fedloop_server.blobs import BlobStore
from fedloop_server.release.folder import MetadataFolder
from fedloop_server.release.metadata import Moment, deserialize

__all__ = ["ServedRelease"]


class ServedRelease:
    """Reads metadata, blobs and assignments of a release; a ``fedloop_edge.hub.source.ReleaseSource``. Threads may share it."""

    def __init__(self, files: MetadataFolder, blobs: BlobStore, moment: Moment) -> None:
        self._files = files
        self._blobs = blobs
        self._moment = moment
        self._published = threading.Condition()

    def listed_versions(self, task: str) -> tuple[int, ...]:
        """Versions of a task in the release, rising; none for a task that is not released."""
        content = self._moment.delegated.get(task_role(task))
        if content is None:
            return ()
        listed = deserialize(content, Targets, task_role(task)).signed
        return tuple(sorted({parse_artifact_path(path).version for path in listed.targets}))

    def current_assignment(self, task: str, group: str) -> Assignment | None:
        """What a group runs, or None when it was never assigned anything.

        Raises:
            StorageError: the document is missing or damaged.
        """
        target = self._moment.role(ASSIGNMENTS_ROLE).signed.targets.get(assignment_path(task, group))
        return None if target is None else self._assignment(target)

    def assignments(self, task: str) -> tuple[Assignment, ...]:
        """What every group of a task runs, by name of the group.

        Raises:
            StorageError: a document is missing or damaged.
        """
        targets = self._moment.role(ASSIGNMENTS_ROLE).signed.targets
        documents = [self._assignment(targets[path]) for path in sorted(targets) if path.split("/")[1] == task]
        return tuple(documents)

    def metadata(self, role: str, version: int) -> bytes | None:
        """One version of a role as signed, the newest for version 0; None when there is none."""
        moment = self._moment
        current = moment.versions.get(role)
        if current is None:
            return None
        if version in (0, current):
            return moment.roles[role]
        return self._files.read(role, version) if 1 <= version < current else None

    def blob_length(self, sha256: bytes) -> int | None:
        """Bytes of a blob; None when it is not in the store."""
        digest = sha256.hex()
        return self._blobs.length(digest) if len(sha256) == 32 and self._blobs.has(digest) else None

    def read_blob(self, sha256: bytes, offset: int, length: int) -> bytes:
        """Bytes of a blob from an offset, at most ``length``.

        Raises:
            StorageError: there is no such blob, or it ends before the offset.
        """
        return self._blobs.read(sha256.hex(), offset, length)

    def revision(self) -> int:
        """Rises with every publication, also across restarts."""
        return self._moment.revision

    def wait_for_revision(self, known: int, timeout: float) -> int:
        """Waits until the revision is above ``known``, at most ``timeout`` seconds; returns the current one."""
        with self._published:
            self._published.wait_for(lambda: self.revision() > known, timeout)
            return self.revision()

    def trusted_root(self) -> bytes:
        """The newest root, with which a device begins."""
        return self._moment.root

    def _become(self, moment: Moment) -> None:
        with self._published:
            self._moment = moment
            self._published.notify_all()

    def _assignment(self, target: TargetFile) -> Assignment:
        return Assignment.from_bytes(self._blobs.read(target.hashes["sha256"]))
