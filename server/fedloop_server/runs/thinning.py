"""Old checkpoints and unmasked sums: what no resume needs any more is deleted after a round, unless a backup is being written.

Both lock the folder itself, so that it does not matter as whom a backup runs: it needs to be able to read, no more.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["nothing_is_thinned", "thin"]

_LOG = logging.getLogger(__name__)

# Of a sum its lines before its vector, so that what is left of an end in between is nothing; and what an end in mid-write has left.
_PATTERNS = ("unmasking-*.jsonl", "unmasking-*.masked", ".unmasking-*.part", "round-*.safetensors")


@contextmanager
def nothing_is_thinned(runs: Path) -> Iterator[None]:
    """No checkpoint of any run in this folder is deleted for the length of the block; waits for a deletion to end.

    Raises:
        OSError: the folder cannot be read.
    """
    if not runs.exists():
        yield
        return
    descriptor = os.open(runs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def thin(run: Path, kept: frozenset[str]) -> int:
    """Deletes the checkpoints of a run but those that are named, and its sums; returns how many files went, none while a backup is written.

    What cannot be deleted stays, and is told in the log: nothing depends on it.
    """
    gone = 0
    try:
        descriptor = os.open(run.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in (found for pattern in _PATTERNS for found in run.glob(pattern)):
                if path.name not in kept:
                    path.unlink()
                    gone += 1
        finally:
            os.close(descriptor)
    except BlockingIOError:
        _LOG.info("the old checkpoints of %s stay for now: a backup is being written, or another run's go", run.name)
    except OSError as error:
        _LOG.warning("old checkpoints of %s stay: %s", run, error.strerror)
    return gone
