"""A small federation under attack: real local training, lies, gate, bound and rules; no messages, no ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.dataset import Dataset
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task import Task
from fedloop_core.task.document import FederatedAveraging, Gates, LogisticModel, Privacy, Rounds, UpdateGate
from fedloop_core.update_gate import check_update
from fedloop_server.aggregation.algorithms import algorithm_of
from fedloop_server.aggregation.bounding import bound_from, shortened
from fedloop_server.runs.model import model_of
from fedloop_simulations.attacks import Assault, AttackOrder
from fedloop_simulations.attacks.effect import backdoor_rate
from fedloop_simulations.attacks.kinds import ALittle
from fedloop_simulations.attacks.little import LittleLie
from fedloop_simulations.attacks.lying import multiplied

SITES = tuple(f"site-{n}" for n in range(1, 8))
FEATURES = 6
ROUNDS = 8


def task(rule: str = "mean", norm_bound: float = math.inf, faulty: int = 1) -> Task:
    section: dict[str, Any] = {"rule": rule} if rule == "mean" else {"rule": rule, "faulty_sites": faulty}
    return Task.model_validate(
        Task(
            format=1,
            name="small",
            features=tuple(NumericFeature(kind="numeric", name=f"x{n}", range=(-3.0, 3.0)) for n in range(FEATURES)),
            label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
            model=LogisticModel(kind="logistic"),
            training=FederatedAveraging(algorithm="fedavg", local_steps=10, batch_size=32, learning_rate=0.5),
            privacy=Privacy(epsilon=math.inf),
            rounds=Rounds(count=ROUNDS),
            gates=Gates(update=UpdateGate(norm_bound=norm_bound)),
        ).model_dump()
        | {"aggregation": section}
    )


@lru_cache(maxsize=1)
def rows() -> tuple[Mapping[str, Dataset], Dataset]:
    """Training rows of each site, which differ somewhat from site to site, and rows that nobody trains on."""
    generator = np.random.default_rng(5)
    truth = np.array([1.0, -1.0, 0.5, 0.5, -0.5, 0.25])

    def drawn(count: int, shift: float, name: str) -> Dataset:
        values = np.clip(generator.normal(shift, 1, (count, FEATURES)), -3, 3).astype(np.float32)
        labels = (values @ truth + 0.3 * generator.normal(size=count) > 0).astype(np.int64)
        return Dataset({"numeric": values}, labels, tuple(f"{name} {row}" for row in range(count)))

    return {name: drawn(80, 0.1 * (at - 3), name) for at, name in enumerate(SITES)}, drawn(600, 0.0, "held out")


@dataclass(frozen=True)
class Ending:
    """How a run ends: what the model knows, how far it is from the honest one as a share of the way that one went."""

    accuracy: float
    away: float
    backdoor: float
    weights: NDArray[np.float64]


def flat(arrays: Mapping[str, NDArray[np.generic]]) -> NDArray[np.float64]:
    return np.concatenate([array.reshape(-1).astype(np.float64) for array in arrays.values()])


@lru_cache(maxsize=64)
def ending(attack: str, rule: str = "mean", norm_bound: float = math.inf, faulty: int = 1) -> Ending:
    """Runs it; ``attack`` as on the command line, empty for an honest run."""
    chosen = task(rule, norm_bound, faulty)
    assault = AttackOrder.parse(attack).by(SITES, chosen) if attack else None
    model, trainer = model_of(chosen, 1), LocalTrainer(chosen)
    start = flat(model.trained)
    own, held_out = rows()
    recent: list[dict[str, float]] = []
    lies = {name: _lie(assault, chosen, own[name], at) for at, name in enumerate(SITES)}
    poisoned = {
        name: assault.attack.poisoned(own[name], chosen.feature_schema, at)
        if assault is not None and name in assault.sites
        else own[name]
        for at, name in enumerate(SITES)
    }
    for number in range(1, ROUNDS + 1):
        received = model.all_arrays()
        fold = algorithm_of(chosen, 1).begin(model.trained, len(SITES))
        bound = bound_from(recent, chosen.gates.update.norm_bound)
        told: dict[str, float] = {}
        for at, name in enumerate(SITES):
            honest = trainer.train(received, poisoned[name], 100 * number + at).update
            sent: Mapping[str, NDArray[np.generic]] = honest
            if assault is not None and name in assault.sites:
                sent = lies[name](number, received, honest)
            length = check_update(sent, fold.spec, maximum_norm=1000.0)
            if bound is not None and length > bound:
                sent, length = shortened(sent, length, bound), bound
            fold.add(sent, norm=length)
            told[name] = length
        recent.append(told)
        model.trained, _ = fold.move(model.trained)
    arrays = model.all_arrays()
    outputs = trainer.outputs(arrays, held_out, held_out)
    weights = flat(model.trained)
    honest_weights = weights if not attack else ending("").weights
    return Ending(
        accuracy=float((outputs.argmax(axis=1) == held_out.labels).mean()),
        away=float(np.linalg.norm(weights - honest_weights) / np.linalg.norm(honest_weights - start)),
        backdoor=backdoor_rate(trainer, arrays, chosen.feature_schema, [(held_out, held_out)]).success,
        weights=weights,
    )


def _lie(assault: Assault | None, chosen: Task, own: Dataset, seed: int) -> Any:
    if assault is None:
        return multiplied(1.0)
    if isinstance(assault.attack, ALittle):
        return LittleLie(assault.attack, chosen, own, seed)
    return multiplied(assault.attack.factor)
