"""A store of blobs named by their SHA-256, on any file system that fsspec knows."""

from __future__ import annotations

import errno
import hashlib
import re
from pathlib import Path
from urllib.parse import unquote

import fsspec.core

from fedloop_core.durable import write_bytes
from fedloop_core.errors import ContentDamaged, DiskFull, StorageError

__all__ = ["BlobStore"]


class BlobStore:
    """Blobs under ``ab/cd/<sha256>`` below a folder URL (``file:///var/lib/fedloop/blobs``, ``memory://name``).

    A blob is written once, whole or not at all (on a local disk durably), and never altered. Reading a whole blob checks
    its digest; reading a range checks its length alone, since the reader of ranges holds the digest and checks the sum.
    """

    def __init__(self, url: str) -> None:
        # fsspec takes the path of a file URL as it stands; Path.as_uri() writes a space as %20.
        location = unquote(url.removeprefix("file://")) if url.startswith("file://") else url
        self._files, self._root = fsspec.core.url_to_fs(location)
        self._local = "file" in self._files.protocol

    def put(self, content: bytes) -> str:
        """Stores a blob and returns its SHA-256 in hex; one that is there is kept, and healed when it was damaged.

        Raises:
            DiskFull: there is no room.
            StorageError: it cannot be written.
        """
        digest = hashlib.sha256(content).hexdigest()
        path = self._path(digest)
        try:
            if self._files.exists(path) and self._files.cat_file(path) == content:
                return digest
            if self._local:
                write_bytes(Path(path), content)
            else:
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(path, content)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"cannot write blob {digest}: {error.strerror}.", hint="Free space.") from error
            raise StorageError(f"cannot write blob {digest}: {error}.", hint="Look at the blob store.") from error
        return digest

    def has(self, digest: str) -> bool:
        """Whether a blob is there."""
        return bool(self._files.exists(self._path(digest)))

    def length(self, digest: str) -> int:
        """Bytes of a blob.

        Raises:
            ContentDamaged: it is not there.
            StorageError: the store cannot be read.
        """
        try:
            return int(self._files.size(self._path(digest)))
        except OSError as error:
            raise _unread(digest, error) from error

    def read(self, digest: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes from ``offset`` on, at most ``length`` of them: fewer only where the blob ends.

        Raises:
            ContentDamaged: the blob is not there or is damaged.
            StorageError: it ends before ``offset``, or the store cannot be read.
        """
        total = self.length(digest)
        if not 0 <= offset <= total or (length is not None and length < 0):
            raise StorageError(f"blob {digest} has {total} bytes; {length} from {offset} on cannot be read.")
        end = total if length is None else min(total, offset + length)
        if end == offset and total > 0:
            return b""
        try:
            content = bytes(self._files.cat_file(self._path(digest), start=offset, end=end))
        except OSError as error:
            raise _unread(digest, error) from error
        whole = end - offset == total
        if len(content) != end - offset or (whole and hashlib.sha256(content).hexdigest() != digest):
            raise _damaged(digest)
        return content

    def verify(self, digest: str) -> None:
        """Reads a whole blob and checks it.

        Raises:
            ContentDamaged: it is not there or is damaged.
            StorageError: the store cannot be read.
        """
        self.read(digest)

    def _path(self, digest: str) -> str:
        if re.fullmatch(r"[0-9a-f]{64}", digest) is None:
            raise StorageError(f"{digest!r} is not a SHA-256 in hex.")
        return f"{self._root}/{digest[:2]}/{digest[2:4]}/{digest}"


def _unread(digest: str, error: OSError) -> StorageError:
    if isinstance(error, FileNotFoundError):
        return ContentDamaged(
            f"blob {digest} is not in the store.", hint="Restore it from a backup or publish it again."
        )
    return StorageError(f"blob {digest} cannot be read: {error}.", hint="Look at the blob store.")


def _damaged(digest: str) -> ContentDamaged:
    return ContentDamaged(
        f"blob {digest} is damaged: its content does not have this digest.",
        hint="Look at the disk, then restore the blob from a backup or publish it again.",
    )
