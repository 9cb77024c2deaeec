"""Where a version comes from and what is promised about the people in its data."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from fedloop_core.artifact import Lineage
from fedloop_core.privacy_statement import CentralPromise, PrivacyStatement, ReleaseMade, SitePrivacy
from fedloop_core.task.aggregation import Mean
from fedloop_core.task.document import Task
from fedloop_server.runs.answers import is_possible
from fedloop_server.runs.events import SiteSpend
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState

__all__ = ["latest_spends", "lineage_of", "privacy_of"]

_Payer = Literal["training rows", "evaluation rows", "nobody"]
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
    mechanism = (
        "DP-SGD at each site (Abadi 2016), Poisson sampling, accounted by RDP; counts with discrete Laplace noise"
        if privacy.private
        else "none"
    )
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
        mechanism=mechanism,
        sites=sites,
        clipping_norm=privacy.clipping_norm if privacy.private else None,
        coordinator_sees="the sum of the updates" if _sums_only(plan.task) else "each site's update",
        releases=tuple(_releases(plan.task)),
        central=_central(plan, state),
        not_protected=tuple(_not_protected(plan.task)),
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
    )


def _sums_only(task: Task) -> bool:
    return isinstance(task.aggregation, Mean) and task.aggregation.secure


def _releases(task: Task) -> Iterator[ReleaseMade]:
    noised = task.privacy.private
    exact = "none: exact"
    trained: _Payer = "training rows" if noised else "nobody"
    evaluated: _Payer = "evaluation rows" if noised else "nobody"
    round_ = "gradients clipped by unit, Gaussian noise, Poisson sampling" if noised else exact
    yield ReleaseMade(what="the update of each round", mechanism=round_, charged_to=trained)
    if task.central_privacy is not None:
        guard = "whole updates clipped, Gaussian noise on their sum at the coordinator"
        yield ReleaseMade(what="the model of each round", mechanism=guard, charged_to="whole sites")
    if task.preprocessing.scaling == "federated" and task.feature_schema.numeric:
        sums = "Gaussian noise on clamped sums" if noised else exact
        yield ReleaseMade(what="sums for the shared scaling of features", mechanism=sums, charged_to=trained)
    count = "discrete Laplace noise" if noised else exact
    yield ReleaseMade(what="the number of training units", mechanism=count, charged_to=trained)
    yield ReleaseMade(what="how good models are on evaluation rows", mechanism=count, charged_to=evaluated)
    yield ReleaseMade(
        what="whether the data gate lets the rows in, and a digest of them under the site's own key",
        mechanism=exact,
        charged_to="nobody",
    )


def _not_protected(task: Task) -> Iterator[str]:
    if not task.privacy.private:
        yield "Nothing limits what the model or the updates tell about one row."
    if task.privacy.private and task.privacy.unit_column is None:
        yield "A person with several rows is protected as several rows, and so less."
    if task.privacy.private:
        yield "A person with rows at two sites is two units: their losses add up."
        yield "The data gate's verdict and the codes of refusals are exact; each tells little, and none is covered by epsilon."
        yield "Epsilon bounds what is learnt of one unit, and nothing of what a site's rows have in common."
    if task.central_privacy is not None:
        yield "What hides a whole site is added by the coordinator, which sees each update before."
        yield "Which sites take part, and what each measures of a model, are outside the promise to whole sites; and runs add up."
    yield "Times and sizes of messages are not hidden."


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
