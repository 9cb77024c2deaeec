"""How the site stands, and what it allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedloop_clients.cli.data_file import is_missing, missing_words
from fedloop_clients.cli.options import HOME
from fedloop_clients.policy_words import policy_words
from fedloop_core.commands import AS_JSON, Told, moment, tell_json

if TYPE_CHECKING:
    from fedloop_clients.home import SiteHome
    from fedloop_clients.settings import SiteSettings
    from fedloop_clients.status import SiteStatus
    from fedloop_core.processes import ProcessStatus

__all__ = ["show_policy", "status"]

_SILENT_SECONDS = 30


def status(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show membership, processes, what the site does, certificate, ledger and last contact.

    The exit status is 0 also when nothing runs: --json says `"supervised": false` then.
    """
    from fedloop_clients.home import SiteHome
    from fedloop_clients.status import read_status as read_daemon
    from fedloop_core.certificates import certificate_expiry
    from fedloop_core.errors import NotSetUp
    from fedloop_core.processes import now_in

    site = SiteHome(home.resolve())
    member = site.membership()
    supervised, processes = now_in(site.folder)
    try:
        daemon = read_daemon(site.folder)
    except NotSetUp:
        daemon = None
    standing = site.standing().read()
    expires = certificate_expiry(site.site_certificate.read_bytes()) if site.site_certificate.exists() else 0
    told: dict[str, object] = {
        "site": member.site,
        "home": str(site.folder),
        "front": member.fleet_address,
        "hub": member.hub_address,
        "joined_unix": member.joined_unix,
        "signing_key": site.signing_key().verifying.raw.hex() if site.signing_key_file.exists() else "",
        "consortium": _consortium(site),
        "certificate_expires_unix": expires,
        "paused": standing.paused or site.settings.policy.paused,
        "leaving": standing.leaving or site.settings.policy.leaving,
        "waiting_for_approval": [asked.run_id for asked in site.approvals().state().waiting],
        "ledger": _ledger(site),
        "retention": _retention(site),
        "data": {"file": str(site.data_file), "missing": is_missing(site.data_file)},
        "supervised": supervised,
        "processes": [process.model_dump() for process in processes] or None,
        "daemon": None if daemon is None else daemon.model_dump(),
    }
    if as_json:
        tell_json(told)
    else:
        _print(told, processes, daemon)


def show_policy(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show what site.toml allows: tasks, purposes, hours, privacy, budgets, approval."""
    from fedloop_clients.home import SiteHome
    from fedloop_clients.open_budgets import changed_budgets, open_budgets

    site = SiteHome(home.resolve())
    settings, known = site.settings, open_budgets(site)
    if as_json:
        import json

        told = {"policy": json.loads(settings.rules().model_dump_json()), "budget": _budget(settings)}
        held = {block: {"epsilon": str(one.epsilon), "delta": one.delta} for block, one in known.items()}
        print(json.dumps(told | {"open_blocks": held}))
        return
    for line in policy_words(settings, len(site.consortium().state().sites)):
        print(line)
    for block, one in known.items():
        print(f"  in the ledger, for life: block {block} has epsilon {one.epsilon:g}, delta {one.delta:g}")
    for sentence in changed_budgets(settings, known):
        print(f"  now: nothing. {sentence} Put the first budget back.")


def _ledger(site: SiteHome) -> dict[str, object] | None:
    if not site.ledger_file.exists():
        return None
    ledger = site.ledger()
    head, exhausted = ledger.head(), ledger.exhausted()
    ledger.close()
    return {"sequence": head.sequence, "digest": head.digest.hex(), "exhausted": list(exhausted)}


def _consortium(site: SiteHome) -> dict[str, object]:
    """With whom it sums securely, and what people compare by phone."""
    from fedloop_core.secure_aggregation.consortium import consortium_fingerprint, key_fingerprint

    known = site.consortium().consortium()
    own = key_fingerprint(site.signing_key().verifying) if site.signing_key_file.exists() else ""
    return {
        "key_fingerprint": own,
        "sites": 0 if known is None else len(known.keys),
        "fingerprint": "" if known is None else consortium_fingerprint(known),
    }


def _retention(site: SiteHome) -> list[dict[str, object]]:
    """Of the stores that something is deleted from by its age."""
    from fedloop_clients.retention import held_stores

    return [
        {
            "store": held.store.name,
            "days": held.store.days,
            "oldest_unix": held.oldest_unix,
            "goes_unix": held.goes_unix,
        }
        for held in held_stores(site)
        if held.store.days is not None
    ]


def _print(told: Told, processes: Sequence[ProcessStatus], daemon: SiteStatus | None) -> None:
    from fedloop_core.processes.progress import at_home

    print(f"site         {told['site']} in {told['home']}")
    print(f"coordinator  front {told['front']}, hub {told['hub']}")
    expires = told["certificate_expires_unix"]
    print(f"certificate  until {moment(expires if isinstance(expires, int) else 0)}")
    known = told["consortium"]
    if isinstance(known, dict):
        print(f"key          {known['key_fingerprint'] or 'none'}")
        if known["sites"]:
            print(f"consortium   {known['sites']} sites, {known['fingerprint']}")
    ledger = told["ledger"]
    head = f"{ledger['sequence']} entries, head {str(ledger['digest'])[:16]}" if isinstance(ledger, dict) else "empty"
    print(f"ledger       {head}")
    exhausted = ledger["exhausted"] if isinstance(ledger, dict) else ()
    if exhausted:
        print(
            f"exhausted    {', '.join(exhausted)}: a run like the last leaves these rows out (fedloop site ledger show)"
        )
    data = told["data"]
    if isinstance(data, dict):
        print(f"data         {missing_words(data['file']) if data['missing'] else data['file']}")
    for held in told["retention"] if isinstance(told["retention"], list) else ():
        goes = f", the oldest goes {moment(held['goes_unix'])}" if held["goes_unix"] else ", nothing is held"
        print(f"retention    {held['store']}: {held['days']} days{goes}")
    if not told["supervised"]:
        print(f"processes    no supervisor runs here: `fedloop site up{at_home(Path(str(told['home'])))}` starts it")
    for process in processes:
        left = f" as process {process.pid}" if process.pid and not told["supervised"] else ""
        print(
            f"process      {process.name}: {process.state.value}{left}, {process.restarts} restarts, log {process.log}"
        )
    print(f"contact      {_contact(daemon)}")
    for key in ("paused", "leaving"):
        if told[key]:
            print(f"{key}: the site refuses all training")
    waiting = told["waiting_for_approval"]
    for run in waiting if isinstance(waiting, list) else ():
        print(f"waiting      run {run}: fedloop site approve {run}")


def _contact(daemon: SiteStatus | None) -> str:
    if daemon is None:
        return "none yet"
    doing = f"{daemon.activity} run {daemon.run_id}, round {daemon.round}" if daemon.run_id else daemon.activity
    silent = time.time() - daemon.unix > _SILENT_SECONDS
    when = f"{moment(daemon.unix)}{' (the daemon does not run)' if silent else ''}"
    return f"{when}: {doing}{f' ({daemon.code})' if daemon.code else ''}{f'; {daemon.hub}' if daemon.hub else ''}"


def _budget(settings: SiteSettings) -> dict[str, object]:
    budgets = {"training": settings.budget.training, "evaluation": settings.budget.evaluation}
    return {name: {"epsilon": str(budget.epsilon), "delta": budget.delta} for name, budget in budgets.items()}
