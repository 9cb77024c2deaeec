"""What came of an attack: what gate and rule did to each site's updates, and how well a backdoor opens."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloop_clients.training.trainer import LocalTrainer
from fedloop_core.arrays import NamedArrays
from fedloop_core.dataset import Dataset
from fedloop_core.schema import FeatureSchema
from fedloop_server.runs.events import UpdateFolded
from fedloop_server.runs.state import RunState
from fedloop_simulations.attacks.kinds import target_of
from fedloop_simulations.attacks.trigger import triggered

__all__ = ["BackdoorRate", "Treatment", "backdoor_rate", "treatment_of"]


@dataclass(frozen=True)
class Treatment:
    """What became of the updates of some sites over the rounds of some runs.

    ``refused``: by the update gate, or otherwise left out of a round. ``norm`` is the median of norms as they came, ``share`` the
    mean of their shares in what moved the model; None where none was folded.
    """

    folded: int
    refused: int
    codes: tuple[str, ...]
    bounded: int
    norm: float | None
    share: float | None


@dataclass(frozen=True)
class BackdoorRate:
    """Of ``rows`` of other classes that training never saw, the share that is taken for the target class.

    ``success`` with the trigger, ``without`` without it.
    """

    rows: int
    success: float
    without: float


def treatment_of(states: Iterable[RunState], sites: Sequence[str]) -> Treatment:
    """Reads it off the journals."""
    updates: list[UpdateFolded] = []
    codes: list[str] = []
    for state in states:
        updates += [update for closed in state.rounds for update in closed.updates if update.site in sites]
        codes += [out.code for closed in state.rounds for out in closed.left_out if out.site in sites]
    return Treatment(
        folded=len(updates),
        refused=len(codes),
        codes=tuple(sorted(set(codes))),
        bounded=sum(update.bounded_to is not None for update in updates),
        norm=statistics.median(update.norm for update in updates) if updates else None,
        share=statistics.fmean(update.share for update in updates) if updates else None,
    )


def backdoor_rate(
    trainer: LocalTrainer,
    arrays: NamedArrays,
    schema: FeatureSchema,
    unseen: Iterable[tuple[Dataset, Dataset]],
) -> BackdoorRate:
    """Measures a trained model as only a rehearsal can.

    Args:
        trainer: of the task.
        arrays: of the model.
        schema: with a label of classes.
        unseen: of each site, rows that training never saw, and rows by which a task with scaling per site scales.

    Raises:
        UsageError: the label has no classes.
    """
    target = target_of(schema)
    with_trigger: list[NDArray[np.bool_]] = []
    without: list[NDArray[np.bool_]] = []
    for rows, scaler_rows in unseen:
        others = rows.take(np.flatnonzero(rows.labels != target))
        if len(others):
            marked = triggered(others, schema)
            with_trigger.append(trainer.outputs(arrays, marked, scaler_rows).argmax(axis=1) == target)
            without.append(trainer.outputs(arrays, others, scaler_rows).argmax(axis=1) == target)
    if not with_trigger:
        return BackdoorRate(0, 0.0, 0.0)
    opened, by_itself = np.concatenate(with_trigger), np.concatenate(without)
    return BackdoorRate(len(opened), float(opened.mean()), float(by_itself.mean()))
