"""Where a version comes from and what is promised about the people in its data."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fedloop_core.artifact import Lineage
from fedloop_core.privacy_statement import CentralPromise, PrivacyStatement, SitePrivacy
from fedloop_core.promises import mechanism_of, not_protected, releases_of
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.document import Task
from fedloop_server.runs.answers import is_possible
from fedloop_server.runs.events import SiteSpend
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState

__all__ = ["latest_spends", "lineage_of", "privacy_of"]

_PACKAGES = ("fedloop", "flwr", "numpy", "onnx", "onnxruntime", "opacus", "torch")


def latest_spends(state: RunState) -> dict[str, SiteSpend]:
    """The last that each site said of its spending, by name.

    An answer without an evaluation says nothing of the evaluation rows, and what they have spent never falls. What is no
    number, as journals of earlier releases may hold it, was not said.
    """
    said: dict[str, SiteSpend] = {}
    for spend in (spend for closed in state.rounds for spend in closed.spends if is_possible(spend)):
        before = said.get(spend.site)
        most = spend.evaluation_epsilon if before is None else max(before.evaluation_epsilon, spend.evaluation_epsilon)
        said[spend.site] = spend.model_copy(update={"evaluation_epsilon": most})
    return said


def privacy_of(plan: RunPlan, state: RunState) -> PrivacyStatement:
    """The statement of a finished training. Evaluation is stated at what it may spend, since it follows the export."""
    privacy = plan.task.privacy
    sites = tuple(
        SitePrivacy(
            site=spend.site,
            epsilon=spend.run_epsilon,
            delta=privacy.delta,
            lifetime_epsilon=spend.lifetime_epsilon,
            evaluation_epsilon=privacy.epsilon_of_evaluations,
        )
        for _, spend in sorted(latest_spends(state).items())
        if privacy.private
    )
    return PrivacyStatement(
        private=privacy.private and plan.private,
        unit=privacy.unit_column or "record",
        adjacency="add-or-remove",
        mechanism=mechanism_of(plan.task),
        sites=sites,
        clipping_norm=privacy.clipping_norm if privacy.private else None,
        coordinator_sees="the sum of the updates" if _sums_only(plan.task) else "each site's update",
        releases=tuple(releases_of(plan.task)),
        central=_central(plan, state),
        not_protected=tuple(not_protected(plan.task)),
        purpose=plan.task.purpose,
    )


def _central(plan: RunPlan, state: RunState) -> CentralPromise | None:
    """By the last round that closed, which knows of all releases before it."""
    central = plan.task.central_privacy
    told = next((closed.central for closed in reversed(state.rounds) if closed.central is not None), None)
    if central is None or told is None:
        return None
    return CentralPromise(
        private=plan.private,
        epsilon=told.epsilon,
        delta=central.delta,
        releases=told.releases,
        noise_multiplier=told.noise_multiplier,
        fewest_updates=min(len(closed.folded) for closed in state.rounds),
        lifetime_epsilon=max((charged.spent for charged in state.charged), default=None),
        lifetime_budget=next((charged.budget for charged in state.charged), None),
        lifetime_delta=next((charged.delta for charged in state.charged), None),
    )


def _sums_only(task: Task) -> bool:
    return isinstance(task.aggregation, Mean) and task.aggregation.secure


def lineage_of(plan: RunPlan, state: RunState) -> Lineage:
    """The run, the task, the parent, the data by keyed fingerprint, and the software of this process."""
    return Lineage(
        run_id=plan.run_id,
        parent_version=plan.warm_from,
        task_digest=plan.task.digest.hex(),
        data_fingerprints={member.site: member.data_fingerprint for member in state.members},
        software={name: found for name in _PACKAGES if (found := _version(name))},
        purpose=plan.task.purpose_name,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
