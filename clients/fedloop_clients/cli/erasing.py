"""Leave people out who have objected or withdrawn their consent, and take them back who want to take part again."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, moment, operator, tell_json
from fedloop_core.errors import DataError, FileMissing, UsageError

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome
    from fedloop_clients.people import Search
    from fedloop_core.audit import AuditEntry

__all__ = ["erase", "readmit"]

_PEOPLE: list[str] | None = typer.Argument(
    None, help="As the site's file names them: a patient's or customer's number."
)
_FROM: Path | None = typer.Option(None, "--from", help="A file with one of them on each line.")
_MOST_BYTES = 16 * 2**20
_KEEPS = (
    "Models that were made before keep what they have learnt; of one person that is no more than each run's epsilon allows. "
    "Backups and the data file are yours: take the rows out of them there."
)


def erase(
    people: list[str] | None = _PEOPLE,
    from_file: Path | None = _FROM,
    not_yet: bool = typer.Option(False, "--not-yet", help="Also people of whom there is no row, or none yet."),
    list_them: bool = typer.Option(False, "--list", help="Only tell how many are on the list, and since when."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be done, and do nothing."),
    home: Path = HOME,
    as_json: bool = AS_JSON,
) -> None:
    """Leave the rows of these people out of every run that begins from now on; `fedloop site readmit` takes it back.

    People are looked for in the site's data file first: whoever is in no row of it is named, and not put on the list, without
    --not-yet. The list holds no name, only digests under the site's own secret. Rows in the data file are not touched.
    """
    from fedloop_clients.cli.erasing_words import ErasureOutcome
    from fedloop_core.audit import AuditAction

    site = _joined(home)
    if list_them:
        if people or from_file is not None:
            raise UsageError("--list takes no people.")
        _tell_list(site, as_json=as_json)
        return
    named = _named(people, from_file)
    search, unseen = _looked_for(site, named, not_yet=not_yet)
    known = site.erased().holds()
    absent = [] if search is None else [one for one in search.people if not one.rows and not known(one.person)]
    refused = set() if not_yet else {one.person for one in absent}
    wanted = tuple(person for person in named if person not in refused)
    runs = _runs(site)
    if dry_run:
        new = tuple({site.erased().digest(person) for person in wanted if not known(person)})
    else:
        new = site.erased().erase(wanted, int(time.time()))
        for digest in new:
            site.audit().record(operator(), AuditAction.PERSON_ERASED, digest[:16])
    outcome = ErasureOutcome(
        len(named), len(new), len(wanted) - len(new), search, unseen, tuple(absent), dry_run, not_yet
    )
    if as_json:
        tell_json(outcome.as_json() | {"runs": [run for run, _ in runs]})
        if refused:
            raise typer.Exit(DataError.exit_status)
        return
    for line in outcome.words():
        print(line)
    if wanted:
        _tell_consequences(site, runs, dry_run=dry_run)
    if refused:
        raise DataError(
            f"{len(refused)} of {len(named)} people are in no row, and not left out.",
            hint="Name them as the file does; or add --not-yet for people who may come later, or of whom only devices sent rows.",
        )


def _looked_for(site: SiteHome, named: tuple[str, ...], *, not_yet: bool) -> tuple[Search | None, str]:
    """What the data file holds of them; where people may come later it need not be readable, and the reason is told.

    Raises:
        UsageError, DataError: nobody can be looked for.
    """
    from fedloop_clients.people import search_for

    try:
        return search_for(site, named), ""
    except (UsageError, DataError) as error:
        if not not_yet:
            raise
        return None, error.message


def _tell_consequences(site: SiteHome, runs: list[tuple[str, int]], *, dry_run: bool) -> None:
    if runs:
        listed = ", ".join(f"{run} ({moment(unix)})" for run, unix in runs[-10:])
        print(f"Runs in which their rows may have been: {listed}{' and earlier ones' if len(runs) > 10 else ''}.")
        print("A run that is under way keeps the rows that it began with: `fedloop site pause` ends its training now.")
    print(_KEEPS)
    if not dry_run and site.settings.data.person_column is None:
        print(
            f"Tasks that name no unit column are refused from now on, until data.person_column in {site.settings_file} names the "
            "column by which people are known."
        )


def readmit(
    people: list[str] | None = _PEOPLE, from_file: Path | None = _FROM, home: Path = HOME, as_json: bool = AS_JSON
) -> None:
    """Let people take part again who were erased."""
    from fedloop_core.audit import AuditAction

    site = _joined(home)
    named = _named(people, from_file)
    found = site.erased().readmit(named)
    for digest in found:
        site.audit().record(operator(), AuditAction.PERSON_READMITTED, digest[:16])
    if as_json:
        tell_json({"readmitted": len(found), "unknown": len(named) - len(found)})
        return
    others = "; the others were not erased" if len(found) < len(named) else ""
    print(f"{len(found)} of {len(named)} people take part again in runs that begin from now on{others}.")


def _joined(home: Path) -> SiteHome:
    from fedloop_clients.home import SiteHome

    site = SiteHome(home.resolve())
    site.membership()
    return site


def _named(people: Iterable[str] | None, from_file: Path | None) -> tuple[str, ...]:
    """Each once, in order.

    Raises:
        FileMissing: the file cannot be read.
        UsageError: nobody is named.
    """
    from fedloop_clients.people import person_name

    listed = list(people or ())
    if from_file is not None:
        try:
            if from_file.stat().st_size > _MOST_BYTES:
                raise FileMissing(f"{from_file} has more than {_MOST_BYTES} bytes.", hint="Name fewer people at once.")
            listed += from_file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise FileMissing(f"cannot read {from_file} as UTF-8 text.", hint="One person on each line.") from error
    named = tuple(dict.fromkeys(person_name(person) for person in listed if person.strip()))
    if not named:
        raise UsageError("nobody is named.", hint="Name people as the site's file does, or a file of them with --from.")
    return named


def _runs(site: SiteHome) -> list[tuple[str, int]]:
    """Runs that the site was described, and when first."""
    from fedloop_core.audit import AuditAction

    entries: Iterable[AuditEntry] = site.audit().entries()
    begun: dict[str, int] = {}
    for entry in entries:
        if entry.action is AuditAction.RUN_STARTED:
            begun.setdefault(entry.subject, entry.unix)
    return list(begun.items())


def _tell_list(site: SiteHome, *, as_json: bool) -> None:
    state = site.erased().state()
    if as_json:
        tell_json(state.model_dump())
        return
    if not state.people:
        print("Nobody was erased.")
        return
    print(f"{len(state.people)} people are left out, the first since {moment(state.people[0].unix)}.")
