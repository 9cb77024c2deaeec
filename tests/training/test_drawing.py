"""Noise drawn ahead is the noise that would have been drawn."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from randomgen import AESCounter
from scipy.stats import kstest

from fedloop_clients.training.drawing import drawn_ahead
from fedloop_core.noise import SeededNoise, SystemNoise

LARGE = [(300, 200), (200,)]
SMALL = [(3, 2), (2,)]


@pytest.mark.parametrize("shapes", [LARGE, SMALL], ids=["in a thread", "at once"])
def test_the_values_are_those_of_the_source_in_its_order(shapes: list[tuple[int, ...]]) -> None:
    source = SeededNoise(4, "a round")
    wanted = [[source.normal(shape, 1.5) for shape in shapes] for _ in range(3)]
    with drawn_ahead(SeededNoise(4, "a round"), shapes, 1.5, 3) as ahead:
        found = [[ahead.normal(shape, 1.5) for shape in shapes] for _ in range(3)]
    for step, same in zip(found, wanted, strict=True):
        for noise, other in zip(step, same, strict=True):
            np.testing.assert_array_equal(noise, other)


def test_no_more_is_drawn_than_the_steps_take_and_nothing_out_of_turn() -> None:
    with drawn_ahead(SeededNoise(4), LARGE, 1.0, 1) as ahead:
        with pytest.raises(ValueError, match="out of turn"):
            ahead.normal((200,), 1.0)
        ahead.normal((200,), 1.0)
        with pytest.raises(ValueError, match="more noise"):
            ahead.normal((300, 200), 1.0)


def test_a_round_that_breaks_off_leaves_no_thread_waiting() -> None:
    def break_off() -> None:
        with drawn_ahead(SeededNoise(4), LARGE, 1.0, 5) as ahead:
            ahead.normal((300, 200), 1.0)
            raise KeyError

    with pytest.raises(KeyError):
        break_off()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("noise")]


def test_the_bits_are_those_of_aes_128_in_counter_mode() -> None:
    key = bytes(range(16))
    blocks = Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305  block by block, to compare counters
    wanted = b"".join(blocks.update(count.to_bytes(16, "little")) for count in range(500))
    found = AESCounter(key=int.from_bytes(key, "little")).random_raw(1000)
    assert found.astype("<u8").tobytes() == wanted


def test_the_noise_is_normal_and_has_its_deviation() -> None:
    drawn = SystemNoise().normal((200_000,), 3.0)
    assert kstest(drawn / 3.0, "norm").pvalue > 1e-4
    assert abs(drawn.std() / 3.0 - 1) < 5 / math.sqrt(2 * len(drawn))
