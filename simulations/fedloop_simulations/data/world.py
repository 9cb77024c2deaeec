"""What the simulator distributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedloop_core.dataset import Dataset
from fedloop_core.task import Task

__all__ = ["MAXIMUM_PROBLEMS", "SiteRows", "StreamRows", "World", "bounded"]

MAXIMUM_PROBLEMS = 20
"""Skipped rows of a site that are told one by one; the others are counted."""


@dataclass(frozen=True)
class SiteRows:
    """What one site holds when the federation begins; training and evaluation rows are of different units.

    ``skipped`` counts the rows of the site's source that could not be read; ``problems`` says which and why, and ends
    with a count where there are more than ``MAXIMUM_PROBLEMS``. A site may have no rows: its own data gate leaves it
    out, by name.
    """

    name: str
    train: Dataset
    evaluation: Dataset
    skipped: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class StreamRows:
    """Rows that the devices of the site ``name`` will see once, in this order; may be none."""

    name: str
    rows: Dataset


@dataclass(frozen=True)
class World:
    """A federation's data. ``stream`` has one entry for each site, in the order of ``sites``; no row is in two places."""

    task: Task
    sites: tuple[SiteRows, ...]
    stream: tuple[StreamRows, ...]


def bounded(told: Sequence[str], skipped: int) -> tuple[str, ...]:
    """The first sentences, and how many more rows were skipped."""
    shown = tuple(told[:MAXIMUM_PROBLEMS])
    more = skipped - len(shown)
    return (*shown, *((f"and {more} more rows",) if more > 0 else ()))
