"""Which protections go together: one table, which the check of a task, its warnings and the documentation read."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from dataclasses import dataclass

__all__ = ["COMBINATIONS", "RULES", "Combination", "Fit", "Part", "cautions", "misfits"]


class Part(enum.StrEnum):
    """What a task may ask for, by the name that people read."""

    SITE_NOISE = "DP at the site"
    CENTRAL_NOISE = "client-level DP"
    SECURE = "secure aggregation"
    NORM_BOUND = "norm bounding"
    WEIGHTS_BY_ROWS = "weights by rows"
    MEAN = "mean"
    GEOMETRIC_MEDIAN = "geometric-median"
    TRIMMED_MEAN = "trimmed-mean"
    MEDIAN = "median"
    KRUM = "krum"
    MULTI_KRUM = "multi-krum"
    BULYAN = "bulyan"


RULES = (
    Part.MEAN,
    Part.GEOMETRIC_MEDIAN,
    Part.TRIMMED_MEAN,
    Part.MEDIAN,
    Part.KRUM,
    Part.MULTI_KRUM,
    Part.BULYAN,
)
"""The rules of ``[aggregation]``, of which a task has one."""


class Fit(enum.Enum):
    """Whether two parts go together."""

    TOGETHER = "yes"
    WEAK = "allowed, with a warning"
    OFF = "the second is not applied"
    REFUSED = "refused"


@dataclass(frozen=True)
class Combination:
    """Two parts, whether they go together, and why: a sentence without its full stop."""

    first: Part
    second: Part
    fit: Fit
    why: str


_NOISE_AND_DISTANCES = (
    "the noise of each update is longer than what tells an honest one from another, so distances say little"
)
_HIDDEN = "the coordinator sees only a sum, and this rule compares single updates"
_NO_SENSITIVITY = (
    "one update can move the result of this rule by more than its share, so no noise is known to be enough"
)
_OWN_WORD = "sites say their numbers of rows themselves, and this rule counts each update the same whatever they say"

COMBINATIONS: tuple[Combination, ...] = (
    Combination(Part.SITE_NOISE, Part.MEAN, Fit.TOGETHER, "what is done with a noised update costs no privacy"),
    Combination(
        Part.SITE_NOISE, Part.GEOMETRIC_MEDIAN, Fit.TOGETHER, "what is done with a noised update costs no privacy"
    ),
    Combination(Part.SITE_NOISE, Part.TRIMMED_MEAN, Fit.TOGETHER, "what is done with a noised update costs no privacy"),
    Combination(Part.SITE_NOISE, Part.MEDIAN, Fit.TOGETHER, "what is done with a noised update costs no privacy"),
    Combination(Part.SITE_NOISE, Part.KRUM, Fit.WEAK, _NOISE_AND_DISTANCES),
    Combination(Part.SITE_NOISE, Part.MULTI_KRUM, Fit.WEAK, _NOISE_AND_DISTANCES),
    Combination(Part.SITE_NOISE, Part.BULYAN, Fit.WEAK, _NOISE_AND_DISTANCES),
    Combination(Part.SITE_NOISE, Part.NORM_BOUND, Fit.TOGETHER, "norms of noised updates are noised too"),
    Combination(
        Part.SITE_NOISE,
        Part.SECURE,
        Fit.TOGETHER,
        "the sum hides whose an update is, the noise protects what is in the sum",
    ),
    Combination(
        Part.SITE_NOISE,
        Part.CENTRAL_NOISE,
        Fit.TOGETHER,
        "one protects a unit against the coordinator, the other a whole site against who sees the model; the model carries both noises",
    ),
    Combination(
        Part.SITE_NOISE, Part.WEIGHTS_BY_ROWS, Fit.TOGETHER, "the numbers of rows are told with noise, and charged"
    ),
    Combination(Part.CENTRAL_NOISE, Part.MEAN, Fit.TOGETHER, "one update moves the mean by its clip times its share"),
    Combination(Part.CENTRAL_NOISE, Part.GEOMETRIC_MEDIAN, Fit.REFUSED, _NO_SENSITIVITY),
    Combination(Part.CENTRAL_NOISE, Part.TRIMMED_MEAN, Fit.REFUSED, _NO_SENSITIVITY),
    Combination(Part.CENTRAL_NOISE, Part.MEDIAN, Fit.REFUSED, _NO_SENSITIVITY),
    Combination(Part.CENTRAL_NOISE, Part.KRUM, Fit.REFUSED, _NO_SENSITIVITY),
    Combination(Part.CENTRAL_NOISE, Part.MULTI_KRUM, Fit.REFUSED, _NO_SENSITIVITY),
    Combination(Part.CENTRAL_NOISE, Part.BULYAN, Fit.REFUSED, _NO_SENSITIVITY),
    Combination(
        Part.CENTRAL_NOISE,
        Part.NORM_BOUND,
        Fit.OFF,
        "its own clip takes the place of a bound that exact norms would decide",
    ),
    Combination(
        Part.CENTRAL_NOISE,
        Part.SECURE,
        Fit.REFUSED,
        "the coordinator would have to trust that each site has clipped the update that it masks",
    ),
    Combination(
        Part.CENTRAL_NOISE,
        Part.WEIGHTS_BY_ROWS,
        Fit.REFUSED,
        "the noise would have to hide the greatest weight that a site could have, and the weights would tell of the sites",
    ),
    Combination(Part.SECURE, Part.MEAN, Fit.TOGETHER, "a sum is all that a mean needs"),
    Combination(Part.SECURE, Part.GEOMETRIC_MEDIAN, Fit.REFUSED, _HIDDEN),
    Combination(Part.SECURE, Part.TRIMMED_MEAN, Fit.REFUSED, _HIDDEN),
    Combination(Part.SECURE, Part.MEDIAN, Fit.REFUSED, _HIDDEN),
    Combination(Part.SECURE, Part.KRUM, Fit.REFUSED, _HIDDEN),
    Combination(Part.SECURE, Part.MULTI_KRUM, Fit.REFUSED, _HIDDEN),
    Combination(Part.SECURE, Part.BULYAN, Fit.REFUSED, _HIDDEN),
    Combination(
        Part.SECURE,
        Part.NORM_BOUND,
        Fit.OFF,
        "the coordinator sees no norms; each site checks gates.update.maximum_norm itself",
    ),
    Combination(
        Part.SECURE, Part.WEIGHTS_BY_ROWS, Fit.TOGETHER, "the weights are agreed before a round and are not secret"
    ),
    Combination(Part.WEIGHTS_BY_ROWS, Part.MEAN, Fit.TOGETHER, "the weights are agreed before the first round"),
    Combination(
        Part.WEIGHTS_BY_ROWS,
        Part.GEOMETRIC_MEDIAN,
        Fit.WEAK,
        "sites say their numbers of rows themselves: one that says many counts for many",
    ),
    Combination(Part.WEIGHTS_BY_ROWS, Part.TRIMMED_MEAN, Fit.REFUSED, _OWN_WORD),
    Combination(Part.WEIGHTS_BY_ROWS, Part.MEDIAN, Fit.REFUSED, _OWN_WORD),
    Combination(Part.WEIGHTS_BY_ROWS, Part.KRUM, Fit.REFUSED, _OWN_WORD),
    Combination(Part.WEIGHTS_BY_ROWS, Part.MULTI_KRUM, Fit.REFUSED, _OWN_WORD),
    Combination(Part.WEIGHTS_BY_ROWS, Part.BULYAN, Fit.REFUSED, _OWN_WORD),
    Combination(Part.WEIGHTS_BY_ROWS, Part.NORM_BOUND, Fit.TOGETHER, "an update is bounded before it is weighed"),
    *(
        Combination(Part.NORM_BOUND, rule, Fit.TOGETHER, "updates are bounded before a rule sees them")
        for rule in RULES
    ),
)
"""Every pair of parts that a task can ask for at once."""


def misfits(parts: Collection[Part]) -> Iterator[str]:
    """A sentence, without its full stop, for each refused pair among the parts of a task."""
    yield from _told(parts, Fit.REFUSED, "does not go together with")


def cautions(parts: Collection[Part]) -> Iterator[str]:
    """A sentence for each allowed pair among them that works badly."""
    for sentence in _told(parts, Fit.WEAK, "works badly with"):
        yield f"{sentence}."


def _told(parts: Collection[Part], fit: Fit, verb: str) -> Iterator[str]:
    for pair in COMBINATIONS:
        if pair.fit is fit and pair.first in parts and pair.second in parts:
            yield f"{pair.second.value} {verb} {pair.first.value}: {pair.why}"
