"""A coordinator in one file, written while everything runs, and what makes a coordinator's folder of it."""

from fedloop_server.backup.advice import next_steps
from fedloop_server.backup.coordinator import COORDINATOR, back_up, check_archive, check_restore, restore

__all__ = ["COORDINATOR", "back_up", "check_archive", "check_restore", "next_steps", "restore"]
