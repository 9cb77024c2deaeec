"""What other parts of the coordinator bring to the service."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

__all__ = ["NodeRegistrar", "RegisteredNode", "Ticker"]


class RegisteredNode(Protocol):
    """A node as Flower lists it."""

    @property
    def node_id(self) -> int:
        """Flower's name of it."""

    @property
    def status(self) -> str:
        """``unregistered`` when it was shut out."""


class NodeRegistrar(Protocol):
    """Flower's list of the nodes that may speak."""

    def register(self, public_key: Path) -> int:
        """Lets a SuperNode in by its public key (OpenSSH form); returns its node id."""

    def unregister(self, node_id: int) -> None:
        """Shuts a SuperNode out for good."""

    def nodes(self) -> Sequence[RegisteredNode]:
        """All that Flower ever had."""


class Ticker(Protocol):
    """Something that wants to look around every second: the run manager."""

    def tick(self) -> object:
        """Does what is due now, and soon returns; nobody looks at what."""
