"""Making the token by which an institution joins."""

from __future__ import annotations

from fedloop_core.federation.join import JoinToken, new_secret, secret_digest
from fedloop_server.membership.authorities import Authorities
from fedloop_server.membership.members import Members
from fedloop_server.settings import ServerSettings

__all__ = ["issue_join_token"]


def issue_join_token(
    members: Members, authorities: Authorities, settings: ServerSettings, site: str, *, valid_seconds: int
) -> JoinToken:
    """A one-time token for a site that was added; an earlier one is worth nothing from then on. Only a digest is kept.

    Raises:
        UsageError: no such site.
        CertificateRefused: the authority's files are missing.
    """
    token = JoinToken(
        site=site,
        address=settings.front.public,
        secret=new_secret(),
        authority=authorities.token_authority(),
        expires_unix=members.clock() + valid_seconds,
    )
    members.issue_token(site, secret_digest(token.secret), token.expires_unix)
    return token
