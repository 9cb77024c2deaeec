"""The report of a simulation: one HTML file for people, which needs nothing beside it."""

from fedloop_simulations.report.document import render_report, write_report
from fedloop_simulations.report.model import (
    ArtifactLine,
    CardText,
    DeviceVersion,
    DriftScore,
    EventLine,
    PrivacyLine,
    RoundPoint,
    RunReport,
    StreamPhase,
)

__all__ = [
    "ArtifactLine",
    "CardText",
    "DeviceVersion",
    "DriftScore",
    "EventLine",
    "PrivacyLine",
    "RoundPoint",
    "RunReport",
    "StreamPhase",
    "render_report",
    "write_report",
]
