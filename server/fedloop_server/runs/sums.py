"""Sums that are about to be unmasked, beside the journal: what another process needs to finish the very same one.

Sites release their shares once for each round. So before they are asked, ``unmasking-N.masked`` (the masked sum, uint64 little-endian)
and then ``unmasking-N.jsonl`` are on the disk: a first line with all else that is needed and the digest of the sum, and a line for each
answer as it comes. Each line has a digest. When the round is safe both are deleted. Whoever reads them learns what the coordinator may
learn: the sum, no part of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from fedloop_core.durable import append_line, cut_back, write_secret
from fedloop_core.errors import StorageError
from fedloop_core.strict import Strict
from fedloop_server.runs.events import Measured, SiteSpend, SiteTook
from fedloop_server.secure_aggregation.unmaskable import Unmaskable

__all__ = ["FoundSum", "Gathered", "KeptSums"]

_LOG = logging.getLogger(__name__)


class Gathered(Strict):
    """What a round knew when its sum was kept: who was asked, who has trained, and what they told beside their updates."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    measured: tuple[Measured, ...] = ()
    spends: tuple[SiteSpend, ...] = ()
    took: tuple[SiteTook, ...] = ()


class _Line(Strict):
    """``digest`` is the SHA-256 of ``body``, which is JSON itself."""

    digest: str
    body: str

    @classmethod
    def of(cls, body: Strict) -> str:
        text = body.model_dump_json()
        return cls(digest=hashlib.sha256(text.encode()).hexdigest(), body=text).model_dump_json()

    @classmethod
    def body_of(cls, line: bytes) -> str:
        """Raises ValueError where it is not what was written."""
        read = cls.model_validate_json(line)
        if hashlib.sha256(read.body.encode()).hexdigest() != read.digest:
            raise ValueError("it is another body than its digest names")
        return read.body


class _Kept(Strict):
    """``masked`` is the SHA-256 of the masked sum."""

    sum: Unmaskable
    gathered: Gathered
    masked: str


class _Answered(Strict):
    """A site's answer as it was sent."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    site: str
    answer: bytes


@dataclass(frozen=True, eq=False)
class FoundSum:
    """What an earlier process has left of a round; ``answers`` are encoded ``Unmasking``, by site."""

    sum: Unmaskable
    gathered: Gathered
    masked: NDArray[np.uint64]
    answers: dict[str, bytes]


class KeptSums:
    """The sums of one run, in its folder; ``patiently`` waits for room on the disk. Without ``durable`` nothing waits for the disk."""

    def __init__(self, folder: Path, *, durable: bool, patiently: Callable[[Callable[[], None]], None]) -> None:
        self._folder = folder
        self._durable = durable
        self._patiently = patiently

    def keep(self, kept: Unmaskable, gathered: Gathered, masked: NDArray[np.uint64]) -> None:
        """Keeps what unmasking needs, in place of what there was of this round; only after this may shares be asked for.

        Raises:
            StorageError: it cannot be written.
        """
        words = np.ascontiguousarray(masked.astype("<u8", copy=False)).data.cast("B")
        line = _Line.of(_Kept(sum=kept, gathered=gathered, masked=hashlib.sha256(words).hexdigest()))
        self._patiently(lambda: write_secret(self._masked(kept.round), words, sync=self._durable))
        self._patiently(lambda: write_secret(self._lines(kept.round), line.encode() + b"\n", sync=self._durable))

    def add(self, round_number: int, site: str, answer: bytes) -> None:
        """Keeps a site's answer.

        Raises:
            StorageError: it cannot be written. The site gives the same again.
        """
        line = _Line.of(_Answered(site=site, answer=answer))
        self._patiently(lambda: append_line(self._lines(round_number), line, sync=self._durable))

    def find(self, round_number: int) -> FoundSum | None:
        """What there is of a round; None: nothing, or what there is is damaged. Whatever is behind a torn line is cut off.

        Raises:
            StorageError: it cannot be read.
        """
        path = self._lines(round_number)
        try:
            head, *rest = path.read_bytes().split(b"\n")
            kept = _Kept.model_validate_json(_Line.body_of(head))
            masked = np.fromfile(self._masked(round_number), dtype="<u8").astype(np.uint64, copy=False)
            if kept.sum.round != round_number or hashlib.sha256(masked.data).hexdigest() != kept.masked:
                raise ValueError("the masked sum is another one than its digest names")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}.", hint="Correct rights.") from error
        except ValueError as error:  # pydantic's ValidationError is one
            _LOG.warning("what was kept of a sum in %s is damaged: %s", path, str(error).splitlines()[0])
            return None
        good = list(_read(rest))
        cut_back(path, len(head) + 1 + sum(length for _, length in good))
        return FoundSum(kept.sum, kept.gathered, masked, {read.site: read.answer for read, _ in good})

    def _masked(self, round_number: int) -> Path:
        return self._folder / f"unmasking-{round_number}.masked"

    def _lines(self, round_number: int) -> Path:
        return self._folder / f"unmasking-{round_number}.jsonl"


def _read(lines: list[bytes]) -> Iterator[tuple[_Answered, int]]:
    """The answers up to the first that is not whole, each with the length of its line. What follows the last end of line never counted."""
    for line in lines[:-1]:
        try:
            yield _Answered.model_validate_json(_Line.body_of(line)), len(line) + 1
        except ValueError:
            return
