"""The whole life of a device, over TLS on loopback."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedloop_core.errors import (
    FeedbackRefused,
    InputRefused,
    LabelUnknown,
    NoActiveModel,
    PredictionUnknown,
    TooFewRows,
    UsageError,
)
from fedloop_core.profile import Profile
from fedloop_core.sketch import Sketch
from fedloop_edge.agent.agent import EdgeAgent, SyncResult
from fedloop_edge.streams import Stream
from fedloop_proto.fleet.v1 import fleet_pb2

if TYPE_CHECKING:
    from fedloop_core.encoding import Inputs


def some_rows(count: int, seed: int = 0) -> Inputs:
    random = np.random.default_rng(seed)
    return {
        "numeric": random.uniform([20, 80], [90, 200], size=(count, 2)).astype(np.float32),
        "categorical": random.integers(0, 3, size=(count, 1)),
    }


def states(world: Any) -> list[tuple[int, int, str]]:
    return [(report.state, report.version, report.code) for _, report in world.sink.reports]


def test_a_device_enrols_serves_switches_and_reports(world: Any) -> None:
    agent = world.agent("device")
    with pytest.raises(NoActiveModel):
        agent.predict(some_rows(1))
    assert agent.sync().result is SyncResult.UNASSIGNED

    world.release(1, counter=1)
    first = agent.sync()
    assert (first.result, first.assigned_version, first.serving_version) == (SyncResult.SWITCHED, 1, 1)
    assert agent.sync().result is SyncResult.UNCHANGED
    before = agent.predict(some_rows(5))
    assert {p.version for p in before} == {1}
    assert len({p.id for p in before}) == 5
    assert all(0.5 <= p.confidence <= 1 and p.label == ("no", "yes")[p.index] for p in before)

    world.release(2, counter=2)
    assert agent.sync().serving_version == 2
    assert {p.version for p in agent.predict(some_rows(5))} == {2}
    assert agent.status.previous_version == 1

    outcome = agent.flush()
    assert (outcome.pending, outcome.code) == (0, "")
    assert states(world) == [
        (fleet_pb2.DEVICE_STATE_IDLE, 0, ""),
        (fleet_pb2.DEVICE_STATE_DOWNLOADING, 1, ""),
        (fleet_pb2.DEVICE_STATE_VERIFYING, 1, ""),
        (fleet_pb2.DEVICE_STATE_SERVING, 1, ""),
        (fleet_pb2.DEVICE_STATE_DOWNLOADING, 2, ""),
        (fleet_pb2.DEVICE_STATE_VERIFYING, 2, ""),
        (fleet_pb2.DEVICE_STATE_SERVING, 2, ""),
    ]
    assert [report.sequence for _, report in world.sink.reports] == list(range(1, 8))
    assert {device for device, _ in world.sink.reports} == {agent.device_id}


def test_a_rollback_uses_the_kept_slot_without_a_download(serving: Any) -> None:
    world, agent = serving
    world.release(2, counter=2)
    agent.sync()
    world.source.reads.clear()
    world.assign(1, counter=3)
    assert agent.sync().serving_version == 1
    assert agent.status.assignment_counter == 3
    assert len(world.source.reads) == 1  # the assignment alone


def test_serving_is_told_once_for_each_assignment(serving: Any) -> None:
    world, agent = serving
    world.assign(1, counter=2)
    for _ in range(2):
        assert agent.sync().result is SyncResult.UNCHANGED
    agent.close()  # a crash between switch and report looks like this to the next process
    agent = world.agent("device")
    agent._store.set_marks(**{"told-counter": "1"})
    agent.sync()
    agent.flush()
    told = [r.assignment_counter for _, r in world.sink.reports if r.state == fleet_pb2.DEVICE_STATE_SERVING]
    assert told == [1, 2, 2]


def test_secrets_are_readable_by_their_owner_alone(serving: Any) -> None:
    world, _ = serving
    paths = [
        *(world.folder / "device").glob("*.*"),
        *(world.folder / "hub").glob("*.key"),
        world.folder / "hub" / "registry.sqlite",
    ]
    names = {path.name for path in paths}
    assert {"device.key", "membership.json", "device.sqlite", "recent.sqlite", "ca.key", "server.key"} <= names
    for path in paths:
        if path.name != "current.json":  # names of versions are no secret
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_sketches_count_every_row_and_close_every_ten(serving: Any) -> None:
    world, agent = serving
    inputs = some_rows(25)
    inputs["numeric"][0, 1] = np.nan
    inputs["numeric"][1, 0] = 500.0  # outside the public range: counted, answered
    agent.predict(inputs)
    world.release(2, counter=2)
    agent.sync()  # closes the open window of version 1
    agent.flush()
    received = [sketch for _, sketch in world.sink.sketches]
    assert [s.message.rows for s in received] == [10, 10, 5]
    assert [s.message.window for s in received] == [1, 2, 3]
    profile = Profile.from_bytes(_profile_of(world))
    merged = Sketch.empty(profile)
    for sketch in received:
        merged = merged.merge(Sketch.from_message(sketch.message, profile))
    assert (merged.rows, merged.missing, merged.out_of_range) == (25, 1, 1)
    assert agent.status.totals.rows_out_of_range == 1


def _profile_of(world: Any) -> bytes:
    (path,) = (world.folder / "device" / "slots").glob("1-*/profile.json")
    return Path(path).read_bytes()


def test_labels_reach_the_site_with_their_inputs_once(serving: Any) -> None:
    world, agent = serving
    inputs = some_rows(3)
    predictions = agent.predict(inputs)
    agent.give_label(predictions[1].id, "yes", unit="patient-7")
    with pytest.raises(PredictionUnknown):
        agent.give_label(predictions[1].id, "no")
    with pytest.raises(LabelUnknown):
        agent.give_label(predictions[0].id, "perhaps")
    with pytest.raises(PredictionUnknown):
        agent.give_label("p999999999", "yes")
    with pytest.raises(PredictionUnknown):
        agent.give_label("1; DROP TABLE recent", "yes")
    assert agent.flush().code == ""
    ((device_id, example),) = world.sink.examples
    assert device_id == agent.device_id
    assert (example.task, example.version, example.label, example.unit) == ("heart", 1, "yes", "patient-7")
    assert example.predicted == predictions[1].label
    for name, array in inputs.items():
        np.testing.assert_array_equal(example.inputs[name], array[1:2])


def test_a_rejected_example_is_counted_and_does_not_stop_the_others(serving: Any) -> None:
    world, agent = serving

    def fail(example: Any) -> None:
        if example.unit == "bad":
            raise TooFewRows("not this one")

    world.sink.fail = fail
    for prediction, unit in zip(agent.predict(some_rows(3)), ("good", "bad", "fine"), strict=True):
        agent.give_label(prediction.id, "no", unit=unit)
    outcome = agent.flush()
    assert (outcome.rejected, outcome.pending, outcome.code) == (1, 0, "")
    assert [example.unit for _, example in world.sink.examples] == ["good", "fine"]
    assert world.hub.intake.totals()[Stream.LABELLED] == (1, 0)


def test_a_device_opened_again_serves_without_a_hub(serving: Any) -> None:
    world, agent = serving
    prediction = agent.predict(some_rows(1))[0]
    agent.close()
    world.hub.stop()
    again = world.agent("device")
    assert again.serving_version == 1
    later = again.predict(some_rows(1))[0]
    assert later.label == prediction.label
    assert later.id > prediction.id  # never given twice
    again.give_label(prediction.id, "yes")  # the input outlived the process
    outcome = again.sync()
    assert (outcome.result, outcome.serving_version) == (SyncResult.UNREACHABLE, 1)
    first, second = again.flush(), again.flush()
    assert first.code == second.code == "FL-EDGE-006"
    assert first.pending > 0
    assert (first.retry_after_seconds, second.retry_after_seconds) == (1.0, 2.0)


def test_what_waited_for_the_hub_arrives_when_it_is_back(serving: Any) -> None:
    world, agent = serving
    agent.flush()
    world.hub.stop()
    agent.give_label(agent.predict(some_rows(1))[0].id, "yes")
    assert agent.flush().pending == 1
    world.restart_hub()
    assert _until(lambda: agent.flush().pending == 0)
    assert len(world.sink.examples) == 1


def _until(condition: Any, seconds: float = 10.0) -> bool:
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_damaged_slot_falls_back_to_the_version_before(serving: Any) -> None:
    world, agent = serving
    world.release(2, counter=2)
    agent.sync()
    agent.close()
    (model,) = (world.folder / "device" / "slots").glob("2-*/model.onnx")
    model.write_bytes(model.read_bytes()[:-1])
    again = world.agent("device")
    assert again.serving_version == 1
    again.flush()
    assert states(world)[-1] == (fleet_pb2.DEVICE_STATE_ROLLED_BACK, 2, "FL-EDGE-002")
    assert again.sync().serving_version == 2  # fetched again


def test_a_device_of_the_coordinator_sends_no_inputs_anywhere(world: Any) -> None:
    world.hub.stop()
    world.config = replace(world.config, site="")
    world.hub = type(world.hub)(world.config, world.source, world.sink, world.registry)
    world.addresses = world.hub.start()
    world.release(1, counter=1)
    agent = world.agent("device")
    agent.sync()
    prediction = agent.predict(some_rows(1))[0]
    with pytest.raises(FeedbackRefused):
        agent.give_label(prediction.id, "yes")


def test_watching_tells_of_releases_and_ends_with_the_hub(serving: Any) -> None:
    import threading
    import time

    world, agent = serving
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.extend(agent.watch()))
    thread.start()
    changes = agent.watch()
    current = next(changes)
    world.release(2, counter=2)
    assert next(changes) > current
    started = time.monotonic()
    world.hub.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert time.monotonic() - started < 3
    assert len(seen) >= 2


def test_a_certificate_is_renewed_in_its_last_third_and_after_its_end(world: Any) -> None:
    import time

    from fedloop_core.certificates import certificate_expiry

    now = int(time.time())
    world.hub.stop()
    past = [now - 3 * 86_400]
    config = replace(world.config, device_certificate_days=2, server_certificate_days=90)
    world.hub = type(world.hub)(config, world.source, world.sink, world.registry, clock=lambda: past[0])
    world.addresses = world.hub.start()
    world.release(1, counter=1)
    agent = EdgeAgent(world.agent_config("device"), clock=lambda: past[0])
    world.agents.append(agent)
    agent.enroll(world.hub.issue_token("wave-1"))
    first = agent._parts().membership
    assert certificate_expiry(first.certificate.encode()) == now - 86_400
    assert agent.sync().result is SyncResult.UNREACHABLE  # too early to renew by its clock, expired by TLS's
    past[0] = now
    assert agent.sync().serving_version == 1
    second = agent._parts().membership
    assert certificate_expiry(second.certificate.encode()) == now + 2 * 86_400
    assert (second.device_id, second.trusted_root, second.site) == (first.device_id, first.trusted_root, first.site)
    assert agent.flush().code == ""
    world.registry.revoke(agent.device_id)
    past[0] = now + 86_400 + 3_600
    assert agent.sync().result is SyncResult.REFUSED  # not renewed, not served
    assert agent._parts().membership == second


def test_renewal_keeps_what_was_pinned(serving: Any) -> None:
    world, agent = serving
    before = agent.status
    agent.enroll(world.token())
    assert agent.status.device_id == before.device_id
    assert agent.serving_version == 1
    assert agent.sync().result is SyncResult.UNCHANGED


def test_a_device_takes_the_artifact_that_its_runtime_loads(world: Any, loadable: Any) -> None:
    from fedloop_server.release import PublishedArtifact

    lite = loadable("litert")
    artifacts = [
        world.make_artifact(1),
        PublishedArtifact.of(lite.description, model=lite.model, golden=lite.golden, profile=world.profile()),
    ]
    world.repository.publish_version("heart", 1, artifacts)
    world.assign(1, counter=1)
    agent = world.agent("lite", replace(world.agent_config("lite"), runtime="litert"))
    assert agent.sync().serving_version == 1
    assert list((world.folder / "lite" / "slots").glob("1-tflite-int8-*/model.tflite"))
    inputs = some_rows(4)
    expected = lite.weights.logits(inputs).argmax(axis=1).tolist()
    assert [prediction.index for prediction in agent.predict(inputs)] == expected


def test_a_failing_disk_does_not_stop_the_answers(serving: Any) -> None:
    _, agent = serving
    (first,) = agent.predict(some_rows(1))
    assert first.id
    agent._store.close()  # every write of the queue fails from here on
    agent._store._numbers_end = 0
    (second,) = agent.predict(some_rows(1))
    assert (second.id, second.label) == ("", first.label)
    assert agent._tally.totals.bookkeeping_failures == 1
    assert agent._tally.totals.predictions_served == 2


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("not finite", {"numeric": np.array([[np.inf, 1.0]], np.float32)}),
        ("missing where it may not be", {"numeric": np.array([[np.nan, 1.0]], np.float32)}),
        ("dtype", {"numeric": np.array([[1.0, 1.0]])}),
        ("shape", {"numeric": np.ones((1, 3), np.float32)}),
        ("rows differ", {"numeric": np.ones((2, 2), np.float32)}),
        ("no rows", {"numeric": np.ones((0, 2), np.float32), "categorical": np.ones((0, 1), np.int64)}),
        ("negative code", {"categorical": np.array([[-1]])}),
        ("unknown code", {"categorical": np.array([[3]])}),
        ("another input", {"extra": np.ones((1, 1), np.float32)}),
        ("scalar", {"numeric": np.float32(1)}),
        ("too many", {"numeric": np.ones((2000, 2), np.float32), "categorical": np.zeros((2000, 1), np.int64)}),
    ],
)
def test_inputs_that_do_not_fit_are_refused_and_counted(serving: Any, name: str, change: Inputs) -> None:
    _, agent = serving
    with pytest.raises(InputRefused):
        agent.predict({**some_rows(1), **change})
    assert agent.status.totals.inputs_refused == 1
    assert agent.status.totals.predictions_served == 0


def test_nothing_is_asked_of_a_device_that_is_not_enrolled(world: Any) -> None:
    agent = world.agent("device", enrolled=False)
    for call in (agent.sync, agent.flush, lambda: agent.status, lambda: agent.give_label("p000000001", "yes")):
        with pytest.raises(UsageError):
            call()
    assert isinstance(agent, EdgeAgent)
