"""What an answer says beside its arrays, as the journal keeps it."""

from __future__ import annotations

import logging

from pydantic import ValidationError

from fedloop_core.errors import UpdateRefused
from fedloop_core.measure import measure_width
from fedloop_core.schema import ClassLabel, Label, RegressionLabel, SurvivalLabel
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Evaluation
from fedloop_server.runs.events import AnswersMeasured, ErrorsMeasured, Measured, PairsMeasured, SiteSpend

__all__ = ["evaluation_in", "is_possible", "measured_in", "spend_in"]

_LOG = logging.getLogger(__name__)


def evaluation_in(answer: Answer) -> Evaluation:
    """The evaluation that an answer carries; not ``present`` when it carries none."""
    match answer.WhichOneof("result"):
        case "local_update":
            return answer.local_update.evaluation
        case "derivatives":
            return answer.derivatives.evaluation
        case _:
            return answer.evaluation


def measured_in(site: str, label: Label, evaluation: Evaluation) -> tuple[Measured, ...]:
    """What a site measured, if it did.

    Raises:
        UpdateRefused: the numbers are none that an evaluation can give.
    """
    if not evaluation.present:
        return ()
    try:
        return (_measured(site, label, evaluation),)
    except ValidationError as error:
        first = error.errors()[0]
        raise UpdateRefused(
            f"the evaluation of {site} is not possible: {first['loc'][0]} {first['msg'].lower()}.", reason="evaluation"
        ) from error


def _measured(site: str, label: Label, evaluation: Evaluation) -> Measured:
    match label:
        case ClassLabel():
            return AnswersMeasured(
                site=site,
                right=evaluation.correct,
                wrong=evaluation.total - evaluation.correct,
                noise_scale=evaluation.noise_scale,
            )
        case RegressionLabel():
            return ErrorsMeasured(
                site=site,
                rows=evaluation.total,
                absolute=evaluation.absolute_error_sum,
                squared=evaluation.squared_error_sum,
                width=measure_width(label),
                noise_scale=evaluation.noise_scale,
            )
        case SurvivalLabel():
            pairs = evaluation.pairs
            return PairsMeasured(
                site=site,
                rows=pairs.rows,
                concordant=evaluation.correct,
                comparable=evaluation.total,
                concordant_squared=pairs.concordant_squared,
                concordant_comparable=pairs.concordant_comparable,
                comparable_squared=pairs.comparable_squared,
            )


def spend_in(site: str, answer: Answer) -> tuple[SiteSpend, ...]:
    """What the site says that it has spent after a local update; nothing where that is no number that can be.

    It is the site's word about its own ledger: a bad one says nothing about the update, which counts all the same, and is
    left out of what the run tells and a version states.
    """
    if answer.WhichOneof("result") != "local_update":
        return ()
    update = answer.local_update
    spend = SiteSpend(
        site=site,
        run_epsilon=update.run_epsilon,
        lifetime_epsilon=update.spend.epsilon,
        budget=None if update.spend.unlimited else update.spend.budget,
        delta=update.spend.delta,
        evaluation_epsilon=update.evaluation.spend.epsilon,
    )
    if not is_possible(spend):
        _LOG.warning("site %s says that it has spent what nobody can: %s", site, spend)
        return ()
    return (spend,)


def is_possible(spend: SiteSpend) -> bool:
    """Whether these can be epsilons, a budget and a delta; without privacy, epsilon is infinite."""
    epsilons = (spend.run_epsilon, spend.lifetime_epsilon, spend.evaluation_epsilon, spend.budget or 0.0)
    return all(epsilon >= 0 for epsilon in epsilons) and 0 <= spend.delta <= 1
