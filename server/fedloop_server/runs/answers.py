"""What an answer says beside its arrays, as the journal keeps it."""

from __future__ import annotations

from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Evaluation
from fedloop_server.runs.state import Measured, SiteSpend

__all__ = ["evaluation_in", "measured_in", "spend_in"]


def evaluation_in(answer: Answer) -> Evaluation:
    """The evaluation that an answer carries; not ``present`` when it carries none."""
    match answer.WhichOneof("result"):
        case "local_update":
            return answer.local_update.evaluation
        case "derivatives":
            return answer.derivatives.evaluation
        case _:
            return answer.evaluation


def measured_in(site: str, evaluation: Evaluation) -> tuple[Measured, ...]:
    """Counts of right and wrong answers, if any were taken."""
    if not evaluation.present:
        return ()
    return (
        Measured(
            site=site,
            right=evaluation.correct,
            wrong=evaluation.total - evaluation.correct,
            noise_scale=evaluation.noise_scale if evaluation.noised else 0.0,
        ),
    )


def spend_in(site: str, answer: Answer) -> tuple[SiteSpend, ...]:
    """What the site has spent after a local update."""
    if answer.WhichOneof("result") != "local_update":
        return ()
    update = answer.local_update
    return (
        SiteSpend(
            site=site,
            run_epsilon=update.run_epsilon,
            lifetime_epsilon=update.spend.epsilon,
            budget=None if update.spend.unlimited else update.spend.budget,
            delta=update.spend.delta,
            evaluation_epsilon=update.evaluation.spend.epsilon,
        ),
    )
