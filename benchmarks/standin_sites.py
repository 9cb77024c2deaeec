"""Sites without processes: many of them in one process, with keys, certificates and signatures of their own.

Each has joined by the real procedure and speaks Flower's fleet calls through the front as a SuperNode does, with Flower's own
connection. What they answer is made up: an update of small numbers, as large as the model. At most ``AT_ONCE`` of them
send at a time, as sites on real lines do not all arrive in the same second.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_connection import http_request_response
from numpy.typing import NDArray

from fedloop_clients.app import relay
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.home import SiteHome
from fedloop_clients.joining import join
from fedloop_core.arrays import digest
from fedloop_core.errors import CoordinatorUnreachable
from fedloop_core.federation.answers import sign_answer
from fedloop_core.federation.join import JoinToken
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey
from fedloop_core.scaling import SCALER_DEVIATION, SCALER_MEAN
from fedloop_proto.coordination.v1.coordination_pb2 import (
    Answer,
    DataDescription,
    Envelope,
    Instruction,
    LocalUpdate,
    LogHead,
)

__all__ = ["AT_ONCE", "StandInSites"]

AT_ONCE = 2
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Endpoint:
    """Answers every question as a site with 100 rows would that learned something small."""

    site: str
    number: int
    key: SigningKey

    def answer(self, question: Question) -> Reply:
        body = Envelope.FromString(question.envelope).instruction
        instruction = Instruction.FromString(body)
        answer = Answer(
            run_id=instruction.run_id,
            attempt=instruction.attempt,
            round=instruction.round,
            site=self.site,
            instruction_digest=hashlib.sha256(body).digest(),
            protocol=PROTOCOL,
            ledger=LogHead(sequence=1, digest=bytes(32)),
            audit=instruction.audit,
        )
        arrays: Mapping[str, NDArray[np.generic]] = {}
        if instruction.HasField("describe_data"):
            answer.data_description.CopyFrom(DataDescription(admitted=True, rows=100, data_fingerprint=bytes(32)))
        else:
            answer.local_update.CopyFrom(LocalUpdate(weight=1, steps=1))
            step = np.float32(1e-6 * (self.number + 1))
            arrays = {
                name: np.full(array.shape, step, array.dtype)
                for name, array in question.arrays.items()
                if name not in {SCALER_MEAN, SCALER_DEVIATION}
            }
        answer.arrays_digest = digest(arrays)
        return Reply(sign_answer(answer, self.key), arrays)


def _join(token: str, home: SiteHome) -> None:
    """Joins; the front lets one network join thirty times at once, and then every other second."""
    for pause in (2.0,) * 30:
        try:
            join(JoinToken.parse(token), home, proxy=None, confirm=lambda _token: True)
        except CoordinatorUnreachable:
            time.sleep(pause)
        else:
            return
    raise TimeoutError(f"{home.folder.name} could not join within a minute")


class StandInSites:
    """Sites that answer until the block ends.

    Args:
        folder: where their keys lie.
        tokens: a join token for each site, by name.
    """

    def __init__(self, folder: Path, tokens: Mapping[str, str]) -> None:
        self._homes = {site: SiteHome(folder / site) for site in tokens}
        for site, text in tokens.items():
            _join(text, self._homes[site])
        self._turn = threading.BoundedSemaphore(AT_ONCE)
        self._identity = threading.Lock()  # Flower keeps a process's identity in a class
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(site, number), name=site, daemon=True)
            for number, site in enumerate(sorted(tokens))
        ]

    def __enter__(self) -> Self:
        """They have joined; ``connect`` is for when Flower knows their keys."""
        return self

    def connect(self) -> None:
        """Connects them all, as SuperNodes do."""
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        """Lets each end after its open call."""
        self._over.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(30)

    def _work(self, site: str, number: int) -> None:
        home = self._homes[site]
        key = load_ssh_private_key(home.node_key.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"the node key of {site} is none of an elliptic curve")
        app = relay(_Endpoint(site, number, home.signing_key()))
        address = home.membership().fleet_address
        with ExitStack() as stack:
            node, receive, send, _, _, pull, push, confirm = stack.enter_context(
                http_request_response(
                    address,
                    insecure=False,
                    root_certificates=str(home.authorities),
                    authentication_keys=(key, key.public_key()),
                )
            )
            while not self._over.is_set():
                received = receive()
                if received is None:
                    time.sleep(0.2)
                    continue
                message, tree = received
                run = message.metadata.run_id
                with self._turn:
                    question = pull_and_inflate_object_from_tree(
                        tree,
                        lambda identifier, run=run: pull(run, identifier),  # type: ignore[misc]
                        lambda identifier, run=run: confirm(run, identifier),  # type: ignore[misc]
                        return_type=Message,
                    )
                    question.metadata.__dict__["_message_id"] = tree.object_id
                    with self._identity:
                        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = run, 1, node
                        context = Context(run, node, {}, RecordDict(), {})
                        reply = app(question, context)
                        reply.metadata.__dict__["_message_id"] = reply.object_id
                    wanted, session = send(reply, get_object_tree(reply), 0.1)
                    objects = get_all_nested_objects(reply)
                    for identifier in wanted:
                        push(run, session, identifier, objects[identifier].deflate())
                    del question, reply, objects
