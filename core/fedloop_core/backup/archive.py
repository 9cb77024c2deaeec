"""The form on the disk: a tar file of plain files that any tar lists, read with bounds of our own."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from fedloop_core.errors import BackupRefused

__all__ = ["CHUNK", "Member", "Readable", "add_member", "content_of", "members"]

CHUNK = 1024 * 1024
"""Bytes that are held at once."""
_BLOCK = tarfile.BLOCKSIZE
_OLD_FORM = 8**11  # bytes that a size in the oldest form can say


class Readable(Protocol):
    """What a member's bytes are read from."""

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes."""
        ...


@dataclass(frozen=True)
class Member:
    """A file in an archive: where its bytes begin, and how many they are."""

    path: str
    offset: int
    length: int


def add_member(archive: tarfile.TarFile, path: str, length: int, mode: int, unix: int, content: Readable) -> None:
    """Adds a file whose content has at least ``length`` bytes.

    Raises:
        BackupRefused: the path is too long for a tar file.
        OSError: the content is shorter, or the disk is full.
    """
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode, entry.mtime = length, mode, unix
    archive.format = tarfile.USTAR_FORMAT if length < _OLD_FORM else tarfile.GNU_FORMAT
    try:
        entry.tobuf(tarfile.USTAR_FORMAT if length < _OLD_FORM else tarfile.GNU_FORMAT)
    except ValueError as error:
        raise BackupRefused(
            f"the path {path} is too long for a backup.", hint="Move the file to another folder."
        ) from error
    archive.addfile(entry, content)


def members(name: str, file: BinaryIO) -> Iterator[Member]:
    """The files of an archive, in order; stops at its end mark.

    ``tarfile``'s own reader takes extension headers of any size into memory and hides links behind them; no backup of ours
    has any, so each header is read alone.

    Raises:
        BackupRefused: it is no tar file or cut short, or holds something else than plain files.
    """
    size = file.seek(0, os.SEEK_END)
    position = 0
    while True:
        file.seek(position)
        block = file.read(_BLOCK)
        if len(block) == _BLOCK and not any(block):
            return
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            raise BackupRefused(
                f"{name} is no backup, or is damaged or cut short at byte {position}.", hint="Use another backup."
            ) from error
        if entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
            raise BackupRefused(
                f"{name}: {entry.name[:80]!r} is a {_KINDS.get(entry.type, 'special entry')}, and backups hold plain files "
                "alone.",
                hint="Restore nothing from it.",
            )
        offset = position + _BLOCK
        if entry.size < 0 or entry.size > size - offset:
            raise BackupRefused(f"{name} is cut short in {entry.name[:80]!r}.", hint="Use another backup.")
        yield Member(entry.name, offset, entry.size)
        position = offset + -(-entry.size // _BLOCK) * _BLOCK


_KINDS = {
    tarfile.LNKTYPE: "hard link",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    tarfile.DIRTYPE: "folder",
    tarfile.FIFOTYPE: "pipe",
}


def content_of(file: BinaryIO, member: Member) -> Iterator[bytes]:
    """A member's bytes, in chunks.

    Raises:
        OSError: the file cannot be read, or was shortened meanwhile.
    """
    file.seek(member.offset)
    left = member.length
    while left:
        chunk = file.read(min(CHUNK, left))
        if not chunk:
            raise OSError(0, "the file was shortened while it was read")
        left -= len(chunk)
        yield chunk
