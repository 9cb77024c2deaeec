"""Noise that is drawn while something else is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from math import prod

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.training.dpsgd import GaussianSource

__all__ = ["drawn_ahead"]

_WORTH_A_THREAD = 1 << 15  # values of a step, below which handing over takes longer than drawing


@contextmanager
def drawn_ahead(
    source: GaussianSource, shapes: Sequence[tuple[int, ...]], deviation: float, steps: int
) -> Iterator[GaussianSource]:
    """A source that gives what ``source`` would give, for steps that each draw the same shapes in the same order.

    The noise of the next step is drawn in a thread of its own, which does not depend on any gradient. No more is drawn than
    ``steps`` take.
    """
    if sum(prod(shape) for shape in shapes) < _WORTH_A_THREAD:
        yield source
        return
    with ThreadPoolExecutor(1, thread_name_prefix="noise") as thread:
        yield _DrawnAhead(source, shapes, deviation, steps, thread)


class _DrawnAhead:
    def __init__(
        self,
        source: GaussianSource,
        shapes: Sequence[tuple[int, ...]],
        deviation: float,
        steps: int,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._source = source
        self._shapes = list(shapes)
        self._deviation = deviation
        self._left = steps
        self._thread = thread
        self._next: Future[list[NDArray[np.float64]]] | None = None
        self._here: list[NDArray[np.float64]] = []
        self._begin()

    def normal(self, shape: tuple[int, ...], deviation: float) -> NDArray[np.float64]:
        """The next array of this step.

        Raises:
            ValueError: another shape or deviation than was to come, or more steps.
        """
        if not self._here:
            if self._next is None:
                raise ValueError("more noise is asked for than the steps take")
            self._here = self._next.result()
            self._begin()
        noise = self._here.pop(0)
        if noise.shape != shape or deviation != self._deviation:
            raise ValueError(f"noise of shape {shape} and deviation {deviation} is asked for out of turn")
        return noise

    def _begin(self) -> None:
        self._next = self._thread.submit(self._step) if self._left else None
        self._left -= 1

    def _step(self) -> list[NDArray[np.float64]]:
        return [self._source.normal(shape, self._deviation) for shape in self._shapes]
