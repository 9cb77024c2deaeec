"""Stock python-tuf over the repository: what it accepts, and a table of attacks that it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner, Signer
from tuf.api.exceptions import (
    BadVersionNumberError,
    DownloadHTTPError,
    DownloadLengthMismatchError,
    ExpiredMetadataError,
    LengthOrHashMismatchError,
    RepositoryError,
    UnsignedMetadataError,
)
from tuf.api.metadata import Metadata, MetaFile, TargetFile
from tuf.ngclient import FetcherInterface, Updater

from fedloop_core.errors import MetadataRefused, ReleaseError
from fedloop_core.release import Assignment, assignment_path, site_artifact_path
from fedloop_server.release import ReleaseRepository
from fedloop_server.release.keys import KeyFolder

MODEL = "heart/2/onnx-fp32/model.onnx"
WAVE = assignment_path("heart", "wave-1")


@dataclass
class Mirror(FetcherInterface):
    """Serves a repository; ``replaced`` holds what an attacker on the way gives instead, by role or (role, version)."""

    source: ReleaseRepository
    replaced: dict[str, bytes] = field(default_factory=dict)
    alter_blob: Callable[[bytes], bytes] = bytes

    def _fetch(self, url: str) -> Iterator[bytes]:
        area, _, name = url.partition("/")
        if area == "targets":
            digest = bytes.fromhex(name.rpartition("/")[2].partition(".")[0])
            length = self.source.blob_length(digest)
            if length is None:
                raise DownloadHTTPError("no such blob", 404)
            return iter([self.alter_blob(self.source.read_blob(digest, 0, length))])
        first, _, rest = name.removesuffix(".json").partition(".")
        role, version = (rest, int(first)) if rest else (first, 0)
        content = self.source.metadata(role, version)
        if role in self.replaced and (role != "root" or content is None):
            content = self.replaced[role]
        if content is None:
            raise DownloadHTTPError("no such metadata", 404)
        return iter([content])


@dataclass
class Device:
    """A metadata folder that outlives the updaters, as on a device."""

    folder: Path
    root: bytes

    def updater(self, mirror: Mirror) -> Updater:
        self.folder.mkdir(exist_ok=True)
        return Updater(str(self.folder), "metadata/", str(self.folder), "targets/", fetcher=mirror, bootstrap=self.root)


@pytest.fixture
def device(tmp_path: Path, released: ReleaseRepository) -> Device:
    return Device(tmp_path / "device", released.trusted_root())


def _fetch(updater: Updater, path: str) -> bytes | None:
    info = updater.get_targetinfo(path)
    return None if info is None else Path(updater.download_target(info)).read_bytes()


def test_a_release_is_verified_end_to_end(released: ReleaseRepository, device: Device, artifact: Any) -> None:
    updater = device.updater(Mirror(released))
    files = dict(artifact("heart", 2).files())
    for name, content in files.items():
        assert _fetch(updater, f"heart/2/onnx-fp32/{name}") == content
    assert Assignment.from_bytes(_fetch(updater, WAVE) or b"").version == 2
    assert _fetch(updater, "heart/3/onnx-fp32/model.onnx") is None
    released.assign(Assignment(format=1, task="heart", group="wave-1", version=1, counter=3, rollback_of=2))
    assert Assignment.from_bytes(_fetch(device.updater(Mirror(released)), WAVE) or b"").version == 1


def test_a_device_comes_back_after_many_roots(released: ReleaseRepository, device: Device) -> None:
    device.updater(Mirror(released)).refresh()
    for _ in range(3):
        released.renew_offline()
    updater = device.updater(Mirror(released))
    assert _fetch(updater, MODEL) is not None
    assert Metadata.from_bytes((device.folder / "root.json").read_bytes()).signed.version == 4


def test_a_revoked_version_is_gone_for_devices(released: ReleaseRepository, device: Device) -> None:
    assert _fetch(device.updater(Mirror(released)), "heart/1/onnx-fp32/model.onnx") is not None
    released.revoke_version("heart", 1)
    assert _fetch(device.updater(Mirror(released)), "heart/1/onnx-fp32/model.onnx") is None


def test_a_site_signs_for_its_own_devices_and_nobody_signs_for_it(
    released: ReleaseRepository, device: Device, artifact: Any, clock: Any
) -> None:
    cleveland, va = CryptoSigner.generate_ed25519(), CryptoSigner.generate_ed25519()
    released.delegate_site("cleveland", cleveland)
    released.delegate_site("va", va)
    path = site_artifact_path("cleveland", "heart", 7, "onnx-fp32", "model.onnx")
    for stranger in (va, CryptoSigner.generate_ed25519()):
        with pytest.raises(MetadataRefused):
            released.publish_for_site("cleveland", "heart", 7, [artifact("heart", 7)], stranger)
    with pytest.raises(ReleaseError, match="not delegated"):
        released.publish_for_site("zurich", "heart", 7, [artifact("heart", 7)], va)
    assert _fetch(device.updater(Mirror(released)), path) is None
    released.publish_for_site("cleveland", "heart", 7, [artifact("heart", 7)], cleveland)
    assert _fetch(device.updater(Mirror(released)), path) == artifact("heart", 7).model
    assert released.listed_versions("heart") == (1, 2)
    clock.now += 200 * 86_400
    released.refresh_timestamp()  # renews what the coordinator may, and leaves the site's role to the site


@dataclass
class World:
    repository: ReleaseRepository
    mirror: Mirror
    device: Device
    keys: KeyFolder
    clock: Any
    open: Callable[..., ReleaseRepository]

    def current(self, role: str) -> bytes:
        return self.repository.metadata(role, 0) or b""

    def forge(self, role: str, signer: Signer, change: Callable[[Any], None]) -> bytes:
        """The role's metadata, changed, one version up and signed by a key that the attacker holds."""
        metadata: Metadata[Any] = Metadata.from_bytes(self.current(role))
        metadata.signed.version += 1
        change(metadata.signed)
        metadata.sign(signer)
        return metadata.to_bytes()

    def pin(self, role: str, content: bytes) -> None:
        """Serves forged metadata below, pinned by snapshot and timestamp as if the online keys were stolen too."""

        def in_snapshot(signed: Any) -> None:
            signed.meta[f"{role}.json"] = MetaFile.from_data(
                Metadata.from_bytes(content).signed.version, content, ["sha256"]
            )

        self.mirror.replaced[role] = content
        self.pin_snapshot(self.forge("snapshot", self.keys.signer("snapshot"), in_snapshot))

    def pin_snapshot(self, snapshot: bytes) -> None:
        """Serves a forged snapshot, pinned by the timestamp as if its key was stolen."""

        def in_timestamp(signed: Any) -> None:
            signed.snapshot_meta = MetaFile.from_data(
                Metadata.from_bytes(snapshot).signed.version, snapshot, ["sha256"]
            )

        timestamp = self.forge("timestamp", self.keys.signer("timestamp"), in_timestamp)
        self.mirror.replaced |= {"snapshot": snapshot, "timestamp": timestamp}


@pytest.fixture
def world(released: ReleaseRepository, device: Device, tmp_path: Path, clock: Any, blobs: Any) -> World:
    def reopen() -> ReleaseRepository:
        return ReleaseRepository.open(tmp_path / "release", blobs, clock)

    return World(released, Mirror(released), device, KeyFolder(tmp_path / "release" / "keys"), clock, reopen)


def _flip(role: str) -> Callable[[World], None]:
    def attack(world: World) -> None:
        content = bytearray(world.current(role))
        content[content.index(b'"expires":"20') + 13] ^= 1
        world.mirror.replaced[role] = bytes(content)

    return attack


def _wrong_key(role: str) -> Callable[[World], None]:
    def attack(world: World) -> None:
        forged = world.forge(role, CryptoSigner.generate_ed25519(), lambda signed: None)
        match role:
            case "timestamp" | "root":
                world.mirror.replaced[role] = forged
            case "snapshot":
                world.pin_snapshot(forged)
            case _:
                world.pin(role, forged)

    return attack


def _unsigned(world: World) -> None:
    document = json.loads(world.current("timestamp"))
    document["signatures"] = []
    world.mirror.replaced["timestamp"] = json.dumps(document).encode()


def _timestamp_rolled_back(world: World) -> None:
    world.device.updater(world.mirror).refresh()
    world.mirror.replaced["timestamp"] = world.repository.metadata("timestamp", 3) or b""


def _snapshot_of_another_moment(world: World) -> None:
    version = Metadata.from_bytes(world.current("snapshot")).signed.version
    world.mirror.replaced["snapshot"] = world.repository.metadata("snapshot", version - 1) or b""


def _task_of_another_moment(world: World) -> None:
    version = Metadata.from_bytes(world.current("task-heart")).signed.version
    world.mirror.replaced["task-heart"] = world.repository.metadata("task-heart", version - 1) or b""


def _snapshot_hides_a_role(world: World) -> None:
    """A stolen snapshot key takes the task's role out of the snapshot."""
    world.device.updater(world.mirror).get_targetinfo(MODEL)

    def hide(signed: Any) -> None:
        del signed.meta["task-heart.json"]

    world.pin_snapshot(world.forge("snapshot", world.keys.signer("snapshot"), hide))


def _role_rolled_back_by_stolen_online_keys(world: World) -> None:
    world.device.updater(world.mirror).get_targetinfo(MODEL)
    world.pin("task-heart", world.repository.metadata("task-heart", 2) or b"")


def _expired(world: World) -> None:
    world.clock.now -= 2 * 86400
    world.open().refresh_timestamp()
    world.mirror.source = world.open()


def _altered_blob(world: World) -> None:
    world.mirror.alter_blob = lambda content: bytes([content[0] ^ 1]) + content[1:]


def _endless_blob(world: World) -> None:
    world.mirror.alter_blob = lambda content: content + b"\0"


def _lists(role: str, path: str) -> Callable[[World], None]:
    """The role's own, right key signs a target that is not the role's to sign."""

    def attack(world: World) -> None:
        def change(signed: Any) -> None:
            signed.targets[path] = TargetFile.from_data(path, b"model heart 1 onnx-fp32" * 50, ["sha256"])

        world.pin(role, world.forge(role, world.keys.signer(role), change))

    return attack


REFUSED_BY_ERROR = [
    ("a bit of timestamp flipped", _flip("timestamp"), MODEL, UnsignedMetadataError),
    *[(f"a bit of {role} flipped", _flip(role), MODEL, LengthOrHashMismatchError)
      for role in ("snapshot", "targets", "task-heart")],
    ("a bit of assignments flipped", _flip("assignments"), WAVE, LengthOrHashMismatchError),
    *[(f"{role} signed by a wrong key", _wrong_key(role), MODEL, UnsignedMetadataError)
      for role in ("root", "timestamp", "snapshot", "targets", "task-heart")],
    ("assignments signed by a wrong key", _wrong_key("assignments"), WAVE, UnsignedMetadataError),
    ("timestamp without a signature", _unsigned, MODEL, UnsignedMetadataError),
    ("timestamp rolled back", _timestamp_rolled_back, MODEL, BadVersionNumberError),
    ("snapshot of another moment", _snapshot_of_another_moment, MODEL, LengthOrHashMismatchError),
    ("task's role of another moment", _task_of_another_moment, MODEL, LengthOrHashMismatchError),
    ("task's role hidden by stolen online keys", _snapshot_hides_a_role, MODEL, RepositoryError),
    ("task's role rolled back by stolen online keys", _role_rolled_back_by_stolen_online_keys, MODEL,
     BadVersionNumberError),
    ("expired timestamp", _expired, MODEL, ExpiredMetadataError),
    ("content of the model altered", _altered_blob, MODEL, LengthOrHashMismatchError),
    ("model longer than signed", _endless_blob, MODEL, DownloadLengthMismatchError),
    ("content of the assignment altered", _altered_blob, WAVE, LengthOrHashMismatchError),
]  # fmt: skip

SITES_MODEL = site_artifact_path("cleveland", "heart", 1, "onnx-fp32", "model.onnx")
NOT_FOUND = [
    ("task's role lists a site's model", _lists("task-heart", SITES_MODEL), SITES_MODEL),
    ("assignments role lists a model", _lists("assignments", "heart/7/onnx-fp32/model.onnx"), "heart/7/onnx-fp32/model.onnx"),
    ("task's role lists another task's model", _lists("task-bank", "heart/7/onnx-fp32/model.onnx"), "heart/7/onnx-fp32/model.onnx"),
    ("task's role lists an assignment", _lists("task-heart", assignment_path("heart", "wave-9")), assignment_path("heart", "wave-9")),
    ("task's role lists deeper than its files", _lists("task-heart", "heart/2/onnx-fp32/x/model.onnx"), "heart/2/onnx-fp32/x/model.onnx"),
    ("unlisted version", lambda world: None, "heart/9/onnx-fp32/model.onnx"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "attack", "path", "error"), REFUSED_BY_ERROR, ids=[row[0] for row in REFUSED_BY_ERROR]
)
def test_an_attack_is_refused(
    name: str, attack: Callable[[World], None], path: str, error: type[Exception], world: World
) -> None:
    attack(world)
    with pytest.raises(error):
        _fetch(world.device.updater(world.mirror), path)


@pytest.mark.parametrize(("name", "attack", "path"), NOT_FOUND, ids=[row[0] for row in NOT_FOUND])
def test_a_target_outside_its_role_is_not_found(
    name: str, attack: Callable[[World], None], path: str, world: World
) -> None:
    attack(world)
    updater = world.device.updater(world.mirror)
    assert updater.get_targetinfo(path) is None
    assert updater.get_targetinfo(MODEL) is not None
