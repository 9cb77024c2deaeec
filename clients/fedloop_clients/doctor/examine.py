"""Runs checks beside one another; one that fails is a finding like any other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from fedloop_clients.doctor.finding import Check, Finding, problem
from fedloop_clients.doctor.scene import Scene
from fedloop_core.errors import FedloopError

__all__ = ["examine"]

_LOG = logging.getLogger(__name__)
_AT_ONCE = 8


def examine(scene: Scene, checks: Sequence[Check]) -> tuple[tuple[str, Finding], ...]:
    """All findings with their checks' names, in the order of the checks."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(lambda check: _look(check, scene), checks))
    return tuple((check.name, finding) for check, own in zip(checks, found, strict=True) for finding in own)


def _look(check: Check, scene: Scene) -> tuple[Finding, ...]:
    try:
        return tuple(check.look(scene))
    except FedloopError as error:
        return (problem(error.message, error.hint or f"See {error.code} in docs/errors.md."),)
    except Exception as error:  # noqa: BLE001  the boundary of a check: the others must be heard
        _LOG.debug("the check %s failed", check.name, exc_info=True)
        said = problem(f"this check itself failed ({type(error).__name__}).", "Report it as a bug of fedloop.")
        return (said,)
