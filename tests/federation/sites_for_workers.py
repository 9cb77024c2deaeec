"""Sites that tests of grids run, in this process or in workers: a module of its own, so that a worker can import it."""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass

import numpy as np

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.endpoint import Question, Reply, SiteEndpoint
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.dataset import Dataset
from fedloop_core.keys import VerifyingKey, unseal
from fedloop_core.noise import SeededNoise
from fedloop_simulations.keys import rehearsal_key

NOW = 0  # before any instruction expires


def die() -> None:
    """As if the kernel had killed this process."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Echo:
    """Answers with what it was asked, its name and how often it was asked; three names misbehave."""

    name: str
    asked: int = 0

    def answer(self, question: Question) -> Reply:
        self.asked += 1
        if self.name == "raises":
            raise RuntimeError("this text must not cross the wire")
        if self.name == "dies":
            die()
        return Reply(question.envelope + f" {self.name} {self.asked}".encode(), question.arrays)


def echo(name: str) -> SiteEndpoint:
    return Echo(name)


def broken(name: str) -> SiteEndpoint:
    raise ValueError(f"no rows for {name}")


def dying(name: str) -> SiteEndpoint:
    die()
    return Echo(name)


@dataclass(frozen=True)
class RealSites:
    """Makes site daemons of 24 rows, with a clock that stands; those of ``fatal`` kill their process in round 2."""

    coordinator_key: bytes
    fatal: str = ""

    def __call__(self, name: str) -> SiteEndpoint:
        generator = np.random.default_rng(list(name.encode()))
        values = generator.normal(size=(24, 2)).astype(np.float32)
        labels = (values.sum(axis=1) > 0).astype(np.int64)
        rows = Dataset({"numeric": values}, labels, ("",) * len(labels))
        key = VerifyingKey(self.coordinator_key)
        budget = Budget(epsilon=math.inf)
        daemon = SiteDaemon(
            SiteConfig(site=name, training_budget=budget, evaluation_budget=budget),
            SiteData(rows, rows.take(()), secret=bytes(16)),
            Ledger(":memory:", lambda: NOW),
            Outbox(":memory:"),
            SeededNoise(5, name),
            key,
            lambda: NOW,
            signing_key=rehearsal_key(name),
        )
        return Fatal(daemon, name, key) if name == self.fatal else daemon


@dataclass(frozen=True)
class Fatal:
    """A site in front of whose second round its process dies."""

    site: SiteDaemon
    name: str
    key: VerifyingKey

    def answer(self, question: Question) -> Reply:
        instruction, _ = unseal(question.envelope, self.key, site=self.name, now_unix=NOW)
        if instruction.round == 2:
            die()
        return self.site.answer(question)
