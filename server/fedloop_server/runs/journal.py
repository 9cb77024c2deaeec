"""The journal of a run: one JSON line for each event, on the disk before the event counts; and the checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedloop_core.arrays import NamedArrays, arrays_from_bytes, arrays_to_bytes
from fedloop_core.durable import append_line, cut_back, write_bytes
from fedloop_core.errors import StorageError
from fedloop_server.runs.room import Room, with_room
from fedloop_server.runs.state import Event, EventAdapter, RunState, apply
from fedloop_server.runs.thinning import thin

__all__ = ["RunJournal"]

T = TypeVar("T")
_KEPT = 2  # checkpoints: the newest, and the one before it should that one be damaged


class RunJournal:
    """The events of one run in ``folder/journal.jsonl`` and its checkpoints beside it.

    ``observe`` is called after each event with the state that it led to. ``room`` is told of a full disk. Without ``durable`` nothing waits for the disk:
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
        """The arrays of a checkpoint, in the order of ``names``.

        Raises:
            StorageError: the file is not there or is damaged.
        """
        try:
            content = (self._folder / file).read_bytes()
        except OSError as error:
            raise StorageError(f"checkpoint {file} of {self._folder.name} cannot be read: {error.strerror}.") from error
        return arrays_from_bytes(content, names)

    def thin(self) -> None:
        """Deletes all checkpoints but those of the last two rounds: the run goes on from the last one."""
        thin(self._folder, frozenset(closed.checkpoint for closed in self.state.rounds[-_KEPT:]))

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
                raise StorageError(
                    f"{self._path}, line {number} is not the next event of this run: {_first_line(error)}.",
                    hint="Restore the run's folder from a backup, or start the run anew.",
                ) from error
        self._length = sum(len(line) + 1 for line in lines)
        if torn:  # the process died while it wrote: an event without its end of line never counted
            write_bytes(self._path, b"".join(line + b"\n" for line in lines))
        return state


def _first_line(error: ValueError) -> str:
    return str(error).splitlines()[0]
