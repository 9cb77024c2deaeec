"""How far a gradient is shortened, so that what is really added to a sum is no longer than the clipping norm.

Three things are bounded here that a formula on paper need not mind. Lengths are taken in float64, of the float32 values that are then
added: a square that vanishes in float32, of an error of 1e-23 beside an input of 1e19, would let a row through unclipped. Lengths above
``LARGEST`` count as not finite: up to there no factor and no product on the way is so small that rounding moves it by more than its
last place. And factors are a little less than the bound asks for, by more than the roundings of a length, a factor and a product.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import UpdateRefused

__all__ = ["LARGEST", "LARGEST_WEIGHT", "clip_factors", "lengths", "require_ordinary"]

LARGEST = 2.0**100
"""Greatest length of a gradient, and of what went into a layer, that is clipped; a row beyond it adds nothing and is counted."""

LARGEST_WEIGHT = 1e6
"""Greatest weight that is trained from under privacy: inputs are scaled, so an honest one is far below."""

_MARGIN = 1 - 2.0**-20  # a rounding to float32 moves a value by 2**-24 of it at most


def lengths(values: Tensor) -> Tensor:
    """L2 norm of each row: float64 ``[rows]`` of ``[rows, ...]``; nothing finite in float32 over- or underflows."""
    found: Tensor = torch.linalg.vector_norm(values.flatten(1), dim=1, dtype=torch.float64)
    return found


def clip_factors(norms: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """Factors float32 ``[rows]`` that shorten gradients of these lengths to the bound, and which gradients may be added at all.

    The factor of one that may not is 0.

    Args:
        norms: float64 ``[rows]``.
        bound: the clipping norm.
    """
    sound = norms <= LARGEST  # a comparison with NaN says no
    factors = (bound * _MARGIN / norms.clamp(min=bound * _MARGIN)).masked_fill(~sound, 0.0)
    return factors.float(), sound


def require_ordinary(weights: NamedArrays) -> None:
    """Refuses weights with which next to any row would be one that cannot be added.

    Raises:
        UpdateRefused: names the first array with a value beyond ``LARGEST_WEIGHT``, or one that is not finite.
    """
    for name, values in weights.items():
        if not (np.abs(values) <= LARGEST_WEIGHT).all():
            raise UpdateRefused(
                f"array {name} holds a weight beyond {LARGEST_WEIGHT:g}, from which no private training begins.",
                hint="Start again, with a lower training.learning_rate.",
                reason="weight-size",
            )
