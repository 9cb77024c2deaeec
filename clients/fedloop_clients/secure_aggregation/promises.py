"""What a site has bound itself to, which outlives its process: one update, one transcript, one list of survivors, one release.

Secrets are in memory alone. So a site that was restarted can finish nothing that it had begun, and, with this beside, does
nothing twice.
"""

from __future__ import annotations

from typing import Annotated, Protocol

from pydantic import Field

from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.strict import Strict

__all__ = ["MemoryPromises", "Promise", "Promises"]

_Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class Promise(Strict):
    """Of one round of one run.

    ``number`` is the newest instance that keys were made for. ``transcript`` and ``survivors`` are digests (hex) of what was taken part
    in and of the list that was signed in that instance, empty before. ``update`` (hex) names the one update of the round: that of the
    first instance that was agreed on. ``released``: shares have left, and nothing follows.
    """

    run_id: str
    round: int
    number: int = 0
    update: _Digest = ""
    transcript: _Digest = ""
    survivors: _Digest = ""
    released: bool = False

    @classmethod
    def of(cls, instance: Instance) -> Promise:
        """That of a round in which nothing was promised."""
        return cls(run_id=instance.run_id, round=instance.round)


class Promises(Protocol):
    """Where promises are kept; one site, one keeper."""

    def read(self, instance: Instance) -> Promise:
        """The promise of the instance's round; a fresh one when there is none."""

    def write(self, promise: Promise) -> None:
        """Puts it in the place of the earlier one. When this returns it is on disk: only then does an answer leave."""


class MemoryPromises:
    """Promises of a rehearsal, which does not outlive its process either."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Promise] = {}

    def read(self, instance: Instance) -> Promise:
        """See ``Promises``."""
        return self._kept.get((instance.run_id, instance.round)) or Promise.of(instance)

    def write(self, promise: Promise) -> None:
        """See ``Promises``."""
        self._kept[promise.run_id, promise.round] = promise
