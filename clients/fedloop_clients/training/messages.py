"""What a trainer and its ranks say to each other: frames between processes of one machine, nothing is unpickled.

To a rank: ``setup``, ``state`` (safetensors), ``rows`` in pieces, then for each round ``begin``, ``step`` after ``step``, to
rank 0 with ``noise`` after each in a private round, and ``finish`` or ``abandon``. From a rank: ``ready``, ``stepped``,
``ended`` (with the arrays, from rank 0), ``alive``, ``abandoned`` or ``failed``.
"""

from __future__ import annotations

from enum import StrEnum

from fedloop_core.strict import Strict

__all__ = ["Begin", "DeviceFault", "Ended", "Failure", "Kind", "PrivateSettings", "RowsPiece", "Setup", "Step"]


class Kind(StrEnum):
    """The kinds of frames."""

    SETUP = "setup"
    STATE = "state"
    ROWS = "rows"
    BEGIN = "begin"
    STEP = "step"
    NOISE = "noise"
    FINISH = "finish"
    ABANDON = "abandon"
    READY = "ready"
    STEPPED = "stepped"
    ENDED = "ended"
    ALIVE = "alive"
    ABANDONED = "abandoned"
    FAILED = "failed"


class Setup(Strict):
    """``store``: a file over which the ranks find each other. ``task``: the canonical document."""

    rank: int
    ranks: int
    device: str
    memory_share: float
    store: str
    task: str


class RowsPiece(Strict):
    """Rows in their order; ``last`` when there are no more."""

    last: bool


class DeviceFault(StrEnum):
    """Why a device does not go on. ``full``: not even one row fits. ``ended``: its process did."""

    FULL = "full"
    LOST = "lost"
    ENDED = "ended"
    SILENT = "silent"


class PrivateSettings(Strict):
    """Of a private round: see ``NoisyOptimizer``."""

    noise_multiplier: float
    expected_batch_size: float


class Begin(Strict):
    """A round; the trainable arrays travel beside. ``seed``: for random layers."""

    seed: int
    private: PrivateSettings | None


class Step(Strict):
    """A rank's part of a batch; ``places`` and, in private rounds, ``sizes`` of units travel beside. ``rows``: of all ranks."""

    rows: int


class Ended(Strict):
    """What a rank counted in a round, and the rows at once that it fitted."""

    nonfinite_gradients: int
    physical_batch_size: int


class Failure(Strict):
    """Why a rank cannot go on; ``fault`` is absent when another rank failed it, or the model's code did."""

    fault: DeviceFault | None
    by_peer: bool
    said: str
