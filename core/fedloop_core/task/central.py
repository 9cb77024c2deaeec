"""Differential privacy of whole sites, by noise at the coordinator: the section ``[central_privacy]`` of a task."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = ["AdaptiveClipping", "CentralPrivacy"]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class AdaptiveClipping(Strict):
    """The norm follows a quantile of the norms of updates (Andrew 2019, arXiv 1905.03871).

    ``rate`` is how fast, ``count_noise`` the deviation of the noise on the number of updates that were not clipped; None: twice
    the noise multiplier, which makes the noise on updates 3 % greater.
    """

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    rate: Annotated[float, Field(gt=0, le=2)] = 0.2
    count_noise: Positive | None = None


class CentralPrivacy(Strict):
    """(epsilon, delta) of one run for adding or removing the updates of one whole site; see docs/privacy.md.

    Each update is clipped to ``clipping_norm`` (L2) at the coordinator; with ``adaptive`` that is the first round's norm.
    """

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clipping_norm: Positive = 1.0
    adaptive: AdaptiveClipping | None = None
