"""What leaves a site in a run of a task, under which guard, and what no guard covers: follows from the task alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from fedloop_core.privacy_statement import ReleaseMade
from fedloop_core.task.document import Task

__all__ = ["mechanism_of", "not_protected", "releases_of", "residual_risks"]

_Payer = Literal["training rows", "evaluation rows", "nobody"]


def mechanism_of(task: Task) -> str:
    """How the rows are protected, in words."""
    if not task.privacy.private:
        return "none"
    return "DP-SGD at each site (Abadi 2016), Poisson sampling, accounted by RDP; counts with discrete Laplace noise"


def releases_of(task: Task) -> Iterator[ReleaseMade]:
    """Each kind of thing that leaves a site, its guard, and whose budget pays."""
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
    gate = (
        "follows from the number of training units, and from one of skipped rows under the same noise"
        if noised
        else exact
    )
    yield ReleaseMade(what="whether the data gate lets the rows in", mechanism=gate, charged_to=trained)
    of_one_run = "keyed with the site's secret, another one in each run" if noised else "keyed with the site's secret"
    yield ReleaseMade(what="a digest of the training rows", mechanism=of_one_run, charged_to="nobody")


def not_protected(task: Task) -> Iterator[str]:
    """What a version of this task does not promise, as sentences."""
    if not task.privacy.private:
        yield "Nothing limits what the model or the updates tell about one row."
    if task.privacy.private and task.privacy.unit_column is None:
        yield "A person with several rows is protected as several rows, and so less."
    if task.privacy.private:
        yield "A person with rows at two sites is two units: their losses add up."
        yield "Which columns a site's file has, and whether it can be read at all, is told by a refusal, exactly and uncharged."
        yield "Epsilon bounds what is learnt of one unit, and nothing of what a site's rows have in common."
    if task.central_privacy is not None:
        yield "What hides a whole site is added by the coordinator, which sees each update before."
        yield "Which sites take part, and what each measures of a model, are outside the promise to whole sites."
    yield "Times and sizes of messages are not hidden."


def residual_risks(task: Task) -> Iterator[str]:
    """What stays open for the people in a site's data when it takes part, as sentences; see "What is not protected" in docs/privacy.md."""
    yield from not_protected(task)
    if not task.secure:
        yield "The coordinator sees this site's update of each round by itself, and not only the sum of all sites."
    yield "A site that lies about its rows is not noticed, and what a lying site does to the model is bounded only by the task's rules."
    yield "Norms of updates and the site's share in each round are kept in the coordinator's journal."
    yield "Stores at the site and at devices are readable by their owner alone, and are not encrypted at rest."
    yield "Rows that devices send back are held at the site until they join its data; a device holds inputs of its recent predictions."
    if task.privacy.private and task.privacy.unit_column is not None:
        yield (
            f"Devices do not know units: that they see at most {task.feedback.rows_per_unit} rows of one while a version serves is the "
            "task's word, on which the privacy of verdicts rests."
        )
    yield "An older copy of the ledger that is put back undoes charges; the coordinator notices it, but for charges after its last answer."
    yield "A site that joins twice with the same rows has two ledgers, and so twice the budget."
    yield "A model that was released keeps what it has learnt of people who withdraw later; only training anew, or taking it out of use, undoes it."
