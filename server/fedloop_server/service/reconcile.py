"""Makes Flower's list of nodes what the database says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedloop_core.durable import write_bytes
from fedloop_core.errors import FedloopError
from fedloop_server.membership import Members
from fedloop_server.membership.nodekeys import node_key_id, node_key_openssh
from fedloop_server.service.parts import NodeRegistrar

__all__ = ["Reconciler"]

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0


class Reconciler:
    """Registers nodes of active sites and unregisters those of others; a node that fails is tried again later, alone.

    Args:
        members: the sites.
        registrar: Flower.
        folder: for public keys, which Flower's command reads from a file.
        clock: seconds that do not jump.
    """

    def __init__(
        self,
        members: Members,
        registrar: NodeRegistrar,
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._members = members
        self._registrar = registrar
        self._folder = folder
        self._clock = clock
        self._failures: dict[bytes, int] = {}
        self._later: dict[bytes, float] = {}

    def run(self) -> None:
        """One look."""
        for site, node_id, key in self._members.nodes_to_unregister():
            self._try(site, key, partial(self._unregister, key, node_id))
        for site, key in self._members.nodes_to_register():
            self._try(site, key, partial(self._register, key))

    def _register(self, key: bytes) -> None:
        path = self._folder / f"{node_key_id(key)}.pub"
        write_bytes(path, node_key_openssh(key))
        self._members.set_node(key, self._registrar.register(path))

    def _unregister(self, key: bytes, node_id: int) -> None:
        self._registrar.unregister(node_id)
        self._members.set_node(key, None)

    def _try(self, site: str, key: bytes, action: Callable[[], None]) -> None:
        if self._clock() < self._later.get(key, 0.0):
            return
        try:
            action()
        except FedloopError as error:
            failures = self._failures.get(key, 0)
            pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(failures, 10))
            self._failures[key] = failures + 1
            self._later[key] = self._clock() + pause
            _LOG.warning(
                "site %s: Flower's list of nodes could not be changed, again in %.0f s: %s", site, pause, error
            )
        else:
            self._failures.pop(key, None)
            self._later.pop(key, None)
