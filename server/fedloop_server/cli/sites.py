"""Invite institutions, see how they are, and shut them out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.commands import AS_JSON, Told, moment, operator, tell_json, tell_lines, tell_table
from fedloop_server.cli.options import HOME, open_home, parse_seconds
from fedloop_server.cli.run_words import took_words

if TYPE_CHECKING:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.membership import SiteRecord

__all__ = [
    "accept_ledger",
    "add",
    "commands",
    "list_sites",
    "remove_token",
    "renew",
    "revoke",
    "show",
    "site_json",
    "tell_sites",
]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)

_SILENT_SECONDS = 30  # three times what a site's daemon leaves between two reports
_NAME = typer.Argument(help="Name of the site.")
_EXPIRES = typer.Option("7d", "--expires", help="How long the token is valid: 30m, 12h, 7d.")
_AUTHORITY = typer.Option(None, "--authority", help="The institution's own authority (PEM), for its own certificate.")


@commands.callback()
def _sites() -> None:
    """Invite institutions, see how they are, and shut them out."""


@commands.command()
def add(
    name: str = _NAME,
    home: Path = HOME,
    expires: str = _EXPIRES,
    authority: Path | None = _AUTHORITY,
    as_json: bool = AS_JSON,
) -> None:
    """Add a site and print the one-time token by which it joins."""
    from fedloop_core.audit import AuditAction
    from fedloop_server.membership.pem import read_authorities
    from fedloop_server.settings import read_file

    seconds = parse_seconds(expires)
    opened = open_home(home)
    own = read_authorities(read_file(authority), str(authority)) if authority else b""
    opened.members().add(name, authority=own)
    opened.audit().record(operator(), AuditAction.SITE_ADDED, name)
    _token(opened, name, seconds, as_json=as_json)


@commands.command()
def renew(
    name: str = _NAME,
    home: Path = HOME,
    expires: str = _EXPIRES,
    authority: Path | None = _AUTHORITY,
    as_json: bool = AS_JSON,
) -> None:
    """Print a new token for a known site, to join again with new keys; the old keys end when it does."""
    from fedloop_server.membership.pem import read_authorities
    from fedloop_server.settings import read_file

    seconds = parse_seconds(expires)
    opened = open_home(home)
    members = opened.members()
    members.site(name)
    if authority is not None:
        members.set_authority(name, read_authorities(read_file(authority), str(authority)))
    _token(opened, name, seconds, as_json=as_json)


@commands.command("list")
def list_sites(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """List all sites."""
    sites = open_home(home).members().sites()
    if as_json:
        tell_json({"sites": [site_json(site) for site in sites]})
    else:
        tell_sites(sites)


@commands.command()
def show(name: str = _NAME, home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show all that is known of a site."""
    members = open_home(home).members()
    site, head = members.site(name), members.ledger_head(name)
    told = site_json(site) | {
        "ledger_entries": 0 if head is None else head.sequence,
        "ledger_head": "" if head is None else head.digest.hex(),
    }
    if as_json:
        tell_json(told)
        return
    tell_lines(
        told | {"activity": _does(site, time.time()), **({} if site.last_seen_unix else {"clock_skew_seconds": ""})}
    )


@commands.command()
def revoke(
    name: str = _NAME,
    home: Path = HOME,
    reason: str = typer.Option("revoked by the operator", "--reason", help="Kept with the site and in the audit log."),
    as_json: bool = AS_JSON,
) -> None:
    """Shut a site out at once; others notice nothing."""
    from fedloop_core.audit import AuditAction

    opened = open_home(home)
    record = opened.members().revoke(name, reason[:500])
    opened.audit().record(operator(), AuditAction.SITE_REVOKED, name, reason=reason)
    if as_json:
        tell_json(site_json(record))
    else:
        print(f"Site {name} is revoked. `fedloop server site renew {name}` would invite it again, with new keys.")


@commands.command("accept-ledger")
def accept_ledger(
    name: str = _NAME,
    home: Path = HOME,
    yes: bool = typer.Option(False, "--yes", help="Ask nothing."),
    as_json: bool = AS_JSON,
) -> None:
    """Take a site back whose newer ledger is lost and whose people have accepted that.

    Charges after the ledger that it has now are known to nobody: the site answers for them, and this is noted in the audit log.
    """
    from fedloop_core.audit import AuditAction

    opened = open_home(home)
    members = opened.members()
    seen = members.heads.seen(name)
    if not yes and seen is not None:
        typer.confirm(
            f"Site {name} showed a ledger of {seen.sequence} entries. Has it run `fedloop site ledger accept-restored`, and "
            "may it take part with fewer?",
            abort=True,
        )
    given_up = members.heads.forget(name)
    sequence = 0 if given_up is None else given_up.sequence
    opened.audit().record(operator(), AuditAction.OVERRIDE, name, ledger_sequence=sequence)
    if as_json:
        tell_json({"site": name, "given_up_sequence": sequence})
    elif given_up is None:
        print(f"Site {name} had shown no ledger: nothing was given up.")
    else:
        print(f"Entry {sequence} of {name}'s ledger is given up. Its next answer says where its ledger stands now.")


@commands.command("remove-token")
def remove_token(name: str = _NAME, home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Make the token of a site worthless."""
    from fedloop_core.audit import AuditAction

    opened = open_home(home)
    removed = opened.members().withdraw_token(name)
    if removed:
        opened.audit().record(operator(), AuditAction.TOKEN_ISSUED, name, withdrawn=1)
    if as_json:
        tell_json({"site": name, "removed": removed})
    else:
        print(f"The token of site {name} is worth nothing now." if removed else f"Site {name} had no token to remove.")


def site_json(site: SiteRecord) -> dict[str, object]:
    """A site for machines."""
    activity, token = site.activity, site.token
    return {
        "site": site.name,
        "state": site.state.value,
        "reason": site.reason,
        "node_id": site.node_id,
        "software_version": site.software_version,
        "protocol": site.protocol,
        "added_unix": site.added_unix,
        "joined_unix": site.joined_unix,
        "last_seen_unix": site.last_seen_unix,
        "connected": not _silence(site, time.time()) and bool(site.last_seen_unix),
        "clock_skew_seconds": site.clock_skew_seconds,
        "signing_key": site.signing_key.hex(),
        "certificate": site.certificate_fingerprint,
        "certificate_expiry_unix": site.certificate_expiry_unix,
        "own_authority": bool(site.authority),
        "activity": activity.kind.value,
        "run": activity.run_id,
        "round": activity.round,
        "step": activity.step,
        "steps": activity.steps,
        "code": activity.code,
        "token_expires_unix": token.expires_unix if token and not token.used else 0,
        "token_tries": token.tries if token else 0,
    }


def tell_sites(sites: Sequence[SiteRecord]) -> None:
    """Sites for people."""
    if not sites:
        print("No sites yet: `fedloop server site add NAME` invites one.")
        return
    now = time.time()
    rows = [
        (
            site.name,
            site.state.value,
            _does(site, now),
            site.activity.run_id or "-",
            moment(site.last_seen_unix),
            f"{site.clock_skew_seconds:+d} s" if site.last_seen_unix else "-",
            moment(site.certificate_expiry_unix),
        )
        for site in sites
    ]
    tell_table(("SITE", "STATE", "DOES", "RUN", "LAST SEEN", "CLOCK", "CERTIFICATE UNTIL"), rows)


def _does(site: SiteRecord, now: float) -> str:
    """What a site said last that it does, while that still says anything."""
    if not site.last_seen_unix:
        return "-"
    silence = _silence(site, now)
    if not silence:
        return site.activity.kind.value
    return f"not connected for {took_words(silence) if silence >= 60 else f'{silence} s'}"


def _silence(site: SiteRecord, now: float) -> int:
    """Whole seconds since an active site was heard of; 0 when it is no longer than usual, or nobody expects to hear of it."""
    quiet = int(now) - site.last_seen_unix
    return quiet if site.state.value == "active" and site.last_seen_unix and quiet > _SILENT_SECONDS else 0


def _token(home: CoordinatorHome, name: str, seconds: int, *, as_json: bool) -> None:
    from fedloop_core.audit import AuditAction
    from fedloop_server.membership.inviting import issue_join_token

    token = issue_join_token(home.members(), home.authorities(), home.settings, name, valid_seconds=seconds)
    home.audit().record(operator(), AuditAction.TOKEN_ISSUED, name, expires_unix=token.expires_unix)
    told: Told = {
        "site": name,
        "token": token.to_text(),
        "fingerprint": token.fingerprint(),
        "address": token.address,
        "expires_unix": token.expires_unix,
    }
    if as_json:
        tell_json(told)
        return
    print(f"Token for site {name}, valid once until {moment(token.expires_unix)}; send it over a channel you trust:")
    print()
    print(token.to_text())
    print()
    print(f"At the site: fedloop site join TOKEN. Compare by phone: {token.fingerprint()}")
