"""What the front knows of Flower's fleet messages, in one place: a test fails when Flower moves any of it.

flwr 1.42: fleet calls are POST requests with one serialised protobuf message; a SuperNode names itself by headers.
"""

from __future__ import annotations

import datetime as dt
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
    load_ssh_public_key,
)
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest, PushObjectResponse
from google.protobuf.message import DecodeError

__all__ = [
    "CLOCK_AHEAD_SECONDS",
    "CLOCK_BEHIND_SECONDS",
    "DELIVERY_CALLS",
    "FLEET_CALLS",
    "KEY_HEADER",
    "PREFIX",
    "PULL_MESSAGES",
    "PUSH_MESSAGES",
    "PUSH_OBJECT",
    "SIGNATURE_HEADER",
    "TIME_HEADER",
    "Announcement",
    "ObjectPushed",
    "holds_messages",
    "key_header",
    "load_node_key",
    "read_announcement",
    "read_object",
    "signed",
    "signed_unix",
    "wanted_objects",
    "was_stored",
]

PREFIX = b"/v1/fleet/"
PULL_MESSAGES = PREFIX + b"pull-messages"
PUSH_MESSAGES = PREFIX + b"push-messages"
PUSH_OBJECT = PREFIX + b"push-object"
DELIVERY_CALLS = frozenset({PREFIX + b"pull-object", PREFIX + b"confirm-message-received"})
"""By which a SuperNode fetches a message that it has begun to work on."""
FLEET_CALLS = frozenset(
    PREFIX + name
    for name in (
        b"activate-node",
        b"deactivate-node",
        b"send-node-heartbeat",
        b"pull-messages",
        b"push-messages",
        b"get-run",
        b"get-fab",
        b"push-object",
        b"pull-object",
        b"confirm-message-received",
    )
)
"""What a SuperNode with a key of its own calls. It never registers itself: the coordinator does, over the Control API."""

KEY_HEADER = b"flwr-public-key"
SIGNATURE_HEADER = b"flwr-signature"
TIME_HEADER = b"flwr-timestamp"
CLOCK_AHEAD_SECONDS = 5.0  # SuperLink refuses signatures from further in the future
CLOCK_BEHIND_SECONDS = 300.0  # SuperLink allows 305


@dataclass(frozen=True)
class ObjectPushed:
    """One object of a reply: its id and the length of its content."""

    object_id: str
    size: int


@dataclass(frozen=True)
class Announcement:
    """A reply that is about to be sent: the id of the message that it answers, and those of its objects."""

    answers: str
    objects: frozenset[str]


def load_node_key(content: bytes) -> ec.EllipticCurvePublicKey:
    """A node's public key from OpenSSH, PEM or DER.

    Raises:
        ValueError: it is none of these, or not an elliptic-curve key.
    """
    if content.startswith((b"ecdsa-", b"ssh-")):
        load: Callable[[bytes], object] = load_ssh_public_key
    elif content.lstrip().startswith(b"-----BEGIN"):
        load = load_pem_public_key
    else:
        load = load_der_public_key
    key = load(content)
    if isinstance(key, ec.EllipticCurvePublicKey):
        return key
    raise ValueError("a node key is not an elliptic-curve key")


def key_header(key: ec.EllipticCurvePublicKey) -> bytes:
    """The key as a SuperNode sends it: base64 of its PEM."""
    return b64encode(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))


def signed(key: ec.EllipticCurvePublicKey, timestamp: bytes, signature: bytes) -> bool:
    """Whether the key signed the timestamp, as a SuperNode does for each call."""
    try:
        key.verify(signature, timestamp, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def signed_unix(timestamp: bytes) -> float:
    """Unix time that a SuperNode's timestamp says.

    Raises:
        ValueError: it is not a time with a zone.
    """
    moment = dt.datetime.fromisoformat(timestamp.decode("ascii"))
    if moment.tzinfo is None:
        raise ValueError("a timestamp has no zone")
    return moment.timestamp()


def holds_messages(content: bytes) -> bool:
    """Whether an answer to pull-messages brings any message; what cannot be read is passed on as if it did."""
    try:
        return bool(PullMessagesResponse.FromString(content).messages_list)
    except DecodeError:
        return True


def read_announcement(content: bytearray, limit: int) -> Announcement:
    """What a push-messages request announces; at most ``limit`` + 1 objects are collected.

    Raises:
        ValueError: the request cannot be read, or does not bring one message with one tree.
    """
    try:
        request = PushMessagesRequest.FromString(bytes(content))
    except DecodeError as error:
        raise ValueError("a push-messages request cannot be read") from error
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise ValueError("a push-messages request does not bring one message with one tree")
    found: set[str] = set()
    rest: list[ObjectTree] = [request.message_object_trees[0]]
    while rest and len(found) <= limit:
        tree = rest.pop()
        found.add(tree.object_id)
        rest.extend(tree.children)
    return Announcement(request.messages_list[0].metadata.reply_to_message_id, frozenset(found))


def wanted_objects(content: bytes) -> frozenset[str]:
    """Ids of the objects that SuperLink still wants, from its answer to push-messages.

    Raises:
        ValueError: the answer cannot be read.
    """
    try:
        return frozenset(PushMessagesResponse.FromString(content).objects_to_push)
    except DecodeError as error:
        raise ValueError("an answer to push-messages cannot be read") from error


def was_stored(content: bytes) -> bool:
    """Whether SuperLink took an object, from its answer to push-object."""
    try:
        return PushObjectResponse.FromString(content).stored
    except DecodeError:
        return False


def read_object(content: bytearray) -> ObjectPushed:
    """Id and size of the object in a push-object request.

    Raises:
        ValueError: the request cannot be read, or names no object.
    """
    try:
        request = PushObjectRequest.FromString(content)  # type: ignore[arg-type]  # it takes any buffer
    except DecodeError as error:
        raise ValueError("a push-object request cannot be read") from error
    if not request.object_id:
        raise ValueError("a push-object request names no object")
    return ObjectPushed(request.object_id, len(request.object_content))
