"""The journal of a run: one JSON line for each event, on the disk before the event counts; and the checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays, arrays_from_bytes, arrays_to_bytes, digest
from fedloop_core.durable import append_line, cut_back, write_bytes
from fedloop_core.errors import ContentDamaged, StorageError
from fedloop_server.runs.events import Event, EventAdapter
from fedloop_server.runs.room import Room, with_room
from fedloop_server.runs.state import RunState, apply
from fedloop_server.runs.sums import KeptSums
from fedloop_server.runs.thinning import thin

__all__ = ["RunJournal"]

T = TypeVar("T")
_KEPT = (
    2  # checkpoints: the newest, and the one before it, from which a round is trained again should that one be damaged
)


class RunJournal:
    """The events of one run in ``folder/journal.jsonl`` and its checkpoints beside it.

    ``observe`` is called after each event with the state that it led to. ``room`` is told of a disk that fails. Without ``durable`` nothing waits for the disk:
    for rehearsals that nobody resumes after a power cut.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durable: bool = True,
        observe: Callable[[RunState, Event], None] | None = None,
        room: Room | None = None,
    ) -> None:
        self._folder = folder
        self._path = folder / "journal.jsonl"
        self._durable = durable
        self._observe = observe
        self._room = room
        self._length = 0  # bytes of the events that count
        self._doubtful = False  # whether a failed append may have left more than these
        self.sums = KeptSums(folder, durable=durable, patiently=self.patiently)
        self.state = self._replay()

    def record(self, event: Event) -> RunState:
        """Applies an event, stores it, and returns the new state.

        Raises:
            StorageError: the event cannot be written; it does not count, and another may follow.
            ValueError: the event cannot come here.
        """
        state = apply(self.state, event)
        line = event.model_dump_json()
        self.patiently(lambda: self._append(line))
        self._length += len(line.encode()) + 1
        self.state = state
        if self._observe is not None:
            self._observe(state, event)
        return state

    def patiently(self, write: Callable[[], T]) -> T:
        """Does what is to be written beside an event, and waits for room as the journal itself does.

        Raises:
            StorageError: it cannot be written.
        """
        return with_room(write, self._room)

    def save_checkpoint(self, name: str, arrays: NamedArrays) -> str:
        """Stores arrays under a name and returns the file's name.

        Raises:
            StorageError: they cannot be written.
        """
        file = f"{name}.safetensors"
        content = arrays_to_bytes(arrays)
        if self._durable:
            self.patiently(lambda: write_bytes(self._folder / file, content))
        else:  # the attempt's first event made the folder
            (self._folder / file).write_bytes(content)
        return file

    def load_checkpoint(self, file: str, names: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
        """The arrays of a checkpoint, in the order of ``names``; they are those that its event names, bit by bit.

        Raises:
            ContentDamaged: the file is not there, or holds something else.
            StorageError: it cannot be read.
        """
        path = self._folder / file
        hint = f"Put {path} back from a backup, then: fedloop run resume {self._folder.name}"
        try:
            arrays = arrays_from_bytes(path.read_bytes(), names)
        except FileNotFoundError as error:
            raise ContentDamaged(f"checkpoint {file} of run {self._folder.name} is not there.", hint=hint) from error
        except OSError as error:
            raise StorageError(
                f"checkpoint {file} of run {self._folder.name} cannot be read: {error.strerror}.",
                hint="Correct rights.",
            ) from error
        except StorageError as error:
            why = error.message.rstrip(".")
            raise ContentDamaged(
                f"checkpoint {file} of run {self._folder.name} is damaged: {why}.", hint=hint
            ) from error
        wanted = self._digests().get(file, "")
        if wanted and digest(arrays).hex() != wanted:
            raise ContentDamaged(
                f"checkpoint {file} of run {self._folder.name} is damaged: it holds other arrays than its round closed with.",
                hint=hint,
            )
        return arrays

    def thin(self) -> None:
        """Deletes what no resume needs: all checkpoints but the last two, and sums that were unmasked."""
        thin(self._folder, frozenset(tuple(self._digests())[-_KEPT:]))

    def _digests(self) -> dict[str, str]:
        """Digest of each checkpoint that counts, in their order; empty where an earlier release noted none."""
        beginning = () if self.state.beginning is None else (self.state.beginning,)
        return {event.checkpoint: event.digest for event in (*beginning, *self.state.rounds)}

    def _append(self, line: str) -> None:
        if self._doubtful:
            cut_back(self._path, self._length)
        self._doubtful = True
        append_line(self._path, line, sync=self._durable)
        self._doubtful = False

    def _replay(self) -> RunState:
        state = RunState()
        if not self._path.exists():
            return state
        *lines, torn = self._path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                state = apply(state, EventAdapter.validate_json(line))
            except ValueError as error:  # pydantic's ValidationError is one
                raise ContentDamaged(
                    f"{self._path}, line {number} is not the next event of this run: {_first_line(error)}.",
                    hint="Restore the run's folder from a backup, or start the run anew.",
                ) from error
        self._length = sum(len(line) + 1 for line in lines)
        if torn:  # the process died while it wrote: an event without its end of line never counted
            write_bytes(self._path, b"".join(line + b"\n" for line in lines))
        return state


def _first_line(error: ValueError) -> str:
    return str(error).splitlines()[0]
