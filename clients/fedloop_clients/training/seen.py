"""What torch sees of a machine, as one process tells another."""

from __future__ import annotations

from fedloop_core.strict import Strict

__all__ = ["Devices", "Gpu"]


class Gpu(Strict):
    """A GPU and its memory in bytes. ``trouble``: what torch said when it was asked; empty when it answers."""

    name: str
    total: int
    free: int
    trouble: str = ""


class Devices(Strict):
    """``cuda``: the version that torch was built for, empty for none. ``error``: torch could not be used at all."""

    torch: str = ""
    cuda: str = ""
    threads: int = 0
    gpus: tuple[Gpu, ...] = ()
    warnings: tuple[str, ...] = ()
    error: str = ""
