"""The coordinator's own process: joining, the hub, renewals, and what must be brought in line with the database."""

from fedloop_server.service.parts import NodeRegistrar, Ticker
from fedloop_server.service.process import Service

__all__ = ["NodeRegistrar", "Service", "Ticker"]
