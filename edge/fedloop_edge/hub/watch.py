"""Tells open streams of new releases: one thread waits at the source, however many devices watch."""

from __future__ import annotations

import threading

from fedloop_edge.hub.source import ReleaseSource

__all__ = ["RevisionBoard"]

_POLL_SECONDS = 0.5


class RevisionBoard:
    """The newest revision, for any number of waiting threads; starts its own thread with the first of them."""

    def __init__(self, source: ReleaseSource) -> None:
        self._source = source
        self._changed = threading.Condition()
        self._revision = source.revision()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        """Whether the hub is stopping."""
        return self._closed

    def wait(self, known: int, timeout: float) -> int:
        """Waits until the revision is above ``known``, the board closes, or ``timeout`` seconds have passed."""
        with self._changed:
            if self._thread is None and not self._closed:
                self._revision = self._source.revision()
                self._thread = threading.Thread(target=self._follow, name="revision-board", daemon=True)
                self._thread.start()
            self._changed.wait_for(lambda: self._closed or self._revision > known, timeout)
            return self._revision

    def close(self) -> None:
        """Wakes everyone up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _follow(self) -> None:
        known = self._revision
        while not self._closed:
            newest = self._source.wait_for_revision(known, _POLL_SECONDS)
            if newest > known:
                known = newest
                with self._changed:
                    self._revision = newest
                    self._changed.notify_all()
