"""Which devices a hub knows, and the one-time tokens by which new ones become known."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Row

from fedloop_core.errors import DeviceRefused, EnrollmentRefused
from fedloop_edge.database import Database

__all__ = ["Device", "DeviceRegistry", "issue_token"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tokens (
    digest BLOB PRIMARY KEY, device_group TEXT NOT NULL, site TEXT NOT NULL, expires_unix INTEGER NOT NULL,
    device_id TEXT
);
CREATE TABLE IF NOT EXISTS devices (
    device_id TEXT PRIMARY KEY, device_group TEXT NOT NULL, site TEXT NOT NULL, runtime TEXT NOT NULL,
    labels TEXT NOT NULL, enrolled_unix INTEGER NOT NULL, revoked INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS intake (
    device_id TEXT NOT NULL, queue_id TEXT NOT NULL, stream TEXT NOT NULL, acknowledged INTEGER NOT NULL,
    rejected INTEGER NOT NULL, lost INTEGER NOT NULL, PRIMARY KEY (device_id, queue_id, stream)
);
"""


@dataclass(frozen=True)
class Device:
    """An enrolled device: its key's digest, rollout group, site, and what it said about itself."""

    device_id: str
    group: str
    site: str
    runtime: str
    labels: Mapping[str, str]
    enrolled_unix: int
    revoked: bool


class DeviceRegistry:
    """Devices and tokens in a SQLite file, or in memory when ``path`` is None. Tokens are kept as digests only."""

    def __init__(self, path: Path | None = None) -> None:
        self.database = Database(path, _SCHEMA)

    def add_token(self, token: str, *, group: str, site: str, expires_unix: int) -> None:
        """Makes a token known; prefer ``issue_token``."""
        with self.database.transaction() as connection:
            connection.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, NULL)", (_token_digest(token), group, site, expires_unix)
            )

    def redeem(
        self, token: str, device_id: str, *, site: str, runtime: str, labels: Mapping[str, str], now_unix: int
    ) -> Device:
        """Uses a token up and admits the device that holds the key.

        The same key may come again with the same token, since its answer may have been lost.

        Raises:
            EnrollmentRefused: the token is unknown, expired, used by another key, or for another site.
            DeviceRefused: the device was revoked.
        """
        with self.database.transaction() as connection:
            row = connection.execute(
                "SELECT device_group, site, expires_unix, device_id FROM tokens WHERE digest = ?",
                (_token_digest(token),),
            ).fetchone()
            if row is None or row[1] != site:
                raise EnrollmentRefused("the token is not known here.", hint="Ask for a new one.", reason="token")
            group, _, expires_unix, used_by = row
            if now_unix > expires_unix:
                raise EnrollmentRefused("the token has expired.", hint="Ask for a new one.", reason="token")
            if used_by not in (None, device_id):
                raise EnrollmentRefused("the token was used before.", hint="Ask for a new one.", reason="token")
            known = connection.execute("SELECT revoked FROM devices WHERE device_id = ?", (device_id,)).fetchone()
            if known is not None and known[0]:
                raise DeviceRefused(f"device {device_id} was revoked.", hint="Give it a new key, then enrol it.")
            connection.execute("UPDATE tokens SET device_id = ? WHERE digest = ?", (device_id, _token_digest(token)))
            connection.execute(
                "INSERT OR REPLACE INTO devices VALUES (?, ?, ?, ?, ?, ?, 0)",
                (device_id, group, site, runtime, json.dumps(dict(labels), sort_keys=True), now_unix),
            )
        return Device(device_id, group, site, runtime, dict(labels), now_unix, revoked=False)

    def admit(self, device_id: str) -> Device:
        """The device, if it may speak.

        Raises:
            DeviceRefused: it is not known here, or revoked.
        """
        with self.database.transaction() as connection:
            row = connection.execute("SELECT * FROM devices WHERE device_id = ?", (device_id,)).fetchone()
        if row is None:
            raise DeviceRefused(f"device {device_id} is not known here.", hint="Enrol it with a token.")
        device = _device(row)
        if device.revoked:
            raise DeviceRefused(f"device {device_id} was revoked.", hint="Give it a new key, then enrol it.")
        return device

    def revoke(self, device_id: str) -> None:
        """Shuts a device out, from its next call on.

        Raises:
            DeviceRefused: it is not known here.
        """
        with self.database.transaction() as connection:
            changed = connection.execute("UPDATE devices SET revoked = 1 WHERE device_id = ?", (device_id,))
            if changed.rowcount == 0:
                raise DeviceRefused(f"device {device_id} is not known here.")

    def devices(self) -> tuple[Device, ...]:
        """All devices, revoked ones included, in the order of enrolment."""
        with self.database.transaction() as connection:
            rows = connection.execute("SELECT * FROM devices ORDER BY enrolled_unix, rowid").fetchall()
        return tuple(map(_device, rows))

    def close(self) -> None:
        """Closes the file."""
        self.database.close()


def issue_token(
    registry: DeviceRegistry, *, group: str, now_unix: int, site: str = "", valid_seconds: int = 86_400
) -> str:
    """A one-time enrolment token of 256 random bits: one device may join this rollout group at this site's hub with it.

    It is shown once and kept as a digest.
    """
    token = secrets.token_urlsafe(32)
    registry.add_token(token, group=group, site=site, expires_unix=now_unix + valid_seconds)
    return token


def _token_digest(token: str) -> bytes:
    return hashlib.sha256(f"fedloop enrolment token {token}".encode()).digest()


def _device(row: Row | tuple[str, str, str, str, str, int, int]) -> Device:
    device_id, group, site, runtime, labels, enrolled_unix, revoked = row
    return Device(device_id, group, site, runtime, json.loads(labels), enrolled_unix, bool(revoked))
