"""The relay: a Flower ClientApp that hands each question to the site daemon and returns what it answers.

It imports no torch, holds no data and decides nothing: the daemon trusts neither it nor whoever sent the message, it acts
on signed envelopes alone.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedloop_clients.endpoint import Question, SiteEndpoint
from fedloop_clients.socket_endpoint import endpoint_from_environment
from fedloop_core.federation.records import DESCRIBE, MOMENTS, array_record, pack, unpack

__all__ = ["SITE_KEY", "app", "relay"]

SITE_KEY = "site"  # the key of a node's configuration that holds the site's name


def relay(endpoint: SiteEndpoint) -> ClientApp:
    """A ClientApp in front of one site's endpoint."""
    relaying = ClientApp()

    def answer(message: Message, context: Context) -> Message:  # noqa: ARG001  Flower calls with both
        envelope, arrays = unpack(message.content)
        reply = endpoint.answer(Question(envelope, arrays))
        return Message(pack(reply.answer, array_record(reply.arrays)), reply_to=message)

    relaying.query(DESCRIBE.split(".")[1])(answer)
    relaying.query(MOMENTS.split(".")[1])(answer)
    relaying.train()(answer)
    relaying.evaluate()(answer)
    return relaying


app = relay(endpoint_from_environment())  # Flower finds it here: the bundle names this module
