"""Which devices train, decided from site.toml and what torch sees, and which are left when one fails."""

from __future__ import annotations

import sys

import pytest

from fedloop_clients.settings import ComputeSettings
from fedloop_clients.training.devices import REST_SECONDS, Choice, DevicePool, choose_devices
from fedloop_clients.training.messages import DeviceFault
from fedloop_clients.training.seeing import see_devices
from fedloop_clients.training.seen import Devices, Gpu
from fedloop_core.errors import DeviceLost, SettingsInvalid

GIB = 1 << 30
SOUND = Gpu(name="H200", total=139 * GIB, free=100 * GIB)
BROKEN = Gpu(name="GPU 1", total=0, free=0, trouble="CUDA error: uncorrectable ECC error encountered")
NONE = Devices(torch="2.13.0+cpu", threads=2)
TWO = Devices(torch="2.13.0", cuda="13.0", gpus=(SOUND, SOUND))
ONE_BROKEN = Devices(torch="2.13.0", cuda="13.0", gpus=(SOUND, BROKEN))

CHOICES = {
    "auto takes all": ("auto", TWO, ("cuda:0", "cuda:1"), True, "cuda:1 (H200, 102400 of 142336 MiB free)"),
    "auto without a GPU": ("auto", NONE, (), True, "torch was built without CUDA"),
    "auto with CUDA and no GPU": ("auto", Devices(cuda="13.0"), (), True, "torch sees 0 GPUs"),
    "auto where torch is broken": ("auto", Devices(error="libcuda.so is cut off"), (), True, "libcuda.so is cut off"),
    "auto leaves a broken one out": ("auto", ONE_BROKEN, ("cuda:0",), True, "cuda:0"),
    "auto with broken ones alone": ("auto", Devices(cuda="13.0", gpus=(BROKEN,)), (), True, "of 1 GPUs none works"),
    "cpu whatever there is": ("cpu", TWO, (), True, "as site.toml says"),
    "named ones": (("cuda:1",), TWO, ("cuda:1",), False, "as site.toml says"),
    "named twice": (("cuda:1", "cuda:1"), TWO, ("cuda:1",), False, "cuda:1"),
}


@pytest.mark.parametrize(("asked", "seen", "devices", "cpu_after", "why"), CHOICES.values(), ids=CHOICES.keys())
def test_devices_are_chosen(
    asked: str | tuple[str, ...], seen: Devices, devices: tuple[str, ...], cpu_after: bool, why: str
) -> None:
    choice = choose_devices(ComputeSettings.model_validate({"devices": asked}), seen)
    assert choice.devices == devices
    assert choice.cpu_after == cpu_after
    assert why in choice.why


REFUSED = {
    "no GPU at all": (("cuda:0",), NONE, "cuda:0, and torch was built without CUDA"),
    "one too many": (("cuda:0", "cuda:2"), TWO, "compute.devices names cuda:2, and torch sees 2 GPUs"),
    "one that does not answer": (("cuda:1",), ONE_BROKEN, "cuda:1, which does not work: CUDA error: uncorrectable"),
}


@pytest.mark.parametrize(("asked", "seen", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_devices_that_are_not_there_are_refused_by_key(asked: tuple[str, ...], seen: Devices, sentence: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"site\.toml") as refused:
        choose_devices(ComputeSettings(devices=asked), seen)
    assert sentence in str(refused.value)


def test_what_this_machine_has_is_seen_in_a_process_of_its_own() -> None:
    before = set(sys.modules)
    seen = see_devices()
    assert not seen.error
    assert seen.threads >= 1
    assert set(sys.modules) == before


def test_a_pool_looks_once_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    looks: list[int] = []

    def see() -> Devices:
        looks.append(1)
        return NONE

    pool = DevicePool.of_settings(ComputeSettings(), see)
    with caplog.at_level("INFO"):
        assert pool.left() == pool.left() == ()
    assert looks == [1]
    assert "the CPU trains: torch was built without CUDA" in caplog.text


def test_nothing_is_looked_for_where_site_toml_says_cpu() -> None:
    def see() -> Devices:
        raise AssertionError

    assert DevicePool.of_settings(ComputeSettings(devices="cpu"), see).left() == ()


def test_a_pool_asks_again_after_a_refusal() -> None:
    seen = [NONE, TWO]
    pool = DevicePool.of_settings(ComputeSettings(devices=("cuda:1",)), lambda: seen.pop(0))
    with pytest.raises(SettingsInvalid):
        pool.left()
    assert pool.left() == ("cuda:1",)


def test_a_device_that_failed_rests_and_is_tried_again() -> None:
    now = [0.0]
    pool = DevicePool(lambda: Choice(("cuda:0", "cuda:1"), cpu_after=True, why=""), clock=lambda: now[0])
    pool.failed("cuda:0", DeviceFault.LOST)
    assert pool.left() == ("cuda:1",)
    now[0] = 1.0
    pool.failed("cuda:1", DeviceFault.FULL)
    assert pool.left() == ()
    now[0] = REST_SECONDS
    assert pool.left() == ("cuda:0",)
    now[0] = REST_SECONDS + 1
    assert pool.left() == ("cuda:0", "cuda:1")


def test_who_names_gpus_is_never_trained_on_the_cpu() -> None:
    pool = DevicePool(lambda: Choice(("cuda:0",), cpu_after=False, why=""))
    pool.failed("cuda:0", DeviceFault.FULL)
    with pytest.raises(DeviceLost, match=r"no device is left to train on: cuda:0 \(full\)") as lost:
        pool.left()
    assert lost.value.wire().fields == {"reason": "full"}
    assert "auto" in lost.value.hint
