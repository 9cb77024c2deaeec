"""Numbered intake, tokens and tries, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_core.errors import (
    DeviceRefused,
    EnrollmentRefused,
    FeedbackRefused,
    StorageError,
    TooFewRows,
)
from fedloop_edge.hub.intake import Intake, Item, QueueKey
from fedloop_edge.hub.registry import DeviceRegistry, issue_token
from fedloop_edge.hub.tries import FailedTries
from fedloop_edge.streams import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = QueueKey("ab" * 32, "queue", Stream.LABELLED)


def _items(numbers: list[int], take: Callable[[int], None]) -> list[Item]:
    return [Item(number, lambda number=number: take(number)) for number in numbers]  # type: ignore[misc]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 6)), max_size=30))
def test_whatever_is_sent_each_number_is_passed_on_once_and_in_order(batches: list[tuple[int, int]]) -> None:
    registry = DeviceRegistry()
    intake, taken = Intake(registry.database), list[int]()
    acknowledged = 0
    for first, count in batches:
        settled = intake.take(KEY, 1, _items(list(range(first, first + count)), taken.append))
        assert settled.acknowledged >= acknowledged
        acknowledged = settled.acknowledged
    assert taken == list(range(1, acknowledged + 1))
    registry.close()


def test_numbers_survive_a_restart(tmp_path: Path) -> None:
    taken: list[int] = []
    for _ in range(2):
        registry = DeviceRegistry(tmp_path / "hub.sqlite")
        assert Intake(registry.database).take(KEY, 1, _items([1, 2], taken.append)).acknowledged == 2
        registry.close()
    assert taken == [1, 2]


def test_an_item_that_cannot_be_stored_is_not_acknowledged() -> None:
    registry = DeviceRegistry()
    intake, taken = Intake(registry.database), list[int]()

    def full(number: int) -> None:
        if number == 2:
            raise StorageError("disk full")
        taken.append(number)

    with pytest.raises(StorageError):
        intake.take(KEY, 1, _items([1, 2, 3], full))
    assert intake.take(KEY, 1, _items([1, 2, 3], taken.append)).acknowledged == 3
    assert taken == [1, 2, 3]
    registry.close()


def test_rejected_and_lost_items_are_settled_and_counted() -> None:
    registry = DeviceRegistry()
    intake = Intake(registry.database)

    def reject(number: int) -> None:
        raise TooFewRows("no")

    settled = intake.take(KEY, 4, _items([4, 5], reject))
    assert settled.acknowledged == 5
    assert [(r.sequence, r.code) for r in settled.rejected] == [(4, "FL-DATA-005"), (5, "FL-DATA-005")]
    assert intake.totals() == {Stream.LABELLED: (2, 3)}
    registry.close()


def test_queues_and_streams_are_apart() -> None:
    registry = DeviceRegistry()
    intake, taken = Intake(registry.database), list[int]()
    for key in (KEY, QueueKey(KEY.device_id, "other", KEY.stream), QueueKey(KEY.device_id, "queue", Stream.SKETCH)):
        intake.take(key, 1, _items([1], taken.append))
    assert taken == [1, 1, 1]
    with pytest.raises(FeedbackRefused):
        intake.take(QueueKey(KEY.device_id, "", KEY.stream), 1, [])
    registry.close()


def _redeem(registry: DeviceRegistry, token: str, device: str, *, site: str = "", now: int = 10) -> None:
    registry.redeem(token, device, site=site, runtime="onnxruntime", labels={"room": "3"}, now_unix=now)


def test_tokens_are_kept_as_digests_only(tmp_path: Path) -> None:
    path = tmp_path / "hub.sqlite"
    registry = DeviceRegistry(path)
    token = issue_token(registry, group="wave-1", now_unix=0)
    _redeem(registry, token, "a" * 64)
    registry.close()
    for file in tmp_path.iterdir():
        assert token.encode() not in file.read_bytes()


def test_a_token_is_for_one_key_one_site_and_one_time() -> None:
    registry = DeviceRegistry()
    token = issue_token(registry, group="wave-1", site="clinic", now_unix=0, valid_seconds=100)
    for site, now in (("bank", 10), ("", 10), ("clinic", 101)):
        with pytest.raises(EnrollmentRefused):
            _redeem(registry, token, "a" * 64, site=site, now=now)
    _redeem(registry, token, "a" * 64, site="clinic")
    _redeem(registry, token, "a" * 64, site="clinic")
    with pytest.raises(EnrollmentRefused):
        _redeem(registry, token, "b" * 64, site="clinic")
    (device,) = registry.devices()
    assert (device.device_id, device.group, device.labels) == ("a" * 64, "wave-1", {"room": "3"})
    registry.close()


def test_a_revoked_device_stays_out() -> None:
    registry = DeviceRegistry()
    _redeem(registry, issue_token(registry, group="g", now_unix=0), "a" * 64)
    assert not registry.admit("a" * 64).revoked
    registry.revoke("a" * 64)
    with pytest.raises(DeviceRefused):
        registry.admit("a" * 64)
    with pytest.raises(DeviceRefused):
        _redeem(registry, issue_token(registry, group="g", now_unix=0), "a" * 64)
    with pytest.raises(DeviceRefused):
        registry.revoke("b" * 64)
    assert [device.revoked for device in registry.devices()] == [True]
    registry.close()


def test_tries_are_counted_by_address_and_forgotten() -> None:
    tries = FailedTries(limit=2, window_seconds=60)
    for now in (0, 1):
        tries.check("one", now)
        tries.failed("one", now)
    with pytest.raises(EnrollmentRefused):
        tries.check("one", 2)
    tries.check("two", 2)
    tries.check("one", 62)
    for at in range(2000):  # memory stays bounded
        tries.failed(f"address {at}", 100)
    tries.check("address 0", 100)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StorageError, match=r"hub\.sqlite"):
        DeviceRegistry(path)
