"""What a backup says of itself, and which paths may stand in one. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from fedloop_core.backup.kinds import HomeKind, KindName
from fedloop_core.errors import BackupRefused
from fedloop_core.strict import Strict

__all__ = [
    "AUDIT_LOG",
    "MANIFEST",
    "MAXIMUM_FILES",
    "MAXIMUM_MANIFEST",
    "Manifest",
    "ManifestFile",
    "Owned",
    "check_path",
    "is_kept",
]

AUDIT_LOG = "audit.jsonl"
"""Every home has one of this name."""
MANIFEST = "manifest.json"
"""The last member: an archive without it was not written to its end."""

MAXIMUM_FILES = 1_000_000
MAXIMUM_MANIFEST = 256 * 1024 * 1024
"""Bytes: some 200 for each file."""

_PASSING = re.compile(r"\..*\.part|.*\.lock|.*\.db-(wal|shm|journal)|.*\.db\.before-.*")
_LENGTH = 255  # bytes of a path: what the oldest form of tar holds
_DEPTH = 16
_DIGEST = r"^[0-9a-f]{64}$"


class Owned(Strict):
    """Rights, and the names ``user:group`` of the owners; "" when they have no names."""

    mode: Annotated[int, Field(ge=0, le=0o777)]
    owners: Annotated[str, Field(max_length=100)] = ""


class ManifestFile(Owned):
    """One file: its path in the home with ``/``, bytes, hex SHA-256, rights and owners."""

    path: str
    length: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=_DIGEST)]


class Manifest(Strict):
    """A backup. ``digest`` is the hex SHA-256 of the manifest's canonical JSON without it.

    ``audit_sequence`` and ``audit_digest`` are the head of the audit log in the backup. ``notes`` say what is not in it. ``folders``
    are rights and owners by path, "" being the home.
    """

    format: Literal[1] = 1
    kind: KindName
    fedloop: str
    created_unix: int
    keys: bool
    audit_sequence: Annotated[int, Field(ge=0)]
    audit_digest: Annotated[str, Field(pattern=_DIGEST)]
    notes: tuple[str, ...]
    folders: Annotated[Mapping[str, Owned], Field(max_length=MAXIMUM_FILES)]
    files: Annotated[tuple[ManifestFile, ...], Field(max_length=MAXIMUM_FILES)]
    digest: Annotated[str, Field(pattern=_DIGEST)] = "0" * 64

    def sealed(self) -> Self:
        """With the digest that it must have."""
        return self.model_copy(update={"digest": self.computed_digest()})

    def to_bytes(self) -> bytes:
        """JSON bytes."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, name: str, content: bytes) -> Self:
        """Reads what ``to_bytes`` wrote.

        Raises:
            BackupRefused: it is no manifest of this release, or was altered.
        """
        try:
            found = cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            raise BackupRefused(
                f"{name}: its manifest is not one that this release of fedloop reads "
                f"({'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}).",
                hint="Use the release that wrote it, or another backup.",
            ) from error
        if found.digest != found.computed_digest():
            raise BackupRefused(f"{name}: its manifest was altered or damaged.", hint="Use another backup.")
        return found

    def computed_digest(self) -> str:
        """What ``digest`` must be."""
        body = json.dumps(self.model_dump(mode="json", exclude={"digest"}), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(body.encode()).hexdigest()


def is_kept(kind: HomeKind, path: str, *, keys: bool) -> bool:
    """Whether a file of a home belongs in a backup: what can be made anew, logs and passing files do not."""
    first, last = path.partition("/")[0], path.rpartition("/")[2]
    if path == MANIFEST or _PASSING.fullmatch(last) or (first in kind.secret and not keys):
        return False
    return kind.kept(path)


def check_path(kind: HomeKind, name: str, path: str) -> None:
    """Refuses a path that a backup of a home cannot hold.

    Args:
        kind: of the home.
        name: of the archive, for errors.
        path: of a file, as the archive writes it.

    Raises:
        BackupRefused: it leads out of the home, or to what no backup has.
    """
    parts = path.split("/")
    plain = all(part not in ("", ".", "..") for part in parts) and not re.search(r"[\x00-\x1f\x7f\\]", path)
    if not plain or len(parts) > _DEPTH or len(path.encode("utf-8", "surrogatepass")) > _LENGTH:
        raise BackupRefused(
            f"{name}: {path[:80]!r} is no path in a {kind.noun}'s folder.", hint="Restore nothing from it."
        )
    if not is_kept(kind, path, keys=True):
        raise BackupRefused(f"{name}: no backup holds {path[:80]!r}.", hint="Restore nothing from it.")
