"""The floors of a site: its people set them, and no message lowers them."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.errors import PrivacyParameterInvalid, SecureAggregationRefused
from fedloop_core.secure_aggregation.identity import LEAST_SITES, MOST_SITES, least_threshold

__all__ = ["AggregationPolicy", "floor_of", "floor_words", "withstood"]


def floor_of(asked: int | None, sites: int) -> int:
    """Fewest sites behind a sum: what people ask for, or, where they have said nothing, more than two thirds of the ``sites`` that they know."""
    return max(LEAST_SITES, least_threshold(sites)) if asked is None else asked


def withstood(floor: int) -> int:
    """How many other sites may work with the coordinator before it can see this site's update, whatever cohort it picks.

    In a cohort of c sites, c at least the floor, T = ``least_threshold(c)`` of them sign a list of survivors and give shares. With t of them on its
    side the coordinator has two lists signed, and with them both secrets of a site, from t = 2T - c on; below that T - t honest sites, two or more,
    are in each sum. The least of 2T - c - 1 over all such cohorts is what this returns.
    """
    return (floor + 1) // 3


def floor_words(asked: int | None, sites: int) -> str:
    """What a floor is worth, as a clause that follows "a sum"; ``sites`` are in the consortium, 0: none was accepted."""
    if asked is None and not sites:
        return "takes more than two thirds of the sites of the consortium, once one is accepted here"
    floor = floor_of(asked, sites)
    among = f"{floor} of these {sites} sites" if sites else f"{floor} sites"
    others = withstood(floor)
    return (
        f"takes {among} or more ({'more than two thirds' if asked is None else 'policy.minimum_sites'}), and hides this site's update from the "
        f"coordinator and up to {others} other site{'' if others == 1 else 's'} that work{'s' if others == 1 else ''} with it"
    )


@dataclass(frozen=True)
class AggregationPolicy:
    """How many sites must stand behind a sum that this site's update is in.

    Raises:
        PrivacyParameterInvalid: fewer than 3, where each would learn the other's update.
    """

    minimum_sites: int = LEAST_SITES

    def __post_init__(self) -> None:
        if not LEAST_SITES <= self.minimum_sites <= MOST_SITES:
            raise PrivacyParameterInvalid(
                f"minimum_sites is {self.minimum_sites}; secure aggregation takes {LEAST_SITES} to {MOST_SITES}.",
                hint="With two sites each learns the other's update from the sum.",
                parameter="minimum_sites",
            )

    def check_cohort(self, sites: int, threshold: int) -> None:
        """Refuses a cohort that is too small, and a threshold with which few sites could give a secret back.

        Raises:
            SecureAggregationRefused: names the floor.
        """
        if sites < self.minimum_sites:
            raise SecureAggregationRefused(
                f"{sites} sites would take part; this site asks for {self.minimum_sites}.", reason="cohort"
            )
        if not least_threshold(sites) <= threshold <= sites:
            raise SecureAggregationRefused(
                f"{threshold} of {sites} shares would give a secret back; this site asks for {least_threshold(sites)}.",
                reason="threshold",
            )

    def check_remaining(self, sites: int, threshold: int) -> None:
        """Refuses to go on when too few are left.

        Raises:
            SecureAggregationRefused: fewer than the threshold, or than this site asks for.
        """
        least = max(threshold, self.minimum_sites)
        if sites < least:
            raise SecureAggregationRefused(f"{sites} sites are left; {least} are needed.", reason="survivors")
