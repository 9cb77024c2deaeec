"""Shamir's secret sharing, of pycryptodome, in blocks of 16 bytes. It has no integrity of its own: callers compare digests."""

from __future__ import annotations

from collections.abc import Mapping

from Crypto.Protocol.SecretSharing import Shamir

__all__ = ["join_shares", "split_secret"]

_BLOCK = 16


def split_secret(secret: bytes, threshold: int, holders: int) -> tuple[bytes, ...]:
    """Shares of a secret, one for each holder in order, each as long as the secret.

    Args:
        secret: of a whole number of blocks of 16 bytes.
        threshold: shares that give it back; fewer tell nothing.
        holders: how many shares.
    """
    blocks = [
        [share for _, share in Shamir.split(threshold, holders, secret[start : start + _BLOCK], False)]
        for start in range(0, len(secret), _BLOCK)
    ]
    return tuple(b"".join(parts) for parts in zip(*blocks, strict=True))


def join_shares(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of holders by their place (from 0); those of the first ``threshold`` places are used.

    With shares that do not belong together it is another secret, and nothing here tells.

    Raises:
        ValueError: there are too few shares.
    """
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares do not give back a secret that needs {threshold}")
    used = sorted(shares)[:threshold]
    length = len(shares[used[0]])
    return b"".join(
        Shamir.combine([(place + 1, shares[place][start : start + _BLOCK]) for place in used], False)
        for start in range(0, length, _BLOCK)
    )
