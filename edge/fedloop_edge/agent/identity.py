"""Who a device is: its key, made on the device, and the membership that a hub gave it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import Field, ValidationError

from fedloop_core.certificates import key_id, load_or_create_key
from fedloop_core.durable import write_secret
from fedloop_core.errors import StorageError, UsageError
from fedloop_core.strict import Strict

__all__ = ["Identity", "Membership"]


class Membership(Strict):
    """What enrolment pinned: certificate, authority (PEM), root of trust, rollout group and site (empty: none)."""

    format: Literal[1]
    device_id: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    certificate: str
    certificate_authority: str
    trusted_root: str
    group: Annotated[str, Field(min_length=1, max_length=100)]
    site: Annotated[str, Field(max_length=200)]


class Identity:
    """Key (``device.key``) and membership (``membership.json``) in a device's folder, both 0600."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "membership.json"
        self._membership: Membership | None = None
        if self._path.exists():
            try:
                self._membership = Membership.model_validate_json(self._path.read_bytes())
            except ValidationError as error:
                raise StorageError(f"{self._path} is damaged.", hint="Delete it and enrol again.") from error

    @cached_property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """The device's private key; made the first time."""
        return load_or_create_key(self._folder / "device.key")

    @property
    def device_id(self) -> str:
        """Hex SHA-256 of the public key."""
        return key_id(self.key.public_key())

    @property
    def enrolled(self) -> bool:
        """Whether a hub has admitted this device."""
        return self._membership is not None

    @property
    def membership(self) -> Membership:
        """The membership.

        Raises:
            UsageError: the device is not enrolled.
        """
        if self._membership is None:
            raise UsageError(f"the device in {self._folder} is not enrolled.", hint="Enrol it with a token.")
        return self._membership

    def accept(self, membership: Membership) -> None:
        """Keeps a membership; durable when this returns."""
        write_secret(self._path, membership.model_dump_json().encode())
        self._membership = membership
