"""The serving end of the edge protocol, at the coordinator and in each site for the site's own devices."""

from fedloop_edge.hub.config import HubAddresses, HubConfig, HubLimits
from fedloop_edge.hub.registry import Device, DeviceRegistry, issue_token
from fedloop_edge.hub.server import Hub
from fedloop_edge.hub.sink import FeedbackSink, ReceivedExample, ReceivedSketch, ReceivedStatus
from fedloop_edge.hub.source import ReleaseSource

__all__ = [
    "Device",
    "DeviceRegistry",
    "FeedbackSink",
    "Hub",
    "HubAddresses",
    "HubConfig",
    "HubLimits",
    "ReceivedExample",
    "ReceivedSketch",
    "ReceivedStatus",
    "ReleaseSource",
    "issue_token",
]
