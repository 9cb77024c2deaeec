"""Queue, recent predictions, slots and identity on a device's disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_core.errors import StorageError
from fedloop_edge.agent.identity import Identity
from fedloop_edge.agent.queue import DeviceStore
from fedloop_edge.agent.recent import RecentPrediction, RecentPredictions
from fedloop_edge.agent.slots import Slots
from fedloop_edge.streams import Stream


def _store(folder: Path, items: int = 100, size: int = 10_000) -> DeviceStore:
    return DeviceStore(folder / "device.sqlite", maximum_items=items, maximum_bytes=size)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(st.integers(1, 400).map(lambda n: ("put", n)), st.integers(1, 8).map(lambda n: ("ack", n))),
        max_size=40,
    )
)
def test_the_queue_keeps_its_bounds_its_order_and_its_count(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    store = _store(tmp_path_factory.mktemp("queue"), items=5, size=1000)
    put = acknowledged = 0
    for kind, number in steps:
        if kind == "put":
            put += 1
            store.put(Stream.SKETCH, bytes(number))
        else:
            head = store.head(Stream.SKETCH, items=number, size=10_000)
            if head:
                acknowledged += len(head)
                store.acknowledge(Stream.SKETCH, head[-1].sequence)
        held = store.head(Stream.SKETCH, items=100, size=10_000)
        assert len(held) == store.pending(Stream.SKETCH) <= 5
        assert sum(len(item.body) for item in held) <= 1000
        assert [item.sequence for item in held] == list(range(put - len(held) + 1, put + 1))
        assert put == acknowledged + store.dropped(Stream.SKETCH) + len(held)
    store.close()


def test_the_queue_outlives_its_process(tmp_path: Path) -> None:
    store = _store(tmp_path)
    queue_id = store.queue_id
    store.put(Stream.STATUS, b"one")
    store.set_marks(counter="7")
    store.close()
    again = _store(tmp_path)
    assert again.queue_id == queue_id
    assert [item.body for item in again.head(Stream.STATUS, items=9, size=9)] == [b"one"]
    assert again.mark("counter") == "7"
    again.close()
    with pytest.raises(StorageError):
        again.put(Stream.STATUS, b"late")


def test_a_head_is_bounded_by_bytes_after_its_first_item(tmp_path: Path) -> None:
    store = _store(tmp_path)
    for size in (50, 10, 10):
        store.put(Stream.LABELLED, bytes(size))
    assert len(store.head(Stream.LABELLED, items=10, size=5)) == 1
    assert len(store.head(Stream.LABELLED, items=10, size=60)) == 2
    store.close()


def test_numbers_are_given_once_over_threads_and_restarts(tmp_path: Path) -> None:
    given_out: list[int] = []
    for _ in range(2):
        store = _store(tmp_path)
        for count in (1, 3, 2000, 1):
            first = store.take_numbers(count)
            given_out.extend(range(first, first + count))
        store.close()
    assert len(set(given_out)) == len(given_out) == 2 * 2005
    assert given_out == sorted(given_out)


def test_an_acknowledgement_from_the_future_starts_the_queue_anew(tmp_path: Path) -> None:
    store = _store(tmp_path)
    before = store.queue_id
    store.put(Stream.LABELLED, b"a")
    store.put(Stream.LABELLED, b"b")
    store.put(Stream.STATUS, b"c")
    store.acknowledge(Stream.LABELLED, 1)
    store.acknowledge(Stream.LABELLED, 50)
    assert store.queue_id != before
    assert [(item.sequence, item.body) for item in store.head(Stream.LABELLED, items=9, size=99)] == [(1, b"b")]
    assert [(item.sequence, item.body) for item in store.head(Stream.STATUS, items=9, size=99)] == [(1, b"c")]
    store.close()


def test_recent_predictions_are_bounded_by_number_and_bytes(tmp_path: Path) -> None:
    recent = RecentPredictions(tmp_path / "recent.sqlite", maximum_items=3, maximum_bytes=100)
    recent.add([RecentPrediction(number, 1, "yes", 0, bytes(10)) for number in range(1, 6)])
    assert [number for number in range(1, 6) if recent.find(number)] == [3, 4, 5]
    recent.add([RecentPrediction(6, 1, "yes", 0, bytes(85))])
    assert [number for number in range(1, 7) if recent.find(number)] == [5, 6]
    kept = recent.find(6)
    assert kept is not None
    recent.forget(kept)
    recent.forget(kept)
    assert recent.find(6) is None
    recent.close()


@pytest.mark.parametrize("file", ["membership.json", "current.json"])
def test_damaged_documents_are_named(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_bytes(b"{")
    opened = Identity if file == "membership.json" else lambda folder: Slots(folder).pointer
    with pytest.raises(StorageError, match=file):
        opened(tmp_path)


def test_threads_predict_while_versions_switch(serving: Any) -> None:
    """Every answer is of one version, every id is unique, nothing is lost."""
    world, agent = serving
    rows = {
        "numeric": np.tile(np.array([[50.0, 120.0]], np.float32), (4, 1)),
        "categorical": np.zeros((4, 1), np.int64),
    }
    predictions: list[Any] = []
    stop = threading.Event()

    def predict() -> None:
        while not stop.is_set():
            predictions.append(agent.predict(rows))

    threads = [threading.Thread(target=predict) for _ in range(3)]
    for thread in threads:
        thread.start()
    for version in (2, 3):
        world.release(version, counter=version)
        assert agent.sync().serving_version == version
    stop.set()
    for thread in threads:
        thread.join()
    assert all(len({p.version for p in answer}) == 1 for answer in predictions)
    ids = [p.id for answer in predictions for p in answer]
    assert len(ids) == len(set(ids)) == agent.status.totals.predictions_served
    by_version: dict[int, set[tuple[str, float]]] = {}
    for answer in predictions:
        by_version.setdefault(answer[0].version, set()).update((p.label, p.confidence) for p in answer)
    assert all(len(answers) == 1 for answers in by_version.values())
