"""A coordinator that is made of a backup goes on with the run that was open, also when the sites are further than it knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloop_clients.data.site_data import EVALUATION, ORIGINAL
from fedloop_core.arrays import digest
from fedloop_core.task.document import Task
from fedloop_core.task.presets import load_preset
from fedloop_server.backup import back_up, restore
from fedloop_server.home import CoordinatorHome
from fedloop_server.runs.events import Event, RoundClosed
from fedloop_server.runs.state import RunState
from fedloop_simulations.data import SiteRows, load_world

SEED = 11
Make = Callable[..., Any]  # federations of conftest.py


class Lost(BaseException):
    """Stands for a machine that is gone: nothing catches it."""


def private_task() -> Task:
    document = load_preset("breast-cancer").model_dump()
    document["rounds"] |= {"count": 4, "weighting": "rows", "evaluate_every": 1}
    document["training"] |= {"local_steps": 4, "batch_size": 16}
    document["preprocessing"] |= {"scaling": "federated"}
    return Task.model_validate(document, strict=False)


def rows_of(task: Task) -> tuple[SiteRows, ...]:
    sites = load_world(task, seed=SEED).sites
    return tuple(
        SiteRows(site.name, site.train.take(np.arange(40 + 12 * at)), site.evaluation) for at, site in enumerate(sites)
    )


def end_of(members: Any) -> tuple[bytes, dict[str, tuple[float, float]]]:
    """Weights, and what each site's rows have spent."""
    spends = {
        name: (ledger.spend(ORIGINAL).epsilon, ledger.spend(EVALUATION).epsilon)
        for name, ledger in members.ledgers.items()
    }
    return digest(members.home.trained_arrays("run-1")), spends


@pytest.mark.parametrize("lost_after", [1, 2, 3, None])
def test_the_weights_are_those_of_the_uninterrupted_run(
    lost_after: int | None, federation: Make, tmp_path: Path
) -> None:
    """The backup is written after round 1 while the run goes on; the machine is lost after a later round, or at the end."""
    task = private_task()
    whole = federation(task, rows_of(task), SEED, budget=20.0)
    assert whole.run().failure is None
    members = federation(task, rows_of(task), SEED, budget=20.0, folder=tmp_path / "sites")

    def watch(state: RunState, event: Event) -> None:
        if isinstance(event, RoundClosed) and event.round == 1:
            back_up(members.home.folder, tmp_path / "backup.tar", unix=0)
        if isinstance(event, RoundClosed) and event.round == lost_after:
            raise Lost

    if lost_after is None:
        assert members.run(watch).failure is None
    else:
        with pytest.raises(Lost):
            members.run(watch)
    restore(tmp_path / "backup.tar", tmp_path / "new", actor="operator:test")
    moved = dataclasses.replace(members, home=CoordinatorHome(tmp_path / "new"))
    assert moved.home.journal("run-1").state.completed_rounds == 1
    state = moved.run()
    assert (state.attempt, state.completed_rounds, state.failure) == (2, 4, None)
    assert end_of(moved) == end_of(whole)
