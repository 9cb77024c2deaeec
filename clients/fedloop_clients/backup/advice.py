"""What a site's people have to know and do after a restore. Pure."""

from __future__ import annotations

import shlex
from pathlib import Path

from fedloop_clients.backup.making import SiteRestored
from fedloop_core.backup import Manifest
from fedloop_core.commands import moment

__all__ = ["next_steps"]

_OLD_ONE = (
    "Make sure that the old site is off for good: two with the same keys and two ledgers would spend everything twice."
)
_NEWER = (
    "The ledger that was here ends at entry {newer}, this one at entry {ledger}: what was charged in between is missing. Put the "
    "newer one back before the first start, with the answers beside it: cp -p {aside}/ledger.db* {aside}/outbox.db* {home}/"
)
_MISSING = (
    "Charges since {moment} are missing in this ledger, which ends at entry {ledger}: whatever the site has released since is "
    "counted nowhere. Look for the newer ledger.db first: on the old disk, where its ledger.db-wal and outbox.db belong to it, and "
    "put them into {home} before the first start; or restore a newer backup."
)
_NOTICED = (
    "If there is none: the coordinator notices that the ledger is behind (FL-PRIV-003), and the site refuses all work. "
    "Then run fedloop site ledger accept-restored --home {home}: whoever does answers for the lost charges. At the coordinator: "
    "fedloop server site accept-ledger {site}"
)
_DECIDED = (
    "What people here decided since is forgotten: pause, leave, approve and change site.toml again. If the site has joined "
    "again since, these keys work no more: join with a new token."
)
_AUDIT = "The audit log goes on after entry {sequence}; later entries are lost here."
_ASIDE = "What was in {home} is in {aside} now: keep its ledger.db."
_ROWS = (
    "The file with the site's rows was in {home} and is in no backup. Bring it back before the first start: mkdir -p "
    "{rows_folder} && cp -p {rows_aside} {rows_folder}/"
)
_KEYS = (
    "Put the keys back into {home}/keys before the first start. Without its fingerprint.secret the rows are split anew into "
    "training and evaluation, and counted as new ones; without the others the site joins again with a new token."
)
_OWNERS = "Files of {owners} are yours now, since this machine has no such users: make them, then chown what is theirs in {home}."
_ERASED = "Rows of devices that were erased since, because they were too old, are back in feedback.db: they are erased again in time."
_START = "Look, then start it: fedloop site doctor --home {home}; fedloop site up --home {home}"


def next_steps(restored: SiteRestored, home: Path) -> tuple[str, ...]:
    """Sentences, in the order in which they matter."""
    made, manifest = restored.made, restored.made.manifest
    rows = restored.rows_aside
    names = {
        "home": home,
        "site": restored.site,
        "ledger": restored.ledger,
        "newer": restored.ledger_aside,
        "aside": made.aside,
        "rows_aside": shlex.quote(str(rows)),
        "rows_folder": shlex.quote(str(_folder_of(rows, made.aside, home))),
        "sequence": manifest.audit_sequence,
        "moment": moment(manifest.created_unix),
    }
    newer = restored.ledger_aside is not None and restored.ledger_aside > restored.ledger
    sentences = (
        _OLD_ONE,
        *((_ASIDE,) if made.aside is not None else ()),
        *((_ROWS,) if rows is not None else ()),
        _NEWER if newer else _MISSING,
        _NOTICED,
        *(() if manifest.keys else (_KEYS,)),
        _DECIDED,
        *((_ERASED,) if _holds(manifest, "feedback.db") else ()),
        _AUDIT,
    )
    return (
        *(sentence.format(**names) for sentence in sentences),
        *(f"This is not in the backup: {note}" for note in manifest.notes),
        *(_OWNERS.format(owners=owners, home=home) for owners in made.unknown_owners),
        _START.format(home=home),
    )


def _folder_of(rows: Path | None, aside: Path | None, home: Path) -> Path:
    return home if rows is None or aside is None else home / rows.relative_to(aside).parent


def _holds(manifest: Manifest, path: str) -> bool:
    return any(entry.path == path for entry in manifest.files)
