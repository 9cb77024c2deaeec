"""One file that a home can be set up from again, written while everything runs, and what makes a home of it.

Coordinator and site share all of this; what is different at each, it is told by a ``HomeKind``.
"""

from fedloop_core.backup.kinds import Changing, HomeKind
from fedloop_core.backup.manifest import Manifest, ManifestFile
from fedloop_core.backup.restoring import Restored, check_archive, check_restore, restore
from fedloop_core.backup.sqlite_copy import held_still
from fedloop_core.backup.writing import BackedUp, Progress, back_up, unseen

__all__ = [
    "BackedUp",
    "Changing",
    "HomeKind",
    "Manifest",
    "ManifestFile",
    "Progress",
    "Restored",
    "back_up",
    "check_archive",
    "check_restore",
    "held_still",
    "restore",
    "unseen",
]
