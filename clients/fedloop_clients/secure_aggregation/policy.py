"""The floors of a site: its people set them, and no message lowers them."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.errors import PrivacyParameterInvalid, SecureAggregationRefused
from fedloop_core.secure_aggregation.identity import LEAST_SITES, MOST_SITES, least_threshold

__all__ = ["AggregationPolicy"]


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
