"""Noise for one piece of a site's work, independent of every other piece."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.noise import NoiseSource
from fedloop_core.shuffling import seed_of_site
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction

__all__ = ["SiteNoise"]


@dataclass(frozen=True)
class SiteNoise:
    """Derives from the site's source by site, run, round and purpose: what was drawn before never matters."""

    site: str
    source: NoiseSource

    @property
    def private(self) -> bool:
        """Whether the source can guard anything."""
        return self.source.private

    def derive(self, instruction: Instruction, what: str) -> NoiseSource:
        """A source for one purpose of one instruction."""
        return self.source.derive(self._purpose(instruction, what))

    def shuffle_seed(self, instruction: Instruction) -> int:
        """Of the order of rows in training without privacy: from the seed that the run gives, so that it can be repeated."""
        given = instruction.train_locally.shuffle_seed
        if not given:
            return self.source.seed_for(self._purpose(instruction, "training"))
        return seed_of_site(given, self.site)

    def _purpose(self, instruction: Instruction, what: str) -> str:
        return f"{self.site}/{instruction.run_id}/{instruction.round}/{what}"
