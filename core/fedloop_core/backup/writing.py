"""Writes a backup: what must be taken at once first, then every other file, and the manifest last."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from fedloop_core.backup.archive import add_member
from fedloop_core.backup.kinds import Changing, HomeKind
from fedloop_core.backup.manifest import (
    MANIFEST,
    MAXIMUM_FILES,
    Manifest,
    ManifestFile,
    Owned,
)
from fedloop_core.backup.moment import Moment, moment_of
from fedloop_core.backup.owners import owned
from fedloop_core.backup.walking import Walk
from fedloop_core.durable import sync_path
from fedloop_core.errors import BackupRefused, NotSetUp, StorageError

__all__ = ["BackedUp", "Progress", "back_up", "unseen"]

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and those of the whole."""


def unseen(_done: int, _total: int) -> None:
    """For whoever watches no progress."""


@dataclass(frozen=True)
class BackedUp:
    """A finished backup."""

    file: Path
    length: int
    manifest: Manifest


@dataclass(frozen=True)
class _Source:
    """A file to copy; ``content`` or, without it, the first ``length`` bytes of ``file``."""

    path: str
    file: Path
    owned: Owned
    length: int
    content: bytes | None = None


@dataclass(frozen=True)
class _Listing:
    sources: list[_Source]
    folders: dict[str, Owned]
    skipped: list[str]


def back_up(
    kind: HomeKind,
    home: Path,
    target: Path,
    *,
    unix: int,
    keys: bool = True,
    notes: tuple[str, ...] = (),
    progress: Progress = unseen,
) -> BackedUp:
    """Writes one file (0600), whole or not at all, from which ``restore`` makes the home again; whoever uses it may go on.

    Args:
        kind: of home.
        home: the folder.
        target: the file; its folder also takes copies of the databases meanwhile.
        unix: now, in seconds since 1970.
        keys: whether private keys are in it. Whoever has it with them can be who its owner is.
        notes: sentences on what is kept elsewhere.
        progress: see ``Progress``.

    Raises:
        NotSetUp: the folder is no such home.
        BackupRefused: the target is there or lies in the home, or the home holds what no backup can.
        StorageError: a file cannot be read, or the disk is full.
    """
    _check_target(kind, home, target)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        with (
            tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as scratch,
            kind.nothing_goes(home),
        ):
            with moment_of(kind, home, keys=keys) as moment:
                listing = _list(kind, home, moment, Path(scratch), keys=keys)
            manifest = _write(kind, temporary, listing, moment, unix, keys=keys, notes=notes, progress=progress)
        length = temporary.stat().st_size
        temporary.replace(target)
        sync_path(target.parent)
    except OSError as error:
        raise StorageError(
            f"cannot back up {home} to {target}: {error.strerror or error}.", hint="Free space or correct rights."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
    return BackedUp(target, length, manifest)


def _check_target(kind: HomeKind, home: Path, target: Path) -> None:
    if not any((home / name).exists() for name in kind.signs):
        raise NotSetUp(f"there is no {kind.noun} in {home}.", hint="Name its folder: --home.")
    if target.exists():
        raise BackupRefused(f"{target} is there already.", hint="Give another name.")
    if target.resolve().is_relative_to(home.resolve()):
        raise BackupRefused(
            f"{target} lies in the {kind.noun}'s own folder.",
            hint="Write it to another disk, and copy it to another machine.",
        )


def _list(kind: HomeKind, home: Path, moment: Moment, scratch: Path, *, keys: bool) -> _Listing:
    """What is to be written; what is of one moment and was not there at that moment stays out."""
    sources, walk = list[_Source](), Walk(kind, home, keys)
    for path, database in moment.databases.items():
        copy = scratch / path.replace("/", "_")
        database.copy_to(copy)
        sources.append(_Source(path, copy, owned((home / path).stat()), copy.stat().st_size))
    for path, content in moment.contents.items():
        sources.append(_Source(path, home / path, _owned(home / path), len(content), content))
    for path, length in moment.lengths.items():
        sources.append(_Source(path, home / path, _owned(home / path), length))
    for path, file in walk.files():
        if kind.changing(path) is Changing.WRITTEN_ONCE:
            found = file.stat()
            sources.append(_Source(path, file, owned(found), found.st_size))
    if len(sources) > MAXIMUM_FILES:
        raise BackupRefused(f"{home} has more than {MAXIMUM_FILES} files.", hint="Back it up by other means.")
    return _Listing(sources, walk.folders, walk.skipped)


def _owned(file: Path) -> Owned:
    try:
        return owned(file.stat())
    except FileNotFoundError:  # it is gone since the moment, at which it was there
        return Owned(mode=0o600)


def _write(
    kind: HomeKind,
    target: Path,
    listing: _Listing,
    moment: Moment,
    unix: int,
    *,
    keys: bool,
    notes: tuple[str, ...],
    progress: Progress,
) -> Manifest:
    total, files = sum(source.length for source in listing.sources), list[ManifestFile]()
    done = 0

    def told(more: int) -> None:
        nonlocal done
        done += more
        progress(done, total)

    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for source in listing.sources:
                with _opened(source) as content:
                    summed = _Summed(content, told)
                    add_member(archive, source.path, source.length, source.owned.mode, unix, summed)
                files.append(
                    ManifestFile(
                        path=source.path,
                        length=source.length,
                        sha256=summed.digest,
                        mode=source.owned.mode,
                        owners=source.owned.owners,
                    )
                )
            skipped = tuple(f"{path} is neither a file nor a folder and was left out." for path in listing.skipped)
            manifest = Manifest(
                kind=kind.name,
                fedloop=metadata.version("fedloop"),
                created_unix=unix,
                keys=keys,
                audit_sequence=moment.head.sequence,
                audit_digest=moment.head.digest.hex(),
                notes=notes + skipped,
                folders=listing.folders,
                files=tuple(files),
            ).sealed()
            last = manifest.to_bytes()
            add_member(archive, MANIFEST, len(last), 0o600, unix, io.BytesIO(last))
        out.flush()
        os.fsync(out.fileno())
    return manifest


class _Summed:
    """Reads through to a file, sums what was read and tells how much it was."""

    def __init__(self, file: BinaryIO, told: Callable[[int], None]) -> None:
        self._file = file
        self._told = told
        self._sum = hashlib.sha256()

    @property
    def digest(self) -> str:
        """Hex SHA-256 of what was read."""
        return self._sum.hexdigest()

    def read(self, size: int = -1, /) -> bytes:
        """Bytes of the file."""
        content = self._file.read(size)
        self._sum.update(content)
        self._told(len(content))
        return content


@contextmanager
def _opened(source: _Source) -> Iterator[BinaryIO]:
    if source.content is not None:
        yield io.BytesIO(source.content)
        return
    with source.file.open("rb") as file:
        yield file
