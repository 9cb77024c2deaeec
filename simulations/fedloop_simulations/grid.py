"""Flower's Grid in one process: the same ServerApp and ClientApps, no Ray, no sockets.

A pushed message runs its node's ClientApp when its reply is pulled, so replies come in the order in which they are pulled
and a seeded run is the same every time. Everything of Flower that is not public API lives in ``flower_internals``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedloop_simulations.flower_internals import Run, as_server, set_message_id

__all__ = ["InProcessGrid", "Node"]

_CLIENT_APP_RAISED = 2  # flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
_RUN_ID = 1


@dataclass(frozen=True)
class Node:
    """A site as the grid sees it: its ClientApp and its node configuration."""

    app: ClientApp
    config: Mapping[str, str]


class InProcessGrid(Grid):
    """Runs ClientApps in the calling thread, each with a context of its own that lives as long as the grid."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self._nodes = dict(nodes)
        self._contexts = {
            identifier: Context(
                run_id=_RUN_ID,
                node_id=identifier,
                node_config=dict(node.config),
                state=RecordDict(),
                run_config={},
            )
            for identifier, node in self._nodes.items()
        }
        self._waiting: dict[str, Message] = {}
        self._sent = 0
        self._run = Run.create_empty(_RUN_ID)
        as_server(_RUN_ID)
        self.seconds_in_clients = 0.0

    def set_run(self, run: Run) -> None:
        """Takes over the run's description; the run id of messages stays this grid's."""
        self._run = run

    @property
    def run(self) -> Run:
        """Description of the run."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message to a node; Flower's own constructor does the same."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """All nodes: in this process everybody is always there."""
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keeps the messages and returns an id for each."""
        identifiers = []
        for message in messages:
            self._sent += 1
            identifier = f"m{self._sent}"
            set_message_id(message, identifier)
            self._waiting[identifier] = message
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Runs the ClientApps of these messages now and yields their replies; unknown ids yield nothing."""
        return [self._reply(self._waiting.pop(i)) for i in message_ids if i in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:  # noqa: ARG002
        """Push, then pull all."""
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Message) -> Message:
        node = self._nodes[message.metadata.dst_node_id]
        started = time.perf_counter()
        try:
            return node.app(message, self._contexts[message.metadata.dst_node_id])
        except Exception:  # noqa: BLE001  where Flower has a process boundary: a failed app is an error reply
            return Message(Error(_CLIENT_APP_RAISED, "the client app raised an exception"), reply_to=message)
        finally:
            self.seconds_in_clients += time.perf_counter() - started
