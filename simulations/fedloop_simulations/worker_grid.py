"""Flower's Grid over worker processes of this machine, each of which owns part of the sites.

Sites train on all cores while the run is driven. A site stays with its worker, so what its daemon keeps in memory is that of
one process. Sums are exact whatever the order of answers, so a seeded run ends with the same weights as in process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from selectors import EVENT_READ, DefaultSelector
from types import TracebackType
from typing import Self

from flwr.app import Message

from fedloop_core.errors import RunError
from fedloop_simulations.grid import LocalGrid
from fedloop_simulations.site_worker import SiteFactory
from fedloop_simulations.worker_process import WorkerProcess

__all__ = ["WorkerGrid"]

_READY_WITHIN = 120.0  # seconds for a worker to load its libraries and to make its sites


class WorkerGrid(LocalGrid):
    """Starts the workers; leave it as a context manager to end them.

    A worker that dies gives error replies for whatever its sites were asked, and its nodes are gone.

    Args:
        names: names of the sites by node id; they are dealt to the workers in turn.
        factory: makes a site from its name, in the worker. It is pickled, so it is a function of a module or an object of
            such a class.
        workers: number of processes; more than there are sites are not started.

    Raises:
        RunError: a worker could not make its sites.
    """

    def __init__(self, names: Mapping[int, str], factory: SiteFactory, workers: int) -> None:
        super().__init__()
        nodes = list(names)
        shares = [nodes[first::workers] for first in range(min(workers, len(nodes)))]
        self._selector = DefaultSelector()
        self._workers = [WorkerProcess({node: names[node] for node in share}, factory) for share in shares]
        self._worker_of = {node: self._workers[at % workers] for at, node in enumerate(nodes)}
        self._arrived: dict[str, Message] = {}
        self._news = False  # whether anything has arrived since the last wait
        try:
            for worker in self._workers:
                worker.wait_until_ready(_READY_WITHIN)
                self._selector.register(worker.connection, EVENT_READ, worker)
        except RunError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers; one that is still busy after some seconds is killed."""
        self._selector.close()
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def get_node_ids(self) -> Iterable[int]:
        """The nodes whose workers live."""
        return [node for node, worker in self._worker_of.items() if worker.alive]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends each message at once, and returns an id for each.

        Raises:
            RunError: no worker is left, or a message is too long.
        """
        identifiers = []
        for message in messages:
            if not any(worker.alive for worker in self._workers):
                raise RunError("all worker processes have ended, so no site is left.", hint="See the log for why.")
            identifier = self._identify(message)
            worker = self._worker_of[message.metadata.dst_node_id]
            if worker.alive:
                worker.ask(self._sent, message)
            else:
                self._arrive([worker.refuse(message)])
            identifiers.append(identifier)
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies to these messages that have arrived; it does not wait."""
        while self._read(0.0):
            pass
        return [self._arrived.pop(i) for i in message_ids if i in self._arrived]

    def wait(self, seconds: float) -> None:
        """Returns when a reply has arrived since the last call, at the latest after ``seconds``."""
        if not self._news:
            self._read(seconds)
        self._news = False

    def _read(self, seconds: float) -> bool:
        """Takes in the next reply of each worker that has one; whether there was any."""
        ready = self._selector.select(seconds)
        for key, _ in ready:
            worker: WorkerProcess = key.data
            self._arrive(worker.take_replies())
            if not worker.alive:
                self._selector.unregister(worker.connection)
        return bool(ready)

    def _arrive(self, replies: Iterable[Message]) -> None:
        for reply in replies:
            self._arrived[reply.metadata.reply_to_message_id] = reply
            self._news = True
