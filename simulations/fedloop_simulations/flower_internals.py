"""The few things of Flower that are not public API and that an in-process grid needs, all in one place.

``Message`` reads the identity of its process from ``TaskIdentity``; message ids are set by the SuperLink into the metadata's
dictionary; ``Run`` is named by the Grid interface. A test fails when Flower moves any of them.
"""

from __future__ import annotations

from flwr.app import Message
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["Run", "as_server", "set_message_id"]

_SERVER_NODE = 1
_TASK = 1


def as_server(run_id: int) -> None:
    """Gives this process the identity under which a ServerApp sends messages."""
    TaskIdentity.run_id = run_id
    TaskIdentity.task_id = _TASK
    TaskIdentity.node_id = _SERVER_NODE


def set_message_id(message: Message, identifier: str) -> None:
    """What the SuperLink does when it takes a message in."""
    message.metadata.__dict__["_message_id"] = identifier
