"""Flower's side of the sites: a ClientApp that Ray's actors load, with the same relay and site daemon behind it.

An actor meets any site, and which one takes a message is up to Flower. So a site's ledger and outbox lie in files that the
actors share, as those of a site's own processes do, in a folder that should be in memory; whatever else a daemon holds each
actor builds for itself when it first meets the site.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedloop_clients.app import SITE_KEY, relay
from fedloop_core.keys import VerifyingKey
from ours import site_daemon
from workload import site_name

__all__ = ["WHO", "PartitionApp", "partition_app", "partition_said"]

WHO = "query.who"  # Flower's simulation deals node ids anew each time, so the nodes are asked once who they are
_PARTITION = "partition-id"  # Flower's simulation names each node's part of the data so
_SAID = "partition"


class PartitionApp(ClientApp):
    """Hands each message to the app of the node's site; pickled as two arguments, so that sending it costs nothing."""

    def __init__(self, folder: str, coordinator_key: bytes) -> None:
        super().__init__()
        self._arguments = folder, coordinator_key
        self._relays: dict[int, ClientApp] = {}

    def __reduce__(self) -> tuple[Callable[[str, bytes], PartitionApp], tuple[str, bytes]]:
        """Loaded once in each actor."""
        return partition_app, self._arguments

    def __call__(self, message: Message, context: Context) -> Message:
        """Answers as the site of this node."""
        partition = int(context.node_config[_PARTITION])
        if message.metadata.message_type == WHO:
            return Message(RecordDict({_SAID: ConfigRecord({_SAID: partition})}), reply_to=message)
        if partition not in self._relays:
            folder, key = self._arguments
            self._relays[partition] = relay(site_daemon(partition, VerifyingKey(key), Path(folder)))
        context.node_config[SITE_KEY] = site_name(partition)
        return self._relays[partition](message, context)


def partition_said(reply: Message) -> int:
    """The partition of the node that answers ``WHO``."""
    said = reply.content.config_records[_SAID][_SAID]
    if not isinstance(said, int):
        raise TypeError(f"a node says that it is partition {said!r}")
    return said


@cache
def partition_app(folder: str, coordinator_key: bytes) -> PartitionApp:
    """The process's one app for these arguments."""
    return PartitionApp(folder, coordinator_key)
