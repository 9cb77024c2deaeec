"""The operator's budget for whole sites: a section of server.toml."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = ["SiteBudget"]


class SiteBudget(Strict):
    """What all runs with ``[central_privacy]`` together may spend on one whole site, for life; an infinite epsilon keeps no budget."""

    epsilon: Annotated[float, Field(gt=0)] = 10.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
