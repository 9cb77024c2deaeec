"""Where our rounds spend their time.

Functions are wrapped from outside, in a run of its own, so that the figure that is compared with others is not disturbed.
A call inside another timed call belongs to the outer one. Wrapping costs about a microsecond a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any
from unittest.mock import patch

from fedloop_clients import app as client_app
from fedloop_clients import daemon
from fedloop_clients.outbox import Outbox
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_server.aggregation.algorithms import Averaging
from fedloop_server.runs import asked, exchange, rounds
from fedloop_server.runs.asked import Asked
from fedloop_server.runs.events import Event, RoundClosed
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.rounds import OpenRound
from fedloop_server.runs.state import RunState

__all__ = ["PARTS", "SERIALISATION", "PartClock", "timed_parts"]

Place = tuple[type | ModuleType, str]

# `_finish` serialises and signs the answer, `_read` opens it and compares digests, `pack` and `Message` make a question.
PARTS: Mapping[str, tuple[Place, ...]] = {
    "training": ((LocalTrainer, "train"),),
    "signatures": ((Exchange, "_sending"), (daemon, "unseal")),
    "messages and digests": (
        (client_app, "unpack"),
        (client_app, "pack"),
        (client_app, "array_record"),
        (daemon, "digest"),
        (daemon, "_question_key"),
        (daemon.SiteDaemon, "_finish"),
        (exchange, "digest"),
        (asked, "array_record"),
        (rounds, "digest"),
        (asked, "pack"),
        (asked, "Message"),
        (Asked, "_read"),
    ),
    "outbox": ((Outbox, "find"), (Outbox, "store")),
    "ledger": ((Ledger, "reserve"), (Ledger, "spend")),
    "folding": ((OpenRound, "fold"), (Averaging, "accumulator"), (Averaging, "step")),
    "journal": ((RunJournal, "record"), (RunJournal, "save_checkpoint")),
}
SERIALISATION = ("signatures", "messages and digests", "outbox")


class PartClock:
    """Seconds in each part, for each round that closed; the first entry also holds what came before the first round."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []
        self.wall: list[float] = []
        self._open: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._inside = False

    def __call__(self, _state: RunState, event: Event) -> None:
        """Closes the account of a round."""
        if isinstance(event, RoundClosed):
            self.rounds.append(self._open)
            self.wall.append(time.perf_counter())
            self._open = dict.fromkeys(PARTS, 0.0)

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed unless it runs inside another that is."""

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if self._inside:
                return function(*arguments, **named)
            self._inside = True
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self._open[part] += time.perf_counter() - started
                self._inside = False

        return timed


@contextmanager
def timed_parts(clock: PartClock) -> Iterator[None]:
    """Wraps the functions of every part while the body runs."""
    with ExitStack() as stack:
        for part, places in PARTS.items():
            for owner, name in places:
                stack.enter_context(patch.object(owner, name, clock.wrap(part, getattr(owner, name))))
        yield
