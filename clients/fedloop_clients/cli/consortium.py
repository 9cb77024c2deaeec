"""With whom this site sums updates securely: look at a list, accept it after comparing it by phone, take it back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, moment, operator, tell_json, tell_table
from fedloop_core.errors import ConsortiumRefused, UsageError
from fedloop_core.fingerprints import is_same_fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedloop_clients.consortium import ConsortiumState, Difference, Owner
    from fedloop_clients.home import SiteHome
    from fedloop_core.secure_aggregation.consortium import ConsortiumDocument

__all__ = ["accept", "commands", "remove", "show"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)

_FILE: Path = typer.Argument(help="What `fedloop server consortium export` wrote.")
_LOOKED_AT: Path | None = typer.Argument(None, help="A file to look at; without one, what was accepted.")
_NEW_KEYS: list[str] = typer.Option(
    [], "--new-key", help="A site whose people have said, by phone, that its key is a new one; may be repeated."
)


@commands.callback()
def _consortium() -> None:
    """With whom this site sums updates securely: look at a list, accept it after comparing it by phone, take it back."""


@commands.command()
def show(file: Path | None = _LOOKED_AT, home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show the fingerprint of this site's own key, and those of a file or of what was accepted."""
    from fedloop_clients.consortium import difference
    from fedloop_clients.secure_aggregation.policy import floor_words
    from fedloop_core.secure_aggregation.consortium import read_consortium

    site = _joined(home)
    owner, state = site.identity(), site.consortium().state()
    document = None if file is None else read_consortium(file)
    sites = state.sites if document is None else document.sites
    found = None if document is None else difference(state, document, owner)
    asked = site.settings.policy.minimum_sites
    if as_json:
        when = {"accepted_unix": state.accepted_unix if document is None else 0}
        tell_json(_told(owner, sites, found) | _floor(asked, len(sites)) | when)
        return
    print(f"This site is {owner.site}. Fingerprint of its key: {_key_fingerprint(owner.key)}")
    if not sites:
        print("No consortium was accepted here: tasks with secure aggregation are refused.")
        print("Next: get a file from the coordinator's people, then: fedloop site consortium accept FILE")
        return
    _tell(sites)
    print(f"A sum {floor_words(asked, len(sites))}.")
    if found is not None:
        _tell_difference(found, state)
    else:
        print(f"Accepted {moment(state.accepted_unix)} by {state.accepted_by}.")


@commands.command()
def accept(
    file: Path = _FILE,
    fingerprint: str = typer.Option("", "--fingerprint", help="Of the whole, as people of another site read it out."),
    yes: bool = typer.Option(False, "--yes", help="Ask nothing: it was compared already."),
    new_key: list[str] = _NEW_KEYS,
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would change, and accept nothing."),
    home: Path = HOME,
    as_json: bool = AS_JSON,
) -> None:
    """Accept a list of sites and keys, once its fingerprint was compared by phone with people of the other sites.

    The running daemon takes it up with its next question.
    """
    from fedloop_clients.consortium import check_acceptable, difference
    from fedloop_core.secure_aggregation.consortium import read_consortium

    site = _joined(home)
    owner, accepted, document = site.identity(), site.consortium(), read_consortium(file)
    found = difference(accepted.state(), document, owner)
    if not as_json:
        _tell(document.sites)
        _tell_difference(found, accepted.state())
    check_acceptable(document, owner, found, new_key)
    if not dry_run:
        _confirm(document, fingerprint, yes=yes, may_ask=not as_json)
        found = accepted.accept(document, owner, new_keys=new_key, by=operator(), now_unix=int(time.time()))
        _record(site, document, found)
    if as_json:
        floor = _floor(site.settings.policy.minimum_sites, len(document.sites))
        tell_json(_told(owner, document.sites, found) | floor | {"dry_run": dry_run})
    elif dry_run:
        print("Nothing was accepted. Leave --dry-run out to accept it.")
    else:
        _tell_accepted(site, len(document.sites))


@commands.command()
def remove(
    yes: bool = typer.Option(False, "--yes", help="Ask nothing."), home: Path = HOME, as_json: bool = AS_JSON
) -> None:
    """Take back what was accepted: tasks with secure aggregation are refused from then on, and sums under way go on without this site."""
    from fedloop_core.audit import AuditAction

    site = _joined(home)
    if not yes and site.consortium().state().sites:
        if as_json:
            raise UsageError("removing the consortium must be confirmed.", hint="Add --yes.")
        if not typer.confirm("Shall this site refuse secure aggregation until another consortium is accepted?"):
            raise UsageError("nothing was changed.")
    were = site.consortium().remove()
    if were:
        site.audit().record(operator(), AuditAction.CONSORTIUM_REMOVED, site.membership().site, sites=len(were))
    if as_json:
        tell_json({"removed": list(were)})
    elif were:
        print(f"The consortium of {len(were)} sites is removed: tasks with secure aggregation are refused.")
    else:
        print("No consortium was accepted here: nothing to remove.")


def _joined(home: Path) -> SiteHome:
    from fedloop_clients.home import SiteHome

    return SiteHome(home.resolve())


def _confirm(document: ConsortiumDocument, told: str, *, yes: bool, may_ask: bool) -> None:
    from fedloop_core.secure_aggregation.consortium import consortium_fingerprint

    right = consortium_fingerprint(document.consortium())
    if told:
        if not is_same_fingerprint(told, right):
            raise ConsortiumRefused(
                f"this file has the fingerprint {right}, not the one given.",
                hint="Nothing was accepted. Ask people of the other sites, by phone, which one theirs shows.",
                reason="fingerprint",
            )
    elif not yes:
        if not may_ask:
            raise UsageError("the fingerprint must be confirmed.", hint="Give --fingerprint, or --yes.")
        if not typer.confirm("Compare it by phone with people of the other sites. Is it the same there?"):
            raise ConsortiumRefused("the fingerprint was not confirmed; nothing was accepted.", reason="fingerprint")


def _record(site: SiteHome, document: ConsortiumDocument, found: Difference) -> None:
    from fedloop_core.audit import AuditAction
    from fedloop_core.secure_aggregation.consortium import consortium_fingerprint

    site.audit().record(
        operator(),
        AuditAction.CONSORTIUM_ACCEPTED,
        site.membership().site,
        fingerprint=consortium_fingerprint(document.consortium()),
        sites=len(document.sites),
        changed_keys=", ".join(found.changed),
    )


def _key_fingerprint(key: str) -> str:
    from fedloop_core.keys import VerifyingKey
    from fedloop_core.secure_aggregation.consortium import key_fingerprint

    return key_fingerprint(VerifyingKey(bytes.fromhex(key)))


def _whole(sites: Mapping[str, str]) -> str:
    from fedloop_core.secure_aggregation.consortium import consortium_fingerprint, consortium_of

    return consortium_fingerprint(consortium_of(sites)) if sites else ""


def _tell(sites: Mapping[str, str]) -> None:
    tell_table(
        ("SITE", "FINGERPRINT OF ITS KEY"), [(name, _key_fingerprint(key)) for name, key in sorted(sites.items())]
    )
    print(f"Fingerprint of the whole: {_whole(sites)}")


def _tell_difference(found: Difference, state: ConsortiumState) -> None:
    if not state.sites:
        print("Nothing is accepted yet.")
    elif found.is_none:
        print("It is what is accepted already.")
    for words, sites in (("comes", found.added), ("goes", found.removed)) if state.sites else ():
        for name in sites:
            print(f"Site {name} {words}.")
    if found.own_key:
        print("This site's own key is a new one since then.")
    for name in found.changed:
        print(f"THE KEY OF SITE {name} IS ANOTHER than the one that was accepted before.")


def _tell_accepted(site: SiteHome, sites: int) -> None:
    from fedloop_clients.secure_aggregation.policy import floor_words
    from fedloop_core.processes.progress import at_home

    print(f"Accepted. A sum {floor_words(site.settings.policy.minimum_sites, sites)}.")
    print(f"Another number of sites: policy.minimum_sites in {site.settings_file}")
    print(f"Next: fedloop site doctor{at_home(site.folder)}")


def _floor(asked: int | None, sites: int) -> dict[str, object]:
    from fedloop_clients.secure_aggregation.policy import floor_of, withstood

    if not sites:
        return {}
    floor = floor_of(asked, sites)
    return {"minimum_sites": floor, "withstands_colluding_sites": withstood(floor)}


def _told(owner: Owner, sites: Mapping[str, str], found: Difference | None) -> dict[str, object]:
    listed = [{"site": name, "key": key, "fingerprint": _key_fingerprint(key)} for name, key in sorted(sites.items())]
    told: dict[str, object] = {
        "site": owner.site,
        "key": owner.key,
        "key_fingerprint": _key_fingerprint(owner.key),
        "sites": listed,
        "fingerprint": _whole(sites),
    }
    if found is not None:
        told |= {"added": list(found.added), "removed": list(found.removed), "changed": list(found.changed)}
    return told
