"""A site's process that is killed at any point of an answer: nothing is charged twice, and nothing that left is free."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.site.test_daemon import Site, arrays_of, make_task, refused

from fedloop_clients import counting, measuring
from fedloop_clients.cancelling import WatchedRun
from fedloop_clients.charging import RunCharges
from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.measuring import SiteEvaluations
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.errors import StorageError
from fedloop_core.privacy.charges import Charge
from fedloop_proto.coordination.v1.coordination_pb2 import TrainLocally

ROOT = Path(__file__).parents[2]
BLOCKS = ("original", "evaluation")


@dataclass(frozen=True)
class Point:
    """Just before or after a call of a function, from the moment that the question is asked.

    ``resumed``: how many reservations carry their release once more when the question is asked again.
    """

    owner: Any
    name: str
    resumed: int
    after: bool = False
    call: int = 1


TRAINING = {
    "before the charge": Point(RunCharges, "release", 0),
    "between charge and training": Point(LocalTrainer, "train_privately", 1),
    "in training": Point(WatchedRun, "at_step", 1, call=3),
    "after training": Point(LocalTrainer, "train_privately", 1, after=True),
    "before the evaluation": Point(SiteEvaluations, "of_model", 1),
    "in the evaluation": Point(measuring, "noised_scores", 2),
    "before the answer is kept": Point(Outbox, "store", 2),
    "while the answer is written": Point(Outbox, "_put", 2),
    "after the answer is kept": Point(Outbox, "store", 0, after=True),
    "before the first settlement": Point(RunCharges, "_settle", 0),
    "between two settlements": Point(Ledger, "settle_in_full", 0, after=True, call=2),  # the first is the description's
    "after both settlements": Point(RunCharges, "_settle", 0, after=True),
    "before the answer leaves": Point(SiteDaemon, "_finish", 0),
}
DESCRIBING = {
    "before the number is found": Point(counting, "noised_counts", 1),
    "after the number is found": Point(counting, "noised_counts", 1, after=True),
    "before the description is kept": Point(Outbox, "store", 1),
    "after the description is kept": Point(Outbox, "store", 0, after=True),
    "after the description is settled": Point(SiteDaemon, "_finish", 0),
}


def site_in(folder: Path) -> Site:
    budget = Budget(epsilon=6.0, delta=1e-5)
    return Site(make_task(2.0), budget=budget, evaluation_budget=budget, folder=folder)


def die_at(point: Point) -> None:
    """Ends this process at the point, as a power cut does."""
    real, calls = getattr(point.owner, point.name), [0]

    def dying(*parts: Any, **named: Any) -> Any:
        calls[0] += 1
        done = real(*parts, **named) if calls[0] < point.call or point.after else None
        if calls[0] == point.call:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(point.owner, point.name, dying)


def work_until_killed(folder: str, name: str) -> None:
    """What the process does that is killed."""
    site = site_in(Path(folder))
    if name in DESCRIBING:
        die_at(DESCRIBING[name])
    site.describe()
    die_at(TRAINING[name])
    site.train(1, evaluate=True)


def serve() -> None:
    """A process that has imported everything, and forks one to be killed for each line: a folder and a point's name."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            work_until_killed(*line.rstrip("\n").split("\t"))
            os._exit(0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


Kill = Callable[[Path, str], Site]


@pytest.fixture(scope="module")
def killed() -> Iterator[Kill]:
    """Makes a site whose process is killed at a point, and opens it again."""
    code = "from tests.site.test_daemon_killed import serve; serve()"
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def kill(folder: Path, name: str) -> Site:
            print(folder, name, sep="\t", file=stdin, flush=True)
            assert int(stdout.readline()) == -signal.SIGKILL
            return site_in(folder)

        yield kill
        stdin.close()
        process.kill()


def charged(site: Site) -> tuple[tuple[Charge, ...], ...]:
    return tuple(site.ledger.charges(block, "run-1") for block in BLOCKS)


def entries(folder: Path) -> Counter[str]:
    with sqlite3.connect(folder / "ledger") as connection:
        bodies = connection.execute("SELECT body FROM entry").fetchall()
    connection.close()
    return Counter(str(json.loads(body)["kind"]) for (body,) in bodies)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Charge, ...], ...]:
    """What the run is charged where nothing is killed."""
    site = site_in(tmp_path_factory.mktemp("whole"))
    site.describe()
    for number in range(1, 5):
        site.train(number, evaluate=True)
    return charged(site)


@pytest.mark.parametrize("name", [*DESCRIBING, *TRAINING])
def test_a_kill_at_any_point_charges_what_the_uninterrupted_run_is_charged(
    killed: Kill, tmp_path: Path, name: str, whole: tuple[tuple[Charge, ...], ...]
) -> None:
    site = killed(tmp_path, name)
    if name in DESCRIBING:
        assert site.describe(attempt=2).data_description.admitted
    for number in range(1, 5):
        answer = site.train(number, evaluate=True, attempt=2)[0]
        assert answer.local_update.evaluation.present, answer  # the last round fits
    assert charged(site) == whole
    assert answer.local_update.run_epsilon <= 2.0 * (1 + 1e-6)
    assert entries(tmp_path)["resume"] == (DESCRIBING | TRAINING)[name].resumed
    site.restart()
    assert entries(tmp_path)["settle"] == entries(tmp_path)["reserve"]  # nothing is left that could carry more


def with_other_arrays(site: Site, **parts: Any) -> Any:
    moved = {name: array + np.float32(1) for name, array in arrays_of(site.task).items()}
    return site.ask(moved, round=1, train_locally=TrainLocally(rounds_planned=4), **parts)[0]


@pytest.mark.parametrize("name", ["after the answer is kept", "between two settlements"])
def test_an_answer_that_may_have_left_pays_for_no_other(killed: Kill, tmp_path: Path, name: str) -> None:
    """The next question would be charged alike: same run, same round, same mechanism."""
    site = killed(tmp_path, name)
    before = charged(site)
    assert with_other_arrays(site, attempt=2).WhichOneof("result") == "local_update"
    assert len(charged(site)[0]) == len(before[0]) + 1
    assert entries(tmp_path)["resume"] == 0


def test_an_answer_that_is_kept_and_cannot_be_settled_pays_for_no_other_either(
    killed: Kill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = killed(tmp_path, "in training")
    before = charged(site)

    def full(*_: object) -> None:
        raise StorageError("cannot write: No space left on device.")

    with monkeypatch.context() as patch:
        patch.setattr(RunCharges, "_settle", full)  # the reservation was there when the ledger was opened
        assert refused(site.train(1, attempt=2)[0])[0] == StorageError.code
    assert site.train(1, attempt=2)[0].WhichOneof("result") == "local_update"
    assert charged(site) == before
    assert with_other_arrays(site, attempt=2).WhichOneof("result") == "local_update"
    assert len(charged(site)[0]) == len(before[0]) + 1


def test_reservations_of_a_ledger_that_was_put_back_are_not_taken_for_others(killed: Kill, tmp_path: Path) -> None:
    """The outbox names an entry that this ledger does not have under its number."""
    site = killed(tmp_path, "in training")
    number = site.ledger.head().sequence
    with sqlite3.connect(tmp_path / "outbox") as connection:
        connection.execute("INSERT OR REPLACE INTO charged VALUES (?, ?)", (number, bytes(32)))
    connection.close()
    site.restart()
    site.train(1, attempt=2)
    assert entries(tmp_path)["resume"] == 1
