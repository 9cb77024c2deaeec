"""A place where a site or a coordinator keeps something, and for how long."""

from __future__ import annotations

from fedloop_core.strict import Strict

__all__ = ["Store", "backups", "kept_for_ever", "logs", "passing"]


class Store(Strict):
    """One store.

    ``days``: None where nothing is deleted by age. ``setting``: the key of the settings file that says so. ``kept``: for how long, in
    words; ``stays``: what is not deleted, and why.
    """

    name: str
    place: str
    holds: str
    days: int | None = None
    setting: str = ""
    kept: str
    deleted_by: str
    stays: str


def logs(days: int) -> Store:
    """The logs of processes, which a supervisor keeps."""
    return Store(
        name="logs",
        place="logs/",
        holds="what the processes have said; no row",
        days=days,
        setting="retention.log_days",
        kept=f"{days} days; and at most five files of 10 MiB for each process",
        deleted_by="the supervisor, each hour",
        stays="nothing",
    )


def kept_for_ever(name: str, place: str, holds: str, why: str) -> Store:
    """A store of which nothing is ever deleted."""
    return Store(name=name, place=place, holds=holds, kept="for ever", deleted_by="nobody", stays=f"all of it: {why}")


def passing(name: str, place: str, holds: str, kept: str, deleted_by: str, stays: str = "nothing") -> Store:
    """A store whose content goes by itself when it has done its work."""
    return Store(name=name, place=place, holds=holds, kept=kept, deleted_by=deleted_by, stays=stays)


def backups(command: str, holds: str, whose: str) -> Store:
    """Backups, which are somebody's own."""
    return Store(
        name="backups",
        place=f"where `{command}` was told to write",
        holds=holds,
        kept=f"as {whose} decide",
        deleted_by=whose,
        stays="what was deleted here since the backup was made: delete backups when they are as old as the limits above",
    )
