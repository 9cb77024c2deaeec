"""What is allowed in a task and will not work well: said when it is checked, never refused."""

from __future__ import annotations

from collections.abc import Iterator

from fedloop_core.schema import ClassLabel, RegressionLabel, SurvivalLabel, label_columns
from fedloop_core.task.combinations import cautions
from fedloop_core.task.document import CustomModel, FederatedAveraging, Task

__all__ = ["advice_on"]

_WEAK_EPSILON = 10.0


def advice_on(task: Task) -> tuple[str, ...]:
    """Warnings about a sound task, each a sentence."""
    return (
        *_on_privacy(task),
        *_on_whole_sites(task),
        *cautions(task.parts),
        *_on_columns(task),
        *_on_rounds(task),
        *_on_release(task),
    )


def _on_privacy(task: Task) -> Iterator[str]:
    privacy = task.privacy
    if not privacy.private:
        yield "privacy.epsilon = inf: the sites' rows are not protected against what the model remembers."
        if task.rounds.weighting == "rows":
            yield 'rounds.weighting = "rows" tells the coordinator exactly how many rows each site has.'
        return
    if privacy.epsilon > _WEAK_EPSILON:
        yield f"privacy.epsilon = {privacy.epsilon:g} is a weak guarantee; {_WEAK_EPSILON:g} and below is usual."
    rows = task.gates.data.minimum_rows
    if privacy.delta * rows >= 1:
        yield (
            f"privacy.delta = {privacy.delta:g} guards nothing at a site with {rows} rows, which gates.data.minimum_rows "
            "lets in: it must be well below one in its rows."
        )
    elif privacy.delta > 1e-3:
        yield f"privacy.delta = {privacy.delta:g} is high; well below one in the rows of a site is usual."
    if task.rounds.weighting == "rows":
        yield 'rounds.weighting = "rows" weighs sites by noised counts of their rows: small sites may be far off.'


def _on_whole_sites(task: Task) -> Iterator[str]:
    """How many sites bear the noise that hides one of them."""
    central, most = task.central_privacy, task.rounds.sites_per_round
    if central is None:
        return
    if central.epsilon > _WEAK_EPSILON:
        yield f"central_privacy.epsilon = {central.epsilon:g} is a weak guarantee; {_WEAK_EPSILON:g} and below is usual."
    yield "central_privacy trusts the coordinator, and covers neither evaluations nor who takes part: see docs/privacy.md."
    if isinstance(task.model, CustomModel):
        yield "central_privacy: a run says when it starts whether its sites can bear the noise, which follows the model's size."
        return
    try:
        from fedloop_core.central_privacy import central_plan
        from fedloop_core.models import initial_arrays
    except ImportError:
        yield "central_privacy: how many sites it needs can be said where fedloop[server] or fedloop[site] is installed."
        return
    plan = central_plan(central, task.rounds.count)
    parameters = sum(array.size for array in initial_arrays(task, 0).values())
    needed = plan.sites_for(parameters)
    if most is None or most < needed:
        asked = "" if most is None else f"; rounds.sites_per_round asks {most:,}"
        yield (
            f"central_privacy needs {needed:,} sites in a round for noise no longer than the longest update (noise multiplier "
            f"{plan.updates:.3g}, {parameters:,} parameters{asked}); with fewer than {plan.sites_for(parameters, 10.0):,} a run does not begin."
        )


def _on_columns(task: Task) -> Iterator[str]:
    names = {feature.name for feature in task.features} | set(label_columns(task.label).values())
    if task.privacy.unit_column in names:
        yield f"privacy.unit_column = {task.privacy.unit_column!r} is a feature or the label: the model would learn it."
    if task.preprocessing.scaling != "range" and not task.feature_schema.numeric:
        yield f"preprocessing.scaling = {task.preprocessing.scaling!r} does nothing without numeric features."
    if isinstance(task.model, CustomModel):
        yield (
            f"model.factory = {task.model.factory!r} must be installed at the coordinator and at every site, and each site must "
            f"name {task.model.module!r} in policy.model_modules."
        )


def _on_rounds(task: Task) -> Iterator[str]:
    every, count = task.rounds.evaluate_every, task.rounds.count
    if every == 0 or every > count:
        yield f"rounds.evaluate_every = {every}: no evaluation during the {count} rounds, only at their end."
    if task.rounds.quorum == 0:
        yield "rounds.quorum = 0: a round may close with the update of a single site."
    training = task.training
    if isinstance(training, FederatedAveraging) and training.proximal > 0 and training.local_steps == 1:
        yield "training.proximal does nothing with a single local step."


def _on_release(task: Task) -> Iterator[str]:
    if task.preprocessing.scaling == "per-site":
        yield 'preprocessing.scaling = "per-site": such a model cannot be released to devices.'
    gate = task.gates.quality
    match task.label:
        case ClassLabel() if gate.minimum_accuracy == 0:
            yield "gates.quality.minimum_accuracy = 0: a model of any accuracy may be released."
        case RegressionLabel() if gate.maximum_error == 1:
            yield "gates.quality.maximum_error = 1: a model with any error may be released."
        case SurvivalLabel() if gate.minimum_concordance == 0:
            yield "gates.quality.minimum_concordance = 0: a model of any concordance may be released."
        case _:
            pass
    if isinstance(task.label, SurvivalLabel) and task.retraining.enabled:
        yield "retraining.enabled: outcomes of a survival label do not come back from devices; runs are started by hand."
    if task.retraining.enabled and task.retraining.maximum_runs == 0:
        yield "retraining.maximum_runs = 0: a trigger waits for a person, as if retraining.enabled were false."
