"""The only part of the coordinator on the public network: TLS, an allow-list of calls, limits, and nothing else."""

from fedloop_server.front.client import FrontClient
from fedloop_server.front.config import FrontConfig
from fedloop_server.front.refusals import Reason, Refusal
from fedloop_server.front.replies import Arrived
from fedloop_server.front.server import build_front

__all__ = ["Arrived", "FrontClient", "FrontConfig", "Reason", "Refusal", "build_front"]
