"""With whom the site sums updates securely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedloop_clients.consortium import check_own_key
from fedloop_clients.doctor.finding import Finding, fine, problem
from fedloop_clients.doctor.scene import Scene
from fedloop_clients.secure_aggregation.policy import floor_of, floor_words
from fedloop_core.secure_aggregation.consortium import consortium_fingerprint

__all__ = ["ConsortiumCheck"]


@dataclass(frozen=True)
class ConsortiumCheck:
    """Whether the accepted consortium has this site's own key, and as many sites as a sum needs here."""

    name: str = "consortium"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        settings, membership = scene.settings(), scene.membership()
        if settings is None or membership is None:
            return
        known, policy = scene.home.consortium().consortium(), settings.policy
        if known is None:
            if policy.require_secure_aggregation:
                yield problem(
                    "policy.require_secure_aggregation is set and no consortium was accepted: every task is refused.",
                    "Get a file from the coordinator's people and run `fedloop site consortium accept FILE`.",
                )
            return
        check_own_key({site: key.raw.hex() for site, key in known.keys.items()}, scene.home.identity())
        floor = floor_of(policy.minimum_sites, len(known.keys))
        if len(known.keys) < floor:
            yield problem(
                f"the consortium has {len(known.keys)} sites, and policy.minimum_sites asks for {floor}: no secure sum can take place.",
                f"Accept a file with more sites, or lower it in {scene.home.settings_file}.",
            )
        else:
            yield fine(
                f"the consortium has {len(known.keys)} sites; its fingerprint is {consortium_fingerprint(known)}. A sum "
                f"{floor_words(policy.minimum_sites, len(known.keys))}."
            )
