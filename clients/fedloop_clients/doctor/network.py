"""One stage of the ways to front and hub: name, route, proxy or TLS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedloop_clients.doctor.finding import Finding, fine, problem
from fedloop_clients.doctor.scene import Scene
from fedloop_clients.joining.way import Stage
from fedloop_core.errors import CoordinatorUnreachable

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
                    yield problem(f"{name}: {sentence}", step.error.hint + _rolled(scene, step.error))


def _rolled(scene: Scene, error: CoordinatorUnreachable) -> str:
    """What else it may be where a site that has joined trusts another authority than answers."""
    membership = scene.membership()
    if membership is None or error.fields.get("cause") != "authority":
        return ""
    return (
        " Or the authority was replaced since this copy of the site, as one put back from a backup: ask for `fedloop server "
        f"site renew {membership.site}`, then run `fedloop site join TOKEN --again`."
    )
