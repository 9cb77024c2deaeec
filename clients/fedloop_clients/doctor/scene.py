"""What the checks look at. What several of them need is fetched once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fedloop_clients.doctor.asking import FrontAnswer, Greeting, ask_front, ask_hub
from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.joining.address import Address, Proxy, proxy_to
from fedloop_clients.joining.way import Step, trusting, walk
from fedloop_clients.settings import SiteSettings
from fedloop_core.errors import FedloopError, NotSetUp, SettingsInvalid
from fedloop_core.federation.join import JoinToken
from fedloop_core.task import Task

__all__ = ["Scene"]

T = TypeVar("T")


@dataclass
class Scene:
    """A site's home as it stands, before or after joining.

    Args:
        home: the site's home.
        token: a join token, so that the way can be looked at before joining.
        task: a task that the data file is to be read for.
        proxy: in place of site.toml's.
        seconds: for each step over the network.
        clock: seconds since 1970.
    """

    home: SiteHome
    token: JoinToken | None = None
    task: Task | None = None
    proxy: str | None = None
    seconds: float = 5.0
    clock: Callable[[], float] = time.time
    _known: dict[str, object] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def settings(self) -> SiteSettings | None:
        """site.toml; None when it is not there or wrong, which its own check tells."""
        try:
            return self.home.settings
        except (NotSetUp, SettingsInvalid):
            return None

    def membership(self) -> Membership | None:
        """What joining stored; None before, or when it is damaged, which its own check tells."""
        try:
            return self.home.membership()
        except FedloopError:
            return None

    @property
    def targets(self) -> Mapping[str, Address]:
        """Where the coordinator is, by what is there; empty before joining and without a token."""
        membership = self.membership()
        if membership is not None:
            return {
                "front": Address.parse(membership.fleet_address),
                "hub": Address.parse(membership.hub_address),
            }
        return {} if self.token is None else {"front": Address.parse(self.token.address)}

    def authorities(self) -> bytes:
        """Whom the site trusts, PEM; empty when it trusts nobody yet.

        Raises:
            NotSetUp: the file is gone.
        """
        if self.membership() is None:
            return b"" if self.token is None else self.token.authority_pem()
        return _read(self.home.authorities)

    def proxy_to(self, target: Address) -> Proxy | None:
        """The proxy on the way there."""
        return proxy_to(target, self.proxy_url)

    @property
    def proxy_url(self) -> str:
        """The proxy that is used, if any."""
        settings = self.settings()
        said = "" if settings is None else settings.proxy
        return said if self.proxy is None else self.proxy

    def way(self, name: str) -> tuple[Step, ...]:
        """The stages to a target as far as they lead, gone once.

        Raises:
            NotSetUp: the authorities are gone.
        """
        target = self.targets[name]
        context = trusting(self.authorities())
        if name == "hub":  # whose log would tell of a stranger who shows no certificate
            with contextlib.suppress(OSError):  # files that cannot be read are told by other checks
                context.load_cert_chain(self.home.site_certificate, self.home.site_key, password="")
        return self._once(f"way {name}", lambda: tuple(walk(target, self.proxy_to(target), context, self.seconds)))

    def is_open(self, name: str) -> bool:
        """Whether the way to a target leads all through."""
        return name in self.targets and self.way(name)[-1].error is None

    def front_answer(self) -> FrontAnswer | None:
        """What the front answers to a question that it does not serve; None when the way is closed."""
        if not self.is_open("front"):
            return None
        target = self.targets["front"]
        context = trusting(self.authorities())
        return self._once("front", lambda: ask_front(target, self.proxy_to(target), context, self.seconds, self.clock))

    def greeting(self) -> Greeting | None:
        """The hub's greeting, or why there was none; None when the site has not joined or the way is closed."""
        if self.membership() is None or self.settings() is None or not self.is_open("hub"):
            return None
        return self._once("hub", lambda: ask_hub(self.home, self.seconds, self.clock))

    def _once(self, name: str, make: Callable[[], T]) -> T:
        with self._lock:
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            if name not in self._known:
                self._known[name] = make()
            known: T = self._known[name]  # type: ignore[assignment]
            return known


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise NotSetUp(
            f"cannot read {path}: {error.strerror}.", hint="Restore it from a backup, or join again."
        ) from error
