"""The rules of a site's policy, as a refusal names them in its field ``rule``.

A coordinator that is refused under a temporary rule may ask again at the next round; under any other it leaves the site out
of the run for good.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["PolicyRule", "is_temporary"]


class PolicyRule(StrEnum):
    """Why a site's policy refuses."""

    PAUSED = "paused"
    HOURS = "hours"
    APPROVAL = "approval"  # a person at the site has not decided yet
    SETTINGS = "settings"  # the site's settings file cannot be read just now
    LEAVING = "leaving"
    DECLINED = "declined"  # a person at the site has decided against it
    TASKS = "tasks"
    PURPOSES = "purposes"
    MODEL_MODULES = "model-modules"  # the task's model is made by code that nobody at the site has named
    CONSORTIUM = "consortium"  # secure aggregation, and nobody at the site has said with whom, or too few
    REQUIRE_SECURE_AGGREGATION = "require-secure-aggregation"
    MAXIMUM_EPSILON = "maximum-epsilon"
    REQUIRE_PRIVATE = "require-private"
    UNIT_COLUMN = "unit-column"  # a private task protects other units than the site's people have named
    MAXIMUM_DELTA = "maximum-delta"
    MAXIMUM_ROUNDS = "maximum-rounds"
    PLANNED = "planned"  # a question names other rounds or evaluations than the task that was described
    VERDICT_EPSILON = "maximum-verdict-epsilon"
    LABEL_COUNT_EPSILON = "maximum-label-count-epsilon"


_TEMPORARY = frozenset({PolicyRule.PAUSED, PolicyRule.HOURS, PolicyRule.APPROVAL, PolicyRule.SETTINGS})


def is_temporary(rule: str) -> bool:
    """Whether the same question may be accepted later; a rule that this version does not know is for good."""
    return rule in _TEMPORARY
