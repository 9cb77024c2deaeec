"""All checks, in the order in which people read about them: from the folder outwards, then the machine and the data."""

from __future__ import annotations

from fedloop_clients.doctor.coordinator import ClockCheck, FrontCheck, HubCheck, VersionCheck
from fedloop_clients.doctor.data import DataCheck, LedgerCheck
from fedloop_clients.doctor.finding import Check
from fedloop_clients.doctor.folder import CertificateCheck, FilesCheck, MembershipCheck, SettingsCheck
from fedloop_clients.doctor.machine import DiskCheck, MemoryCheck, PortsCheck, UsersCheck
from fedloop_clients.doctor.network import WayCheck
from fedloop_clients.doctor.processors import DevicesCheck
from fedloop_clients.doctor.summing import ConsortiumCheck
from fedloop_clients.joining.way import Stage

__all__ = ["CHECKS"]

CHECKS: tuple[Check, ...] = (
    FilesCheck(),
    SettingsCheck(),
    MembershipCheck(),
    CertificateCheck(),
    WayCheck(Stage.NAME),
    WayCheck(Stage.ROUTE),
    WayCheck(Stage.PROXY),
    WayCheck(Stage.TLS),
    FrontCheck(),
    HubCheck(),
    ClockCheck(),
    VersionCheck(),
    DataCheck(),
    LedgerCheck(),
    ConsortiumCheck(),
    DevicesCheck(),
    DiskCheck(),
    MemoryCheck(),
    PortsCheck(),
    UsersCheck(),
)
"""What ``fedloop site doctor`` looks at."""
