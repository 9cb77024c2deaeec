"""Appending lines to a file on a disk that fails in the middle."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedloop_core.durable import append_line, cut_back
from fedloop_core.errors import StorageError

Write = Callable[[int, bytes], int]


def full_after_half() -> Write:
    """Writes half of the first content, and then finds the disk full."""
    real, calls = os.write, 0

    def write(descriptor: int, content: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content[: len(content) // 2])

    return write


def nothing_after_half() -> Write:
    """Writes half of the first content, and then nothing, which is no error to the system."""
    real, calls = os.write, 0

    def write(descriptor: int, content: bytes) -> int:
        nonlocal calls
        calls += 1
        return real(descriptor, content[: len(content) // 2]) if calls == 1 else 0

    return write


@pytest.mark.parametrize("fault", [full_after_half, nothing_after_half])
@pytest.mark.parametrize("before", ["", "one\n"])
def test_a_line_that_did_not_fit_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[], Write], before: str
) -> None:
    path = tmp_path / "lines"
    path.write_text(before)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fault())
        with pytest.raises(StorageError, match=r"lines: No space left"):
            append_line(path, "a line that is torn")
    append_line(path, "two")
    assert path.read_text() == f"{before}two\n"


@pytest.mark.parametrize("calls_before", [0, 1], ids=["the file", "its folder"])
def test_a_line_that_may_not_be_on_the_disk_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls_before: int
) -> None:
    real, calls = os.fsync, 0

    def fails(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > calls_before:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(StorageError):
            append_line(tmp_path / "lines", "lost")
    append_line(tmp_path / "lines", "kept")
    assert (tmp_path / "lines").read_text() == "kept\n"


def test_a_short_write_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, content[:3]))
    append_line(tmp_path / "lines", "a whole line")
    assert (tmp_path / "lines").read_text() == "a whole line\n"


def test_cutting_back_only_shortens(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    cut_back(path, 3)
    assert not path.exists()
    path.write_text("12345")
    cut_back(path, 9)
    assert path.read_text() == "12345"
    cut_back(path, 3)
    assert path.read_text() == "123"
    with pytest.raises(StorageError, match="cannot shorten"):
        cut_back(tmp_path, 0)
