"""Where a hub takes releases from: the coordinator's repository, or a site's copy of it."""

from __future__ import annotations

from typing import Protocol

__all__ = ["ReleaseSource"]


class ReleaseSource(Protocol):
    """Signed metadata and content-addressed blobs; the hub passes both on and can change neither unnoticed."""

    def metadata(self, role: str, version: int) -> bytes | None:
        """Metadata of a role in a version, 0 for the newest; None when there is none."""
        ...

    def blob_length(self, sha256: bytes) -> int | None:
        """Number of bytes of a blob by its digest (32 bytes); None when there is none."""
        ...

    def read_blob(self, sha256: bytes, offset: int, length: int) -> bytes:
        """At most ``length`` bytes of a blob from ``offset``."""
        ...

    def revision(self) -> int:
        """A number that rises with every publication."""
        ...

    def wait_for_revision(self, known: int, timeout: float) -> int:
        """Waits until the revision is above ``known``, at most ``timeout`` seconds; returns the current one."""
        ...

    def trusted_root(self) -> bytes:
        """The root metadata that a new device is to trust."""
        ...
