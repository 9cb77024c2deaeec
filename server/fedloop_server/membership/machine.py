"""Membership as decisions over explicit state: invited, active, revoked or left. Pure.

A site's name outlives its keys. A token admits one set of keys, once; keys that were taken away never come back; nothing
but a new token brings a site back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from fedloop_core.errors import JoinRefused, SiteRevoked

__all__ = [
    "MAXIMUM_TRIES",
    "Event",
    "Joined",
    "Left",
    "Membership",
    "Revoked",
    "SiteKeys",
    "SiteState",
    "Token",
    "TokenIssued",
    "TokenWithdrawn",
    "TryFailed",
    "apply",
    "check_active",
    "check_join",
]

MAXIMUM_TRIES = 10
"""Failed tries after which a token is worth nothing."""

_ASK = "Ask the coordinator for a new token."


class SiteState(StrEnum):
    """Where a site stands."""

    INVITED = "invited"
    ACTIVE = "active"
    REVOKED = "revoked"
    LEFT = "left"


@dataclass(frozen=True)
class SiteKeys:
    """The public keys of one joining, each by an id: of the certificate, of Flower's node, of the answers."""

    certificate_key: str
    node_key: str
    signing_key: str

    @property
    def ids(self) -> frozenset[str]:
        """All of them."""
        return frozenset((self.certificate_key, self.node_key, self.signing_key))

    @property
    def digest(self) -> bytes:
        """Names this set of keys."""
        return hashlib.sha256(f"{self.certificate_key} {self.node_key} {self.signing_key}".encode()).digest()


@dataclass(frozen=True)
class Token:
    """A join token: the digest of its secret, when it expires, failed tries, and the digest of the keys that used it."""

    digest: bytes
    expires_unix: int
    tries: int = 0
    used_by: bytes = b""


@dataclass(frozen=True)
class Membership:
    """A site: ``spent`` holds the ids of keys that it had and lost."""

    site: str
    state: SiteState = SiteState.INVITED
    token: Token | None = None
    keys: SiteKeys | None = None
    spent: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TokenIssued:
    """A new token; an earlier one is worth nothing from then on."""

    digest: bytes
    expires_unix: int


@dataclass(frozen=True)
class TokenWithdrawn:
    """The token is worth nothing from now on."""


@dataclass(frozen=True)
class TryFailed:
    """Someone held the token and did not fit."""


@dataclass(frozen=True)
class Joined:
    """The site joined with these keys."""

    keys: SiteKeys


@dataclass(frozen=True)
class Revoked:
    """A person shut the site out."""


@dataclass(frozen=True)
class Left:
    """The site said that it leaves."""


Event = TokenIssued | TokenWithdrawn | TryFailed | Joined | Revoked | Left


def check_join(membership: Membership, keys: SiteKeys, *, foreign: Collection[str], now_unix: int) -> bool:
    """Whether these keys may join now; the token's secret was shown already.

    Args:
        membership: of the site that the token is for.
        keys: what the site brings.
        foreign: which of their ids another site has, or had.
        now_unix: seconds.

    Returns:
        True when they have joined already by this token, and their answer may have been lost.

    Raises:
        JoinRefused: the token has expired, was used or tried too often, or a key is not new.
    """
    token, site = membership.token, membership.site
    if token is None:
        raise JoinRefused(f"site {site}: the token was withdrawn.", hint=_ASK, reason="unknown")
    if now_unix > token.expires_unix:
        raise JoinRefused(f"site {site}: the token has expired.", hint=_ASK, reason="expired")
    if token.tries >= MAXIMUM_TRIES:
        raise JoinRefused(f"site {site}: the token was tried {token.tries} times.", hint=_ASK, reason="tries")
    if token.used_by:
        if token.used_by == keys.digest and membership.state is SiteState.ACTIVE:
            return True
        raise JoinRefused(f"site {site}: the token was used.", hint=_ASK, reason="used")
    if foreign or keys.ids & membership.spent or (membership.keys and keys.ids & membership.keys.ids):
        raise JoinRefused(
            f"site {site}: a key is in use, or was used before.", hint="Make new keys and join again.", reason="keys"
        )
    if len(keys.ids) < len(("certificate", "node", "signing")):
        raise JoinRefused(f"site {site}: one key serves two purposes.", hint="Make a key for each.", reason="keys")
    return False


def check_active(membership: Membership) -> None:
    """Whether the site takes part.

    Raises:
        SiteRevoked: it was revoked, has left, or has not joined yet.
    """
    if membership.state is not SiteState.ACTIVE:
        raise SiteRevoked(
            f"site {membership.site} is {membership.state}, not active.",
            hint=f"Ask the coordinator; there, `fedloop server site renew {membership.site}` invites it again.",
            site=membership.site,
        )


def apply(membership: Membership, event: Event) -> Membership:
    """The membership after an event; events that ``check_join`` would have refused are a mistake of the caller.

    Raises:
        SiteRevoked: a site that is not active cannot leave.
    """
    match event:
        case TokenIssued(digest, expires_unix):
            return replace(membership, token=Token(digest, expires_unix))
        case TokenWithdrawn():
            return replace(membership, token=None)
        case TryFailed():
            token = membership.token
            return replace(membership, token=token and replace(token, tries=token.tries + 1))
        case Joined(keys):
            token = membership.token
            return replace(
                membership,
                state=SiteState.ACTIVE,
                token=token and replace(token, used_by=keys.digest),
                keys=keys,
                spent=_spent(membership),
            )
        case Revoked():
            return replace(membership, state=SiteState.REVOKED, token=None, spent=_spent(membership))
        case Left():
            check_active(membership)
            return replace(membership, state=SiteState.LEFT, token=None, spent=_spent(membership))


def _spent(membership: Membership) -> frozenset[str]:
    return membership.spent | (membership.keys.ids if membership.keys else frozenset())
