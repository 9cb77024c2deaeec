"""What a site allows, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedloop_clients.secure_aggregation.policy import floor_words

if TYPE_CHECKING:
    from fedloop_clients.settings import SiteSettings

__all__ = ["policy_words"]


def policy_words(settings: SiteSettings, consortium_sites: int) -> list[str]:
    """A line of who allows, and one for each rule, which is set in by two blanks; ``consortium_sites`` were accepted here."""
    policy, budget = settings.rules(), settings.budget
    lines = [f"site {settings.site} allows, whatever the coordinator sends:"]
    lines.append(f"  tasks: {'any' if policy.tasks is None else ', '.join(policy.tasks) or 'none'}")
    if policy.purposes is not None:
        lines.append(f"  purposes: {', '.join(policy.purposes)}")
    if policy.model_modules:
        lines.append(f"  models made by: {', '.join(policy.model_modules)}")
    if policy.hours is not None:
        windows = "; ".join(f"{', '.join(w.days)} {w.start}-{w.end}" for w in policy.hours.windows)
        lines.append(f"  hours: {windows} ({policy.hours.time_zone})")
    private = "only private runs" if policy.require_private else "runs without privacy too"
    lines.append(f"  a run: {private}, epsilon up to {policy.maximum_epsilon:g}, delta up to {policy.maximum_delta:g}")
    if policy.unit_column:
        lines.append(f"  a private run: must protect the rows of each {policy.unit_column!r} together")
    if policy.require_secure_aggregation:
        lines.append("  updates: masked only, by secure aggregation")
    lines.append(f"  secure sums: each {floor_words(policy.minimum_sites, consortium_sites)}")
    lines.append(f"  rounds a run: {'any' if policy.maximum_rounds is None else policy.maximum_rounds}")
    lines.append(f"  approval by hand: {policy.approval}")
    for name, block in (("training", budget.training), ("evaluation", budget.evaluation)):
        lines.append(f"  {name} rows, for life: epsilon {block.epsilon:g}, delta {block.delta:g}")
    if policy.paused or policy.leaving:
        lines.append("  now: nothing, since the policy says paused or leaving")
    return lines
