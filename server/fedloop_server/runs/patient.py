"""Looks at the coordinator's database that sit out its outages: a drive looks once a second, and one look may fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedloop_server.runs.heads import LedgerHead, LedgerHeads
from fedloop_server.runs.room import Room, with_room
from fedloop_server.runs.surroundings import Directory, SiteKey, StopWish, Surroundings

__all__ = ["patient"]


def patient(surroundings: Surroundings) -> Surroundings:
    """The same surroundings, of which directory, heads and the wish to stop wait as ``with_room`` does."""
    room = surroundings.room
    if room is None:
        return surroundings
    stop = surroundings.stop
    return replace(
        surroundings,
        directory=_Directory(surroundings.directory, room),
        heads=_Heads(surroundings.heads, room),
        stop=None if stop is None else _Stop(stop, room),
    )


@dataclass(frozen=True)
class _Directory:
    directory: Directory
    room: Room

    def nodes(self) -> Mapping[int, SiteKey]:
        """As the directory."""
        return with_room(self.directory.nodes, self.room)

    def active(self) -> frozenset[str]:
        """As the directory."""
        return with_room(self.directory.active, self.room)


@dataclass(frozen=True)
class _Heads:
    heads: LedgerHeads
    room: Room

    def seen(self, site: str) -> LedgerHead | None:
        """As the heads."""
        return with_room(lambda: self.heads.seen(site), self.room)

    def advance(self, heads: Mapping[str, LedgerHead]) -> None:
        """As the heads: whoever calls it waits."""
        self.heads.advance(heads)


@dataclass(frozen=True)
class _Stop:
    stop: StopWish
    room: Room

    def wished(self) -> bool:
        """As the wish."""
        return with_room(self.stop.wished, self.room)
