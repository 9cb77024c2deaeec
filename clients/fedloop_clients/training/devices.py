"""Which devices train: chosen from site.toml and what torch sees, and what is left of them when one fails."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from fedloop_clients.settings import ComputeSettings
from fedloop_clients.training.messages import DeviceFault
from fedloop_clients.training.seeing import see_devices
from fedloop_clients.training.seen import Devices
from fedloop_core.errors import DeviceLost, SettingsInvalid

__all__ = ["RANK_COMMAND", "REST_SECONDS", "Choice", "DevicePool", "choose_devices"]

REST_SECONDS = 600.0
"""How long a device that failed is left alone."""

RANK_COMMAND = (sys.executable, "-m", "fedloop_clients.training.rank_process")
"""Starts the process of a device; see ``RankGroup``."""

_LOG = logging.getLogger(__name__)
_MIB = 1 << 20


@dataclass(frozen=True)
class Choice:
    """Devices as torch names them, none for the CPU alone; whether the CPU takes over when none is left; and why."""

    devices: tuple[str, ...]
    cpu_after: bool
    why: str


def choose_devices(settings: ComputeSettings, seen: Devices) -> Choice:
    """The devices that train.

    Who names GPUs does not want hours on the CPU instead: they or nothing. "auto" takes all that are sound, or the CPU.

    Raises:
        SettingsInvalid: a GPU is named that torch does not see, or that does not answer.
    """
    if settings.devices == "cpu":
        return Choice((), cpu_after=True, why="the CPU trains, as site.toml says")
    if settings.devices == "auto":
        sound = tuple(f"cuda:{at}" for at, gpu in enumerate(seen.gpus) if not gpu.trouble)
        if not sound:
            return Choice((), cpu_after=True, why=f"the CPU trains: {_none_because(seen)}")
        return Choice(sound, cpu_after=True, why=f"training runs on {_told(sound, seen)}")
    wanted = tuple(dict.fromkeys(settings.devices))
    lacking = [name for name in wanted if _index(name) >= len(seen.gpus)]
    if lacking:
        raise SettingsInvalid(
            f"site.toml: compute.devices names {', '.join(lacking)}, and {_none_because(seen)}.",
            hint='Choose others, or "auto"; `fedloop site doctor` says what torch sees.',
        )
    silent = [name for name in wanted if seen.gpus[_index(name)].trouble]
    if silent:
        raise SettingsInvalid(
            f"site.toml: compute.devices names {silent[0]}, which does not work: {seen.gpus[_index(silent[0])].trouble}.",
            hint='Repair it, choose others, or "auto".',
        )
    return Choice(wanted, cpu_after=False, why=f"training runs on {_told(wanted, seen)}, as site.toml says")


def _index(name: str) -> int:
    return int(name.partition(":")[2])


def _none_because(seen: Devices) -> str:
    if seen.error:
        return f"torch cannot look at GPUs ({seen.error})"
    if not seen.cuda:
        return "torch was built without CUDA"
    if any(gpu.trouble for gpu in seen.gpus):
        return f"of {len(seen.gpus)} GPUs none works"
    return f"torch sees {len(seen.gpus)} GPUs"


def _told(names: tuple[str, ...], seen: Devices) -> str:
    gpus = [(name, seen.gpus[_index(name)]) for name in names]
    return ", ".join(f"{name} ({gpu.name}, {gpu.free // _MIB} of {gpu.total // _MIB} MiB free)" for name, gpu in gpus)


class DevicePool:
    """The devices of one site. Chosen at the first training; one that fails rests, and is then tried again.

    Args:
        choose: decides; raises SettingsInvalid when it cannot, and is asked again the next time.
        memory_share: of a device's free memory that training may use.
        clock: seconds, for rests.
        command: starts the process of a device.
    """

    def __init__(
        self,
        choose: Callable[[], Choice],
        memory_share: float = 0.8,
        *,
        clock: Callable[[], float] = time.monotonic,
        command: tuple[str, ...] = RANK_COMMAND,
    ) -> None:
        self._choose = choose
        self.memory_share = memory_share
        self.command = command
        self._clock = clock
        self._choice: Choice | None = None
        self._failed: dict[str, tuple[float, DeviceFault]] = {}

    @classmethod
    def of_settings(cls, settings: ComputeSettings, see: Callable[[], Devices] = see_devices) -> DevicePool:
        """As site.toml says; nothing is looked for where it says "cpu"."""

        def choose() -> Choice:
            return choose_devices(settings, Devices() if settings.devices == "cpu" else see())

        return cls(choose, settings.memory_share)

    @classmethod
    def cpu(cls) -> DevicePool:
        """The CPU, in the trainer's own process."""
        return cls(lambda: Choice((), cpu_after=True, why="the CPU trains"))

    def left(self) -> tuple[str, ...]:
        """The devices that train now; none means the CPU.

        Raises:
            SettingsInvalid: what site.toml names is not there.
            DeviceLost: none of those that site.toml names is left.
        """
        if self._choice is None:
            self._choice = self._choose()
            _LOG.info("%s", self._choice.why)
        choice, now = self._choice, self._clock()
        self._failed = {name: said for name, said in self._failed.items() if now - said[0] < REST_SECONDS}
        left = tuple(name for name in choice.devices if name not in self._failed)
        if choice.devices and not left and not choice.cpu_after:
            reasons = ", ".join(f"{name} ({fault})" for name, (_, fault) in self._failed.items())
            raise DeviceLost(
                f"no device is left to train on: {reasons}.",
                hint='See `fedloop site doctor`; with compute.devices = "auto" the CPU takes over.',
                reason=next(iter(self._failed.values()))[1].value,
            )
        return left

    def failed(self, name: str, fault: DeviceFault) -> None:
        """Leaves a device alone for a while."""
        self._failed[name] = (self._clock(), fault)
