"""Noise for one piece of a site's work, independent of every other piece."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.noise import NoiseSource
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

    def seed(self, instruction: Instruction, what: str) -> int:
        """A seed for what needs no secrecy."""
        return self.source.seed_for(self._purpose(instruction, what))

    def _purpose(self, instruction: Instruction, what: str) -> str:
        return f"{self.site}/{instruction.run_id}/{instruction.round}/{what}"
