"""Two-sample statistics on counts, each with a p-value that holds at every sample size.

Alarms are decided far out in the tails (p about 1e-5), where the chi-square approximation is too optimistic for small
expected counts. Counts of categories are therefore compared by Fisher's exact test, category by category with Bonferroni,
and ordered bins by the Kolmogorov-Smirnov distance: binning can only lower the distance, and the limit distribution lies
above the exact two-sample one wherever that is below 0.1, so that both steps err towards silence.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedloop_core.profile import CategoricalColumn, ClassesColumn, Column

__all__ = ["contrasts", "distance", "excess_error_p", "p_value"]

Counts = NDArray[np.int64]


def distance(column: Column, reference: Counts, window: Counts) -> float:
    """Largest difference between the two empirical distributions, in [0, 1]; 0 when either is empty.

    Over ordered bins (numbers): of the cumulative distributions, missing values counted as the largest. Over
    categories: of the share of one category. Adding or removing one row changes it by at most one over the rows of the
    sample that the row belongs to.
    """
    rows, others = int(window.sum()), int(reference.sum())
    if rows == 0 or others == 0:
        return 0.0
    difference = window / rows - reference / others
    if not isinstance(column, CategoricalColumn | ClassesColumn):
        difference = np.cumsum(difference)
    return float(np.abs(difference).max())


def contrasts(column: Column) -> int:
    """How many sets of bins ``distance`` compares beyond one: the factor of Bonferroni for this column."""
    if isinstance(column, CategoricalColumn | ClassesColumn):
        return column.bins if column.bins > 2 else 1
    return 1


def p_value(column: Column, reference: Counts, window: Counts) -> float:
    """Probability of at least this difference between two samples of one distribution; 1 when either is empty."""
    rows, others = int(window.sum()), int(reference.sum())
    if rows == 0 or others == 0:
        return 1.0
    if isinstance(column, CategoricalColumn | ClassesColumn):
        both = window + reference
        below = stats.hypergeom.cdf(window, rows + others, both, rows)
        above = stats.hypergeom.sf(window - 1, rows + others, both, rows)
        return float(min(1.0, 2.0 * contrasts(column) * np.minimum(below, above).min()))
    effective = rows * others / (rows + others)
    return float(stats.kstwobign.sf(np.sqrt(effective) * distance(column, reference, window)))


def excess_error_p(wrong: int, rows: int, reference_wrong: int, reference_rows: int) -> float:
    """One-sided Fisher test: probability of at least ``wrong`` errors in ``rows`` if the error rate had not risen."""
    if rows == 0 or reference_rows == 0:
        return 1.0
    return float(stats.hypergeom.sf(wrong - 1, rows + reference_rows, wrong + reference_wrong, rows))
