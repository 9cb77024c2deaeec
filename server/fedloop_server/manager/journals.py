"""Reading the journal of a run that another process may be writing: nothing here changes a file."""

from __future__ import annotations

from pathlib import Path

from fedloop_core.errors import ContentDamaged, StorageError
from fedloop_server.runs.events import Event, EventAdapter
from fedloop_server.runs.state import RunState, apply

__all__ = ["JournalReader", "read_events", "read_state"]

_FILE = "journal.jsonl"


class JournalReader:
    """Follows one journal. An unfinished last line counts once its end has come."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._offset = 0
        self._lines = 0
        self.state = RunState()

    def news(self) -> tuple[Event, ...]:
        """The events since the last call; ``state`` is then the state after them.

        Raises:
            ContentDamaged: a line is not the next event; names the line.
            StorageError: the file cannot be read.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                *lines, _ = file.read().split(b"\n")
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StorageError(f"{self._path} cannot be read: {error.strerror}.", hint="Correct rights.") from error
        events = []
        for line in lines:
            try:
                event = EventAdapter.validate_json(line)
                self.state = apply(self.state, event)
            except ValueError as error:
                raise ContentDamaged(
                    f"{self._path}, line {self._lines + 1} is not the next event of this run: "
                    f"{str(error).splitlines()[0]}.",
                    hint="Restore the run's folder from a backup, or start the run anew.",
                ) from error
            events.append(event)
            self._offset += len(line) + 1
            self._lines += 1
        return tuple(events)


def read_events(folder: Path) -> tuple[Event, ...]:
    """Every event of a run so far.

    Raises:
        StorageError: as ``JournalReader.news``.
    """
    return JournalReader(folder).news()


def read_state(folder: Path) -> RunState:
    """The state of a run; one without a journal has not begun.

    Raises:
        StorageError: as ``JournalReader.news``.
    """
    reader = JournalReader(folder)
    reader.news()
    return reader.state
