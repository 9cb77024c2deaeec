"""The hub for sites: who is there and what they do, and what cannot wait for the next question."""

from fedloop_server.hub.server import SiteHubServer

__all__ = ["SiteHubServer"]
