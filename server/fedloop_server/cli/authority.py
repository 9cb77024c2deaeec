"""See the certificate authority, and replace it without any site noticing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_core.commands import AS_JSON, moment, operator, tell_json
from fedloop_server.cli.options import HOME, open_home

if TYPE_CHECKING:
    from fedloop_server.home import CoordinatorHome
    from fedloop_server.membership.rollover import Rollover, RollStanding

__all__ = ["commands", "finish_roll", "roll", "show"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)


@commands.callback()
def _authority() -> None:
    """See the certificate authority, and replace it without any site noticing."""


@commands.command()
def show(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show the authority, its successor during a rollover, and what sites compare by phone."""
    from fedloop_core.certificates import certificate_expiry
    from fedloop_core.federation.join import authority_fingerprint
    from fedloop_server.membership.pem import first_der

    opened = open_home(home)
    authorities = opened.authorities()
    successor = authorities.next()
    held = {"current": authorities.current().certificate} | ({"next": successor.certificate} if successor else {})
    told: dict[str, object] = {
        name: {"fingerprint": authority_fingerprint(first_der(pem)), "expires_unix": certificate_expiry(pem)}
        for name, pem in held.items()
    }
    told["compared_by_phone"] = authority_fingerprint(authorities.token_authority())
    if as_json:
        tell_json(told)
        return
    for name, pem in held.items():
        print(f"{name:8} {authority_fingerprint(first_der(pem))}  until {moment(certificate_expiry(pem))}")
    print(f"Sites that join compare: {told['compared_by_phone']}")


@commands.command()
def roll(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Make a new authority beside the old one and tell all sites of it."""
    from fedloop_core.audit import AuditAction

    opened = open_home(home)
    rollover = _rollover(opened)
    told = rollover.begin()
    if told or not rollover.standing().waiting:
        opened.audit().record(operator(), AuditAction.AUTHORITY_ROLLED, "begun", told=len(told))
    standing = rollover.standing()
    if as_json:
        tell_json(_json(standing) | {"told": list(told)})
        return
    print(f"The new authority is there; {len(told)} sites are being told.")
    _tell(standing)


@commands.command("finish-roll")
def finish_roll(
    home: Path = HOME,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say who does not know the new authority yet."),
    as_json: bool = AS_JSON,
) -> None:
    """Drop the old authority, once all active sites know the new one."""
    from fedloop_core.audit import AuditAction

    opened = open_home(home)
    rollover = _rollover(opened)
    if not dry_run:
        rollover.finish()
        _show_new_certificates(opened)
        opened.audit().record(operator(), AuditAction.AUTHORITY_ROLLED, "finished")
    standing = rollover.standing()
    if as_json:
        tell_json(_json(standing))
        return
    if dry_run:
        _tell(standing)
    else:
        print("The old authority is dropped: front and hub show certificates of the new one.")


def _rollover(home: CoordinatorHome) -> Rollover:
    from fedloop_server.membership.rollover import Rollover

    return Rollover(home.members(), home.notices(), home.authorities(), home.envelope_key)


def _show_new_certificates(home: CoordinatorHome) -> None:
    """At once, and not at the service's next look: sites are told to forget the old authority."""
    import time

    from fedloop_server.membership.servers import ServerCertificates

    ServerCertificates(home.folder, home.settings, home.authorities()).refresh(int(time.time()))


def _json(standing: RollStanding) -> dict[str, object]:
    return {
        "going_on": standing.going_on,
        "waiting": list(standing.waiting),
        "former_certificates": list(standing.former),
        "tokens": list(standing.tokens),
    }


def _tell(standing: RollStanding) -> None:
    if not standing.going_on:
        print("No rollover is going on.")
    elif standing.waiting:
        print(f"These sites do not know the new authority yet: {', '.join(standing.waiting)}.")
    else:
        print("All active sites know the new authority: `fedloop server authority finish-roll` drops the old one.")
    if standing.tokens:
        print(
            f"Their tokens end with the old authority: {', '.join(standing.tokens)}; `fedloop server site renew` makes new ones."
        )
    if standing.former:
        print(f"These will soon have a certificate of the new one: {', '.join(standing.former)}.")
