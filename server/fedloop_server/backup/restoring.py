"""Makes a home of a backup: everything is checked before anything is written, and it appears whole or not at all."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from fedloop_core.audit import AuditAction, AuditHead, AuditLog
from fedloop_core.errors import BackupRefused, StorageError
from fedloop_server.backup.archive import Member, content_of, members
from fedloop_server.backup.manifest import (
    DATABASE,
    MANIFEST,
    MAXIMUM_FILES,
    MAXIMUM_MANIFEST,
    SECRET,
    Manifest,
    ManifestFile,
    Owned,
    check_path,
)
from fedloop_server.backup.owners import give_back
from fedloop_server.backup.writing import Progress, unseen
from fedloop_server.database import Database

__all__ = ["Restored", "check_archive", "restore"]

_OTHER = "Use another backup."
_OURS = Owned(mode=0o700)


@dataclass(frozen=True)
class Restored:
    """A home that was made of a backup. ``unknown_owners`` are ``user:group`` that this machine does not have."""

    home: Path
    manifest: Manifest
    unknown_owners: tuple[str, ...]


def check_archive(archive: Path, *, digest: str = "", progress: Progress = unseen) -> Manifest:
    """Reads a backup whole and checks every file of it; writes nothing.

    Args:
        archive: what ``back_up`` wrote.
        digest: of its manifest, as it was noted elsewhere; "" when nobody noted it.
        progress: told of bytes.

    Raises:
        BackupRefused: it is no backup, is damaged, or another one than the digest says.
        StorageError: it cannot be read.
    """
    with _reading(archive) as file:
        manifest, listed = _listed(archive.name, file)
        if digest and digest != manifest.digest:
            raise BackupRefused(f"{archive.name} has the digest {manifest.digest}, not {digest}.", hint=_OTHER)
        total, done = sum(entry.length for entry in manifest.files), 0
        for entry, member in zip(manifest.files, listed, strict=True):
            found = hashlib.sha256()
            for chunk in content_of(file, member):
                found.update(chunk)
                done += len(chunk)
                progress(done, total)
            if found.hexdigest() != entry.sha256:
                raise BackupRefused(f"{archive.name}: {entry.path} is damaged.", hint=_OTHER)
    return manifest


def restore(archive: Path, home: Path, *, actor: str, digest: str = "", progress: Progress = unseen) -> Restored:
    """Makes ``home``, which must not be there or be empty, of a backup, and upgrades its database if need be.

    Args:
        archive: what ``back_up`` wrote.
        home: the new folder.
        actor: who restores, for the audit log.
        digest: see ``check_archive``.
        progress: told of bytes, first of those that are checked and then of those that are written.

    Raises:
        BackupRefused: as ``check_archive``; the home is not empty; the disk is too small.
        StorageError: the disk is full; a newer release wrote the database.
        AuditBroken: the audit log in the backup does not hold.
    """
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise BackupRefused(
            f"{home} is not empty.", hint="Name a new folder; nothing is ever written over a coordinator."
        )
    manifest = check_archive(archive, digest=digest, progress=progress)
    temporary = home.with_name(f".{home.name}.{secrets.token_hex(4)}.part")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        _check_space(archive, manifest, home.parent)
        temporary.mkdir(mode=0o700)
        _extract(archive, manifest, temporary, progress)
        _finish(temporary, manifest, actor)
        unknown = give_back(_owners(temporary, manifest))
        if home.exists():
            home.rmdir()
        temporary.rename(home)
        _sync(home.parent)
    except OSError as error:
        raise StorageError(
            f"cannot restore {archive} to {home}: {error.strerror or error}.", hint="Free space or correct rights."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Restored(home, manifest, unknown)


def _listed(name: str, file: BinaryIO) -> tuple[Manifest, list[Member]]:
    """The manifest and, in its order, the members that it names; each path once, none within another file."""
    found, manifest = list[Member](), None
    for member in members(name, file):
        if manifest is not None:
            raise BackupRefused(f"{name}: {member.path[:80]!r} stands after the end.", hint=_OTHER)
        if member.path == MANIFEST:
            manifest = _manifest(name, file, member)
            continue
        check_path(name, member.path)
        if len(found) >= MAXIMUM_FILES:
            raise BackupRefused(f"{name} holds more than {MAXIMUM_FILES} files.", hint=_OTHER)
        found.append(member)
    if manifest is None:
        raise BackupRefused(f"{name} has no manifest: it is no backup, or was not written to its end.", hint=_OTHER)
    paths = {member.path for member in found}
    for path in paths:
        if any(str(parent) in paths for parent in Path(path).parents):
            raise BackupRefused(f"{name}: {path} lies in another file.", hint="Restore nothing from it.")
    said = [(entry.path, entry.length) for entry in manifest.files]
    if len(paths) != len(found) or said != [(member.path, member.length) for member in found]:
        raise BackupRefused(f"{name} does not hold the files that its manifest names.", hint=_OTHER)
    return manifest, found


def _manifest(name: str, file: BinaryIO, member: Member) -> Manifest:
    if member.length > MAXIMUM_MANIFEST:
        raise BackupRefused(f"{name}: its manifest has {member.length} bytes, which is too large.", hint=_OTHER)
    return Manifest.from_bytes(name, b"".join(content_of(file, member)))


def _check_space(archive: Path, manifest: Manifest, folder: Path) -> None:
    needed, free = sum(entry.length for entry in manifest.files), shutil.disk_usage(folder).free
    if needed > free:
        raise BackupRefused(
            f"{archive.name} needs {needed} bytes and {folder} has {free}: it is too large for this disk.",
            hint="Free space, or name a folder on another disk.",
        )


def _extract(archive: Path, manifest: Manifest, home: Path, progress: Progress) -> None:
    total, done = sum(entry.length for entry in manifest.files), 0
    folders = {home}
    with _reading(archive) as file:
        again, listed = _listed(archive.name, file)
        if again.digest != manifest.digest:
            raise BackupRefused(f"{archive.name} was changed while it was read.", hint="Try again.")
        for entry, member in zip(manifest.files, listed, strict=True):
            path = home / entry.path
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folders.update(parent for parent in path.parents if parent.is_relative_to(home))
            for written in _copy(archive.name, file, member, entry, path):
                done += written
                progress(done, total)
    for (
        entry
    ) in manifest.files:  # after all are written: the first of these takes most of the others to the disk with it
        _sync(home / entry.path)
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        name = "" if folder == home else folder.relative_to(home).as_posix()
        folder.chmod(_rights(name, manifest.folders.get(name, _OURS).mode) | 0o700)
        _sync(folder)


def _copy(name: str, file: BinaryIO, member: Member, entry: ManifestFile, path: Path) -> Iterator[int]:
    found = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        for chunk in content_of(file, member):
            found.update(chunk)
            out.write(chunk)
            yield len(chunk)
        out.flush()
        os.fchmod(out.fileno(), _rights(entry.path, entry.mode) | 0o400)
    if found.hexdigest() != entry.sha256:
        raise BackupRefused(f"{name}: {entry.path} was changed while it was read.", hint="Try again.")


def _rights(path: str, mode: int) -> int:
    """Rights as they were, except that others never get at secrets nor write anything."""
    return mode & (0o750 if path.partition("/")[0] in SECRET else 0o755)


def _owners(home: Path, manifest: Manifest) -> Iterator[tuple[Path, str]]:
    for entry in manifest.files:
        yield home / entry.path, entry.owners
    for path, folder in manifest.folders.items():
        if (home / path).is_dir():  # empty ones were not made
            yield home / path, folder.owners


def _finish(home: Path, manifest: Manifest, actor: str) -> None:
    if (home / DATABASE).exists():
        Database(f"sqlite:///{(home / DATABASE).resolve()}").close()
    log = AuditLog(home / "audit.jsonl")
    head = log.verify().head
    if head != AuditHead(manifest.audit_sequence, bytes.fromhex(manifest.audit_digest)):
        raise BackupRefused("the audit log in the backup does not end where its manifest says.", hint=_OTHER)
    log.record(
        actor,
        AuditAction.RESTORE,
        "coordinator",
        backup=manifest.digest,
        created_unix=manifest.created_unix,
        keys=manifest.keys,
    )


@contextmanager
def _reading(archive: Path) -> Iterator[BinaryIO]:
    try:
        with archive.open("rb") as file:
            yield file
    except OSError as error:
        raise StorageError(
            f"cannot read {archive}: {error.strerror or error}.", hint="Correct the path or its rights."
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
