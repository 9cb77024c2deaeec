"""Messages as bytes and back. One message has one encoding: other bytes for it, and bytes that mean nothing to us, are refused.

The dataclasses of ``messages`` and the protobuf messages have the same names and the same fields.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation import messages
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import MaskedInput
from fedloop_proto.secure_aggregation.v1 import secure_aggregation_pb2

__all__ = ["MOST_BYTES", "decode", "decode_masked", "encode"]

MOST_BYTES = 2**20
"""Of a message without its vector."""

_Kind = TypeVar("_Kind", bound=messages.Question | messages.Answer)


def encode(message: messages.Question | messages.Answer) -> bytes:
    """The bytes of a message; the vector of a ``MaskedInput`` travels beside."""
    return _to_wire(message).SerializeToString(deterministic=True)


def decode(kind: type[_Kind], content: bytes) -> _Kind:
    """Reads a message of the kind that is expected.

    Raises:
        SecureAggregationRefused: the bytes are not exactly the encoding of one.
    """
    read = _from_wire(kind, _parse(kind, content))
    if not isinstance(read, kind):
        raise TypeError(f"{kind.__name__} is none")
    return _canonical(read, content)


def decode_masked(content: bytes, masked: NDArray[np.generic]) -> MaskedInput:
    """Reads a masked vector of ``values + 1`` words and what travels with it.

    Raises:
        SecureAggregationRefused: the bytes are not exactly the encoding of one, or the vector is no flat one of int64.
    """
    instance = _from_wire(Instance, _parse(MaskedInput, content).instance)
    if masked.dtype != np.int64 or masked.ndim != 1:
        raise SecureAggregationRefused("a masked vector is not flat, or not of int64.", reason="format")
    return _canonical(MaskedInput(instance, np.ascontiguousarray(masked).view(np.uint64)), content)


def _canonical(read: _Kind, content: bytes) -> _Kind:
    if encode(read) != content:
        raise SecureAggregationRefused("a message of secure aggregation is not in its one encoding.", reason="format")
    return read


def _parse(kind: Any, content: bytes) -> Any:
    if len(content) > MOST_BYTES:
        raise SecureAggregationRefused(f"a message of secure aggregation has {len(content)} bytes.", reason="size")
    try:
        return _wire(kind).FromString(content)
    except DecodeError as error:
        raise SecureAggregationRefused("a message of secure aggregation cannot be read.", reason="format") from error


def _wire(kind: Any) -> Any:
    return getattr(secure_aggregation_pb2, kind.__name__)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.name != "masked"}


def _to_wire(message: Any) -> Message:
    kind: Any = type(message)
    wire: Any = _wire(kind)()
    for name in _hints(kind):
        value = getattr(message, name)
        if isinstance(value, tuple):
            getattr(wire, name).extend(_to_wire(part) if is_dataclass(part) else part for part in value)
        elif is_dataclass(value):
            getattr(wire, name).CopyFrom(_to_wire(value))
        else:
            setattr(wire, name, value)
    read: Message = wire
    return read


def _from_wire(kind: Any, wire: Any) -> Any:
    values: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        value = getattr(wire, name)
        if get_origin(hint) is tuple:
            part = get_args(hint)[0]
            values[name] = tuple(_from_wire(part, each) if is_dataclass(part) else each for each in value)
        else:
            values[name] = _from_wire(hint, value) if is_dataclass(hint) else value
    return kind(**values)
