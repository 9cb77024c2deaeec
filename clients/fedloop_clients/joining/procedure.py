"""Joining a federation: keys made here, one request, one answer stored whole.

Whatever interrupts it, the same command again completes it. Keys are kept and used again, and the coordinator gives the
same keys the same answer; the answer lies on the disk before any of it is used; ``membership.json`` is written last.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

from google.protobuf.message import DecodeError

from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.joining.answer import membership_of
from fedloop_clients.joining.front import FrontClient
from fedloop_clients.joining.keys import OwnCertificate, SiteKeys, load_or_create_keys, store_own_key
from fedloop_clients.settings import starter_text
from fedloop_core.durable import write_bytes, write_secret
from fedloop_core.errors import AlreadySetUp, JoinRefused, StorageError, UsageError
from fedloop_core.federation.join import JoinToken
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_proto.membership.v1.membership_pb2 import JoinRequest, JoinResponse

__all__ = ["JOIN_PATH", "Joined", "join"]

JOIN_PATH = "/v1/membership/join"
_ANSWER = "join-answer"
_USED = "join-token.sha256"


@dataclass(frozen=True)
class Joined:
    """A site that has joined.

    ``already``: by an earlier command with this token. ``skew_seconds``: how far the site's clock is ahead of the
    coordinator's; 0 when they were not compared.
    """

    membership: Membership
    already: bool
    skew_seconds: int


def join(
    token: JoinToken,
    home: SiteHome,
    *,
    proxy: str | None,
    confirm: Callable[[JoinToken], bool],
    own: OwnCertificate | None = None,
    again: bool = False,
    clock: Callable[[], float] = time.time,
) -> Joined:
    """Joins, or completes a joining that was interrupted.

    Args:
        token: the coordinator's one-time token.
        home: an empty folder, or this very site's.
        proxy: the way out; None takes what site.toml says.
        confirm: asked whether the authority's fingerprint is the right one, before anything is made or sent.
        own: a certificate of the institution's own authority, in place of one from the coordinator.
        again: the site joined before with another token: its old keys are set aside and new ones are made.
        clock: seconds since 1970.

    Raises:
        AlreadySetUp: the folder holds another site, or one that joined with another token.
        UsageError: the fingerprint was not confirmed, or the proxy is written wrongly.
        JoinRefused: the token has expired, or was used by this very site that is to join anew; or the coordinator refuses.
        VersionRefused: coordinator and site are too far apart.
        CoordinatorUnreachable: the way is closed; says at which stage.
        CertificateRefused: a key file is damaged.
        StorageError: the disk is full or the folder cannot be written.
    """
    done = _joined_before(home, token, again=again)
    if done is not None:
        (home.keys / _ANSWER).unlink(missing_ok=True)
        _write_settings(home, token, proxy)
        return Joined(done, already=True, skew_seconds=0)
    if not confirm(token):
        raise UsageError("the fingerprint was not confirmed.", hint="Nothing was sent. Ask for the right one by phone.")
    if again:
        _set_keys_aside(home, token, int(clock()))
    home.prepare()
    _write_settings(home, token, proxy)
    keys = load_or_create_keys(home, own)
    way = home.settings.proxy if proxy is None else proxy
    response, skew = _stored_answer(home, token), 0
    if response is None:
        response = _ask(token, keys, own, way, clock)
        skew = int(clock()) - response.now_unix
    membership = membership_of(response, token, keys.certificate_key, own=own is not None)
    write_secret(home.keys / _ANSWER, _token_digest(token) + response.SerializeToString())
    write_bytes(home.authorities, response.certificate_authority)
    if own is not None:
        store_own_key(home, own)
    write_bytes(home.site_certificate, response.certificate if own is None else own.chain)
    write_secret(home.keys / _USED, _token_digest(token))
    home.standing().come_back()
    home.trusted().forget()
    home.store_membership(membership)
    (home.keys / _ANSWER).unlink(missing_ok=True)
    return Joined(membership, already=False, skew_seconds=skew)


def _token_digest(token: JoinToken) -> bytes:
    """Names a token without giving it away."""
    return hashlib.sha256(f"fedloop token used {token.secret}".encode()).digest()


def _joined_before(home: SiteHome, token: JoinToken, *, again: bool) -> Membership | None:
    if home.settings_file.exists() and home.settings.site != token.site:
        raise AlreadySetUp(
            f"{home.folder} holds site {home.settings.site}, and the token is for site {token.site}.",
            hint="Give another folder with --home.",
        )
    if (home.folder / "server.toml").exists():
        raise AlreadySetUp(f"{home.folder} holds a coordinator.", hint="Give another folder with --home.")
    if not home.membership_file.exists():
        return None
    membership = home.membership()
    if membership.site != token.site:
        raise AlreadySetUp(
            f"{home.folder} holds site {membership.site}, and the token is for site {token.site}.",
            hint="Give another folder with --home.",
        )
    used = home.keys / _USED
    same = used.exists() and used.read_bytes() == _token_digest(token)
    if (
        again and same and not (home.keys / _ANSWER).exists()
    ):  # with it, this very joining anew was interrupted at its end
        raise JoinRefused(
            f"site {token.site} joined with this very token: it was used, and a joining anew needs another.",
            hint=f"Nothing was changed. Ask the coordinator's people for one: fedloop server site renew {token.site}",
            reason="used",
        )
    if same or not used.exists():
        return membership
    if not again:
        raise AlreadySetUp(
            f"{home.folder} holds site {token.site}, which joined with another token.",
            hint="If the coordinator has asked it to join anew, add --again: new keys are made, data and ledger stay.",
        )
    return None


def _write_settings(home: SiteHome, token: JoinToken, proxy: str | None) -> None:
    """For its owner's eyes alone, since a proxy may have a password."""
    if not home.settings_file.exists():
        write_secret(home.settings_file, starter_text(token.site, proxy or "").encode())


def _set_keys_aside(home: SiteHome, token: JoinToken, now_unix: int) -> None:
    """Keys that the coordinator knew never come back; what the site knows of its data stays."""
    used = home.keys / _USED
    if not used.exists() or used.read_bytes() == _token_digest(token):
        return
    secret = home.fingerprint_secret()
    try:
        home.keys.rename(home.folder / f"keys.{now_unix}")
        home.membership_file.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"cannot set {home.keys} aside: {error.strerror}.") from error
    home.prepare()
    write_secret(home.fingerprint_secret_file, secret)


def _ask(
    token: JoinToken, keys: SiteKeys, own: OwnCertificate | None, proxy: str, clock: Callable[[], float]
) -> JoinResponse:
    if token.expires_unix < clock():
        ago = int(clock()) - token.expires_unix
        raise JoinRefused(
            f"the join token expired {ago} s ago.",
            hint="Ask the coordinator for a new one; compare this machine's clock too.",
            reason="expired",
        )
    request = JoinRequest(
        token_secret=token.secret,
        certificate_request=keys.request,
        certificate_chain=b"" if own is None else own.chain,
        node_key=keys.node,
        signing_key=keys.signing.verifying.raw,
        protocol=PROTOCOL,
        software_version=metadata.version("fedloop"),
        site=token.site,
    )
    request.possession = keys.signing.sign(request.SerializeToString(deterministic=True))
    return FrontClient(token.address, token.authority_pem(), proxy).post(JOIN_PATH, request, JoinResponse)


def _stored_answer(home: SiteHome, token: JoinToken) -> JoinResponse | None:
    """An answer that came before an interruption, and was for this token."""
    stored = home.keys / _ANSWER
    if not stored.exists():
        return None
    content, mark = stored.read_bytes(), _token_digest(token)
    if not content.startswith(mark):
        return None
    try:
        return JoinResponse.FromString(content[len(mark) :])
    except DecodeError:
        return None
