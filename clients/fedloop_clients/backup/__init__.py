"""A site in one file, written while its daemon answers, and what makes a site's folder of it."""

from fedloop_clients.backup.advice import next_steps
from fedloop_clients.backup.making import SiteRestored, back_up, check_restore, restore
from fedloop_clients.backup.site import SITE

__all__ = ["SITE", "SiteRestored", "back_up", "check_restore", "next_steps", "restore"]
