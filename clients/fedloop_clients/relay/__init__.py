"""A process that has loaded Flower and our relay once, and forks for each ``flwr-clientapp`` call."""

from fedloop_clients.relay.shim import COMMAND, write_shim
from fedloop_clients.relay.zygote import Zygote

__all__ = ["COMMAND", "Zygote", "write_shim"]
