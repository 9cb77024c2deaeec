"""Which site is calling: the one that was given the certificate."""

from __future__ import annotations

import grpc

from fedloop_core.certificates import certificate_expiry, certificate_fingerprint
from fedloop_core.errors import CertificateRefused
from fedloop_server.membership import Members, SiteRecord

__all__ = ["Caller", "SiteCaller"]


class Caller:
    """A call's site, found once and looked at again while the call lasts."""

    def __init__(self, members: Members, fingerprint: str, expires_unix: int) -> None:
        self._members = members
        self._fingerprint = fingerprint
        self._expires_unix = expires_unix

    def check(self) -> SiteRecord:
        """The site, if it may still speak.

        Raises:
            CertificateRefused: the certificate has expired, which a connection may outlive, or is nobody's.
            SiteRevoked: it was withdrawn, or the site is not active.
        """
        self.check_time()
        return self._members.by_certificate(self._fingerprint)

    def check_time(self) -> None:
        """Only whether the certificate is still valid, without the database.

        Raises:
            CertificateRefused: it has expired.
        """
        if self._expires_unix < self._members.clock():
            raise CertificateRefused("a call under an expired certificate.", hint="Renew it.")


class SiteCaller:
    """Finds callers by the fingerprint of their certificate."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def of(self, context: grpc.ServicerContext) -> Caller:
        """Who calls.

        Raises:
            CertificateRefused: a call without a certificate.
        """
        pem = next(iter(context.auth_context().get("x509_pem_cert", ())), b"")
        if not isinstance(pem, bytes) or not pem:
            raise CertificateRefused("a call without a client certificate.")
        return Caller(self._members, certificate_fingerprint(pem), certificate_expiry(pem))
