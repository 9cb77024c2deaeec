"""What others may try against a device or its hub. Each must be refused, and the device must still serve version 1."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from tuf.api.metadata import TargetFile

from fedloop_core.certificates import (
    CertificateAuthority,
    certificate_request,
    device_id_of_certificate,
    key_to_pem,
    load_or_create_key,
)
from fedloop_core.errors import EnrollmentRefused, HubRefused, HubUnreachable
from fedloop_core.release import ASSIGNMENTS_ROLE, Assignment
from fedloop_edge.agent.agent import EdgeAgent, SyncResult
from fedloop_edge.agent.hub_client import HubClient
from fedloop_edge.agent.identity import Identity
from fedloop_edge.hub import DeviceRegistry, Hub, HubConfig, HubLimits
from fedloop_proto.fleet.v1 import fleet_pb2, fleet_pb2_grpc
from fedloop_proto.site.v1 import feedback_pb2
from fedloop_server.blobs import BlobStore
from fedloop_server.release import ReleaseRepository

if TYPE_CHECKING:
    from fedloop_core.encoding import Inputs

ONE_ROW: Inputs = {"numeric": np.array([[50.0, 120.0]], np.float32), "categorical": np.array([[0]])}


def still_serves_version_1(agent: EdgeAgent) -> bool:
    return agent.serving_version == 1 and agent.predict(ONE_ROW)[0].version == 1


# Attacks on what a device fetches: each bends the world after version 2 was released, or releases something bent.


def altered_byte(world: Any) -> None:
    world.release(2, counter=2)
    world.source.blob = lambda digest, offset, content: bytes([content[0] ^ 1]) + content[1:]


def altered_model_only(world: Any) -> None:
    world.release(2, counter=2)
    model = _digest(world, "heart/2/onnx-fp32/model.onnx")
    world.source.blob = lambda digest, offset, content: (
        content[:-1] + bytes([content[-1] ^ 1]) if digest == model else content
    )


def truncated(world: Any) -> None:
    world.release(2, counter=2)
    world.source.length = lambda length: None if length is None else length - 1


def endless(world: Any) -> None:
    world.release(2, counter=2)
    world.source.length = lambda length: 1 << 40
    world.source.blob = lambda digest, offset, content: b"\0" * 65536


def wrong_key(world: Any) -> None:
    """Another repository with the same names, its own keys, and a higher version of everything."""
    theirs = ReleaseRepository.create(
        world.folder / "theirs", BlobStore(f"file://{world.folder}/blobs"), lambda: int(time.time())
    )
    theirs.delegate_task("heart")
    theirs.publish_version("heart", 2, [world.make_artifact(2)])
    for counter in range(2, 6):
        theirs.assign(Assignment(format=1, task="heart", group="wave-1", version=2, counter=counter))
    world.source.true = theirs


def unsigned_change(world: Any) -> None:
    """The hub edits an assignment's digest in signed metadata."""
    world.release(2, counter=2)
    world.source.of_role = lambda role, version, content: (
        content.replace(b'"length"', b'"Length"') if content and role == ASSIGNMENTS_ROLE else content
    )


def metadata_rollback(world: Any) -> None:
    """The hub serves the timestamp from before."""
    before = world.repository.metadata("timestamp", 0)
    world.release(2, counter=2)
    assert world.agents[0].sync().serving_version == 2
    world.assign(1, counter=3)
    assert world.agents[0].sync().serving_version == 1
    world.source.of_role = lambda role, version, content: before if role == "timestamp" else content


def no_metadata(world: Any) -> None:
    world.release(2, counter=2)
    world.source.of_role = lambda role, version, content: content if role == "root" else None


def lower_counter(world: Any) -> None:
    world.assign(1, counter=5)
    assert world.agents[0].sync().result is SyncResult.UNCHANGED
    world.repository.publish_version("heart", 2, [world.make_artifact(2)])
    _sign_assignment(world, Assignment(format=1, task="heart", group="wave-1", version=2, counter=4))


def same_counter_other_version(world: Any) -> None:
    world.repository.publish_version("heart", 2, [world.make_artifact(2)])
    _sign_assignment(world, Assignment(format=1, task="heart", group="wave-1", version=2, counter=1))


def other_groups_assignment(world: Any) -> None:
    world.repository.publish_version("heart", 2, [world.make_artifact(2)])
    other = Assignment(format=1, task="heart", group="wave-9", version=2, counter=9)
    _sign_assignment(world, other, path="assignments/heart/wave-1.json")


def golden_mismatch(world: Any) -> None:
    world.release(2, counter=2, artifact=world.make_artifact(2, golden_shift=0.5))


def no_artifact_for_this_runtime(world: Any) -> None:
    world.assign_unloadable()


def _digest(world: Any, path: str) -> bytes:
    listed = world.repository._moment.role("task-heart").signed.targets
    return bytes.fromhex(listed[path].hashes["sha256"])


def _sign_assignment(world: Any, assignment: Assignment, path: str | None = None) -> None:
    """As someone does who stole the online key: past the repository's own checks."""
    repository = world.repository
    content = assignment.to_bytes()
    repository._blobs.put(content)
    listed = repository._moment.role(ASSIGNMENTS_ROLE).signed
    place = path or assignment.path
    listed.targets[place] = TargetFile.from_data(place, content, ["sha256"])
    repository._publish({ASSIGNMENTS_ROLE: listed}, {})


@dataclass(frozen=True)
class Attack:
    name: str
    mount: Callable[[Any], None]
    code: str


ATTACKS = [
    Attack("altered blob byte", altered_byte, "FL-EDGE-002"),
    Attack("altered model byte", altered_model_only, "FL-EDGE-002"),
    Attack("truncated blob", truncated, "FL-EDGE-002"),
    Attack("endless blob", endless, "FL-EDGE-002"),
    Attack("metadata by another key", wrong_key, "FL-REL-002"),
    Attack("metadata edited", unsigned_change, "FL-REL-002"),
    Attack("metadata rolled back", metadata_rollback, "FL-REL-002"),
    Attack("metadata withheld", no_metadata, "FL-REL-002"),
    Attack("lower assignment counter", lower_counter, "FL-REL-003"),
    Attack("same counter, other version", same_counter_other_version, "FL-REL-003"),
    Attack("another group's assignment", other_groups_assignment, "FL-REL-003"),
    Attack("golden mismatch", golden_mismatch, "FL-EDGE-003"),
    Attack("nothing for this runtime", no_artifact_for_this_runtime, "FL-EDGE-001"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_device_refuses_and_serves_on(serving: Any, attack: Attack) -> None:
    world, agent = serving
    attack.mount(world)
    outcome = agent.sync()
    assert (outcome.result, outcome.code) == (SyncResult.REFUSED, attack.code), outcome
    assert outcome.serving_version == 1
    assert still_serves_version_1(agent)
    agent.sync()  # told once, however often it is tried
    assert agent.flush().code == ""
    refusals = [report for _, report in world.sink.reports if report.state == fleet_pb2.DEVICE_STATE_REFUSED]
    assert [report.code for report in refusals] == [attack.code]
    assert refusals[0].serving_version == 1
    agent.close()
    assert still_serves_version_1(world.agent("device"))


def test_listed_is_not_assigned(serving: Any) -> None:
    world, agent = serving
    world.repository.publish_version("heart", 2, [world.make_artifact(2)])
    assert agent.sync().result is SyncResult.UNCHANGED
    assert still_serves_version_1(agent)


def test_an_incompatible_version_is_not_downloaded_again(serving: Any) -> None:
    world, agent = serving
    golden_mismatch(world)
    assert agent.sync().code == "FL-EDGE-003"
    world.source.reads.clear()
    assert agent.sync().code == "FL-EDGE-003"
    assert len(world.source.reads) <= 1  # the assignment at most
    agent.flush()
    (report,) = [r for _, r in world.sink.reports if r.state == fleet_pb2.DEVICE_STATE_REFUSED]
    assert "deviation" in report.detail


def test_a_good_version_after_a_bad_one_is_taken(serving: Any) -> None:
    world, agent = serving
    golden_mismatch(world)
    agent.sync()
    world.release(3, counter=3)
    assert agent.sync().serving_version == 3


def test_an_artifact_above_the_devices_limit_is_not_begun(world: Any) -> None:
    world.release(1, counter=1)
    config = world.agent_config("small")
    agent = world.agent("small", replace(config, limits=replace(config.limits, artifact_bytes=600)))
    world.source.reads.clear()
    assert agent.sync().code == "FL-EDGE-002"
    assert len(world.source.reads) == 1  # the assignment


@pytest.mark.parametrize("cut", [0, 65536, 131072])
def test_an_interrupted_download_goes_on_where_it_was(serving: Any, cut: int) -> None:
    world, agent = serving
    world.release(2, counter=2, artifact=world.big_artifact(2))
    model = _digest(world, "heart/2/onnx-fp32/model.onnx")

    def broken(digest: bytes, offset: int, content: bytes) -> bytes:
        if digest == model and offset >= cut:
            raise OSError("the line is cut")
        return content

    world.source.blob = broken
    assert agent.sync().result is SyncResult.UNREACHABLE
    assert still_serves_version_1(agent)
    part = world.folder / "device" / "incoming" / f"{model.hex()}.part"
    assert part.stat().st_size == cut
    agent.close()  # also across a restart
    agent = world.agent("device")
    world.source.blob = lambda digest, offset, content: content
    world.source.reads.clear()
    assert agent.sync().serving_version == 2
    offsets = [offset for digest, offset in world.source.reads if digest == model]
    assert offsets == list(range(cut, 200_000, 65536))
    assert not list((world.folder / "device" / "incoming").glob("*"))


def test_a_poisoned_part_costs_one_try(serving: Any) -> None:
    world, agent = serving
    world.release(2, counter=2)
    model = _digest(world, "heart/2/onnx-fp32/model.onnx")
    part = world.folder / "device" / "incoming" / f"{model.hex()}.part"
    part.parent.mkdir(exist_ok=True)
    part.write_bytes(b"poison")
    assert agent.sync().code == "FL-EDGE-002"
    assert still_serves_version_1(agent)
    assert agent.sync().serving_version == 2


def test_emptied_metadata_files_open_no_way_back(serving: Any) -> None:
    """A power cut after a write without fsync: TUF's client alone would take the old timestamp now."""
    world, agent = serving
    before = world.repository.metadata("timestamp", 0)
    world.assign(1, counter=2)
    agent.sync()
    for path in (world.folder / "device" / "metadata").glob("*/*.json"):
        if not path.is_symlink():
            path.write_bytes(b"")
    world.source.of_role = lambda role, version, content: before if role == "timestamp" else content
    outcome = agent.sync()
    assert (outcome.result, outcome.code) == (SyncResult.REFUSED, "FL-REL-002")
    world.source.of_role = lambda role, version, content: content
    assert agent.sync().result is SyncResult.UNCHANGED


def test_a_clock_set_back_does_not_revive_old_metadata(tmp_path: Path, serving: Any) -> None:
    world, agent = serving
    agent.close()
    config = world.agent_config("device")
    later = EdgeAgent(config, clock=lambda: int(time.time()) + 40 * 86_400)
    world.agents.append(later)
    outcome = later.sync()
    assert (outcome.result, outcome.code, outcome.serving_version) == (SyncResult.REFUSED, "FL-REL-002", 1)
    assert "expired" in outcome.detail


# Attacks on the hub.


def a_client(world: Any, authority: CertificateAuthority, key_folder: Path) -> HubClient:
    """A client with a certificate of some authority that trusts the hub's own."""
    key = load_or_create_key(key_folder / "device.key")
    _, certificate = authority.issue_client(certificate_request(key), now_unix=int(time.time()))
    identity = Identity(key_folder)
    from fedloop_edge.agent.identity import Membership

    identity.accept(
        Membership(
            format=1,
            device_id=identity.device_id,
            certificate=certificate.decode(),
            certificate_authority=world.hub.certificate_authority.decode(),
            trusted_root="{}",
            group="wave-1",
            site=world.config.site,
        )
    )
    return HubClient(world.agent_config("unused"), identity)


def test_no_client_certificate(serving: Any) -> None:
    world, agent = serving
    credentials = grpc.ssl_channel_credentials(world.hub.certificate_authority)
    with grpc.secure_channel(world.addresses.fleet, credentials, [("grpc.enable_http_proxy", 0)]) as channel:
        stub: Any = fleet_pb2_grpc.FleetStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as refusal:
            stub.GetMetadata(fleet_pb2.GetMetadataRequest(role="timestamp"), timeout=5)
    assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE
    assert still_serves_version_1(agent)


def test_no_tls(serving: Any) -> None:
    world, _ = serving
    for address in (world.addresses.fleet, world.addresses.enrollment):
        with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
            stub: Any = fleet_pb2_grpc.FleetStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.RpcError):
                stub.GetMetadata(fleet_pb2.GetMetadataRequest(role="timestamp"), timeout=5)


def test_a_certificate_of_another_authority(serving: Any, tmp_path: Path) -> None:
    world, agent = serving
    client = a_client(world, CertificateAuthority.create("other", int(time.time())), tmp_path / "stranger")
    with pytest.raises(HubUnreachable):  # TLS ends the handshake
        client.metadata("timestamp", 0)
    client.close()
    assert still_serves_version_1(agent)


def test_a_good_certificate_of_a_device_that_is_not_known(serving: Any, tmp_path: Path) -> None:
    world, _ = serving
    authority = CertificateAuthority.load_or_create(world.config.folder, "", 0)
    client = a_client(world, authority, tmp_path / "stranger")
    with pytest.raises(HubRefused) as refusal:
        client.metadata("timestamp", 0)
    assert refusal.value.fields["refusal"] == "FL-TRUST-004"
    client.close()


def test_a_revoked_device(serving: Any) -> None:
    world, agent = serving
    watch = agent.watch()
    next(watch)
    world.registry.revoke(agent.device_id)
    assert list(watch) == []  # its open stream is closed
    world.release(2, counter=2)
    outcome = agent.sync()
    assert (outcome.result, outcome.code) == (SyncResult.REFUSED, "FL-EDGE-007")
    assert agent.flush().code == "FL-EDGE-007"
    with pytest.raises(HubRefused, match="FL-TRUST-004"):
        agent.enroll(world.token())
    assert still_serves_version_1(agent)


def _enroll_code(world: Any, name: str, token: str) -> str:
    agent = world.agent(name, enrolled=False)
    with pytest.raises(HubRefused) as refusal:
        agent.enroll(token)
    assert not agent.enrolled
    return str(refusal.value.fields["refusal"])


def test_tokens_that_do_not_count(serving: Any) -> None:
    world, agent = serving
    used = world.token()
    world.agent("second", enrolled=False).enroll(used)
    assert _enroll_code(world, "third", used) == "FL-TRUST-002"
    assert _enroll_code(world, "fourth", world.token(valid_seconds=-1)) == "FL-TRUST-002"
    assert _enroll_code(world, "fifth", "guess") == "FL-TRUST-002"
    assert _enroll_code(world, "sixth", "g" * 5000) == "FL-TRUST-002"
    assert still_serves_version_1(agent)


def test_the_same_key_may_repeat_its_token_since_an_answer_may_be_lost(world: Any) -> None:
    token = world.token()
    agent = world.agent("device", enrolled=False)
    assert agent.enroll(token).device_id == agent.enroll(token).device_id


def test_guessing_tokens_ends_soon(world: Any) -> None:
    for at in range(HubLimits().token_failures):
        assert _enroll_code(world, f"guess-{at}", "guess") == "FL-TRUST-002"
    assert _enroll_code(world, "late", world.token()) == "FL-TRUST-002"  # even a good one waits


def test_a_token_is_not_sent_to_a_hub_of_another_authority(world: Any, tmp_path: Path) -> None:
    other = CertificateAuthority.create("other", int(time.time()))
    config = replace(world.agent_config("device"), certificate_authority=other.certificate)
    agent = world.agent("device", config, enrolled=False)
    with pytest.raises(HubUnreachable):
        agent.enroll(world.token())


def test_a_device_does_not_change_its_site(serving: Any) -> None:
    world, agent = serving
    moved = replace(world.config, site="bank")
    hub = Hub(moved, world.source, world.sink, world.registry)
    addresses = hub.start()
    agent.close()
    config = replace(
        world.agent_config("device"), enrollment_address=addresses.enrollment, fleet_address=addresses.fleet
    )
    agent = world.agent("device", config)
    world.config = moved
    try:
        with pytest.raises(EnrollmentRefused, match="belongs to site"):
            agent.enroll(world.token())
        agent.give_label(agent.predict(ONE_ROW)[0].id, "yes")
        outcome = agent.flush()  # the pinned site is not this hub's
        assert (outcome.code, outcome.pending) == ("FL-EDGE-007", 1)
        assert not world.sink.examples
        assert still_serves_version_1(agent)
    finally:
        hub.stop()


def a_batch(agent: EdgeAgent, **changes: Any) -> feedback_pb2.LabelledBatch:
    return feedback_pb2.LabelledBatch(**{"queue_id": "q", "site": "clinic", "oldest": 1, **changes})


def test_batches_that_the_hub_refuses_whole(serving: Any) -> None:
    _, agent = serving
    client = agent._parts().client
    example = feedback_pb2.LabelledExample(sequence=1, task="heart", label="yes")
    batches = {
        "wrong site": a_batch(agent, site="bank", examples=[example]),
        "no queue": a_batch(agent, queue_id="", examples=[example]),
        "long queue": a_batch(agent, queue_id="q" * 100, examples=[example]),
        "too many": a_batch(agent, examples=[example] * 257),
        "impossible number": a_batch(agent, oldest=2**60, examples=[example]),
    }
    for name, batch in batches.items():
        with pytest.raises(HubRefused) as refusal:
            client.send_labelled(batch)
        assert refusal.value.fields["refusal"] == "FL-TRUST-003", name
    with pytest.raises(HubUnreachable):  # gRPC's own bound
        client.send_labelled(a_batch(agent, examples=[feedback_pb2.LabelledExample(inputs=b"x" * (5 << 20))]))


def test_examples_that_the_hub_rejects_one_by_one(serving: Any) -> None:
    from fedloop_core.arrays import arrays_to_bytes

    world, agent = serving
    good = arrays_to_bytes(ONE_ROW)
    rows: dict[str, tuple[dict[str, Any], str]] = {
        "unknown task": ({"task": "other"}, "FL-TRUST-003"),
        "unknown label": ({"label": "perhaps"}, "FL-DATA-004"),
        "no arrays": ({"inputs": b"junk"}, "FL-EDGE-004"),
        "two rows": (
            {"inputs": arrays_to_bytes({n: np.repeat(a, 2, axis=0) for n, a in ONE_ROW.items()})},
            "FL-EDGE-004",
        ),
        "not finite": (
            {"inputs": arrays_to_bytes({**ONE_ROW, "numeric": np.array([[np.inf, 1]], np.float32)})},
            "FL-EDGE-004",
        ),
        "one more array": ({"inputs": arrays_to_bytes({**ONE_ROW, "more": np.zeros(1)})}, "FL-EDGE-004"),
        "one array less": ({"inputs": arrays_to_bytes({"numeric": ONE_ROW["numeric"]})}, "FL-EDGE-004"),
        "long unit": ({"unit": "u" * 300}, "FL-TRUST-003"),
    }
    examples = [
        feedback_pb2.LabelledExample(
            **{"sequence": at, "task": "heart", "label": "yes", "version": 1, "inputs": good, **change}
        )
        for at, (change, _) in enumerate(rows.values(), start=1)
    ]
    examples.append(
        feedback_pb2.LabelledExample(sequence=len(rows) + 1, task="heart", label="yes", version=1, inputs=good)
    )
    answer = agent._parts().client.send_labelled(a_batch(agent, examples=examples))
    assert answer.sequence == len(rows) + 1
    assert [rejected.code for rejected in answer.rejected] == [code for _, code in rows.values()]
    assert len(world.sink.examples) == 1


def test_repeats_count_once_and_gaps_wait(serving: Any) -> None:
    world, agent = serving
    client = agent._parts().client
    for sequence, acknowledged in ((1, 1), (1, 1), (3, 1), (2, 2), (3, 3), (2, 3)):
        report = fleet_pb2.StatusReport(queue_id="q", sequence=sequence, oldest=1)
        assert client.report(report).sequence == acknowledged
    sketch = fleet_pb2.Sketch(task="heart", version=1)
    for first, count, acknowledged in ((1, 2, 2), (1, 3, 3), (5, 1, 3)):
        batch = fleet_pb2.SketchBatch(queue_id="q", sequence=first, oldest=1, sketches=[sketch] * count)
        assert client.send_sketches(batch).sequence == acknowledged
    lost = fleet_pb2.SketchBatch(queue_id="q", sequence=8, oldest=8, sketches=[sketch])
    assert client.send_sketches(lost).sequence == 8  # 4 to 7 were dropped on the device
    mine = [report for _, report in world.sink.reports if report.queue_id == "q"]
    assert [report.sequence for report in mine] == [1, 2, 3]
    assert [s.sequence for _, s in world.sink.sketches] == [1, 2, 3, 8]


def test_errors_carry_nothing_but_a_code(serving: Any) -> None:
    world, agent = serving
    client = agent._parts().client

    def explode(example: Any) -> None:
        raise RuntimeError("secret path /home/x")

    world.sink.fail = explode
    agent.give_label(agent.predict(ONE_ROW)[0].id, "yes")
    assert agent.flush().pending == 1
    world.sink.fail = lambda example: None
    assert agent.flush().pending == 0
    with pytest.raises(HubRefused, match="FL-REL-001"):
        list(client.blob(b"short", 0))
    with pytest.raises(HubRefused, match="FL-REL-001"):
        list(client.blob(b"\0" * 32, 0))
    with pytest.raises(HubRefused, match="FL-REL-002"):
        client.metadata("r" * 300, 0)
    assert client.metadata("../../etc/passwd", 0) is None


def test_streams_are_limited_and_short_calls_go_on(world: Any) -> None:
    world.hub.stop()
    world.hub = Hub(replace(world.config, limits=HubLimits(streams=2)), world.source, world.sink, world.registry)
    world.addresses = world.hub.start()
    agent = world.agent("device")
    client = agent._parts().client
    watches = [client.watch(0, 30) for _ in range(2)]
    for watch in watches:
        next(watch)
    with pytest.raises(HubUnreachable):
        next(client.watch(0, 30))
    assert client.metadata("timestamp", 0)
    for watch in watches:
        watch.close()


def test_a_copied_folder_is_the_same_device_with_one_queue(serving: Any) -> None:
    """A cloned card shares key and numbers: what the clone repeats is not counted twice."""
    world, agent = serving
    agent.flush()
    agent.close()
    shutil.copytree(world.folder / "device", world.folder / "clone")
    first, clone = world.agent("device"), world.agent("clone")
    assert first.device_id == clone.device_id
    first.give_label(first.predict(ONE_ROW)[0].id, "yes")
    first.flush()
    clone.give_label(clone.predict(ONE_ROW)[0].id, "yes")
    assert clone.flush().pending == 0
    assert len(world.sink.examples) == 1


def test_a_restored_folder_numbers_anew_and_loses_nothing(serving: Any) -> None:
    world, agent = serving
    agent.flush()
    agent.close()
    shutil.copytree(world.folder / "device", world.folder / "backup")
    agent = world.agent("device")
    for prediction in agent.predict({name: np.repeat(array, 3, axis=0) for name, array in ONE_ROW.items()}):
        agent.give_label(prediction.id, "yes", unit="before")
    agent.flush()
    agent.close()
    restored = world.agent("backup")
    restored.give_label(restored.predict(ONE_ROW)[0].id, "no", unit="after")
    restored.flush()
    restored.flush()
    assert [example.unit for _, example in world.sink.examples] == ["before"] * 3 + ["after"]


def test_the_certificate_names_the_device(serving: Any) -> None:
    world, agent = serving
    membership = agent._parts().membership
    assert device_id_of_certificate(membership.certificate.encode()) == agent.device_id
    assert [device.device_id for device in world.registry.devices()] == [agent.device_id]
    assert world.registry.devices()[0].group == "wave-1"
    assert key_to_pem(load_or_create_key(world.folder / "device" / "device.key")).startswith(b"-----BEGIN PRIVATE")


def test_a_second_hub_on_the_port_is_refused(world: Any) -> None:
    from fedloop_core.errors import UsageError

    config = HubConfig(folder=world.folder / "two", fleet_address=world.addresses.fleet)
    hub = Hub(config, world.source, world.sink, DeviceRegistry())
    with pytest.raises(UsageError, match="cannot listen"):
        hub.start()


def test_a_hub_renews_its_own_certificate_while_it_runs(world: Any) -> None:
    import ssl

    from fedloop_core.certificates import certificate_expiry

    now = int(time.time())
    clock = [now - 50 * 86_400]
    hub = Hub(world.config, world.source, world.sink, world.registry, clock=lambda: clock[0])
    host, _, port = hub.start().enrollment.rpartition(":")
    expiries = []
    for moment in (clock[0], clock[0] + 10 * 86_400, now):
        clock[0] = moment
        expiries.append(certificate_expiry(ssl.get_server_certificate((host, int(port))).encode()))
    hub.stop()
    assert expiries[0] == expiries[1] == now + 40 * 86_400
    assert expiries[2] == now + 90 * 86_400
