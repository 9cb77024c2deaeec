"""Keys that sites of a rehearsal sign with: made from the site's name, so that every process of it knows them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.identity import Consortium

__all__ = ["rehearsal_consortium", "rehearsal_key"]


def rehearsal_key(site: str) -> SigningKey:
    """The key of a site. Anybody can make it: it shows that answers are signed and compared, and guards nothing."""
    return SigningKey(
        Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"fedloop rehearsal {site}".encode()).digest())
    )


def rehearsal_consortium(sites: Iterable[str]) -> Consortium:
    """The consortium of these sites and nobody else."""
    return Consortium({site: rehearsal_key(site).verifying for site in sites})
