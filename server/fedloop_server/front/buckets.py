"""Token buckets: how often somebody may ask."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

__all__ = ["Bucket", "Buckets", "address_key"]

_LARGEST_WAIT = 3600.0


class Bucket:
    """Holds up to ``burst`` tokens and gains ``rate`` a second. Times are seconds of one rising clock."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = float(burst)
        self._then = now

    def take(self, now: float) -> bool:
        """Takes a token when there is one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def wait(self, now: float) -> float:
        """Seconds until there is a token."""
        self._fill(now)
        if self._tokens >= 1.0:
            return 0.0
        return min((1.0 - self._tokens) / self._rate, _LARGEST_WAIT) if self._rate > 0 else _LARGEST_WAIT

    def _fill(self, now: float) -> None:
        if now > self._then:
            self._tokens = min(self._burst, self._tokens + (now - self._then) * self._rate)
            self._then = now


class Buckets:
    """One bucket for each key; those unused for longest are forgotten beyond ``capacity``."""

    def __init__(self, rate: float, burst: float, capacity: int = 10_000) -> None:
        self._rate = rate
        self._burst = burst
        self._capacity = capacity
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def of(self, key: str, now: float) -> Bucket:
        """The bucket of a key, full when it is new."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = Bucket(self._rate, self._burst, now)
            if len(self._buckets) > self._capacity:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(key)
        return bucket


def address_key(peer: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
