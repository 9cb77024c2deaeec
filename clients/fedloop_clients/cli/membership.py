"""Join a federation, renew the certificate, leave."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, moment, operator, tell_json
from fedloop_core.errors import FileMissing, JoinRefused, UsageError
from fedloop_core.fingerprints import is_same_fingerprint

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome
    from fedloop_clients.joining import OwnCertificate
    from fedloop_core.federation.join import JoinToken

__all__ = ["join", "leave", "read_token", "renew"]

_CERTIFICATE: Path | None = typer.Option(None, "--certificate", help="The institution's own certificate (PEM, chain).")
_KEY: Path | None = typer.Option(None, "--key", help="Its key (PEM, no password); it is copied into keys/.")
_YES: bool = typer.Option(False, "--yes", help="Ask nothing.")
_LONGEST_TOKEN = 65_536
_NOTICEABLE_SECONDS = 2
_TOLD_SECONDS = 15.0


def join(
    token: str = typer.Argument("", help="The join token; - reads it from the standard input."),
    token_file: Path | None = typer.Option(None, "--token-file", help="A file that holds the token."),
    home: Path = HOME,
    proxy: str | None = typer.Option(
        None, "--proxy", help="http://host:port or http://user:password@host:port, for site.toml."
    ),
    fingerprint: str = typer.Option("", "--fingerprint", help="The authority's fingerprint, as told by phone."),
    yes: bool = _YES,
    certificate: Path | None = _CERTIFICATE,
    key: Path | None = _KEY,
    again: bool = typer.Option(False, "--again", help="A site that joined before joins anew, with new keys."),
    as_json: bool = AS_JSON,
) -> None:
    """Join a federation with the coordinator's one-time token; run again, it completes what was interrupted."""
    from fedloop_clients.home import SiteHome
    from fedloop_clients.joining import join as join_now
    from fedloop_core.audit import AuditAction
    from fedloop_core.processes.progress import at_home

    read = read_token(token, token_file)
    confirm = _confirmation(fingerprint, yes=yes, may_ask=not as_json and token != "-")  # noqa: S105
    site = SiteHome(home.resolve())
    joined = join_now(read, site, proxy=proxy, confirm=confirm, own=_own(certificate, key), again=again)
    member = joined.membership
    if not joined.already:
        site.audit().record(operator(), AuditAction.SITE_JOINED, member.site, authority=read.fingerprint())
    if as_json:
        told: dict[str, object] = {"home": str(site.folder), "already": joined.already, "skew": joined.skew_seconds}
        tell_json(told | member.model_dump())
        return
    print(f"Site {member.site} {'has joined already' if joined.already else 'has joined'}: {site.folder}")
    if abs(joined.skew_seconds) > _NOTICEABLE_SECONDS:
        where = "ahead of" if joined.skew_seconds > 0 else "behind"
        print(f"Set this machine's clock: it is {abs(joined.skew_seconds)} s {where} the coordinator's.")
    print(f"Next: name the data file under [data] in {site.settings_file}")
    print(f"Then: fedloop site doctor{at_home(site.folder)}")
    print(f"Then: fedloop site up{at_home(site.folder)}")


def renew(
    home: Path = HOME, certificate: Path | None = _CERTIFICATE, key: Path | None = _KEY, as_json: bool = AS_JSON
) -> None:
    """Renew the site's certificate now; a running site does so by itself at half of its life."""
    from fedloop_clients.home import SiteHome
    from fedloop_clients.joining import renew as renew_now
    from fedloop_core.audit import AuditAction

    site = SiteHome(home.resolve())
    renewal = renew_now(site, own=_own(certificate, key))
    site.audit().record(operator(), AuditAction.SITE_RENEWED, site.membership().site)
    if as_json:
        tell_json({"expires_unix": renewal.expires_unix, "skew": renewal.skew_seconds})
    else:
        print(f"The certificate holds until {moment(renewal.expires_unix)}.")


def leave(home: Path = HOME, yes: bool = _YES, as_json: bool = AS_JSON) -> None:
    """Leave the federation: the site takes no further part, and the coordinator is told so."""
    from fedloop_clients.home import SiteHome
    from fedloop_core.audit import AuditAction

    site = SiteHome(home.resolve())
    name = site.membership().site
    if not yes:
        if as_json:
            raise UsageError("leaving must be confirmed.", hint="Add --yes.")
        if not typer.confirm(f"Shall site {name} leave? To come back it needs a new token."):
            raise UsageError("nothing was changed.")
    if not site.standing().read().leaving:
        site.audit().record(operator(), AuditAction.SITE_LEFT, name)
        site.standing().leave()
    told = _is_told(site)
    if as_json:
        tell_json({"site": name, "leaving": True, "coordinator_told": told})
        return
    print(f"Site {name} takes no further part from now on. Data, ledger and keys stay in {site.folder}")
    if told:
        print("The coordinator has been told.")
    else:
        print(
            "The coordinator does not know yet: the running site tells it. If none runs, start it once: fedloop site up"
        )


def _is_told(site: SiteHome) -> bool:
    """Whether the coordinator knows that the site has left; waits a little when the site runs."""
    from fedloop_core.processes import ProcessState
    from fedloop_core.processes.living import now_in

    runs = any(p.name == "daemon" and p.state is ProcessState.RUNNING for p in now_in(site.folder)[1])
    deadline = time.monotonic() + _TOLD_SECONDS
    while runs and not site.shut_out_file.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return site.shut_out_file.exists()


def read_token(token: str, file: Path | None) -> JoinToken:
    """The token given, from the file, or from the standard input.

    Raises:
        UsageError: none is given, or two.
        FileMissing: the file cannot be read.
        JoinRefused: it is none.
    """
    from fedloop_core.federation.join import JoinToken

    return JoinToken.parse(_token_text(token, file))


def _token_text(token: str, file: Path | None) -> str:
    if bool(token) == (file is not None):
        raise UsageError("give the join token, or --token-file.", hint="- reads it from the standard input.")
    if file is None:
        return sys.stdin.read(_LONGEST_TOKEN) if token == "-" else token  # noqa: S105  the sign for standard input
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            return opened.read(_LONGEST_TOKEN)
    except OSError as error:
        raise FileMissing(f"cannot read {file}: {error.strerror}.") from error


def _confirmation(told: str, *, yes: bool, may_ask: bool) -> Callable[[JoinToken], bool]:
    def confirm(token: JoinToken) -> bool:
        right = token.fingerprint()
        if told:
            if not is_same_fingerprint(told, right):
                raise JoinRefused(
                    f"the token's authority has the fingerprint {right}, not the one given.",
                    hint="Nothing was sent. The token may have been exchanged on its way: ask for another by phone.",
                    reason="fingerprint",
                )
            return True
        if yes:
            return True
        if not may_ask:
            raise UsageError("the fingerprint must be confirmed.", hint="Give --fingerprint, or --yes.")
        print(f"Site {token.site} is to join the coordinator at {token.address}.")
        print(f"Its authority's fingerprint: {right}")
        return typer.confirm("Compare it by phone with the coordinator's people. Is it the same?")

    return confirm


def _own(certificate: Path | None, key: Path | None) -> OwnCertificate | None:
    from fedloop_clients.joining import OwnCertificate

    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise UsageError("--certificate and --key go together.")
    return OwnCertificate.read(certificate, key)
