"""Who sees what of a federation, as data: the table of docs/privacy.md, for a task with privacy and for one without."""

from __future__ import annotations

from fedloop_core.strict import Strict
from fedloop_core.task.document import Task

__all__ = ["DISCLOSURES", "Disclosure", "disclosures_of"]

_NO = "-"


class Disclosure(Strict):
    """What each party sees of one thing; ``-`` is nothing."""

    what: str
    device: str
    site: str
    coordinator: str
    other_sites: str


def _row(what: str, device: str, site: str, coordinator: str, other_sites: str) -> Disclosure:
    return Disclosure(what=what, device=device, site=site, coordinator=coordinator, other_sites=other_sites)


_UPDATE = "a site's update of one round"
_NOISED = "with noise"
_OF_ONE_RUN = "yes, another one in each run"

DISCLOSURES: tuple[Disclosure, ...] = (
    _row("a site's rows", _NO, "yes", _NO, _NO),
    _row("inputs and labels at a device", "yes", "yes", _NO, _NO),
    _row("sketches (counts of what devices saw)", "yes", "yes", _NO, _NO),
    _row(_UPDATE, _NO, "yes", "with noise; with secure aggregation not at all", _NO),
    _row("sums for shared scaling", _NO, "yes", _NOISED, _NO),
    _row("number of training units", _NO, "yes", _NOISED, _NO),
    _row("how good a model is on its evaluation rows", _NO, "yes", _NOISED, _NO),
    _row("drift in a window, yes or no", _NO, "yes, exactly", "with noise, one bit", _NO),
    _row("what moved, and how far", _NO, "yes", _NO, _NO),
    _row("verdict of the data gate, and which rules failed", _NO, "yes, exactly", _NOISED, _NO),
    _row("number of units with labels that came back since drift was told", _NO, "yes", _NOISED, _NO),
    _row("digest of the rows, keyed with the site's secret", _NO, "yes", _OF_ONE_RUN, _NO),
    _row("what the ledger has spent and still allows", _NO, "yes", "yes", _NO),
    _row("how many blocks of its rows a run leaves out", _NO, "yes, and which", "yes, the number", _NO),
    _row("number of the ledger's newest entry, and its digest", _NO, "yes", "yes, signed", _NO),
    _row(
        "when it trains, pauses or waits for approval; its clock, addresses and version of fedloop",
        _NO,
        "yes",
        "yes",
        _NO,
    ),
    _row("number and digest of the newest entry of the coordinator's audit log", _NO, "yes", "yes", "yes"),
    _row("what a site's own audit log says", _NO, "yes", _NO, _NO),
    _row("version, state, runtime, latency, number of predictions of a device", "yes", "yes", "in a simulation", _NO),
    _row("the model", "yes", "yes", "yes", "yes"),
)
"""With privacy, as for any task."""


def disclosures_of(task: Task) -> tuple[Disclosure, ...]:
    """Who sees what in a run of this task."""
    return tuple(_for(task, row) for row in DISCLOSURES)


def _for(task: Task, row: Disclosure) -> Disclosure:
    seen = row.coordinator
    if row.what == _UPDATE:
        seen = _NO if task.secure else _NOISED
    if not task.privacy.private:
        seen = "yes" if row.what.startswith("what moved") else seen.replace(_NOISED, "exactly")
        seen = "yes" if seen == _OF_ONE_RUN else seen
    return row.model_copy(update={"coordinator": seen})
