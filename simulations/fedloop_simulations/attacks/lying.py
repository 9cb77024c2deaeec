"""A site that lies: an honest site whose answers are changed before they are signed, by a key that is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.endpoint import Question, Reply, SiteEndpoint
from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.federation.answers import open_answer, sign_answer
from fedloop_simulations.keys import rehearsal_key

__all__ = ["Lie", "LyingSite", "multiplied"]

Lie = Callable[[int, NamedArrays, NamedArrays], Mapping[str, NDArray[np.generic]]]
"""From the round's number, the arrays received and the honest ones to what is sent instead."""


class LyingSite:
    """Wraps a site: asks it, replaces the arrays of its updates, and signs what comes of it as the site would.

    Everything else that the site says stays as it is, so nothing but the update gives it away.
    """

    def __init__(self, name: str, honest: SiteEndpoint, lie: Lie) -> None:
        self._name = name
        self._honest = honest
        self._lie = lie
        self._key = rehearsal_key(name)

    def answer(self, question: Question) -> Reply:
        """Answers as the site, and lies in updates and sums of derivatives."""
        reply = self._honest.answer(question)
        answer = open_answer(reply.answer, self._key.verifying, site=self._name)
        if answer.WhichOneof("result") not in {"local_update", "derivatives"}:
            return reply
        arrays = dict(self._lie(answer.round, question.arrays, reply.arrays))
        answer.arrays_digest = digest(arrays)
        return Reply(sign_answer(answer, self._key), arrays)


def multiplied(factor: float) -> Lie:
    """The update times a factor."""

    def lie(_round: int, _received: NamedArrays, honest: NamedArrays) -> Mapping[str, NDArray[np.generic]]:
        return {name: np.multiply(array, array.dtype.type(factor)) for name, array in honest.items()}

    return lie
