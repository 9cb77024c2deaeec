"""A process that owns some of the sites and answers the questions to them, one after another.

A thread takes questions in while a site works, so that the driving process never waits for a site when it sends. When the
pipe ends, because the run is over or the driving process has died, the process ends too.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread

from flwr.app import Message

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.endpoint import SiteEndpoint
from fedloop_core.errors import FedloopError
from fedloop_core.federation.frames import Frame, receive, send
from fedloop_simulations.flower_internals import as_server, set_message_id
from fedloop_simulations.grid import RUN_ID, Node, Nodes
from fedloop_simulations.record_frames import frame_of, records_of

__all__ = ["ANSWER", "FAILED", "READY", "SiteFactory", "serve"]

SiteFactory = Callable[[str], SiteEndpoint]
READY = "ready"  # kinds of frames that a worker sends
FAILED = "failed"  # its sites could not be made; the body says why
ANSWER = "answer"  # any other kind is the code of an error
_CRASHED = "8"  # flwr.common.constant.ErrorCode.CLIENT_APP_CRASHED


def serve(connection: Connection, sites: Mapping[int, str], factory: SiteFactory) -> None:
    """Runs until the pipe ends. ``sites`` are names by node id."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the driving process, which ends the pipe
    as_server(RUN_ID)  # whoever makes messages in Flower needs an identity
    try:
        nodes = Nodes({node: Node(relay(factory(name)), {SITE_KEY: name}) for node, name in sites.items()})
    except Exception as error:  # noqa: BLE001  a process boundary: the driving process raises it by its text
        send(connection, Frame(0, 0, FAILED, f"{type(error).__name__}: {error}".encode()))
        return
    inbox: SimpleQueue[Frame | None] = SimpleQueue()
    Thread(target=_take_in, args=(connection, inbox), daemon=True).start()
    try:
        send(connection, Frame(0, 0, READY))
        while (question := inbox.get()) is not None:
            _answer(connection, nodes, question)
    except OSError:  # nobody reads any more
        return


def _take_in(connection: Connection, inbox: SimpleQueue[Frame | None]) -> None:
    try:
        while True:
            inbox.put(receive(connection))
    except (EOFError, OSError):
        inbox.put(None)


def _answer(connection: Connection, nodes: Nodes, question: Frame) -> None:
    message = Message(records_of(question), question.node, question.kind)
    set_message_id(message, str(question.number))
    reply = nodes.answer(message)
    if reply.has_error():
        send(connection, Frame(question.number, question.node, str(reply.error.code)))
        return
    try:
        send(connection, frame_of(question.number, question.node, ANSWER, reply.content))
    except FedloopError:  # too long, or not ours
        send(connection, Frame(question.number, question.node, _CRASHED))
