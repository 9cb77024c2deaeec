"""Which sites are active and which of them are connected: the directory and Flower's nodes, looked at once a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flwr.serverapp import Grid

from fedloop_core.errors import ClockSkewed, RunCancelled
from fedloop_core.keys import VerifyingKey
from fedloop_server.runs.surroundings import RefusedRequest, SiteKey, Surroundings

__all__ = ["Roster"]

_LOOK_SECONDS = 1.0


class Roster:
    """Who is there, and whom the front has turned away; ``clock`` is monotonic seconds."""

    def __init__(self, grid: Grid, surroundings: Surroundings, clock: Callable[[], float]) -> None:
        self._grid = grid
        self._directory = surroundings.directory
        self._refusals = surroundings.refusals
        self._idle_sites = surroundings.idle
        self._stop = surroundings.stop
        self._clock = clock
        self._active: frozenset[str] = frozenset()
        self._keys: dict[int, SiteKey] = {}
        self._nodes: dict[str, int] = {}
        self._idle: Mapping[str, float] = {}
        self._seen: dict[str, float] = {}  # when a site was last connected
        self._began = self._looked = clock()
        self._newest_refusal = 0
        if self._refusals is not None:  # those from before this drive are of other questions
            self._newest_refusal = max((refused.number for refused in self._refusals.since(0)), default=0)
        self.refused: dict[str, RefusedRequest] = {}  # the newest of each site
        self._refused_at: dict[str, float] = {}

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the active sites that are connected, sorted."""
        return tuple(sorted(self._nodes))

    @property
    def active(self) -> frozenset[str]:
        """Names of all active sites."""
        return self._active

    @property
    def keys(self) -> Mapping[str, VerifyingKey]:
        """The signing keys of the active sites by their names."""
        return {key.site: key.signing_key for key in self._keys.values()}

    def node(self, site: str) -> int | None:
        """The node of a site that is connected."""
        return self._nodes.get(site)

    def key(self, site: str, node: int) -> SiteKey | None:
        """The key of a site at a node; None when that node is not, or no longer, this site's."""
        key = self._keys.get(node)
        return key if key is not None and key.site == site else None

    def absent_seconds(self, site: str) -> float:
        """How long a site has not been connected, as far as is known here."""
        return 0.0 if site in self._nodes else self._clock() - self._seen.get(site, self._began)

    def idle_seconds(self, site: str) -> float:
        """How long a site had been waiting for a question when it was looked at last; 0 when it was not, or nobody knows."""
        return self._idle.get(site, 0.0)

    def kept_out(self, site: str) -> RefusedRequest | None:
        """Why a site cannot be connected: its clock, when the front said so since it was connected last."""
        refused = self.refused.get(site)
        if refused is None or refused.code != ClockSkewed.code or site in self._nodes:
            return None
        return refused if self._refused_at[site] >= self._seen.get(site, self._began) else None

    def look(self) -> None:
        """Looks when a second has passed since the last time.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        if self._clock() - self._looked >= _LOOK_SECONDS:
            self.look_now()

    def look_now(self) -> None:
        """Looks again.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        if self._stop is not None and self._stop.wished():
            raise RunCancelled("the run was stopped by a person.", hint="Resume it when it may go on.")
        there = frozenset(self._grid.get_node_ids())
        self._keys = dict(self._directory.nodes())
        self._active = self._directory.active()
        self._nodes = {key.site: node for node, key in self._keys.items() if node in there}
        self._looked = self._clock()
        if self._idle_sites is not None:
            self._idle = self._idle_sites.seconds()
        self._seen |= dict.fromkeys(self._nodes, self._looked)
        if self._refusals is not None:
            for refused in self._refusals.since(self._newest_refusal):
                self._newest_refusal = max(self._newest_refusal, refused.number)
                self.refused[refused.site] = refused
                self._refused_at[refused.site] = self._looked

    @property
    def newest_refusal(self) -> int:
        """Number of the newest refusal that was seen."""
        return self._newest_refusal
