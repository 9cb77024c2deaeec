"""Which wave a device belongs to: groups ``wave-1``, ``wave-2``, … filled in the order of enrolment. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from fedloop_core.task.document import Rollout

__all__ = ["next_group", "wave_groups"]


def wave_groups(rollout: Rollout) -> tuple[str, ...]:
    """The names of a rollout's groups, in the order in which they open."""
    return tuple(f"wave-{number}" for number in range(1, len(rollout.waves) + 1))


def next_group(rollout: Rollout, enrolled: Mapping[str, int]) -> str:
    """The group of the next device, given how many devices each group has.

    The device goes to the first wave that, with those before it, falls short of its share of all devices rounded up. So
    the first device is in the first wave, and the shares hold to within one device for each wave, however many enrol.
    """
    groups = wave_groups(rollout)
    total = sum(enrolled.get(group, 0) for group in groups) + 1
    before = 0
    for group, share in zip(groups, rollout.waves, strict=True):
        before += enrolled.get(group, 0)
        if before < math.ceil(Fraction(str(share)) * total):  # as written: 0.07 of 100 is 7, not 7.000000000000001
            return group
    return groups[-1]
