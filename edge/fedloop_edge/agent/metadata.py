"""Release metadata on a device: The Update Framework's client workflow (specification 1.0, section 5) over gRPC.

python-tuf's client writes its files one by one and without fsync. So it works in a scratch folder, which becomes current
whole, by the rename of a pointer, once everything in it has been verified and is on the disk. The pointer also remembers
the newest timestamp's version and the time, so that an emptied file or a clock set back opens no way to old metadata.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import quote, unquote

from pydantic import ValidationError
from tuf.api.exceptions import DownloadError, DownloadHTTPError, RepositoryError
from tuf.api.metadata import Metadata, Signed, Snapshot, TargetFile, Timestamp
from tuf.ngclient import FetcherInterface, Updater

from fedloop_core.durable import write_bytes
from fedloop_core.errors import FedloopError, MetadataRefused, StorageError
from fedloop_core.release import SIGNED_AT_FIELD
from fedloop_core.strict import Strict

__all__ = ["MetadataSource", "ReleaseMetadata", "VerifiedRelease"]

MetadataSource = Callable[[str, int], bytes | None]
"""Metadata bytes by role and version, 0 for the newest; None when there are none. Raises HubUnreachable."""

_URL = "fleet:"
_NOT_FOUND = 404


class _Pointer(Strict):
    format: Literal[1]
    folder: str
    timestamp_version: int
    seen_unix: int


class VerifiedRelease:
    """Metadata that verify; targets are looked up along the delegations."""

    def __init__(self, updater: Updater) -> None:
        self._updater = updater

    def target(self, path: str) -> TargetFile | None:
        """Length and SHA-256 of a target as signed by the role that may list it; None when it is not listed.

        Raises:
            MetadataRefused: a delegated role does not verify.
            HubUnreachable: its metadata cannot be fetched.
        """
        with _errors():
            target = self._updater.get_targetinfo(path)
        if target is not None and set(target.hashes) != {"sha256"}:
            raise MetadataRefused(f"target {path} is not signed by SHA-256.", reason="hash")
        return target


class ReleaseMetadata:
    """The metadata of one device.

    Args:
        folder: where they are kept.
        trusted_root: root metadata pinned at enrolment; every chain of trust starts here.
        clock: Unix seconds.
    """

    def __init__(self, folder: Path, trusted_root: bytes, clock: Callable[[], int]) -> None:
        self._folder = folder
        self._trusted_root = trusted_root
        self._clock = clock
        self._pointer_path = folder / "current.json"

    @contextmanager
    def verified(self, source: MetadataSource) -> Iterator[VerifiedRelease]:
        """Fetches and verifies; what was fetched becomes current when the block ends without an error.

        Raises:
            MetadataRefused: signatures, versions or expiry do not hold.
            HubUnreachable: metadata cannot be fetched.
            StorageError: the disk fails.
        """
        before = self._pointer()
        try:
            scratch = self._scratch(before)
            with _errors():
                updater = Updater(
                    str(scratch),
                    _URL,
                    fetcher=_Fetcher(source),
                    bootstrap=self._trusted_root,
                )
                updater.refresh()
            release = VerifiedRelease(updater)
            self._check(scratch, before)  # before anything is done by it
            yield release
            after = self._check(scratch, before)  # delegated roles came with the look-ups
            _sync(scratch)
            write_bytes(self._pointer_path, after.model_dump_json().encode())
        except OSError as error:
            raise StorageError(f"cannot keep metadata in {self._folder}: {error.strerror}.") from error
        finally:
            self._sweep()

    def _pointer(self) -> _Pointer | None:
        if not self._pointer_path.exists():
            return None
        try:
            return _Pointer.model_validate_json(self._pointer_path.read_bytes())
        except ValidationError as error:
            raise StorageError(f"{self._pointer_path} is damaged.", hint="Enrol the device again.") from error

    def _scratch(self, before: _Pointer | None) -> Path:
        """A folder to work in, with what was current; files that a power cut has emptied are left out."""
        self._sweep()
        scratch = self._folder / str(int(before.folder) + 1 if before else 1)
        if before is not None and (self._folder / before.folder).is_dir():
            shutil.copytree(self._folder / before.folder, scratch, symlinks=True)
            for path in scratch.rglob("*.json"):
                if not path.is_symlink() and not _readable(path):
                    path.unlink()
        else:
            scratch.mkdir(parents=True)
        return scratch

    def _check(self, scratch: Path, before: _Pointer | None) -> _Pointer:
        """Expiry by a time that never goes back, and a timestamp that never goes back, whatever files were lost."""
        with _errors():
            timestamp = Metadata[Timestamp].from_file(str(scratch / "timestamp.json")).signed
            signed = _current(scratch)
        signed_unix = timestamp.unrecognized_fields.get(SIGNED_AT_FIELD, 0)
        if not isinstance(signed_unix, int):
            raise MetadataRefused("the timestamp's time of signing is not a number.", reason="timestamp")
        now_unix = max(self._clock(), signed_unix, before.seen_unix if before else 0)
        for role, content in signed.items():
            if content.expires.timestamp() < now_unix:
                raise MetadataRefused(
                    f"metadata of role {role} expired on {content.expires:%Y-%m-%d}.",
                    hint="Does the coordinator still sign? Is the device's clock right?",
                    reason="expired",
                )
        if before is not None and timestamp.version < before.timestamp_version:
            raise MetadataRefused(
                f"timestamp {timestamp.version} is older than {before.timestamp_version}, seen before.",
                reason="rollback",
            )
        return _Pointer(format=1, folder=scratch.name, timestamp_version=timestamp.version, seen_unix=now_unix)

    def _sweep(self) -> None:
        current = self._pointer()
        for folder in self._folder.glob("*/"):
            if current is None or folder.name != current.folder:
                shutil.rmtree(folder, ignore_errors=True)


class _Fetcher(FetcherInterface):
    """Turns the file names that TUF's client asks for into calls: ``timestamp.json``, ``7.task-heart.json``."""

    def __init__(self, source: MetadataSource) -> None:
        self._source = source

    def _fetch(self, url: str) -> Iterator[bytes]:
        number, dot, rest = unquote(url.removeprefix(f"{_URL}/")).removesuffix(".json").partition(".")
        role, version = (rest, int(number)) if dot and number.isdigit() else (f"{number}{dot}{rest}", 0)
        content = self._source(role, version)
        if content is None:
            raise DownloadHTTPError(f"the hub has no version {version} of role {role}", _NOT_FOUND)
        return iter([content])


def _readable(path: Path) -> bool:
    try:
        Metadata.from_file(str(path))
    except RepositoryError:
        return False
    return True


def _current(folder: Path) -> dict[str, Signed]:
    """The verified top-level roles, and those roles below them that are here in the version that the snapshot pins."""
    snapshot = Metadata[Snapshot].from_file(str(folder / "snapshot.json")).signed
    signed: dict[str, Signed] = {
        role: Metadata.from_file(str(folder / f"{role}.json")).signed
        for role in ("root", "timestamp", "snapshot", "targets")
    }
    for name, pinned in snapshot.meta.items():
        path = folder / quote(name, "")
        if path.exists() and name != "targets.json":
            below = Metadata.from_file(str(path)).signed
            if below.version == pinned.version:
                signed[name.removesuffix(".json")] = below
    return signed


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except DownloadError as error:
        if isinstance(error.__cause__, FedloopError):
            raise error.__cause__ from error
        raise MetadataRefused(f"release metadata are absent or too long: {error}.", reason="absent") from error
    except RepositoryError as error:
        raise MetadataRefused(
            f"release metadata do not verify: {error}.", hint="The version that serves stays.", reason="signature"
        ) from error


def _sync(folder: Path) -> None:
    for path in (folder, *sorted(folder.rglob("*"))):
        if path.is_symlink():
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
