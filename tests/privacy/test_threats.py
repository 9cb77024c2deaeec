"""Claims of the table of threats in docs/privacy.md that no other test shows."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.runs.scripted_sites import KEY, run
from tests.runs.scripted_sites import Site as Scripted
from tests.runs.scripted_sites import task as scripted_task
from tests.site.test_daemon import Site, arrays_of, make_task

from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.home import SiteHome
from fedloop_clients.policy import Budget
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core.arrays import digest
from fedloop_core.durable import write_secret
from fedloop_core.errors import BudgetExhausted
from fedloop_core.keys import SigningKey, unseal
from fedloop_core.noise import NoiseSource, SeededNoise, SystemNoise
from fedloop_core.privacy.charges import SampledGaussianCharge
from fedloop_core.task.aggregation import Mean
from fedloop_proto.coordination.v1.coordination_pb2 import TrainLocally

BUDGET = Budget(epsilon=6.0, delta=1e-5)


def update(noise: NoiseSource, seed: int) -> bytes:
    site = Site(make_task(2.0), budget=BUDGET, evaluation_budget=BUDGET, noise=noise)
    site.describe()
    work = TrainLocally(rounds_planned=4, shuffle_seed=seed)
    answer, reply = site.ask(arrays_of(site.task), round=1, train_locally=work)
    assert answer.WhichOneof("result") == "local_update", answer
    return digest(reply.arrays)


def test_nothing_that_a_coordinator_sends_decides_the_noise_of_a_private_round() -> None:
    assert len({update(SystemNoise(), 7) for _ in range(3)}) == 3  # the same question, word for word
    assert update(SeededNoise(1), 7) != update(SeededNoise(2), 7)  # it is the site's own source that decides


class Listening(Scripted):
    """Keeps what it is sent."""

    heard: ClassVar[dict[int, list[tuple[str, bytes, bytes]]]] = defaultdict(list)

    def answer(self, question: Question) -> Reply:
        instruction, _ = unseal(question.envelope, KEY.verifying, site=self.name, now_unix=0)
        self.heard[instruction.round].append((self.name, digest(question.arrays), question.envelope))
        return super().answer(question)


def test_a_site_is_sent_the_model_and_nothing_of_any_one_other_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Listening, "heard", defaultdict(list))
    sites: list[Any] = [Listening(f"hospital-{name}", 1.0) for name in ("north", "east", "south")]
    run(tmp_path / "run", scripted_task(Mean()), sites)
    assert sorted(Listening.heard) == [0, 1, 2, 3, 4]
    for number in range(1, 5):
        told = Listening.heard[number]
        assert len({arrays for _, arrays, _ in told}) == 1  # one model for all
        for name, _, envelope in told:
            assert not any(other.name.encode() in envelope for other in sites if other.name != name)


def test_each_entry_is_on_the_disk_before_a_call_returns(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", lambda: 0)
    (level,) = ledger._connection.execute("PRAGMA synchronous").fetchone()
    assert level >= 2  # FULL: in WAL mode a commit waits for fsync
    ledger.open_block("b", 8.0, 1e-5)
    with sqlite3.connect(f"file:{tmp_path / 'ledger.db'}?mode=ro", uri=True) as other:
        assert other.execute("SELECT count(*) FROM entry").fetchone()[0] == ledger.head().sequence == 2


def test_leaving_and_joining_again_resets_nothing(tmp_path: Path) -> None:
    """Nor does who else comes or goes: a ledger knows of no other site."""
    run_charge = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
    home = SiteHome(tmp_path / "home")
    home.prepare()
    for number in range(19):
        write_secret(home.signing_key_file, SigningKey.generate().pem())
        home.standing().come_back()
        ledger = home.ledger()
        ledger.open_block("original", 8.0, 1e-5)
        if number < 18:
            ledger.settle(ledger.reserve(run_charge, ("original",), f"run-{number}", "training"), run_charge)
            ledger.verify()
        else:
            with pytest.raises(BudgetExhausted):
                ledger.reserve(run_charge, ("original",), f"run-{number}", "training")
        ledger.close()
        home.standing().leave()
