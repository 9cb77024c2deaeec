"""What people have to know and do after a restore. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fedloop_core.backup import Manifest

__all__ = ["next_steps"]

_OLD_ONE = "Make sure that the old coordinator is off for good: two with the same keys would answer in turns."
_KEYS = "Put the keys back into {home}/keys and {home}/front before the first start: sites trust no others."
_OWNERS = "Files of {owners} are yours now, since this machine has no such users: make them, then chown what is theirs in {home}."
_MEMBERS = (
    "Everything since {moment} is forgotten here: revoke again the sites that were revoked since, and let those that joined or "
    "renewed their certificate since do it once more."
)
_LEDGERS = (
    "The high-water marks of the sites' ledgers are those of that moment: until a site has answered again, its ledger could be "
    "put back to any state since then unnoticed. The first answer of each site raises its mark."
)
_AUDIT = (
    "The audit log goes on after entry {sequence}: later entries that sites countersigned are lost here, and the sites' own "
    "logs still name them."
)
_ATTEMPTS = (
    "Sites refuse attempts of a run lower than those they have seen: a run goes on with a later number by itself. What a site "
    "has answered it answers again from its outbox, at no charge."
)
_DEVICES = "Devices refuse release metadata older than theirs: publish once more if there was a release since."
_START = "Start it: fedloop server up --home {home}; then resume what was open: fedloop run list --home {home}"


def next_steps(manifest: Manifest, home: Path, unknown_owners: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Sentences, in the order in which they matter; for the owners see ``Restored``."""
    moment = datetime.fromtimestamp(manifest.created_unix, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return (
        _OLD_ONE,
        *(f"This is not in the backup: {note}" for note in manifest.notes),
        *(_OWNERS.format(owners=owners, home=home) for owners in unknown_owners),
        *(() if manifest.keys else (_KEYS.format(home=home),)),
        _MEMBERS.format(moment=moment),
        _LEDGERS,
        _AUDIT.format(sequence=manifest.audit_sequence),
        _ATTEMPTS,
        _DEVICES,
        _START.format(home=home),
    )
