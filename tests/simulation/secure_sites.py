"""A secure task over sites of unequal size, and everything that leaves them, by kind of question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fedloop_clients.endpoint import Question, Reply, SiteEndpoint
from fedloop_core.secure_aggregation.encoding import decode
from fedloop_core.secure_aggregation.messages import Unmasking
from fedloop_core.task.document import Task
from fedloop_core.task.presets import load_preset
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Envelope, Instruction, SignedAnswer
from fedloop_simulations.data import SiteRows, load_world

SEED = 7


def task_of(secure: bool, *, epsilon: float = float("inf"), **aggregation: object) -> Task:
    document = load_preset("breast-cancer").model_dump()
    document["rounds"] |= {"count": 3, "weighting": "rows", "evaluate_every": 0, "quorum": 0.6}
    document["training"] |= {"local_steps": 4}
    document["privacy"] |= {"epsilon": epsilon}
    document["aggregation"] = {"rule": "mean", "secure": secure, **aggregation}
    return Task.model_validate(document, strict=False)


def rows_of(task: Task, count: int) -> tuple[SiteRows, ...]:
    """Sites of unequal size, cut from the preset's."""
    north, *others = load_world(task, seed=SEED).sites
    rows = north.train
    for other in others:
        rows = rows.concatenate(other.train)
    size = len(rows) // count
    return tuple(
        SiteRows(f"ward-{at}", rows.take(np.arange(at * size, (at + 1) * size - 2 * at)), north.evaluation)
        for at in range(count)
    )


@dataclass
class Watched:
    """Every answer that leaves sites, by kind; ``dying`` sites answer nothing of one kind from a round on.

    ``before`` and ``after`` each answer, with its kind and round, somebody may act.
    """

    dying: dict[str, tuple[str, int]] = field(default_factory=dict)
    replies: list[tuple[str, str, int, Reply]] = field(default_factory=list)
    before: Callable[[str, int], None] = lambda kind, round_: None
    after: Callable[[str, int], None] = lambda kind, round_: None

    def wrap(self, site: SiteEndpoint) -> SiteEndpoint:
        watched = self

        class Between:
            def answer(self, question: Question) -> Reply:
                instruction = Instruction.FromString(Envelope.FromString(question.envelope).instruction)
                kind = str(instruction.WhichOneof("work"))
                if kind == "aggregate_securely":
                    kind = instruction.aggregate_securely.WhichOneof("question") or "advertise_keys"
                dies = watched.dying.get(instruction.site)
                if dies is not None and dies[0] == kind and instruction.round >= dies[1]:
                    raise RuntimeError("this site is away")
                watched.before(kind, instruction.round)
                reply = site.answer(question)
                watched.replies.append((instruction.site, kind, instruction.round, reply))
                watched.after(kind, instruction.round)
                return reply

        return Between()

    def arrays(self, kind: str) -> list[dict[str, np.ndarray]]:
        return [dict(reply.arrays) for _, told, _, reply in self.replies if told == kind]

    def released(self, round_: int) -> dict[str, set[Unmasking]]:
        """The shares of a round that each site has given out, whenever it was asked."""
        found: dict[str, set[Unmasking]] = {}
        for site, kind, at, reply in self.replies:
            answer = Answer.FromString(SignedAnswer.FromString(reply.answer).answer)
            if kind == "unmask" and at == round_ and answer.WhichOneof("result") == "securely_aggregated":
                found.setdefault(site, set()).add(decode(Unmasking, answer.securely_aggregated.answer))
        return found
