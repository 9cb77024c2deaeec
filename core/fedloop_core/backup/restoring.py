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
from fedloop_core.backup.archive import Member, content_of, members
from fedloop_core.backup.kinds import HomeKind, KindName
from fedloop_core.backup.manifest import (
    AUDIT_LOG,
    MANIFEST,
    MAXIMUM_FILES,
    MAXIMUM_MANIFEST,
    Manifest,
    ManifestFile,
    Owned,
    check_path,
)
from fedloop_core.backup.owners import give_back
from fedloop_core.backup.writing import Progress, unseen
from fedloop_core.durable import sync_path
from fedloop_core.errors import BackupRefused, StorageError

__all__ = ["Restored", "check_archive", "check_restore", "restore"]

_OTHER = "Use another backup."
_OURS = Owned(mode=0o700)
_OTHERS: dict[KindName, tuple[str, str]] = {
    "fedloop-coordinator": ("coordinator", "server"),
    "fedloop-site": ("site", "site"),
}


@dataclass(frozen=True)
class Restored:
    """A home that was made of a backup.

    ``unknown_owners`` are ``user:group`` that this machine does not have. ``aside`` is where what was in the folder is now.
    """

    home: Path
    manifest: Manifest
    unknown_owners: tuple[str, ...]
    aside: Path | None = None


def check_archive(kind: HomeKind, archive: Path, *, digest: str = "", progress: Progress = unseen) -> Manifest:
    """Reads a backup whole and checks every file of it; writes nothing.

    Args:
        kind: of the home that it must be of.
        archive: what ``back_up`` wrote.
        digest: of its manifest, as it was noted elsewhere; "" when nobody noted it.
        progress: told of bytes.

    Raises:
        BackupRefused: it is no backup, is damaged, of another kind of home, or another one than the digest says.
        StorageError: it cannot be read.
    """
    with _reading(archive) as file:
        manifest, listed = _listed(kind, archive.name, file)
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


def check_restore(
    kind: HomeKind,
    archive: Path,
    home: Path,
    *,
    digest: str = "",
    aside: Path | None = None,
    progress: Progress = unseen,
) -> Manifest:
    """Finds out all that can be found out about a restore before anything is written; for the arguments see ``restore``.

    Raises:
        BackupRefused: as ``check_archive``; the home is not empty and nothing is to be put aside; the disk is too small.
        StorageError: the archive cannot be read.
    """
    if aside is None and home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise BackupRefused(
            f"{home} is not empty.", hint=f"Name a new folder; nothing is ever written over a {kind.noun}."
        )
    if aside is not None and aside.exists():
        raise BackupRefused(f"{aside} is there already.", hint="Move it elsewhere.")
    manifest = check_archive(kind, archive, digest=digest, progress=progress)
    _check_space(archive, manifest, next(folder for folder in home.absolute().parents if folder.exists()))
    return manifest


def restore(
    kind: HomeKind,
    archive: Path,
    home: Path,
    *,
    actor: str,
    digest: str = "",
    aside: Path | None = None,
    progress: Progress = unseen,
) -> Restored:
    """Makes ``home`` of a backup, and upgrades its databases if need be; it appears whole or not at all.

    Args:
        kind: of home.
        archive: what ``back_up`` wrote.
        home: the new folder.
        actor: who restores, for the audit log.
        digest: see ``check_archive``.
        aside: where what is in the folder now is moved, just before the new one takes its place; None refuses a folder that
            is not empty.
        progress: told of bytes, first of those that are checked and then of those that are written.

    Raises:
        BackupRefused: as ``check_restore``.
        StorageError: the disk is full; a newer release wrote a database.
        AuditBroken: the audit log in the backup does not hold.
    """
    manifest = check_restore(kind, archive, home, digest=digest, aside=aside, progress=progress)
    temporary = home.with_name(f".{home.name}.{secrets.token_hex(4)}.part")
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir(mode=0o700)
        _extract(kind, archive, manifest, temporary, progress)
        _finish(kind, temporary, manifest, actor)
        unknown = give_back(_owners(temporary, manifest))
        moved = _take_place(temporary, home, aside)
    except OSError as error:
        raise StorageError(
            f"cannot restore {archive} to {home}: {error.strerror or error}.", hint="Free space or correct rights."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return Restored(home, manifest, unknown, moved)


def _take_place(made: Path, home: Path, aside: Path | None) -> Path | None:
    """Puts the finished folder where it belongs; what was there is back in its place when that fails."""
    moved = None
    if home.exists() and any(home.iterdir()) and aside is not None:
        home.rename(aside)
        moved = aside
    elif home.exists():
        home.rmdir()
    try:
        made.rename(home)
    except OSError:
        if moved is not None:
            moved.rename(home)
        raise
    sync_path(home.parent)
    return moved


def _listed(kind: HomeKind, name: str, file: BinaryIO) -> tuple[Manifest, list[Member]]:
    """The manifest and, in its order, the members that it names; each path once, none within another file."""
    found, manifest = list[Member](), None
    for member in members(name, file):
        if manifest is not None:
            raise BackupRefused(f"{name}: {member.path[:80]!r} stands after the end.", hint=_OTHER)
        if member.path == MANIFEST:
            manifest = _manifest(name, file, member)
            continue
        if len(found) >= MAXIMUM_FILES:
            raise BackupRefused(f"{name} holds more than {MAXIMUM_FILES} files.", hint=_OTHER)
        found.append(member)
    if manifest is None:
        raise BackupRefused(f"{name} has no manifest: it is no backup, or was not written to its end.", hint=_OTHER)
    if manifest.kind != kind.name:
        noun, group = _OTHERS[manifest.kind]
        raise BackupRefused(
            f"{name} is a backup of a {noun}, and this makes a {kind.noun}.", hint=f"Run: fedloop {group} restore"
        )
    for member in found:
        check_path(kind, name, member.path)
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


def _extract(kind: HomeKind, archive: Path, manifest: Manifest, home: Path, progress: Progress) -> None:
    total, done = sum(entry.length for entry in manifest.files), 0
    folders = {home}
    with _reading(archive) as file:
        again, listed = _listed(kind, archive.name, file)
        if again.digest != manifest.digest:
            raise BackupRefused(f"{archive.name} was changed while it was read.", hint="Try again.")
        for entry, member in zip(manifest.files, listed, strict=True):
            path = home / entry.path
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            folders.update(parent for parent in path.parents if parent.is_relative_to(home))
            for written in _copy(kind, archive.name, file, member, entry, path):
                done += written
                progress(done, total)
    for (
        entry
    ) in manifest.files:  # after all are written: the first of these takes most of the others to the disk with it
        sync_path(home / entry.path)
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        name = "" if folder == home else folder.relative_to(home).as_posix()
        folder.chmod(_rights(kind, name, manifest.folders.get(name, _OURS).mode) | 0o700)
        sync_path(folder)


def _copy(kind: HomeKind, name: str, file: BinaryIO, member: Member, entry: ManifestFile, path: Path) -> Iterator[int]:
    found = hashlib.sha256()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as out:
        for chunk in content_of(file, member):
            found.update(chunk)
            out.write(chunk)
            yield len(chunk)
        out.flush()
        os.fchmod(out.fileno(), _rights(kind, entry.path, entry.mode) | 0o400)
    if found.hexdigest() != entry.sha256:
        raise BackupRefused(f"{name}: {entry.path} was changed while it was read.", hint="Try again.")


def _rights(kind: HomeKind, path: str, mode: int) -> int:
    """Rights as they were, except that others never get at secrets nor write anything."""
    return mode & (0o750 if path.partition("/")[0] in kind.secret else 0o755)


def _owners(home: Path, manifest: Manifest) -> Iterator[tuple[Path, str]]:
    for entry in manifest.files:
        yield home / entry.path, entry.owners
    for path, folder in manifest.folders.items():
        if (home / path).is_dir():  # empty ones were not made
            yield home / path, folder.owners


def _finish(kind: HomeKind, home: Path, manifest: Manifest, actor: str) -> None:
    kind.opened(home)
    log = AuditLog(home / AUDIT_LOG)
    head = log.verify().head
    if head != AuditHead(manifest.audit_sequence, bytes.fromhex(manifest.audit_digest)):
        raise BackupRefused("the audit log in the backup does not end where its manifest says.", hint=_OTHER)
    log.record(
        actor,
        AuditAction.RESTORE,
        kind.subject(home),
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
