"""Faults found in flwr 1.42 (F) and Opacus 1.6 (O), each as a row that shows what ours does; ``docs/faults-of-others.md`` is the list.

Rows of secure aggregation (S) are in ``tests/secure_aggregation``; others that need more than some lines are where that page says.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm as gaussian

import fedloop_clients
from fedloop_clients.privacy.calibration import find_gaussian_multiplier, find_noise_multiplier
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.privacy.planning import plan_run
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import ArraySpec, pack_arrays
from fedloop_core.central_privacy import CentralPlan, central_plan, update_multiplier
from fedloop_core.errors import BudgetExhausted, PrivacyParameterInvalid, UpdateRefused
from fedloop_core.models import initial_arrays
from fedloop_core.noise import SystemNoise
from fedloop_core.privacy.accounting import epsilon
from fedloop_core.privacy.charges import Charge, GaussianCharge, PureCharge, SampledGaussianCharge
from fedloop_core.task import Task
from fedloop_core.task.central import AdaptiveClipping, CentralPrivacy
from fedloop_core.task.combinations import RULES, Part, misfits
from fedloop_core.task.document import FederatedAveraging, Privacy
from fedloop_core.update_gate import check_update
from fedloop_server.aggregation.central import CentralAveraging, ClippedSum, next_norm
from fedloop_server.aggregation.fixed_point import FixedPointSum

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "faults-of-others.md"
Arrays = dict[str, NDArray[Any]]
MODEL: Arrays = {"a": np.zeros((3,), np.float32), "b": np.zeros((2, 2), np.float32)}


def task(epsilon_: float = 2.0, **training: Any) -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "faults",
            "features": ({"kind": "numeric", "name": "x", "range": (-1.0, 1.0)},),
            "label": {"kind": "classes", "name": "y", "classes": ("a", "b")},
            "model": {"kind": "logistic"},
            "training": {"algorithm": "fedavg"} | training,
            "privacy": {"epsilon": epsilon_, "delta": 1e-5},
        }
    )


def update(**changed: NDArray[Any]) -> Arrays:
    return {"a": np.full(3, 0.1, np.float32), "b": np.full((2, 2), -0.2, np.float32)} | changed


def gated(arrays: Arrays) -> FixedPointSum:
    """As a round folds a reply."""
    sums = FixedPointSum(ArraySpec.of(MODEL), largest_value=10.0, total_weight=4)
    sums.add(arrays, 1, norm=check_update(arrays, sums.spec, maximum_norm=10.0))
    return sums


def refusal(do: Callable[[], object]) -> str:
    with pytest.raises(UpdateRefused) as caught:
        do()
    return str(caught.value.wire().fields.get("reason"))


# --- Flower --------------------------------------------------------------------------------------------------------


def zero_update() -> None:
    """F3: an update of nothing is an update, and divides by no norm."""
    sums = gated({name: np.zeros_like(array) for name, array in MODEL.items()})
    assert all(not array.any() for array in sums.mean().values())


def nan_bypasses_clipping() -> None:
    """F4: one NaN, or infinities, beside large values: refused before anything is compared with a norm."""
    for value in (np.nan, np.inf, -np.inf):
        bad = update(a=np.array([value, 100.0, 100.0], np.float32))
        assert refusal(partial(gated, bad)) == "not-finite"


def integer_buffers() -> None:
    """F5: counters of BatchNorm do not travel, and no whole number is taken for a weight or noised into one."""
    assert refusal(lambda: gated(update(a=np.arange(3)))) == "dtype"
    assert {array.dtype.str for array in initial_arrays(task(), 1).values()} == {"<f4"}


def other_order() -> None:
    """F6: arrays are matched by name, and another order is refused rather than added up crosswise."""
    shuffled = dict(reversed(update().items()))
    assert refusal(lambda: gated(shuffled)) == "names"


def clip_goes_the_right_way() -> None:
    """F1: a clip that follows the median of norms in [0.5, 1.5) comes to it from 0.1 and from 10."""
    generator = np.random.default_rng(0)
    for start in (0.1, 10.0):
        clip = start
        for _ in range(60):
            clip = next_norm(clip, float(np.mean(generator.uniform(0.5, 1.5, 100) <= clip)), AdaptiveClipping())
        assert 0.9 < clip < 1.1


def count_noise() -> None:
    """F2: the noise on the count is enough for any number of sites, and too little of it is told in a sentence."""
    plan = central_plan(CentralPrivacy(epsilon=2.0, adaptive=AdaptiveClipping()), 10)
    assert plan.updates == pytest.approx(1.0328 * plan.multiplier, rel=1e-4)
    for clients in (4, 10):
        with pytest.raises(PrivacyParameterInvalid, match="half the noise multiplier"):
            update_multiplier(1.0, clients / 20)


def clipped_sum(sites: int, multiplier: float = 1.0) -> ClippedSum:
    plan = CentralPlan(delta=1e-5, rounds=1, multiplier=multiplier, updates=multiplier, count_noise=None)
    return CentralAveraging(plan, SystemNoise(), rate=1.0, clipping_norm=1.0, most=10.0).begin(MODEL, sites)


def weighted_noise() -> None:
    """F7: of weights 97, 1, 1, 1 the first is refused, since the noise is for weights of 1."""
    sums = clipped_sum(100)
    assert refusal(lambda: sums.add(update(), 97)) == "weight"
    sums.add(update(), 1)
    assert sums.sensitivity == pytest.approx(1.0, rel=1e-3)


def fewer_replies() -> None:
    """F8: of 50 sites that were asked 2 answer: the noise on the sum is what was planned for."""
    sums = clipped_sum(50, multiplier=4.0)
    for _ in range(2):
        sums.add(update())
    sums.move(MODEL)
    assert sums.noised is not None
    assert sums.noised.deviation == pytest.approx(4.0, rel=1e-3)


def noise_behind_an_optimiser() -> None:
    """F9: no rule but the mean goes with noise at the coordinator."""
    for rule in RULES:
        assert bool(list(misfits({Part.CENTRAL_NOISE, rule}))) is (rule is not Part.MEAN)


def classic_formula() -> None:
    """F11: noise for the Gaussian mechanism is enough by the exact condition (Balle and Wang 2018), above epsilon 1 too."""
    for target in (0.1, 0.5, 1.0, 4.0, 20.0):
        sigma = find_gaussian_multiplier(target, 1e-5)
        exact = gaussian.cdf(0.5 / sigma - target * sigma) - math.exp(target) * gaussian.cdf(
            -0.5 / sigma - target * sigma
        )
        assert exact <= 1e-5
        assert epsilon([GaussianCharge(noise_multiplier=sigma, count=50)], 1e-5) > target  # and rounds are composed


def negative_weights() -> None:
    """F12: weights below 1, beyond what was agreed, or shapes that broadcast: refused, and nothing is added."""
    sums = FixedPointSum(ArraySpec.of(MODEL), largest_value=10.0, total_weight=4)
    assert refusal(lambda: sums.add(update(), -5)) == "weight"
    assert refusal(lambda: sums.add(update(), 0)) == "weight"
    assert refusal(lambda: sums.add(update(), 5)) == "weight"
    assert refusal(lambda: gated(update(a=np.zeros(1, np.float32)))) == "shape"
    assert sums.weight == 0


def own_noise() -> None:
    """F10 and O17: noise is no generator's that a message could seed, and two sources never agree."""
    first, second = (SystemNoise().derive("x").normal((64,), 1.0) for _ in range(2))
    assert SystemNoise().private
    assert not np.isclose(first, second).any()
    np.random.seed(1)  # noqa: NPY002  what Flower's noise follows
    again = SystemNoise().normal((4,), 1.0)
    np.random.seed(1)  # noqa: NPY002
    assert not np.isclose(again, SystemNoise().normal((4,), 1.0)).any()


# --- Opacus --------------------------------------------------------------------------------------------------------


def empty_and_negative() -> None:
    """O7: nothing spent is epsilon 0, and as little as there is is never below it."""
    assert epsilon([], 1e-5) == 0.0
    tiny = SampledGaussianCharge(noise_multiplier=1000.0, sampling_rate=1e-4, steps=1)
    assert 0.0 <= epsilon([tiny], 1e-5) < 0.01
    assert epsilon([SampledGaussianCharge(noise_multiplier=1.0, sampling_rate=0.1, steps=0)], 1e-5) == 0.0


def loaders_rate() -> None:
    """O8: the sampling rate is the batch over the units, not one over the number of batches of some loader."""
    for units, batch in ((1000, 999), (10_000, 16), (10, 64)):
        plan = plan_run(task(batch_size=batch), units, rounds=3)
        assert plan.round.sampling_rate == min(1.0, batch / units)


def gdp_accountant() -> None:
    """O9: nothing here converts by a central limit, which tells too little."""
    named = re.compile(r"gdp|GaussianAccountant|central.limit", re.IGNORECASE)
    for module in pkgutil.walk_packages(fedloop_clients.__path__, "fedloop_clients."):
        if module.name.startswith("fedloop_clients.privacy"):
            found = importlib.util.find_spec(module.name)
            if found is not None and found.origin is not None:
                assert not named.search(Path(found.origin).read_text())


def nothing_spent_is_assumed() -> None:
    """O10: noise is found for everything that the run releases together, and a block remembers every run."""
    plan = plan_run(task(2.0), 500, rounds=5)
    whole: list[Charge] = [*plan.others, *[plan.round] * 5]
    assert epsilon(whole, 1e-5) <= 2.0 < epsilon([*whole, plan.round], 1e-5)
    ledger = Ledger(":memory:", lambda: 0)
    ledger.open_block("patients", 6.0, 1e-5)
    for run in ("first", "second"):
        ledger.reserve(PureCharge(epsilon=1.0), ("patients",), run, "counts")
    with pytest.raises(BudgetExhausted):
        ledger.reserve(PureCharge(epsilon=5.0), ("patients",), "third", "counts")


def poisson_only() -> None:
    """O11: the task file has no word for shuffled batches in a private task, and units are drawn one by one."""
    choices = {*FederatedAveraging.model_fields, *Privacy.model_fields}
    assert not [name for name in choices if "sampl" in name or "shuffle" in name]
    assert set(inspect.signature(LocalTrainer.train_privately).parameters) >= {"rate", "noise"}
    drawn = np.array([len(SystemNoise().poisson_sample(1000, 0.1)) for _ in range(200)])
    assert drawn.std() == pytest.approx(math.sqrt(1000 * 0.1 * 0.9), rel=0.25)  # a fixed batch would have none


def large_epsilon() -> None:
    """O15: noise is found for large budgets, and for every unit in every step."""
    sigma = find_noise_multiplier(50.0, 1e-5, 1.0, 10)
    assert 49.0 < epsilon([SampledGaussianCharge(noise_multiplier=sigma, sampling_rate=1.0, steps=10)], 1e-5) <= 50.0


def wrapped_names() -> None:
    """O13: training privately twice leaves the model's own names, and hangs hooks in once."""
    private = task(batch_size=8, local_steps=2)
    trainer = LocalTrainer(private)
    names = set(initial_arrays(private, 1))
    rows = _rows(40)
    for _ in range(2):
        arrays = {**initial_arrays(private, 1), **_scaler(private)}
        found = trainer.train_privately(arrays, rows, 1.0, 0.2, SystemNoise(), expected_batch_size=8.0)
        assert set(found.update) == names


def states_of_accountants() -> None:
    """O16: the ledger keeps mechanisms and not an accountant's state, so any accountant can be asked later."""
    kept = SampledGaussianCharge(noise_multiplier=1.1, sampling_rate=0.01, steps=1000)
    assert SampledGaussianCharge.model_validate_json(kept.model_dump_json()) == kept
    assert set(kept.model_dump()) == {"kind", "noise_multiplier", "sampling_rate", "steps"}


def no_pickle() -> None:
    """Opacus' checkpoints are pickles: ours are arrays and JSON, and no module of ours unpickles."""
    assert pack_arrays(MODEL).content
    sources = [
        path for root in ("core", "clients", "server", "edge", "simulations") for path in (ROOT / root).rglob("*.py")
    ]
    assert len(sources) > 300
    loaded = re.compile(r"\bpickle\.loads?\b|\btorch\.load\(|\bjoblib\.load\b|allow_pickle=True")
    assert [str(path) for path in sources if loaded.search(path.read_text())] == []


ROWS: dict[str, Callable[[], None]] = {
    "F1": clip_goes_the_right_way,
    "F2": count_noise,
    "F3": zero_update,
    "F4": nan_bypasses_clipping,
    "F5": integer_buffers,
    "F6": other_order,
    "F7": weighted_noise,
    "F8": fewer_replies,
    "F9": noise_behind_an_optimiser,
    "F10": own_noise,
    "F11": classic_formula,
    "F12": negative_weights,
    "O7": empty_and_negative,
    "O8": loaders_rate,
    "O9": gdp_accountant,
    "O10": nothing_spent_is_assumed,
    "O11": poisson_only,
    "O13": wrapped_names,
    "O15": large_epsilon,
    "O16": states_of_accountants,
    "pickles": no_pickle,
}


@pytest.mark.parametrize("fault", ROWS)
def test_ours_does_not_have(fault: str) -> None:
    ROWS[fault]()


def _rows(count: int) -> Any:
    from fedloop_core.dataset import Dataset

    values = np.random.default_rng(1).uniform(-1, 1, (count, 1)).astype(np.float32)
    return Dataset({"numeric": values}, (values[:, 0] > 0).astype(np.int64), ("",) * count)


def _scaler(private: Task) -> Arrays:
    from fedloop_core.scaling import Scaler

    return Scaler.from_ranges(private.feature_schema).arrays()


# --- the list ------------------------------------------------------------------------------------------------------

LISTED = [f"F{n}" for n in range(1, 14)] + [f"S{n}" for n in range(1, 10)] + [f"O{n}" for n in range(1, 20)]


def test_the_page_lists_every_fault_once_and_each_test_it_names_exists() -> None:
    rows = re.findall(r"^\| (?P<fault>[FSO]\d+) \|.*\| (?P<shown>[^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    assert [fault for fault, _ in rows] == LISTED
    for fault, shown in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)`(?: \(`(\w+)`\))?", shown)
        assert named or shown.startswith("not built"), fault
        for file, test in named:
            text = (ROOT / file).read_text()
            assert test == "" or f"def {test}(" in text, (fault, file, test)
            assert test or re.search(rf"\b{fault}\b", text), (fault, file)
