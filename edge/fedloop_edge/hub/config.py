"""What a hub is told: whose it is, where it listens, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedloop_core.schema import FeatureSchema

__all__ = ["HubAddresses", "HubConfig", "HubLimits"]


@dataclass(frozen=True)
class HubLimits:
    """Bounds on everything that comes from the network.

    ``streams`` downloads and watches run at once, beside ``workers`` short calls; each holds a thread. One address may
    fail to enrol ``token_failures`` times in ``token_window_seconds``.
    """

    message_bytes: int = 4 << 20
    examples_per_batch: int = 256
    sketches_per_batch: int = 64
    streams: int = 64
    workers: int = 8
    token_failures: int = 10
    token_window_seconds: int = 60
    device_labels: int = 16


@dataclass(frozen=True)
class HubConfig:
    """A hub. ``site`` names the institution whose hub it is and is empty at the coordinator.

    ``folder`` holds the authority's and the server's keys (0600). ``names`` are the host names and addresses by which
    devices reach the hub; port 0 lets the system choose. ``schemas`` are the tasks whose labelled examples the site
    takes, by name: examples of others are rejected.
    """

    folder: Path
    site: str = ""
    enrollment_address: str = "127.0.0.1:0"
    fleet_address: str = "127.0.0.1:0"
    names: tuple[str, ...] = ("localhost", "127.0.0.1")
    device_certificate_days: int = 365
    server_certificate_days: int = 90
    schemas: Mapping[str, FeatureSchema] = field(default_factory=dict)
    limits: HubLimits = HubLimits()


@dataclass(frozen=True)
class HubAddresses:
    """Where a running hub listens: ``host:port`` of the enrolment listener and of the listener under mutual TLS."""

    enrollment: str
    fleet: str
