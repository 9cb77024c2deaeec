"""A federation of real sites computes what a loop written by hand computes, also when its processes die under it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedloop_clients.data.site_data import EVALUATION, ORIGINAL
from fedloop_clients.endpoint import Question, Reply, SiteEndpoint
from fedloop_clients.training.rows import shuffled_batches
from fedloop_core.arrays import ArraySpec, digest
from fedloop_core.models import build_model
from fedloop_core.scaling import Scaler
from fedloop_core.shuffling import seed_of_round, seed_of_site
from fedloop_core.task.document import FederatedAveraging, Task
from fedloop_core.task.presets import load_preset
from fedloop_server.aggregation.fixed_point import FixedPointSum
from fedloop_server.runs.events import Event, RoundClosed
from fedloop_server.runs.state import RunState
from fedloop_server.runs.thinning import nothing_is_thinned
from fedloop_simulations.data import SiteRows, load_world

SEED = 11
Arrays = Mapping[str, NDArray[np.generic]]
Make = Callable[..., Any]  # federations of conftest.py


def breast_cancer(**parts: dict[str, object]) -> Task:
    """The preset with some settings changed: three rounds by rows, momentum and weight decay on."""
    document = load_preset("breast-cancer").model_dump()
    changes: dict[str, dict[str, object]] = {
        "rounds": {"count": 3, "weighting": "rows", "evaluate_every": 0},
        "training": {"local_steps": 6, "batch_size": 16, "momentum": 0.9, "weight_decay": 0.01, "learning_rate": 0.05},
    }
    for part, values in (changes | parts).items():
        document[part] |= values
    return Task.model_validate(document, strict=False)


def rows_of(task: Task) -> tuple[SiteRows, ...]:
    """Three sites of unequal size."""
    sites = load_world(task, seed=SEED).sites
    return tuple(
        SiteRows(site.name, site.train.take(np.arange(40 + 12 * at)), site.evaluation) for at, site in enumerate(sites)
    )


def one_round(task: Task, rows: tuple[SiteRows, ...], start: Arrays, number: int) -> dict[str, NDArray[np.float64]]:
    """A round of FedAvg as the paper writes it: torch's own optimizer at each site, then the mean weighted by rows."""
    assert isinstance(task.training, FederatedAveraging)
    model = build_model(task)
    model.set_scaler(Scaler.from_arrays(start))
    total = sum(len(site.train) for site in rows)
    weights = {name: array for name, array in start.items() if not name.startswith("scaler.")}
    after = {name: array.astype(np.float64) for name, array in weights.items()}
    for site in rows:
        model.load_trainable_arrays(weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
        inputs, labels = torch.from_numpy(site.train.inputs["numeric"]), torch.from_numpy(site.train.labels)
        seed = seed_of_site(seed_of_round(SEED, number), site.name)
        for places in shuffled_batches(len(labels), 16, task.training.local_steps, seed):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs[places]), labels[places]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, trained in model.trainable_arrays().items():
            update = trained.astype(np.float32) - weights[name].astype(np.float32)
            after[name] += update.astype(np.float64) * (len(site.train) / total)
    return after


def test_every_round_is_a_round_of_federated_averaging(federation: Make) -> None:
    task = breast_cancer(privacy={"epsilon": float("inf")})
    rows = rows_of(task)
    members = federation(task, rows, SEED)
    runs = members.home.folder / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    with nothing_is_thinned(runs):
        state = members.run()
    assert state.failure is None
    journal = members.home.journal("run-1")
    names = tuple(members.home.trained_arrays("run-1"))
    rounds = [journal.load_checkpoint(f"round-{number}.safetensors", names) for number in range(4)]
    trained = {name: array for name, array in rounds[0].items() if not name.startswith("scaler.")}
    sums = FixedPointSum(
        ArraySpec.of(trained),
        largest_value=task.gates.update.maximum_norm,
        total_weight=sum(len(site.train) for site in rows),
    )
    for number in (1, 2, 3):
        by_hand = one_round(task, rows, rounds[number - 1], number)
        for name, expected in by_hand.items():
            error = np.abs(rounds[number][name].astype(np.float64) - expected)
            assert (error <= sums.rounding_error + np.spacing(np.abs(expected).astype(np.float32))).all()
    through: Arrays = rounds[0]
    for number in (1, 2, 3):  # and from end to end, where each round starts from the one by hand
        by_hand = one_round(task, rows, through, number)
        through = {name: by_hand[name].astype(np.float32) if name in by_hand else rounds[0][name] for name in names}
    for name in by_hand:
        assert np.abs(rounds[3][name].astype(np.float64) - through[name].astype(np.float64)).max() <= 1e-6


class Died(BaseException):
    """Stands for a process that is killed: nothing catches it."""


class Dying:
    """A site whose answer number ``at``, counted over all sites, is computed and charged, and never sent."""

    def __init__(self, at: int) -> None:
        self._left = at

    def wrap(self, site: SiteEndpoint) -> SiteEndpoint:
        counter = self

        class Counted:
            def answer(self, question: Question) -> Reply:
                reply = site.answer(question)
                counter._left -= 1
                if counter._left == 0:
                    raise Died
                return reply

        return Counted()


@pytest.fixture(scope="module")
def private_task() -> Task:
    task = breast_cancer(preprocessing={"scaling": "federated"})
    return task.model_copy(update={"rounds": task.rounds.model_copy(update={"evaluate_every": 1})})


def end_of(members: Any) -> tuple[bytes, dict[str, tuple[float, float]], tuple[Any, ...]]:
    """Weights, what each site's rows have spent, and what was measured in the rounds."""
    spends = {
        name: (ledger.spend(ORIGINAL).epsilon, ledger.spend(EVALUATION).epsilon)
        for name, ledger in members.ledgers.items()
    }
    for ledger in members.ledgers.values():
        ledger.verify()
    measured = tuple(closed.measured for closed in members.home.journal("run-1").state.rounds)
    return digest(members.home.trained_arrays("run-1")), spends, measured


@pytest.fixture(scope="module")
def whole(private_task: Task, federation: Make) -> Any:
    """How the run ends when nothing happens to it."""
    members = federation(private_task, rows_of(private_task), SEED, budget=20.0)
    assert members.run().failure is None
    return end_of(members)


@pytest.mark.parametrize("at", [1, 3, 5, 7, 10, 12, 15])
def test_a_private_run_that_dies_within_a_round_goes_on_and_pays_once(
    at: int, private_task: Task, whole: Any, federation: Make, tmp_path: Path
) -> None:
    broken = federation(private_task, rows_of(private_task), SEED, budget=20.0, folder=tmp_path)
    with pytest.raises(Died):
        broken.run(wrap=Dying(at).wrap)
    assert broken.run().failure is None
    assert end_of(broken) == whole


def test_a_run_that_stops_between_rounds_goes_on_to_the_same_weights(
    private_task: Task, whole: Any, federation: Make, tmp_path: Path
) -> None:
    def stop_after_round_2(state: RunState, event: Event) -> None:
        if isinstance(event, RoundClosed) and event.round == 2:
            raise Died

    broken = federation(private_task, rows_of(private_task), SEED, budget=20.0, folder=tmp_path)
    with pytest.raises(Died):
        broken.run(observe=stop_after_round_2)
    state = broken.run()
    assert (state.attempt, state.completed_rounds, state.failure) == (2, 3, None)
    assert end_of(broken) == whole
    again = broken.run()  # a run that has ended is not driven again
    assert again == state
    assert end_of(broken) == whole
