"""A blob store that fails: what is full, what is away and what is damaged are told apart."""

from __future__ import annotations

import errno
import hashlib
import os

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from fedloop_core.errors import ContentDamaged, DiskFull, StorageError
from fedloop_server.blobs import BlobStore


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageError)]
)
def test_only_a_full_store_is_a_full_disk(
    number: int, kind: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fails)
    with pytest.raises(StorageError, match="cannot write blob") as error:
        BlobStore(f"memory://full-{number}").put(b"content")
    assert type(error.value) is kind


def test_a_blob_that_is_missing_is_damage_and_a_store_that_is_away_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    store = BlobStore("memory://away")
    with pytest.raises(ContentDamaged, match="is not in the store"):
        store.read(hashlib.sha256(b"nothing").hexdigest())
    digest = store.put(b"content")

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(MemoryFileSystem, "cat_file", fails)
    with pytest.raises(StorageError, match="cannot be read") as error:
        store.read(digest)
    assert type(error.value) is StorageError
