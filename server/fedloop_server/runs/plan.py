"""What is fixed before a run starts: stored beside its journal and read by whatever process drives the run."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field

from fedloop_core.strict import Strict
from fedloop_core.task.document import Task

__all__ = ["RunPlan"]


class RunPlan(Strict):
    """One run. ``warm_from`` is the version whose weights and scaler it starts from; None starts afresh from ``seed``."""

    format: Annotated[int, Field(ge=1, le=1)] = 1
    run_id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9\-]{0,62}$")]
    task: Task
    seed: int
    private: bool
    expected_sites: Annotated[int, Field(ge=1)]
    warm_from: int | None = None
    export: bool = True
    durable: bool = True

    def to_bytes(self) -> bytes:
        """JSON bytes."""
        return self.model_dump_json(indent=1).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Reads what ``to_bytes`` wrote."""
        return cls.model_validate_json(content)
