"""Telling sites to drop what they do for a run: sealed notices, which reach a site while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_proto.coordination.v1.coordination_pb2 import CancelRun, Instruction

__all__ = ["Cancels", "NoticeBoard"]

_VALID_SECONDS = 7 * 86_400  # a site that is away drops the run when it is back


class NoticeBoard(Protocol):
    """Where envelopes wait for their site; ``fedloop_server.membership.notices.Notices`` is one."""

    def post(self, site: str, envelope: bytes) -> object:
        """Keeps an envelope for a site until the site has acted on it."""


class Cancels:
    """Seals and posts. ``sites`` names those that take part in the federation now; ``clock`` gives seconds since 1970."""

    def __init__(
        self,
        key: SigningKey,
        notices: NoticeBoard,
        sites: Callable[[], Iterable[str]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = key
        self._notices = notices
        self._sites = sites
        self._clock = clock

    def post(self, run_id: str, attempt: int, task_digest: bytes) -> None:
        """Posts to every site that it is to drop the run, up to and with this attempt."""
        for site in self._sites():
            instruction = Instruction(
                run_id=run_id,
                attempt=attempt,
                site=site,
                task_digest=task_digest,
                expires_unix=int(self._clock()) + _VALID_SECONDS,
                protocol=PROTOCOL,
                cancel_run=CancelRun(),
            )
            self._notices.post(site, seal(instruction, self._key))
