"""The floors: the same training in a sequential loop, without messages, signatures, ledgers or a journal."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedloop_clients.training.rows import shuffled_batches
from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.scaling import Scaler
from fedloop_server.runs.model import model_of
from ours import Finished, RoundClock, site_seed
from workload import SEED, SITES, digits_task, site_name, site_rows

__all__ = ["run_bare_loop", "run_torch_loop"]


def run_bare_loop(asked: Sequence[tuple[str, ...]]) -> Finished:
    """``LocalTrainer.train`` for the sites of each round in their order, and a float32 mean."""
    task = digits_task(len(asked))
    arrays = model_of(task, SEED).all_arrays()
    sites = {site_name(at): (LocalTrainer(task), site_rows(at)) for at in range(SITES)}
    clock = RoundClock()
    for number, names in enumerate(asked, 1):
        total: dict[str, NDArray[np.float32]] = {}
        for name in names:
            trainer, rows = sites[name]
            update = trainer.train(arrays, rows, site_seed(name, number)).update
            for parameter, values in update.items():
                total[parameter] = total[parameter] + values if parameter in total else values
        for parameter, values in total.items():
            arrays[parameter] = np.add(arrays[parameter], values / np.float32(len(names)), dtype=np.float32)
        clock.wall.append(time.perf_counter())
        clock.processor.append(time.process_time())
    return Finished(clock, arrays)


def run_torch_loop(asked: Sequence[tuple[str, ...]]) -> Finished:
    """What one writes by hand: one model, its state loaded for each site, ``torch.optim.SGD``, a mean of state dicts.

    Rows are scaled beforehand, as ``LocalTrainer`` does.
    """
    task = digits_task(len(asked))
    start = model_of(task, SEED).all_arrays()
    names = [name for name in start if not name.startswith("scaler.")]
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    state = {key: torch.from_numpy(np.array(start[name])) for key, name in zip(model.state_dict(), names, strict=True)}
    rows, scaler = {}, Scaler.from_arrays(start)
    for at in range(SITES):
        dataset = site_rows(at)
        pixels = (dataset.inputs["numeric"].astype(np.float32) - scaler.mean) / scaler.deviation
        rows[site_name(at)] = (torch.from_numpy(pixels), torch.from_numpy(dataset.labels))
    clock = RoundClock()
    for number, sites in enumerate(asked, 1):
        total = {key: torch.zeros_like(values) for key, values in state.items()}
        for site in sites:
            model.load_state_dict(state)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            inputs, labels = rows[site]
            for places in shuffled_batches(len(labels), 16, 2, site_seed(site, number)):
                optimizer.zero_grad()
                functional.cross_entropy(model(inputs[places]), labels[places]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for key, values in model.state_dict().items():
                total[key] += values
        state = {key: values / len(sites) for key, values in total.items()}
        clock.wall.append(time.perf_counter())
        clock.processor.append(time.process_time())
    trained = {name: values.numpy() for name, values in zip(names, state.values(), strict=True)}
    return Finished(clock, {**start, **trained})
