"""One stage of the ways to front and hub: name, route, proxy or TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedloop_clients.doctor.finding import Finding, fine, problem
from fedloop_clients.doctor.scene import Scene
from fedloop_clients.joining.way import Stage

__all__ = ["WayCheck"]


@dataclass(frozen=True)
class WayCheck:
    """A stage; it has nothing to say when an earlier one ends the way. Both ways begin at the same proxy."""

    stage: Stage

    @property
    def name(self) -> str:
        """The stage's."""
        return self.stage.value

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        told: set[str] = set()
        for name in scene.targets:
            for step in scene.way(name):
                sentence = step.found if step.error is None else step.error.message
                if step.stage is not self.stage or sentence in told:
                    continue
                told.add(sentence)
                if step.error is None:
                    yield fine(sentence)
                else:
                    yield problem(f"{name}: {sentence}", step.error.hint)
