"""What a site holds in each of its stores, since when, and when it goes. Nothing is changed."""

from __future__ import annotations

from pathlib import Path

from fedloop_clients.feedback.store import held_in
from fedloop_clients.home import SiteHome
from fedloop_clients.retention.stores import goes_unix, site_stores
from fedloop_core.processes.logs import log_files
from fedloop_core.retention import Store
from fedloop_core.strict import Strict

__all__ = ["HeldStore", "held_stores"]


class HeldStore(Strict):
    """A store with what it holds now.

    ``items``: None where they are not counted. ``oldest_unix`` and ``goes_unix`` (seconds since 1970): since when, and when the oldest
    is deleted; None where nothing is held, or nothing goes by its age.
    """

    store: Store
    items: int | None
    bytes: int
    oldest_unix: int | None
    goes_unix: int | None

    def is_due(self, now_unix: int) -> bool:
        """Whether something of it is to be deleted by now."""
        return self.goes_unix is not None and self.goes_unix < now_unix


def held_stores(home: SiteHome) -> tuple[HeldStore, ...]:
    """All stores of the site, in the order of ``site_stores``.

    Raises:
        NotSetUp, SettingsInvalid: site.toml cannot be read.
        StorageError: a store cannot be read.
    """
    return tuple(_held(home, store) for store in site_stores(home.settings.retention))


def _held(home: SiteHome, store: Store) -> HeldStore:
    items, size, oldest = _measured(home, store.name)
    return HeldStore(
        store=store,
        items=items,
        bytes=size,
        oldest_unix=oldest or None,
        goes_unix=goes_unix(oldest, store.days),
    )


def _measured(home: SiteHome, name: str) -> tuple[int | None, int, int]:
    """Items, bytes, and the moment of the oldest; 0 where it is not known."""
    match name:
        case "outbox" if home.outbox_file.exists():
            outbox = home.outbox()
            try:
                kept = outbox.kept()
            finally:
                outbox.close()
            return kept.answers, kept.bytes, kept.oldest_unix
        case "feedback" if home.feedback_file.exists():
            held = held_in(home.feedback_file)
            return held.examples, held.bytes, held.oldest_unix
        case "logs":
            files = log_files(home.logs)
            return len(files), sum(file.bytes for file in files), min((file.first_unix for file in files), default=0)
        case "ledger":
            return None, _bytes(home.ledger_file), 0
        case "audit log":
            first = next(iter(home.audit().entries()), None) if home.audit_file.exists() else None
            return None, _bytes(home.audit_file), 0 if first is None else first.unix
        case "erased people" if home.erased_file.exists():
            people = home.erased().state().people
            return len(people), _bytes(home.erased_file), min((person.unix for person in people), default=0)
        case "approvals" if home.approvals_file.exists():
            state = home.approvals().state()
            return len(state.waiting) + len(state.decisions), _bytes(home.approvals_file), 0
        case _:
            return None, 0, 0


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
