"""Flower's Grid on one machine: the same ServerApp and ClientApps, no Ray, no sockets.

``InProcessGrid`` runs a node's ClientApp in the calling thread when its reply is pulled, so replies come in the order in
which they are pulled and a seeded run is the same every time; ``worker_grid`` runs them in processes. Everything of Flower
that is not public API lives in ``flower_internals``.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedloop_simulations.flower_internals import Run, as_server, set_message_id

__all__ = ["RUN_ID", "InProcessGrid", "LocalGrid", "Node", "Nodes"]

RUN_ID = 1
_CLIENT_APP_RAISED = 2  # flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION
_WAIT = 0.05  # seconds between two looks at replies that have not come


@dataclass(frozen=True)
class Node:
    """A site as the grid sees it: its ClientApp and its node configuration."""

    app: ClientApp
    config: Mapping[str, str]


class Nodes:
    """ClientApps by node id, each with a context of its own that lives as long as this object."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        self._apps = {identifier: node.app for identifier, node in nodes.items()}
        self._contexts = {
            identifier: Context(
                run_id=RUN_ID,
                node_id=identifier,
                node_config=dict(node.config),
                state=RecordDict(),
                run_config={},
            )
            for identifier, node in nodes.items()
        }

    @property
    def identifiers(self) -> list[int]:
        """The node ids, in the order in which the nodes were given."""
        return list(self._apps)

    def answer(self, message: Message) -> Message:
        """Runs the node's app; an app that raises gives an error reply."""
        node = message.metadata.dst_node_id
        try:
            return self._apps[node](message, self._contexts[node])
        except Exception:  # noqa: BLE001  where Flower has a process boundary: a failed app is an error reply
            return Message(Error(_CLIENT_APP_RAISED, "the client app raised an exception"), reply_to=message)


class LocalGrid(Grid):
    """What grids on this machine have in common; a process drives one run at a time, since Flower's identity is its own."""

    def __init__(self) -> None:
        self._sent = 0
        self._run = Run.create_empty(RUN_ID)
        as_server(RUN_ID)

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

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Pushes, then pulls until every reply is there or ``timeout`` seconds have passed."""
        waiting = list(self.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while True:
            replies.extend(self.pull_messages(waiting))
            if len(replies) == len(waiting) or (deadline is not None and time.monotonic() >= deadline):
                return replies
            self.wait(_WAIT)

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Returns when a reply may be there, at the latest after ``seconds``."""

    def _identify(self, message: Message) -> str:
        self._sent += 1
        identifier = f"m{self._sent}"
        set_message_id(message, identifier)
        return identifier


class InProcessGrid(LocalGrid):
    """Runs ClientApps in the calling thread."""

    def __init__(self, nodes: Mapping[int, Node]) -> None:
        super().__init__()
        self._nodes = Nodes(nodes)
        self._waiting: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        """All nodes: in this process everybody is always there."""
        return self._nodes.identifiers

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keeps the messages and returns an id for each."""
        identifiers = []
        for message in messages:
            identifier = self._identify(message)
            self._waiting[identifier] = message
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Runs the ClientApps of these messages now and returns their replies; unknown ids give nothing."""
        return [self._nodes.answer(self._waiting.pop(i)) for i in message_ids if i in self._waiting]

    def wait(self, seconds: float) -> None:
        """Nothing comes by itself, so whoever waits for what was never asked waits all the time."""
        time.sleep(seconds)
