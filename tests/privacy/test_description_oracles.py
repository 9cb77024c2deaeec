"""What a hostile task can learn by having itself described: nothing but numbers that were noised and charged.

The coordinator writes vocabularies, classes and bounds of a task, so an exact verdict of the data gate answers any question about any
row. Tasks and files are rows of tables; each task is named after the oracle that it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_clients.controls import SiteControls
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.endpoint import Question
from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig, SitePolicy
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.service.rows import FileRows
from fedloop_core.arrays import digest
from fedloop_core.audit import AuditAction, AuditLog
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_core.models import build_model, initial_arrays
from fedloop_core.noise import NoiseSource, SystemNoise
from fedloop_core.privacy.charges import PureCharge
from fedloop_core.task.document import DataGate, Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, DescribeData, Instruction, TrainLocally

KEY, SITE_KEY = SigningKey.generate(), SigningKey.generate()
BUDGET = Budget(epsilon=40.0, delta=1e-6)
SETTINGS = """\
format = 1
site = "north"
[data]
file = "rows.csv"
[budget]
training = { epsilon = 40.0, delta = 1e-6 }
evaluation = { epsilon = 40.0, delta = 1e-6 }
"""
HEAD = "patient,zip,hiv,y\n"
Row = tuple[str, str, str, str]


def others(number: int = 300) -> list[Row]:
    """Patients of whom nobody is the one that is looked for."""
    drawn = np.random.default_rng(1).integers(0, 2, number)
    return [(f"P{at}", str(10000 + at % 7), "neg", ("no", "yes")[drawn[at]]) for at in range(number)]


def the_one(rows: int = 1) -> list[Row]:
    return [("P-one", "12345", "pos", "yes")] * rows


class Site:
    """A deployed site's daemon over a file of rows, and a coordinator that asks what it likes."""

    def __init__(
        self,
        folder: Path,
        rows: Sequence[Row],
        *,
        budget: Budget = BUDGET,
        policy: SitePolicy | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        self.home = SiteHome(folder)
        self.home.prepare()
        self.home.store_membership(
            Membership(
                site="north",
                coordinator_key=KEY.verifying.raw.hex(),
                fleet_address="a:1",
                hub_address="a:2",
                protocol=PROTOCOL,
                joined_unix=1,
            )
        )
        self.home.fingerprint_secret_file.write_bytes(bytes(range(32)))
        self.home.settings_file.write_text(SETTINGS)
        self.write(rows)
        self.config = SiteConfig(
            site="north", policy=policy or SitePolicy(), training_budget=budget, evaluation_budget=budget
        )
        self.noise = noise or SystemNoise()
        self.audit = AuditLog(folder / "audit.jsonl")
        self.ledger = Ledger(":memory:", lambda: 0)
        self.outbox = Outbox(":memory:")
        self.restart()

    def write(self, rows: Sequence[Row]) -> None:
        self.home.data_file.write_text(HEAD + "".join(",".join(row) + "\n" for row in rows))

    def restart(self) -> None:
        """A new process reads the file as it is now."""
        self.daemon = SiteDaemon(
            self.config,
            FileRows(self.home),
            self.ledger,
            self.outbox,
            self.noise,
            KEY.verifying,
            lambda: 0,
            signing_key=SITE_KEY,
            controls=SiteControls.of_folder("north", self.home.folder, lambda: self.config.policy, self.audit),
        )

    def ask(self, task: Task, run_id: str, arrays: Mapping[str, Any] | None = None, **parts: Any) -> Answer:
        beside = dict(arrays or {})
        head = {"attempt": 1, "round": 0, "expires_unix": 60} | {k: v for k, v in parts.items() if k == "round"}
        work = {k: v for k, v in parts.items() if k != "round"}
        instruction = Instruction(
            run_id=run_id,
            site="north",
            task_digest=task.digest,
            arrays_digest=digest(beside),
            protocol=PROTOCOL,
            **head,
            **work,
        )
        reply = self.daemon.answer(Question(seal(instruction, KEY), beside))
        return open_answer(reply.answer, SITE_KEY.verifying, site="north")

    def describe(self, task: Task, run_id: str = "run-1", **parts: Any) -> Answer:
        return self.ask(task, run_id, describe_data=DescribeData(task_document=task.canonical()), **parts)

    def train(self, task: Task, run_id: str = "run-1", number: int = 1) -> Answer:
        fixed = build_model(task).fixed_digest()
        work = TrainLocally(rounds_planned=task.rounds.count, fixed_weights=fixed)
        return self.ask(task, run_id, initial_arrays(task, 1), round=number, train_locally=work)


def probe(
    *,
    epsilon: float = 1.0,
    delta: float = 1e-6,
    unit: str | None = "patient",
    zips: Sequence[str] = ("12345", "nobody's"),
    classes: Sequence[str] = ("no", "yes"),
    **gate: Any,
) -> Task:
    """A task that sees only rows with these zip codes and a positive test; what else there is, it skips."""
    return Task.model_validate(
        {
            "format": 1,
            "name": "probe",
            "features": (
                {"kind": "categorical", "name": "zip", "values": tuple(zips)},
                {"kind": "categorical", "name": "hiv", "values": ("pos", "other")},
            ),
            "label": {"kind": "classes", "name": "y", "classes": tuple(classes)},
            "model": {"kind": "logistic"},
            "training": {"algorithm": "fedavg", "local_steps": 2, "batch_size": 4},
            "privacy": {"epsilon": epsilon, "delta": delta, "unit_column": unit},
            "rounds": {"count": 2},
            "gates": {"data": {"minimum_rows": 1, "maximum_skipped": 1.0, "all_classes": False} | gate},
        }
    )


FIT = 21  # counts of epsilon 0.1 that a budget of 2 at delta 1e-6 holds
NEVER = ("no", "yes", "never")
ORACLES: dict[str, Task] = {
    "count by minimum-rows, refused for a class that nobody has": probe(
        classes=NEVER, all_classes=True, minimum_rows=2
    ),
    "presence by minimum-rows, and by training without any row": probe(),
    "count by maximum-rows": probe(maximum_rows=1),
    "presence of a class": probe(all_classes=True),
    "presence by skipped rows, patients": probe(maximum_skipped=0.5),
    "presence by skipped rows, each row a unit": probe(unit=None, maximum_skipped=0.5),
    "count by the delta that guards nothing": probe(delta=0.02),
}
FILES: dict[str, list[Row]] = {
    "the one is there": others() + the_one(),
    "nobody": others(),
    "the one many times": others() + the_one(40),
    "all rows of the one zip code": [(f"Q{at}", "12345", "pos", "yes") for at in range(250)],
    "no row": [],
    "one class": [row for row in others() if row[3] == "yes"],
}


def transcript(
    folder: Path,
    rows: Sequence[Row],
    task: Task,
    told: Callable[[int], int],
    patch: pytest.MonkeyPatch,
) -> tuple[Any, ...]:
    """All that leaves while a task is described, asked about again and trained for a round, and what was charged."""
    site = Site(folder, rows)
    with patch.context() as patched:
        patched.setattr("fedloop_clients.counting.noised_counts", lambda exact, *_: tuple(map(told, range(len(exact)))))
        answers = [site.describe(task), site.describe(task, round=7), site.train(task)]
    said: list[Any] = []
    for answer in answers:
        kind = answer.WhichOneof("result")
        if kind == "data_description":
            said.append((answer.data_description.admitted, tuple(answer.data_description.reasons)))
            answer.data_description.data_fingerprint = bytes(len(answer.data_description.data_fingerprint))
        said.append((kind, getattr(answer, kind).SerializeToString(deterministic=True), answer.ledger.sequence))
    return (*said, {block: site.ledger.charges(block) for block in site.ledger.budgets()})


TOLD: dict[str, Callable[[int], int]] = {
    "few": lambda at: (2, 900)[at],
    "many": lambda at: (400, 3)[at],
    "less than none": lambda at: (-30, 900)[at],
}


@pytest.mark.parametrize("told", TOLD.values(), ids=TOLD.keys())
@pytest.mark.parametrize("task", ORACLES.values(), ids=ORACLES.keys())
def test_what_leaves_follows_from_the_noised_numbers_alone(
    task: Task, told: Callable[[int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the same noised numbers, files that differ in everything give the same answers, refusals and charges."""
    seen = {
        name: transcript(tmp_path / str(at), rows, task, told, monkeypatch)
        for at, (name, rows) in enumerate(FILES.items())
    }
    first = seen["the one is there"]
    assert [name for name, other in seen.items() if other != first] == []
    assert first[-1]["original"][0] == PureCharge(epsilon=0.05)


@pytest.mark.parametrize("more", [0, 1], ids=["as many as are there", "one more than is there"])
def test_noise_decides_at_the_very_bound(more: int, tmp_path: Path) -> None:
    """An exact verdict would be the same each time, and so tell the number by bisection."""
    site = Site(tmp_path, FILES["all rows of the one zip code"])
    exact = len(FileRows(site.home).for_task(probe()).training())
    task = probe(minimum_rows=exact + more)
    seen = {site.describe(task, f"run-{number}").data_description.admitted for number in range(50)}
    assert seen == {True, False}  # the same 50 times by chance: 1 in 2**48


@pytest.mark.parametrize("name", FILES.keys())
def test_a_bisection_spends_the_budget_and_ends_in_a_refusal(name: str, tmp_path: Path) -> None:
    """The question that counted patients with one zip code and a positive test, twelve times for nothing."""
    site = Site(tmp_path, FILES[name], budget=Budget(epsilon=2.0, delta=1e-6))
    for number in count():
        task = probe(epsilon=2.0, classes=NEVER, all_classes=True, minimum_rows=10_000 + number)
        answer = site.describe(task, f"run-{number}")
        if answer.WhichOneof("result") == "refusal":
            break
        assert not answer.data_description.admitted
        assert len(site.ledger.charges("original")) == number + 1
        assert site.ledger.charges("original", f"run-{number}") == (PureCharge(epsilon=0.1),)
    assert (answer.refusal.code, dict(answer.refusal.fields), number) == ("FL-PRIV-002", {}, FIT)
    assert site.ledger.spend("original").epsilon <= 2.0
    assert answer.ledger.sequence == site.ledger.head().sequence
    again = site.describe(task, f"run-{number}")
    assert (again.refusal.code, again.ledger.sequence) == ("FL-PRIV-002", answer.ledger.sequence)


def test_a_sites_own_gate_is_judged_by_the_same_noised_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the site's people ask for beyond the task must not be an exact oracle either."""
    policy = SitePolicy(data_gate=DataGate(minimum_rows=350, all_classes=True, maximum_skipped=0.0))
    monkeypatch.setattr("fedloop_clients.counting.noised_counts", lambda exact, *_: tuple(300 for _ in exact))
    for at, rows in enumerate(FILES.values()):
        said = Site(tmp_path / str(at), rows, policy=policy).describe(probe()).data_description
        assert (said.admitted, list(said.reasons)) == (False, ["minimum-rows"])


def test_the_sites_people_see_what_leaves_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    site = Site(tmp_path, FILES["one class"])
    with caplog.at_level(logging.WARNING):
        said = site.describe(probe(all_classes=True, maximum_skipped=0.1, minimum_rows=5)).data_description
    assert "break these rules of the data gate: minimum-rows, maximum-skipped, all-classes" in caplog.text
    assert set(said.reasons) <= {"minimum-rows"}
    (begun,) = [entry for entry in site.audit.entries() if entry.action is AuditAction.RUN_STARTED]
    assert begun.details["data_gate"] == "minimum-rows, maximum-skipped, all-classes"


def test_digests_of_rows_cannot_be_compared_over_runs(tmp_path: Path) -> None:
    """Two vocabularies that differ by one zip code gave the same digest if and only if nobody lives there."""
    site = Site(tmp_path, others(), noise=SystemNoise())
    near, wide = (probe(epsilon=20.0, zips=zips).canonical() for zips in (("10001", "x"), ("10001", "12345")))
    tasks = [Task.from_canonical(document.replace(b'"pos"', b'"neg"')) for document in (near, wide)]
    told = [site.describe(task, run).data_description for task, run in zip([tasks[0], *tasks], "abc", strict=True)]
    assert all(one.admitted for one in told)
    assert len({one.data_fingerprint for one in told}) == 3
    site.write([*others(), *others()[:1]])
    site.restart()
    assert site.describe(tasks[0], "a", round=5).data_description.data_fingerprint == told[0].data_fingerprint


NEIGHBOURS: dict[str, tuple[str | None, list[Row]]] = {
    "one row that fits": (None, the_one()),
    "one row that is skipped": (None, [("P-one", "99999", "pos", "yes")]),
    "a patient with rows that fit": ("patient", the_one(5)),
    "a patient with rows that are skipped": ("patient", [("P-one", "99999", "pos", "yes")] * 5),
    "a patient with both": ("patient", [*the_one(3), *[("P-one", "99999", "pos", "yes")] * 3]),
}


@pytest.mark.parametrize(("unit", "more"), NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_one_unit_moves_all_numbers_together_by_at_most_one(
    unit: str | None, more: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise of scale 1/epsilon on each number hides a unit only then."""
    seen: list[tuple[int, ...]] = []

    def looked_at(exact: Sequence[int], *_: Any) -> tuple[int, ...]:
        seen.append(tuple(exact))
        return seen[-1]

    monkeypatch.setattr("fedloop_clients.counting.noised_counts", looked_at)
    rows = FILES["all rows of the one zip code"]
    for at, content in enumerate((rows, rows + more)):
        Site(tmp_path / str(at), content).describe(probe(unit=unit))
    without, with_unit = seen
    assert len(without) == len(with_unit) == (2 if unit is None else 1)
    assert sum(abs(a - b) for a, b in zip(without, with_unit, strict=True)) <= 1


def test_a_round_without_any_row_is_noise_and_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Admitted by noise, a site with no row would else say so by refusing to train."""
    monkeypatch.setattr("fedloop_clients.counting.noised_counts", lambda exact, *_: tuple(30 for _ in exact))
    site = Site(tmp_path, others())
    task = probe()
    assert site.describe(task).data_description.rows == 30
    assert len(FileRows(site.home).for_task(task).training()) == 0
    assert site.train(task).WhichOneof("result") == "local_update"
