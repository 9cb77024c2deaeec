"""Where a database stands among the revisions. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.errors import StorageError

__all__ = ["HEAD", "REVISIONS", "Behind", "Current", "Found", "Fresh", "standing"]

REVISIONS = ("0001", "0002", "0003", "0004")
"""Every revision in order; the files are ``versions/<revision>_*.py``."""
HEAD = REVISIONS[-1]
"""What this release makes and reads."""

_OLD_FORMAT = 1  # of registries before there were revisions: the tables of 0001 and one named `format`


@dataclass(frozen=True)
class Found:
    """What a database says of itself.

    ``revisions`` are the rows of ``alembic_version``, ``formats`` those of ``format``; None when there is no such table.
    ``foreign`` says whether other tables of ours are there.
    """

    revisions: tuple[str, ...] | None
    formats: tuple[int, ...] | None
    foreign: bool


@dataclass(frozen=True)
class Fresh:
    """Nothing is there yet."""


@dataclass(frozen=True)
class Current:
    """Nothing is to be done."""


@dataclass(frozen=True)
class Behind:
    """An older release wrote it; ``unmarked`` when it has no revision of its own but the format of the first one."""

    revision: str
    unmarked: bool = False


def standing(name: str, found: Found) -> Fresh | Current | Behind:
    """What opening has to do.

    Raises:
        StorageError: a newer release wrote the database, or it is none of fedloop's.
    """
    if found.revisions:
        return _of_revision(name, found.revisions)
    if found.formats:
        if found.formats == (_OLD_FORMAT,):
            return Behind(REVISIONS[0], unmarked=True)
        raise StorageError(
            f"database {name} has format {found.formats[0]}; this release reads {_OLD_FORMAT} and revisions up to {HEAD}.",
            hint="Use the release of fedloop that wrote it.",
        )
    if found.foreign:
        raise StorageError(
            f"database {name} has tables of these names and does not say which release of fedloop made them.",
            hint="Name an empty database, or restore this one from a backup.",
        )
    return Fresh()


def _of_revision(name: str, revisions: tuple[str, ...]) -> Current | Behind:
    if revisions == (HEAD,):
        return Current()
    if len(revisions) == 1 and revisions[0] in REVISIONS:
        return Behind(revisions[0])
    raise StorageError(
        f"database {name} is of revision {', '.join(revisions)}, which a newer release of fedloop wrote; this one knows "
        f"revisions up to {HEAD}.",
        hint="Use that release, or restore the copy that it put aside before it upgraded.",
    )
