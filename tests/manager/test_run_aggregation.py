"""What ``fedloop run show`` and ``fedloop run logs`` tell of updates: whose were shortened, and what a rule took of whom."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.outbox import Outbox
from fedloop_clients.policy import Budget, SiteConfig
from fedloop_clients.privacy.ledger import Ledger
from fedloop_core import cli
from fedloop_core.dataset import Dataset
from fedloop_core.noise import SeededNoise
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task import Task
from fedloop_core.task.aggregation import Mean, Median
from fedloop_core.task.central import CentralPrivacy
from fedloop_core.task.document import FederatedAveraging, Gates, LogisticModel, Privacy, Rounds, UpdateGate
from fedloop_server.cli.run_documents import RunDocument
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.plan import RunPlan
from fedloop_simulations.attacks.lying import LyingSite, multiplied
from fedloop_simulations.federation import run_in_process
from fedloop_simulations.keys import rehearsal_key

SITES = ("east", "north", "south", "west")


def wards(aggregation: Any) -> Task:
    return Task(
        format=1,
        name="wards",
        features=(NumericFeature(kind="numeric", name="a", range=(-4.0, 4.0)),),
        label=ClassLabel(kind="classes", name="outcome", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        training=FederatedAveraging(algorithm="fedavg", local_steps=3, batch_size=8),
        privacy=Privacy(epsilon=math.inf),
        rounds=Rounds(count=3),
        aggregation=aggregation,
        gates=Gates(update=UpdateGate(norm_bound=3.0)),
    )


def daemon(home: CoordinatorHome, name: str) -> SiteDaemon:
    values = np.random.default_rng(list(name.encode())).normal(size=(60, 1)).astype(np.float32)
    rows = Dataset({"numeric": values}, (values[:, 0] > 0).astype(np.int64), tuple(map(str, range(60))))
    budget = Budget(epsilon=math.inf, delta=1e-3)
    return SiteDaemon(
        SiteConfig(site=name, training_budget=budget, evaluation_budget=budget),
        SiteData(rows.take(np.arange(20, 60)), rows.take(np.arange(20)), secret=bytes(16)),
        Ledger(":memory:", lambda: 0),
        Outbox(":memory:"),
        SeededNoise(5, name),
        home.envelope_key.verifying,
        lambda: 0,
        signing_key=rehearsal_key(name),
    )


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorHome:
    """Two runs in which west sends fifty times its update: by the bounded mean and by the median."""
    home = CoordinatorHome(tmp_path_factory.mktemp("office"))
    for run_id, aggregation in (("mean-1", Mean()), ("median-1", Median(rule="median"))):
        plan = RunPlan(
            run_id=run_id, task=wards(aggregation), seed=3, private=False, expected_sites=len(SITES), export=False
        )
        ends: dict[str, Any] = {name: daemon(home, name) for name in SITES}
        ends["west"] = LyingSite("west", ends["west"], multiplied(50.0))
        assert run_in_process(home, plan, ends, lambda *_: None).failure is None
    return home


def told(office: CoordinatorHome, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", *words, "--home", str(office.folder)])
    assert not ended.value.code
    return capsys.readouterr().out


def test_show_says_whose_updates_were_shortened(office: CoordinatorHome, capsys: pytest.CaptureFixture[str]) -> None:
    said = " ".join(told(office, capsys, "show", "mean-1").split())
    assert "west's update was shortened in rounds 2 to 3, at most from a norm of " in said
    assert "Mean share" not in said  # by the mean these are the agreed weights


def test_show_says_what_a_rule_took_of_whom(office: CoordinatorHome, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(office, capsys, "show", "median-1")
    assert "Mean share of each site's updates in what moved the model, by median" in " ".join(said.split())
    document = RunDocument.model_validate_json(told(office, capsys, "show", "median-1", "--json").splitlines()[-1])
    assert document.aggregation == "median"
    west = next(site for site in document.sites if site.site == "west")
    assert west.share is not None
    assert west.share < 0.25
    assert west.shortened == 2
    first, second, _ = document.rounds
    assert [update.bounded_to for update in first.updates] == [None] * 4
    norms = {update.site: update for update in second.updates}
    assert norms["west"].bounded_to is not None
    assert norms["west"].bounded_to < norms["west"].norm
    assert sum(update.share for update in second.updates) == pytest.approx(1.0)


def test_logs_tell_each_shortening(office: CoordinatorHome, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(office, capsys, "logs", "mean-1")
    assert said.count("west's update was shortened from a norm of ") == 2


def test_show_says_what_whole_sites_have_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = CoordinatorHome(tmp_path)
    hidden = wards(Mean()).model_copy(update={"central_privacy": CentralPrivacy(epsilon=8.0)})
    plan = RunPlan(run_id="hidden-1", task=hidden, seed=3, private=True, expected_sites=len(SITES), export=False)
    ends: dict[str, Any] = {name: daemon(home, name) for name in SITES}
    assert run_in_process(home, plan, ends, lambda *_: None).failure is None
    said = " ".join(told(home, capsys, "show", "hidden-1").split())
    assert "sites: epsilon 8.000 so far for each whole site, in 3 releases, updates clipped to 1" in said
    document = RunDocument.model_validate_json(told(home, capsys, "show", "hidden-1", "--json").splitlines()[-1])
    spent = [found.central.epsilon for found in document.rounds if found.central is not None]
    assert spent == sorted(spent)
    assert len(spent) == 3
