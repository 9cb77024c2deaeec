"""The signed metadata of one moment, and the next moment made from it: pure, no disk.

Order of trust (TUF 1.0): ``root`` names the keys of ``timestamp``, ``snapshot`` and ``targets``; ``timestamp`` pins one
snapshot, which pins one version of ``targets`` and of each role that ``targets`` delegates to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, TypeVar

from securesystemslib.signer import Signer
from tuf.api.exceptions import RepositoryError, UnsignedMetadataError
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, Targets, Timestamp

from fedloop_core.errors import MetadataRefused
from fedloop_core.release import SIGNED_AT_FIELD

__all__ = ["Lifetimes", "Moment", "Publication", "deserialize", "first", "publish", "renew", "sign", "version_of"]

SignedT = TypeVar("SignedT", Root, Timestamp, Snapshot, Targets)  # those that tuf.api.metadata.Metadata takes


@dataclass(frozen=True)
class Lifetimes:
    """How long metadata are valid from their signing."""

    root: timedelta = timedelta(days=365)
    targets: timedelta = timedelta(days=365)
    delegations: timedelta = timedelta(days=365)
    snapshot: timedelta = timedelta(days=7)
    timestamp: timedelta = timedelta(days=1)

    def of(self, role: str) -> timedelta:
        """Lifetime of a role."""
        fixed = {"root": self.root, "targets": self.targets, "snapshot": self.snapshot, "timestamp": self.timestamp}
        return fixed.get(role, self.delegations)


@dataclass(frozen=True)
class Moment:
    """All current metadata as the bytes that are served; ``delegated`` holds the roles below ``targets``."""

    root: bytes
    targets: bytes
    delegated: Mapping[str, bytes]
    snapshot: bytes
    timestamp: bytes

    def role(self, role: str) -> Metadata[Targets]:
        """A fresh copy of ``targets`` or of a role below it.

        Raises:
            KeyError: no such role.
        """
        return deserialize(self.targets if role == "targets" else self.delegated[role], Targets, role)

    @cached_property
    def roles(self) -> Mapping[str, bytes]:
        """Every role's current metadata by its name."""
        top = {"root": self.root, "targets": self.targets, "snapshot": self.snapshot, "timestamp": self.timestamp}
        return {**self.delegated, **top}

    @cached_property
    def versions(self) -> Mapping[str, int]:
        """Every role's current version by its name."""
        return {role: version_of(content) for role, content in self.roles.items()}

    @property
    def revision(self) -> int:
        """The version of the timestamp: rises with every publication."""
        return self.versions["timestamp"]

    def verify(self) -> None:
        """Checks every signature and version along the order of trust, not the expiry.

        Raises:
            MetadataRefused: a part does not verify.
        """
        root = deserialize(self.root, Root, "root")
        timestamp = deserialize(self.timestamp, Timestamp, "timestamp")
        snapshot = deserialize(self.snapshot, Snapshot, "snapshot")
        targets = deserialize(self.targets, Targets, "targets")
        delegator: Root | Targets = root.signed
        role = "root"
        try:
            for role, metadata in (
                ("root", root),
                ("timestamp", timestamp),
                ("snapshot", snapshot),
                ("targets", targets),
            ):
                delegator.verify_delegate(role, metadata.signed_bytes, metadata.signatures)
            role = "snapshot"
            timestamp.signed.snapshot_meta.verify_length_and_hashes(self.snapshot)
            delegator = targets.signed
            pinned = {**self.delegated, "targets": self.targets}
            for name, meta in snapshot.signed.meta.items():
                role = name.removesuffix(".json")
                meta.verify_length_and_hashes(pinned[role])
                if role != "targets":
                    below = deserialize(pinned[role], Targets, role)
                    delegator.verify_delegate(role, below.signed_bytes, below.signatures)
        except (RepositoryError, ValueError, KeyError) as error:
            raise _refused(role, str(error)) from error


@dataclass(frozen=True)
class Publication:
    """The next moment, and the files that make it in the order of writing: ``timestamp.json`` last makes it current."""

    moment: Moment
    files: tuple[tuple[str, bytes], ...]


def deserialize(content: bytes, kind: type[SignedT], role: str) -> Metadata[SignedT]:
    """Metadata of the kind asked for.

    Raises:
        MetadataRefused: the bytes are something else.
    """
    try:
        metadata = Metadata[SignedT].from_bytes(content)
    except RepositoryError as error:
        raise _refused(role, str(error)) from error
    if not isinstance(metadata.signed, kind):
        raise _refused(role, f"it is of type {metadata.signed.type}")
    return metadata


def version_of(content: bytes) -> int:
    """The version of metadata that were checked before."""
    return int(Metadata.from_bytes(content).signed.version)


def sign(signed: Root | Targets | Snapshot | Timestamp, role: str, signers: Sequence[Signer]) -> bytes:
    """Serialised metadata with one signature by each signer, each of which must succeed.

    Raises:
        MetadataRefused: a signer failed.
    """
    metadata = Metadata[Any](copy.deepcopy(signed))
    try:
        for signer in signers:
            metadata.sign(signer, append=True)
    except UnsignedMetadataError as error:
        raise _refused(role, str(error)) from error
    return metadata.to_bytes()


def renew(signed: Root | Targets | Snapshot | Timestamp, role: str, now_unix: int, lifetimes: Lifetimes) -> None:
    """Raises the version and moves the expiry, in place, before signing."""
    signed.version += 1
    signed.expires = datetime.fromtimestamp(now_unix, UTC) + lifetimes.of(role)


def first(
    root: bytes,
    targets: bytes,
    delegated: Mapping[str, bytes],
    signer: Callable[[str], Signer],
    now_unix: int,
    lifetimes: Lifetimes,
) -> Publication:
    """The first moment of a repository: every role at version 1.

    Raises:
        MetadataRefused: a role does not have the signatures that its delegation asks for.
    """
    now = datetime.fromtimestamp(now_unix, UTC)
    snapshot = Snapshot(expires=now + lifetimes.snapshot, meta={})
    timestamp = Timestamp(expires=now + lifetimes.timestamp)
    changed = {"root": root, **delegated, "targets": targets}
    empty = Moment(root, targets, delegated, b"", b"")
    return _seal(empty, changed, snapshot, timestamp, signer, now_unix)


def publish(
    before: Moment,
    changed: Mapping[str, bytes],
    signer: Callable[[str], Signer],
    now_unix: int,
    lifetimes: Lifetimes,
) -> Publication:
    """The moment after ``changed`` (signed roles by name: ``root``, ``targets`` or below) became current.

    Raises:
        MetadataRefused: a changed role does not have the signatures that its delegation asks for.
    """
    snapshot = deserialize(before.snapshot, Snapshot, "snapshot").signed
    timestamp = deserialize(before.timestamp, Timestamp, "timestamp").signed
    renew(snapshot, "snapshot", now_unix, lifetimes)
    renew(timestamp, "timestamp", now_unix, lifetimes)
    return _seal(before, changed, snapshot, timestamp, signer, now_unix)


def _seal(
    before: Moment,
    changed: Mapping[str, bytes],
    snapshot: Snapshot,
    timestamp: Timestamp,
    signer: Callable[[str], Signer],
    now_unix: int,
) -> Publication:
    files: list[tuple[str, bytes]] = []
    for role, content in changed.items():
        version = version_of(content)
        files.append((f"{version}.{role}.json", content))
        if role != "root":
            snapshot.meta[f"{role}.json"] = MetaFile.from_data(version, content, ["sha256"])
    snapshot_bytes = sign(snapshot, "snapshot", [signer("snapshot")])
    timestamp.snapshot_meta = MetaFile.from_data(snapshot.version, snapshot_bytes, ["sha256"])
    timestamp.unrecognized_fields[SIGNED_AT_FIELD] = now_unix
    timestamp_bytes = sign(timestamp, "timestamp", [signer("timestamp")])
    files += [
        (f"{snapshot.version}.snapshot.json", snapshot_bytes),
        (f"{timestamp.version}.timestamp.json", timestamp_bytes),
        ("timestamp.json", timestamp_bytes),
    ]
    below = {role: content for role, content in changed.items() if role not in ("root", "targets")}
    after = Moment(
        root=changed.get("root", before.root),
        targets=changed.get("targets", before.targets),
        delegated={**before.delegated, **below},
        snapshot=snapshot_bytes,
        timestamp=timestamp_bytes,
    )
    after.verify()
    return Publication(after, tuple(files))


def _refused(role: str, why: str) -> MetadataRefused:
    return MetadataRefused(
        f"metadata of role {role} do not verify: {why.rstrip('.')}.",
        hint="Nothing was published. Restore the release folder from a backup if its files were altered.",
        reason="signature",
    )
