"""Makes Flower's list of nodes what the database says."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fedloop_core.durable import write_bytes
from fedloop_core.errors import FedloopError, ProcessFailed
from fedloop_server.membership import Members
from fedloop_server.membership.nodekeys import node_key_id, node_key_openssh
from fedloop_server.service.parts import NodeRegistrar

__all__ = ["Reconciler"]

_LOG = logging.getLogger(__name__)
_FIRST_PAUSE = 2.0
_LONGEST_PAUSE = 60.0
_IN_USE = "[code: 23]"  # Flower has this public key, or had it
_UNKNOWN = "[code: 24]"  # Flower does not have this node, or no longer
_GONE = "unregistered"


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
        self._compared = False
        self._failures: dict[bytes, int] = {}
        self._later: dict[bytes, float] = {}

    def run(self) -> None:
        """One look; the first one also finds nodes that Flower has lost, when its state was restored or made anew."""
        if not self._compared:
            self._forget_lost()
            self._compared = True
        for site, node_id, key in self._members.nodes_to_unregister():
            self._try(site, key, partial(self._unregister, key, node_id))
        for site, key in self._members.nodes_to_register():
            self._try(site, key, partial(self._register, key))

    def _forget_lost(self) -> None:
        known = self._members.registered_nodes()
        live = self._live() if known else frozenset()
        for site, node_id, key in known:
            if node_id not in live:
                _LOG.warning("site %s: Flower does not know its node %d any more", site, node_id)
                self._members.set_node(key, None)

    def _register(self, key: bytes) -> None:
        path = self._folder / f"{node_key_id(key)}.pub"
        write_bytes(path, node_key_openssh(key))
        try:
            node_id = self._registrar.register(path)
        except ProcessFailed as error:
            if _IN_USE not in error.message:
                raise
            node_id = self._adopted(error)
        self._members.set_node(key, node_id)

    def _adopted(self, error: ProcessFailed) -> int:
        """A node that was registered by a service that died before it could note it: the only one that is nobody's."""
        noted = {node_id for _, node_id, _ in self._members.registered_nodes()}
        nobodys = self._live() - noted
        if len(nobodys) != 1:
            raise error
        return next(iter(nobodys))

    def _unregister(self, key: bytes, node_id: int) -> None:
        try:
            self._registrar.unregister(node_id)
        except ProcessFailed as error:
            if _UNKNOWN not in error.message:
                raise
        self._members.set_node(key, None)

    def _live(self) -> frozenset[int]:
        return frozenset(node.node_id for node in self._registrar.nodes() if node.status != _GONE)

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
