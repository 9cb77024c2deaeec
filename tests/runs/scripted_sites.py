"""Sites that send updates of norms that they choose, and a driver over them on the in-process grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message

from fedloop_clients.app import SITE_KEY, relay
from fedloop_clients.endpoint import Question, Reply
from fedloop_core.arrays import NamedArrays, digest
from fedloop_core.federation.answers import sign_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, unseal
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task import Task
from fedloop_core.task.document import FederatedAveraging, Gates, LogisticModel, Privacy, Rounds, UpdateGate
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, DataDescription, Instruction, LocalUpdate
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.driver import RunDriver
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.model import model_of
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.state import RunState
from fedloop_server.runs.surroundings import Surroundings
from fedloop_server.whole_sites.book import WholeSites
from fedloop_simulations.federation import rehearsal_directory
from fedloop_simulations.grid import InProcessGrid, Node
from fedloop_simulations.keys import rehearsal_key

KEY = SigningKey.generate()


def task(aggregation: Any, *, norm_bound: float = math.inf, weighting: Any = "equal", **rounds: Any) -> Task:
    return Task(
        format=1,
        name="scripted",
        features=(NumericFeature(kind="numeric", name="x", range=(0.0, 4.0)),),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        training=FederatedAveraging(algorithm="fedavg"),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(**{"count": 4, "quorum": 0.5, "weighting": weighting, **rounds}),
        aggregation=aggregation,
        gates=Gates(update=UpdateGate(norm_bound=norm_bound)),
    )


def answer_begun(question: Question, site: str, key: SigningKey) -> tuple[Instruction, Answer]:
    """What is asked, and an answer that says which question it is to; ``key``: the coordinator's."""
    instruction, body = unseal(question.envelope, key.verifying, site=site, now_unix=0)
    answer = Answer(
        run_id=instruction.run_id,
        attempt=instruction.attempt,
        round=instruction.round,
        site=site,
        instruction_digest=body,
        protocol=PROTOCOL,
    )
    return instruction, answer


class Site:
    """Sends an update of a norm that it chooses: ``lengths`` by round, the last for all later ones."""

    def __init__(self, name: str, *lengths: float, rows: int = 10, silent: bool = False) -> None:
        self.name = name
        self.rows = rows
        self.trained = 0
        self._lengths = lengths or (1.0,)
        self._silent = silent

    def answer(self, question: Question) -> Reply:
        instruction, answer = answer_begun(question, self.name, KEY)
        arrays: dict[str, Any] = {}
        if instruction.HasField("describe_data"):
            answer.data_description.CopyFrom(DataDescription(admitted=True, rows=self.rows, data_fingerprint=b"f" * 32))
        else:
            self.trained += 1
            if self._silent:
                raise RuntimeError("no answer")
            arrays = self.update(instruction.round, question.arrays)
            answer.local_update.CopyFrom(LocalUpdate(weight=1_000_000, steps=1))  # nobody believes this weight
        answer.arrays_digest = digest(arrays)
        return Reply(sign_answer(answer, rehearsal_key(self.name)), arrays)

    def update(self, number: int, received: NamedArrays) -> dict[str, Any]:
        length = self._lengths[min(number, len(self._lengths)) - 1]
        generator = np.random.default_rng([number, *self.name.encode()])
        raw = {
            name: 1 + 0.1 * generator.normal(size=array.shape)
            for name, array in received.items()
            if not name.startswith("scaler.")
        }
        norm = math.sqrt(sum(float(np.sum(array**2)) for array in raw.values()))
        return {name: (array * (length / norm)).astype(np.float32) for name, array in raw.items()}


class LateGrid(InProcessGrid):
    """Answers of a node come only when they have been looked for so many times."""

    def __init__(self, nodes: Mapping[int, Node], late: Mapping[int, int]) -> None:
        super().__init__(nodes)
        self._late = late
        self._looks: dict[str, int] = {}
        self._nodes_of: dict[str, int] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        identifiers = list(super().push_messages(messages))
        self._nodes_of |= {i: m.metadata.dst_node_id for i, m in zip(identifiers, messages, strict=True)}
        return identifiers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        due = []
        for identifier in message_ids:
            self._looks[identifier] = self._looks.get(identifier, 0) + 1
            if self._looks[identifier] > self._late.get(self._nodes_of[identifier], 0):
                due.append(identifier)
        return super().pull_messages(due)

    def wait(self, seconds: float) -> None:
        """Looking again is enough."""


def driver(
    folder: Path,
    chosen: Task,
    sites: Sequence[Site],
    late: Sequence[int] = (),
    *,
    run_id: str = "run-1",
    book: WholeSites | None = None,
) -> RunDriver:
    """``late``: for each site how many looks its answers take. ``book``: one in the run's folder when it is not given."""
    names = [site.name for site in sites]
    nodes = {n: Node(relay(site), {SITE_KEY: site.name}) for n, site in enumerate(sites, 100)}
    grid = LateGrid(nodes, dict(enumerate(late, 100)))
    plan = RunPlan(run_id=run_id, task=chosen, seed=3, private=False, expected_sites=len(sites))
    return RunDriver(
        plan,
        RunJournal(folder),
        model_of(chosen, plan.seed),
        lambda attempt: Exchange(
            grid,
            KEY,
            Surroundings(rehearsal_directory(dict(enumerate(names, 100)))),
            run_id=run_id,
            attempt=attempt,
            task_digest=chosen.digest,
            now_unix=lambda: 0.0,
        ),
        whole_sites=book or (CoordinatorHome(folder).whole_sites() if chosen.central_privacy is not None else None),
    )


def run(folder: Path, chosen: Task, sites: Sequence[Site], late: Sequence[int] = ()) -> tuple[bytes, RunState]:
    arrays = driver(folder, chosen, sites, late).train()
    return digest(arrays), RunJournal(folder).state


def honest(count: int, *lengths: float) -> list[Site]:
    return [Site(f"site-{n}", *lengths) for n in range(count)]
