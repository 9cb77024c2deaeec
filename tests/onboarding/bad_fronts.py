"""Servers that stand where the coordinator's front should, and what a person is told of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["BAD_FRONTS", "BadFront"]


@dataclass(frozen=True)
class BadFront:
    """A server that is not the coordinator's, or not any more. ``words`` are those that say so."""

    name: str
    names: tuple[str, ...]
    days_ago: int
    own_authority: bool
    words: str

    def start(self, own: Any, fronts: Callable[..., Any], pkis: Callable[[str], Any]) -> Any:
        """Starts it, with a certificate of the federation's own authority or an interceptor's."""
        pki = own if self.own_authority else pkis("interceptor")
        return fronts(pki.server(*self.names, at_unix=int(time.time()) - self.days_ago * 86_400))


BAD_FRONTS = (
    BadFront(
        "interception", ("127.0.0.1",), 0, False, "not of this federation's authority. The certificate seen is of"
    ),
    BadFront("expired", ("127.0.0.1",), 60, True, "expired on 20"),
    BadFront("not yet valid", ("127.0.0.1",), -2, True, "is not valid before 20"),
    BadFront("another name", ("other.test",), 0, True, "is for other.test"),
)
