"""Replacing the authority without any site noticing: tell them of the new one, wait until they know it, drop the old one."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fedloop_core.certificates import bundle_name, is_issued_by
from fedloop_core.errors import UsageError
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction, TrustAuthorities
from fedloop_server.membership.authorities import Authorities
from fedloop_server.membership.machine import SiteState
from fedloop_server.membership.members import Members
from fedloop_server.membership.notices import Notices
from fedloop_server.membership.records import SiteRecord

__all__ = ["RollStanding", "Rollover"]

_VALID_SECONDS = 365 * 86_400  # a site may be away for long; its daemon takes notices in their order, once


@dataclass(frozen=True)
class RollStanding:
    """Where a rollover stands.

    ``waiting`` are active sites that have not said yet that they trust the newest authorities; ``former`` are those whose certificate is still
    of the old one, which they renew by themselves; ``tokens`` are sites whose unused token names the old one.
    """

    going_on: bool
    waiting: tuple[str, ...]
    former: tuple[str, ...]
    tokens: tuple[str, ...]


class Rollover:
    """A rollover of the authority; every step may be repeated.

    Args:
        members: the sites.
        notices: how they are told.
        authorities: what is rolled.
        key: seals the notices.
        clock: Unix seconds.
    """

    def __init__(
        self,
        members: Members,
        notices: Notices,
        authorities: Authorities,
        key: SigningKey,
        *,
        clock: Callable[[], int] = lambda: int(time.time()),
    ) -> None:
        self._members = members
        self._notices = notices
        self._authorities = authorities
        self._key = key
        self._clock = clock

    def begin(self) -> tuple[str, ...]:
        """Makes the new authority where there is none yet, and tells active sites; gives those that were told now."""
        self._authorities.roll()
        return self._tell()

    def standing(self) -> RollStanding:
        """Who is still to hear."""
        newest = self._authorities.newest().certificate
        former = (
            site.name
            for site in self._active()
            if not site.authority and not is_issued_by(self._members.certificate(site.name), newest)
        )
        return RollStanding(
            going_on=self._authorities.next() is not None,
            waiting=self._waiting(),
            former=tuple(former),
            tokens=self._tokens() if self._authorities.next() is not None else (),
        )

    def finish(self) -> tuple[str, ...]:
        """Drops the old authority and tells active sites; gives those that were told.

        Tokens that nobody has used yet are withdrawn: whoever holds one would not know the front.

        Raises:
            UsageError: no rollover is going on, or an active site does not know the new authority yet.
        """
        if self._authorities.next() is None:
            raise UsageError("no rollover is going on.", hint="`fedloop server authority roll` begins one.")
        waiting = self._waiting()
        if waiting:
            raise UsageError(
                f"these sites do not know the new authority yet: {', '.join(waiting)}.",
                hint="Wait until they have been connected and say that they trust it; a site that refuses it says why in its log. "
                "`fedloop server authority roll` tells them again. Revoke those that will not come back.",
            )
        tokens = self._tokens()
        self._authorities.finish_roll()
        for site in tokens:
            self._members.withdraw_token(site)
        return self._tell()

    def _tell(self) -> tuple[str, ...]:
        bundle = self._authorities.bundle()
        name = bundle_name(bundle)
        told = []
        for site in self._waiting():
            if not self._notices.waits_for(site, name):
                self._notices.post(site, self._sealed(site, bundle), bundle=name)
                told.append(site)
        return tuple(told)

    def _sealed(self, site: str, bundle: bytes) -> bytes:
        instruction = Instruction(
            site=site,
            expires_unix=self._clock() + _VALID_SECONDS,
            protocol=PROTOCOL,
            trust_authorities=TrustAuthorities(certificates=bundle),
        )
        return seal(instruction, self._key)

    def _waiting(self) -> tuple[str, ...]:
        name = bundle_name(self._authorities.bundle())
        return tuple(site.name for site in self._active() if site.trusted_bundle != name)

    def _tokens(self) -> tuple[str, ...]:
        now_unix = self._clock()
        return tuple(
            site.name
            for site in self._members.sites()
            if site.token is not None and not site.token.used and site.token.expires_unix >= now_unix
        )

    def _active(self) -> tuple[SiteRecord, ...]:
        return tuple(site for site in self._members.sites() if site.state is SiteState.ACTIVE)
