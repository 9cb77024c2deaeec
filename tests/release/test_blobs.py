"""The contract of a blob store, over a local disk and over memory."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import fsspec.core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.errors import StorageError
from fedloop_server.blobs import BlobStore


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/blobs" if request.param == "file" else f"memory://{secrets.token_hex(8)}"


def _overwrite(url: str, digest: str, content: bytes) -> None:
    files, root = fsspec.core.url_to_fs(url)
    files.pipe_file(f"{root}/{digest[:2]}/{digest[2:4]}/{digest}", content)


@pytest.mark.parametrize("content", [b"", b"x", os.urandom(200_000)], ids=["empty", "one byte", "large"])
def test_what_was_put_is_read(url: str, content: bytes) -> None:
    store = BlobStore(url)
    digest = store.put(content)
    assert digest == hashlib.sha256(content).hexdigest()
    assert store.put(content) == digest
    assert (store.has(digest), store.length(digest), store.read(digest)) == (True, len(content), content)
    store.verify(digest)
    assert BlobStore(url).read(digest) == content


@given(content=st.binary(max_size=50), offset=st.integers(0, 60), length=st.integers(0, 60))
def test_ranges_are_slices(content: bytes, offset: int, length: int) -> None:
    store = BlobStore("memory://ranges")
    digest = store.put(content)
    if offset > len(content):
        with pytest.raises(StorageError, match="cannot be read"):
            store.read(digest, offset, length)
    else:
        assert store.read(digest, offset, length) == content[offset : offset + length]


def test_a_missing_blob_is_named(url: str) -> None:
    store = BlobStore(url)
    digest = "ab" * 32
    assert not store.has(digest)
    for call in (store.read, store.length, store.verify):
        with pytest.raises(StorageError, match=digest):
            call(digest)


@pytest.mark.parametrize("damage", ["flipped", "truncated", "longer"])
def test_a_damaged_blob_is_named_and_healed_by_putting_it_again(url: str, damage: str) -> None:
    store = BlobStore(url)
    content = b"weights" * 100
    digest = store.put(content)
    altered = {"flipped": b"W" + content[1:], "truncated": content[:-1], "longer": content + b"x"}[damage]
    _overwrite(url, digest, altered)
    for call in (store.read, store.verify):
        with pytest.raises(StorageError, match=f"{digest} is damaged"):
            call(digest)
    store.put(content)
    store.verify(digest)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "AB" * 32, "ab" * 31, "ab" * 32 + "\n"])
def test_a_name_that_is_no_digest_reaches_no_file(url: str, name: str) -> None:
    with pytest.raises(StorageError, match="not a SHA-256"):
        BlobStore(url).has(name)


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_bytes(b"a file where the folder should be")
    with pytest.raises(StorageError, match="cannot write"):
        BlobStore(f"file://{tmp_path}/blobs").put(b"x")


def test_a_folder_may_have_a_space_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "on a disk"
    digest = BlobStore(folder.as_uri()).put(b"x")
    assert (folder / digest[:2] / digest[2:4] / digest).read_bytes() == b"x"
    assert BlobStore(str(folder)).has(digest)
