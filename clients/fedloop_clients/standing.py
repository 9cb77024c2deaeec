"""What a person at the site has asked of the daemon while it runs: to pause, or to leave the federation."""

from __future__ import annotations

from pathlib import Path

from fedloop_clients.state_file import StateFile
from fedloop_core.strict import Strict

__all__ = ["FILE_NAME", "Standing", "StandingFile"]

FILE_NAME = "standing.json"


class Standing(Strict):
    """Pause and leave, beside the same words of the policy in site.toml: either is enough."""

    paused: bool = False
    leaving: bool = False


class StandingFile:
    """``standing.json`` in a site's home; the daemon notices each change before the next question."""

    def __init__(self, path: Path | None) -> None:
        self._file = StateFile(path, Standing())

    def read(self) -> Standing:
        """What holds now.

        Raises:
            StorageError: the file cannot be read.
        """
        return self._file.read()

    def pause(self, paused: bool) -> None:
        """Pauses, or goes on.

        Raises:
            StorageError: the file cannot be written.
        """
        self._file.change(lambda standing: standing.model_copy(update={"paused": paused}))

    def leave(self) -> None:
        """Takes no further part; the daemon says so to the coordinator, which marks the site as one that has left.

        Raises:
            StorageError: the file cannot be written.
        """
        self._file.change(lambda standing: standing.model_copy(update={"leaving": True}))

    def come_back(self) -> None:
        """Takes part again, after a site that had left has joined anew.

        Raises:
            StorageError: the file cannot be read or written.
        """
        if self.read().leaving:
            self._file.change(lambda standing: standing.model_copy(update={"leaving": False}))
