"""Flower's records in frames, between the process that drives a run and those that run its sites."""

from __future__ import annotations

from flwr.app import ArrayRecord, RecordDict

from fedloop_core.federation.frames import Frame
from fedloop_core.federation.records import pack, parts, record_of

__all__ = ["frame_of", "records_of"]


def frame_of(number: int, node: int, kind: str, content: RecordDict) -> Frame:
    """A frame with the records of a message; ``kind`` is its type in Flower.

    Raises:
        UpdateRefused: the records are not ours.
    """
    return Frame(number, node, kind, *parts(content))


def records_of(frame: Frame) -> RecordDict:
    """The records of the message in a frame."""
    return pack(frame.body, ArrayRecord() if frame.arrays is None else record_of(frame.arrays))
