"""How long a site keeps what: every store with its limit, what is held, and the deletion of what is due."""

from __future__ import annotations

from fedloop_clients.retention.deleting import Deleted, delete_due
from fedloop_clients.retention.held import HeldStore, held_stores
from fedloop_clients.retention.stores import goes_unix, is_due_before, site_stores

__all__ = ["Deleted", "HeldStore", "delete_due", "goes_unix", "held_stores", "is_due_before", "site_stores"]
