"""Questions and answers as bytes, between processes of one machine.

A frame is a header of fixed length and then the kind, the body, the layout of the arrays and their bytes. Nothing is
unpickled. It is read on the machine that wrote it, by the same version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Self

from fedloop_core.arrays import PackedArrays
from fedloop_core.errors import RunError

__all__ = ["Frame", "receive", "send"]

_HEADER = struct.Struct("=QQHIII")  # message number, node, and lengths of all parts but the last
_LARGEST = 1 << 30  # bytes of a frame: sixteen times the largest parameters of a task's models


@dataclass(frozen=True)
class Frame:
    """One message. What ``kind`` says, and which parts are used, is up to the two sides."""

    number: int
    node: int
    kind: str
    body: bytes = b""
    arrays: PackedArrays | None = None

    def to_bytes(self) -> bytes:
        """As it crosses the pipe."""
        kind = self.kind.encode()
        layout, content = (b"", b"") if self.arrays is None else (self.arrays.layout.encode(), self.arrays.content)
        header = _HEADER.pack(self.number, self.node, len(kind), len(self.body), len(layout), len(content))
        return b"".join((header, kind, self.body, layout, content))

    @classmethod
    def from_bytes(cls, frame: bytes) -> Self:
        """Reads what ``to_bytes`` wrote.

        Raises:
            ValueError: it is something else.
        """
        if len(frame) < _HEADER.size:
            raise ValueError("a frame is too short")
        number, node, *lengths = _HEADER.unpack_from(frame)
        if _HEADER.size + sum(lengths) != len(frame):
            raise ValueError("a frame has another length than it says")
        pieces, start = [], _HEADER.size
        for length in lengths:
            pieces.append(frame[start : start + length])
            start += length
        kind, body, layout, content = pieces
        return cls(number, node, kind.decode(), body, PackedArrays(layout.decode(), content) if layout else None)


def send(connection: Connection, frame: Frame) -> None:
    """Sends a frame.

    Raises:
        RunError: it is too long.
        OSError: nobody reads any more.
    """
    content = frame.to_bytes()
    if len(content) > _LARGEST:
        raise RunError(f"a message of {len(content)} bytes is too long; {_LARGEST} are allowed.")
    connection.send_bytes(content)


def receive(connection: Connection) -> Frame:
    """Waits for a frame.

    Raises:
        EOFError: the other side has ended.
        OSError: the frame is too long, or the other side broke off.
        ValueError: it is not a frame.
    """
    return Frame.from_bytes(connection.recv_bytes(_LARGEST))
