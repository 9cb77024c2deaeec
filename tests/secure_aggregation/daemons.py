"""Whole site daemons, with ledgers and outboxes on disk, and what a coordinator of any will asks them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.site.test_daemon import arrays_of, make_task, some_rows

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.outbox import KeptResult, Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import ArraySpec, digest
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_core.noise import SystemNoise
from fedloop_core.secure_aggregation.encoding import decode, decode_masked, encode
from fedloop_core.secure_aggregation.identity import Consortium, Instance
from fedloop_core.secure_aggregation.messages import Advertisement, Confirmation, SharedKeys, Unmasking
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import (
    AggregateSecurely,
    Answer,
    DescribeData,
    Instruction,
    TrainLocally,
)
from fedloop_server.secure_aggregation.machine import Goal, SecureRound, SecureSum, Stage

KEY = SigningKey.generate()
VICTIM, *OTHERS = SITES = ("north", "south", "west")
TASK = Task.model_validate(
    make_task().model_dump()
    | {
        "aggregation": {"rule": "mean", "secure": True},
        "gates": {"update": {"maximum_norm": 1000.0, "norm_bound": math.inf}},
    }
)
FREE = Budget(epsilon=math.inf)
Model = Mapping[str, np.ndarray]
MODEL: dict[str, np.ndarray] = arrays_of(TASK)
# One that an honest run could have, from which training starts elsewhere: which one it is does not matter to what is refused.
OTHER: Model = MODEL | {name: array + array.dtype.type(0.5) for name, array in MODEL.items() if "scaler" not in name}


class Outboxes(Outbox):
    """Tells a test what was trained."""

    updates: list[dict[str, np.ndarray]]

    def store(self, key: bytes, result: KeptResult, **more: Any) -> None:
        super().store(key, result, **more)
        if result.arrays:
            self.updates.append(dict(result.arrays))


class Refused(Exception):
    """A site's refusal, by its reason."""


@dataclass
class Sites:
    """Three sites, and what a coordinator of any will asks them."""

    folder: Path
    known: tuple[str, ...] = SITES
    keys: dict[str, SigningKey] = field(init=False)
    daemons: dict[str, SiteDaemon] = field(default_factory=dict)
    updates: dict[str, list[dict[str, np.ndarray]]] = field(init=False)
    attempt: int = 1

    def __post_init__(self) -> None:
        self.keys = {site: SigningKey.generate() for site in self.known}
        self.updates = {site: [] for site in SITES}
        for site in SITES:
            self.restart(site)
            self.ask(site, describe_data=DescribeData(task_document=TASK.canonical()), round=0)

    def restart(self, site: str) -> None:
        folder, place = self.folder / site, SITES.index(site)
        consortium = Consortium({name: key.verifying for name, key in self.keys.items()})
        outbox = Outboxes(folder / "outbox.db")
        outbox.updates = self.updates[site]
        self.daemons[site] = SiteDaemon(
            SiteConfig(site=site, training_budget=FREE, evaluation_budget=FREE),
            SiteData(some_rows(200, "t", place), some_rows(60, "e", 9 + place), secret=b"s" * 32),
            Ledger(folder / "ledger.db", lambda: 0),
            outbox,
            SystemNoise(),
            KEY.verifying,
            lambda: 0,
            signing_key=self.keys[site],
            consortium=lambda: consortium,
        )

    def ask(self, site: str, arrays: Model | None = None, **parts: Any) -> tuple[Answer, Reply]:
        beside = dict(arrays or {})
        base: dict[str, Any] = {
            "run_id": "run-1",
            "attempt": self.attempt,
            "round": 1,
            "site": site,
            "task_digest": TASK.digest,
        }
        more: dict[str, Any] = {"arrays_digest": digest(beside), "expires_unix": 60, "protocol": PROTOCOL}
        reply = self.daemons[site].answer(Question(seal(Instruction(**(base | more | parts)), KEY), beside))
        answer = open_answer(reply.answer, self.keys[site].verifying, site=site)
        if answer.WhichOneof("result") == "refusal":
            raise Refused(answer.refusal.fields.get("reason", answer.refusal.code))
        return answer, reply

    def train(self, site: str, model: Model, **parts: Any) -> None:
        self.ask(site, model, train_locally=TrainLocally(rounds_planned=TASK.rounds.count, **parts))

    def try_train(self, site: str, model: Model, **parts: Any) -> str:
        """The reason for which it is refused; empty when it is not."""
        try:
            self.train(site, model, **parts)
        except Refused as refused:
            return str(refused)
        return ""

    def sum_up_to(self, stage: Stage, round_: SecureRound, model: Model = MODEL) -> None:
        if stage >= Stage.KEYS and round_.stage is Stage.KEYS:
            for site, keys in round_.ask_keys().items():
                told = self._told(site, advertise_keys=encode(keys))[0].securely_aggregated
                round_.take_keys(site, decode(Advertisement, told.advertisement))
        if stage >= Stage.SHARES and round_.stage is Stage.KEYS:
            spec = ArraySpec.of({name: array for name, array in MODEL.items() if not name.startswith("scaler")})
            goal = Goal(TASK.digest, digest(dict(model)), spec.size, 1000.0, len(SITES))
            for site, share in round_.ask_shares(goal).items():
                told = self._told(site, share_keys=encode(share))[0].securely_aggregated
                round_.take_shares(site, decode(SharedKeys, told.answer))

    def rest_of_sum(self, round_: SecureRound) -> SecureSum:
        for site, mask in round_.ask_inputs().items():
            answer, reply = self._told(site, mask_input=encode(mask))
            round_.take_input(site, decode_masked(answer.securely_aggregated.answer, reply.arrays["masked"]))
        for site, confirm in round_.ask_survivors().items():
            answer, _ = self._told(site, confirm_survivors=encode(confirm))
            round_.take_confirmation(site, decode(Confirmation, answer.securely_aggregated.answer))
        for site, unmask in round_.ask_unmasking().items():
            answer, _ = self._told(site, unmask=encode(unmask))
            round_.take_unmasking(site, decode(Unmasking, answer.securely_aggregated.answer))
        return round_.sum()

    def _told(self, site: str, **question: bytes) -> tuple[Answer, Reply]:
        return self.ask(site, aggregate_securely=AggregateSecurely(**question))

    def round(self, number: int, sites: tuple[str, ...] = SITES) -> SecureRound:
        keys = {site: self.keys[site].verifying for site in sites}
        return SecureRound(Instance("run-1", 1, number), keys)
