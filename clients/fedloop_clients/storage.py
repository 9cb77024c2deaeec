"""Failures of a site's stores, told by their own names."""

from __future__ import annotations

import sqlite3
from types import TracebackType

from fedloop_core.errors import StorageError

__all__ = ["StorageErrors"]


class StorageErrors:
    """Around every use of a store's file: SQLite's and the system's errors become ``StorageError``.

    A class and no generator, and one object for a store's life: a site enters it several times for each answer.

    Args:
        store: what is used, as the message names it.
        hint: what to do when it fails.
    """

    def __init__(self, store: str, hint: str) -> None:
        self._store = store
        self._hint = hint

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Translates what was raised.

        Raises:
            StorageError: the store's file failed.
        """
        if isinstance(error, sqlite3.Error | OSError):
            raise StorageError(f"{self._store}: {error}.", hint=self._hint) from error
