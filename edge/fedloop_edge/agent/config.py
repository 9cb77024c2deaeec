"""What a device is told before it starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedloop_core.task.document import ExportTarget

__all__ = ["AgentConfig", "AgentLimits"]


@dataclass(frozen=True)
class AgentLimits:
    """Bounds on what a device downloads, answers at once, and keeps.

    The queue holds so many items and bytes for each of its three streams, the oldest dropped first and counted; so many
    recent predictions keep their inputs so that a label can still be given. ``item_bytes`` is below what a hub takes in one
    message.
    """

    artifact_bytes: int = 256 << 20
    rows_at_once: int = 1024
    queue_items: int = 10_000
    queue_bytes: int = 64 << 20
    recent_predictions: int = 10_000
    recent_bytes: int = 64 << 20
    item_bytes: int = 3 << 20
    call_seconds: float = 30.0
    download_seconds: float = 600.0


@dataclass(frozen=True)
class AgentConfig:
    """A device for one task.

    ``folder`` is the device's own. ``certificate_authority`` (PEM) is the hub's, delivered with the configuration: the
    enrolment token is sent to nobody else. ``runtime`` and ``kinds`` (best first) default to what is installed and to
    what that runtime prefers. A sketch is closed every ``sketch_rows`` predictions.
    """

    folder: Path
    task: str
    enrollment_address: str
    fleet_address: str
    certificate_authority: bytes
    runtime: str | None = None
    kinds: tuple[ExportTarget, ...] = ()
    sketch_rows: int = 25
    limits: AgentLimits = AgentLimits()
