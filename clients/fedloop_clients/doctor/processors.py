"""The devices that site.toml chooses for training. They are looked at in a process of its own: a broken driver can end it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.doctor.finding import Finding, fine, problem, warning
from fedloop_clients.doctor.scene import Scene
from fedloop_clients.training.seeing import see_devices
from fedloop_clients.training.seen import Devices

__all__ = ["DevicesCheck"]

_MIB = 1 << 20
_LITTLE = 0.25
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class DevicesCheck:
    """Whether torch works, and sees the GPUs that are chosen; none is needed."""

    name: str = "devices"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        settings = scene.settings()
        chosen = "auto" if settings is None else settings.compute.devices
        devices = see_devices()
        if devices.error:
            yield problem(f"torch does not work here: {devices.error}.", "Run: pip install 'fedloop[site]'")
            return
        wanted = () if isinstance(chosen, str) else chosen
        lacking = [name for name in wanted if int(name.partition(":")[2]) >= len(devices.gpus)]
        if lacking:
            yield problem(
                f"site.toml chooses {', '.join(lacking)}, and torch sees {len(devices.gpus)} GPUs.{_why(devices)}",
                'Choose others in [compute], or "auto".',
            )
        elif chosen == "auto" and not devices.gpus and _DRIVER.exists():
            yield warning(
                f"this machine has an NVIDIA driver, and torch sees no GPU: the CPU trains.{_why(devices)}",
                "Bring torch's CUDA version and the driver together.",
            )
        elif chosen == "cpu" or not devices.gpus:
            yield fine(f"the CPU trains ({devices.threads} threads, torch {devices.torch}).")
        for at, gpu in enumerate(devices.gpus):
            if chosen != "auto" and f"cuda:{at}" not in wanted:
                continue
            said = f"cuda:{at} is {gpu.name}, {gpu.free // _MIB} of {gpu.total // _MIB} MiB free"
            if gpu.trouble:
                yield problem(f"cuda:{at} does not work: {gpu.trouble}.", "Repair it, or choose others in [compute].")
            elif gpu.free < _LITTLE * gpu.total:
                yield warning(f"{said}: another program uses it.", "End it, or choose other devices in [compute].")
            else:
                yield fine(f"{said}.")


def _why(devices: Devices) -> str:
    """What torch said about its CUDA, its CPU build included."""
    if not devices.cuda:
        return f" torch {devices.torch} was built without CUDA."
    said = devices.warnings[0].splitlines()[0][:300] if devices.warnings else ""
    return f" torch {devices.torch} is for CUDA {devices.cuda}. {said}".rstrip()
