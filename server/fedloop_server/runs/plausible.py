"""Whether what a site says of its evaluation can be: checked before it is kept, since numbers that cannot be spoil every estimate.

What is compared: the scale of the noise, which the task fixes; the number of rows, which what the site said of its training
rows bounds; and the counts with one another. A count may be off by its noise: by 40 times its scale in one of 10^17.
"""

from __future__ import annotations

import math

from fedloop_core.errors import UpdateRefused
from fedloop_core.task.document import Task
from fedloop_core.task.evaluations import planned_evaluations
from fedloop_server.runs.events import AnswersMeasured, ErrorsMeasured, Measured, Member, PairsMeasured

__all__ = ["check_measured", "scale_of_evaluations"]

_TIMES = 20  # evaluation rows for each training row: a site may hold back up to 95 of 100
_SCALES = 40
_ROUNDING = 1e-6  # of sums of floats, relative


def scale_of_evaluations(task: Task) -> float:
    """Scale of the discrete Laplace noise on each count of an evaluation; 0 without privacy."""
    privacy = task.privacy
    return planned_evaluations(task) / privacy.epsilon_of_evaluations if privacy.private else 0.0


def check_measured(measured: Measured, member: Member, task: Task) -> None:
    """Refuses what no evaluation of this member can find.

    Raises:
        UpdateRefused: says which number cannot be.
    """
    margin = 0.0
    if not isinstance(measured, PairsMeasured):  # survival tasks are never private
        scale = scale_of_evaluations(task)
        if not math.isclose(measured.noise_scale, scale, rel_tol=_ROUNDING):
            raise _impossible(member.site, f"its noise has scale {measured.noise_scale:g}; the task fixes {scale:g}")
        margin = _SCALES * scale
    most = float(_TIMES * member.rows)
    match measured:
        case AnswersMeasured(right=right, wrong=wrong):
            parts: tuple[float, ...] = (right, wrong)
        case ErrorsMeasured(rows=rows, absolute=absolute, squared=squared, width=width):
            shares, squares = absolute / width, squared / width / width
            parts = (squares, shares - squares, rows - shares)
        case PairsMeasured():
            parts = (measured.rows,)
            _check_pairs(measured)
    slack = _ROUNDING * (most + 1) + margin
    if not all(-slack <= part <= most + slack for part in parts) or not sum(parts) <= most + len(parts) * slack:
        said = ", ".join(f"{part:g}" for part in parts)
        raise _impossible(member.site, f"it counts {said}, with {member.rows} training rows")


def _check_pairs(found: PairsMeasured) -> None:
    """Each row is in one pair at most with each other row, concordant pairs are comparable, and so are their squares."""
    others = max(found.rows - 1, 0.0)
    rising = (
        (found.concordant, found.comparable),
        (found.comparable, found.rows * others / 2),
        (found.concordant_squared, found.concordant_comparable),
        (found.concordant_comparable, found.comparable_squared),
        (found.comparable_squared, 2 * found.comparable * others),
    )
    if not all(less <= more * (1 + _ROUNDING) + _ROUNDING for less, more in rising):
        raise _impossible(found.site, f"it counts {found.comparable:g} pairs of {found.rows:g} rows that cannot be")


def _impossible(site: str, said: str) -> UpdateRefused:
    return UpdateRefused(f"the evaluation of {site} is not possible: {said}.", reason="evaluation")
