"""A torch model's answers, one row at a time."""

from __future__ import annotations

import logging

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["outputs_apart"]

_LOG = logging.getLogger(__name__)


def outputs_apart(model: nn.Module, inputs: tuple[Tensor, ...], width: int) -> NDArray[np.float32]:
    """A model's outputs, float32 ``[rows, width]``, each from its row alone: not a number where there is no answer.

    In a batch the last places of a row's outputs depend on how many rows there are and on its place among them, and weights
    can be chosen that make such a difference decide every row. Here each row is copied to the same place, alone, and what
    random layers draw is the same for each; a row on which the model fails changes no other.

    Args:
        model: in the mode in which it is to answer.
        inputs: one entry for each row in each tensor.
        width: outputs of a row.
    """
    rows = len(inputs[0])
    found = np.full((rows, width), np.nan, dtype=np.float32)
    place = tuple(torch.empty((1, *values.shape[1:]), dtype=values.dtype) for values in inputs)
    failed = 0
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for row in range(rows):
            for kept, values in zip(place, inputs, strict=True):
                kept.copy_(values[row : row + 1])
            torch.default_generator.manual_seed(0)
            try:
                answer: Tensor = model(*place)
                if answer.shape == (1, width):
                    found[row] = answer.numpy()[0]
            except Exception:  # noqa: BLE001  whatever a row makes a model raise must not leave the site
                failed += 1
    if failed:
        _LOG.warning("a model failed on %d of %d rows, which count as wrong; only this log says so", failed, rows)
    return found
