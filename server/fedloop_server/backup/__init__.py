"""One file that a coordinator can be set up from again, written while everything runs, and what makes a home of it."""

from fedloop_server.backup.advice import next_steps
from fedloop_server.backup.manifest import Manifest, ManifestFile
from fedloop_server.backup.restoring import Restored, check_archive, restore
from fedloop_server.backup.writing import BackedUp, back_up

__all__ = ["BackedUp", "Manifest", "ManifestFile", "Restored", "back_up", "check_archive", "next_steps", "restore"]
