"""Open files of the front's process: as many as the system allows, and fewer connections than that."""

from __future__ import annotations

import logging
import resource

__all__ = ["connections_that_fit", "raise_descriptor_limit"]

_LOG = logging.getLogger(__name__)
_OWN = 256  # SuperLink's connections, callers on the local socket, files, and connections that are just being refused
_FEWEST = 8


def raise_descriptor_limit() -> int:
    """Raises the soft limit of this process to its hard limit, and returns that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_that_fit(wanted: int, descriptors: int) -> int:
    """How many of the ``wanted`` connections leave enough descriptors for everything else."""
    if descriptors == resource.RLIM_INFINITY or wanted <= descriptors - _OWN:
        return wanted
    fitting = max(_FEWEST, descriptors - _OWN)
    _LOG.warning(
        "the process may open %d files: only %d connections are let in, not %d; raise its limit (LimitNOFILE)",
        descriptors,
        min(fitting, wanted),
        wanted,
    )
    return min(fitting, wanted)
