"""How the updates of a round become one: the rules, and how many updates each needs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedloop_core.secure_aggregation.identity import LEAST_SITES, MOST_SITES
from fedloop_core.strict import Strict

__all__ = [
    "Aggregation",
    "Bulyan",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "RobustRule",
    "TrimmedMean",
]


class Mean(Strict):
    """The weighted mean: exact, in whole numbers, and as wrong as its worst update.

    ``secure``: by secure aggregation, with ``minimum_sites`` behind every sum.
    """

    rule: Literal["mean"] = "mean"
    secure: bool = False
    minimum_sites: Annotated[int, Field(ge=LEAST_SITES, le=MOST_SITES)] = LEAST_SITES

    @property
    def least_updates(self) -> int:
        """Updates that a round needs."""
        return self.minimum_sites if self.secure else 1


class RobustRule(Strict):
    """A rule that withstands ``faulty_sites`` (f) among the n updates that came, when n is large enough for it.

    ``per_faulty`` and ``beside``: it needs ``n >= per_faulty * f + beside``. ``weighted``: it uses the agreed weights. A task with
    ``secure`` is refused, in a sentence that says why.
    """

    per_faulty: ClassVar[int]
    beside: ClassVar[int]
    weighted: ClassVar[bool] = False

    rule: str
    faulty_sites: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    secure: bool = False

    @property
    def least_updates(self) -> int:
        """Updates that a round needs."""
        return self.per_faulty * self.faulty_sites + self.beside

    @property
    def need(self) -> str:
        """How many updates it needs, and why, without a full stop."""
        many = "site" if self.faulty_sites == 1 else "sites"
        formula = f"n >= {self.per_faulty}f + {self.beside}"
        return f"{self.rule} with {self.faulty_sites} faulty {many} needs {self.least_updates} updates ({formula})"


class GeometricMedian(RobustRule):
    """The point with the least weighted sum of distances to the updates (RFA: Pillutla 2019, arXiv 1912.13445)."""

    per_faulty: ClassVar[int] = 2
    beside: ClassVar[int] = 1
    weighted: ClassVar[bool] = True

    rule: Literal["geometric-median"]


class TrimmedMean(RobustRule):
    """In each coordinate the mean without the f smallest and f largest values (Yin 2018, arXiv 1803.01498)."""

    per_faulty: ClassVar[int] = 2
    beside: ClassVar[int] = 1

    rule: Literal["trimmed-mean"]


class Median(RobustRule):
    """In each coordinate the median (Yin 2018, arXiv 1803.01498)."""

    per_faulty: ClassVar[int] = 2
    beside: ClassVar[int] = 1

    rule: Literal["median"]


class Krum(RobustRule):
    """The one update whose n - f - 2 nearest are nearest (Blanchard 2017, arXiv 1703.02757)."""

    per_faulty: ClassVar[int] = 2
    beside: ClassVar[int] = 3

    rule: Literal["krum"]


class MultiKrum(RobustRule):
    """The mean of the n - f - 2 updates that Krum ranks first (Blanchard 2017, arXiv 1703.02757)."""

    per_faulty: ClassVar[int] = 2
    beside: ClassVar[int] = 3

    rule: Literal["multi-krum"]


class Bulyan(RobustRule):
    """Krum chooses n - 2f updates; in each coordinate the mean of the n - 4f values nearest their median (arXiv 1802.07927)."""

    per_faulty: ClassVar[int] = 4
    beside: ClassVar[int] = 3

    rule: Literal["bulyan"]


Aggregation = Annotated[
    Mean | GeometricMedian | TrimmedMean | Median | Krum | MultiKrum | Bulyan,
    Field(discriminator="rule"),
]
