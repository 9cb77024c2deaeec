"""Publishing, assigning, revoking; restarts and crashes."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import Metadata

from fedloop_core import durable
from fedloop_core.errors import (
    ArtifactRefused,
    AssignmentRefused,
    FedloopError,
    MetadataRefused,
    ReleaseError,
    StorageError,
    TrustError,
)
from fedloop_core.release import SIGNED_AT_FIELD, Assignment
from fedloop_edge.hub.source import ReleaseSource
from fedloop_server.blobs import BlobStore
from fedloop_server.release import PublishedArtifact, ReleaseRepository, folder

Make = Callable[..., PublishedArtifact]


def _assignment(version: int, counter: int, **other: Any) -> Assignment:
    return Assignment(
        **{"format": 1, "task": "heart", "group": "wave-1", "version": version, "counter": counter, **other}
    )


def test_versions_and_assignments_are_listed(released: ReleaseRepository) -> None:
    assert released.listed_versions("heart") == (1, 2)
    assert released.listed_versions("unknown") == ()
    assert released.current_assignment("heart", "wave-1") == _assignment(2, 2)
    assert released.current_assignment("heart", "wave-2") is None
    assert released.assignments("heart") == (_assignment(2, 2),)
    assert released.assignments("bank") == ()


def test_a_restart_sees_the_same_release(
    released: ReleaseRepository, tmp_path: Path, blobs: BlobStore, clock: Callable[[], int], artifact: Make
) -> None:
    again = ReleaseRepository.open(tmp_path / "release", blobs, clock)
    assert again.revision() == released.revision()
    assert again.current_assignment("heart", "wave-1") == _assignment(2, 2)
    again.publish_version("heart", 3, [artifact("heart", 3)])
    assert again.listed_versions("heart") == (1, 2, 3)
    with pytest.raises(ReleaseError, match="holds a release repository"):
        ReleaseRepository.create(tmp_path / "release", blobs, clock)


@pytest.mark.parametrize(
    ("name", "assignment", "reason"),
    [
        ("equal counter", _assignment(1, 2), "counter"),
        ("lower counter", _assignment(1, 1), "counter"),
        ("unlisted version", _assignment(9, 3), "version"),
        ("unknown task", _assignment(1, 1, task="lungs"), "task"),
        ("another task's version", _assignment(2, 1, task="bank"), "version"),
    ],
)
def test_an_assignment_is_refused(name: str, assignment: Assignment, reason: str, released: ReleaseRepository) -> None:
    before = released.revision()
    with pytest.raises(AssignmentRefused) as caught:
        released.assign(assignment)
    assert caught.value.fields["reason"] == reason
    assert released.revision() == before


def test_a_fleet_goes_back_under_a_higher_counter(released: ReleaseRepository) -> None:
    released.assign(_assignment(1, 3, rollback_of=2))
    assert released.current_assignment("heart", "wave-1") == _assignment(1, 3, rollback_of=2)


def test_an_assigned_version_cannot_be_revoked(released: ReleaseRepository) -> None:
    with pytest.raises(ReleaseError, match="assigned to wave-1"):
        released.revoke_version("heart", 2)
    released.revoke_version("heart", 1)
    assert released.listed_versions("heart") == (2,)
    before = released.revision()
    released.revoke_version("heart", 1)
    assert released.revision() == before
    with pytest.raises(AssignmentRefused):
        released.assign(_assignment(1, 3))


def test_a_version_never_changes(released: ReleaseRepository, artifact: Make) -> None:
    before = released.revision()
    released.publish_version("heart", 2, [artifact("heart", 2)])
    assert released.revision() == before
    with pytest.raises(ReleaseError, match="other files"):
        released.publish_version("heart", 2, [artifact("heart", 2, model=b"another")])


def test_an_artifact_is_what_its_description_says(released: ReleaseRepository, artifact: Make) -> None:
    good = artifact("heart", 3)
    wrong = {
        "another version": artifact("heart", 4),
        "another task": artifact("bank", 3),
        "another kind": PublishedArtifact("onnx-int8", good.description, good.model, good.golden, good.profile),
        "another model": PublishedArtifact(good.kind, good.description, good.model + b"x", good.golden, good.profile),
        "another golden": PublishedArtifact(good.kind, good.description, good.model, b"goldeN", good.profile),
        "no description": PublishedArtifact(good.kind, b"{}", good.model, good.golden, good.profile),
    }
    for files in wrong.values():
        with pytest.raises(ArtifactRefused):
            released.publish_version("heart", 3, [files])
    with pytest.raises(ReleaseError, match="no artifacts"):
        released.publish_version("heart", 3, [])
    with pytest.raises(ReleaseError, match="no task lungs"):
        released.publish_version("lungs", 1, [artifact("lungs", 1)])
    assert released.listed_versions("heart") == (1, 2)


def test_a_task_may_be_called_assignments(repository: ReleaseRepository, artifact: Make) -> None:
    repository.delegate_task("assignments")
    repository.publish_version("assignments", 1, [artifact("assignments", 1)])
    repository.assign(_assignment(1, 1, task="assignments"))
    assert repository.listed_versions("assignments") == (1,)


def test_a_threshold_asks_for_cosigners(repository: ReleaseRepository, artifact: Make) -> None:
    sites = [CryptoSigner.generate_ed25519() for _ in range(3)]
    with pytest.raises(ReleaseError, match="5 of 4"):
        repository.delegate_task("heart", sites, threshold=5)
    repository.delegate_task("heart", sites, threshold=3)
    files = [artifact("heart", 1)]
    stranger = CryptoSigner.generate_ed25519()
    for cosigners in ([], sites[:1], [sites[0], stranger], [sites[0], sites[0]]):
        with pytest.raises(MetadataRefused):
            repository.publish_version("heart", 1, files, cosigners)
    assert repository.listed_versions("heart") == ()
    repository.publish_version("heart", 1, files, sites[1:])
    assert repository.listed_versions("heart") == (1,)


class _PowerCut(Exception):
    pass


@pytest.mark.parametrize("step", ["delegate", "publish", "assign", "revoke", "refresh", "renew"])
def test_a_crash_at_any_write_leaves_the_release_before_it(
    step: str, released: ReleaseRepository, tmp_path: Path, blobs: BlobStore, clock: Callable[[], int], artifact: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    actions: dict[str, Callable[[ReleaseRepository], None]] = {
        "delegate": lambda r: r.delegate_task("lungs"),
        "publish": lambda r: r.publish_version("heart", 3, [artifact("heart", 3)]),
        "assign": lambda r: r.assign(_assignment(1, 3)),
        "revoke": lambda r: r.revoke_version("heart", 1),
        "refresh": lambda r: r.refresh_timestamp(),
        "renew": lambda r: r.renew_offline(),
    }
    before = released.revision()
    write = durable.write_bytes
    crashes = 0
    for allowed in range(20):
        left = allowed

        def failing(path: Path, content: bytes) -> None:
            nonlocal left
            if left == 0:
                raise _PowerCut
            left -= 1
            write(path, content)

        monkeypatch.setattr(folder, "write_bytes", failing)
        survivor = ReleaseRepository.open(tmp_path / "release", blobs, clock)
        try:
            actions[step](survivor)
        except _PowerCut:
            crashes += 1
            assert survivor.revision() == before
            reopened = ReleaseRepository.open(tmp_path / "release", blobs, clock)
            assert reopened.revision() == before
            assert reopened.listed_versions("heart") == (1, 2)
            assert reopened.current_assignment("heart", "wave-1") == _assignment(2, 2)
            continue
        break
    assert crashes >= 3
    assert ReleaseRepository.open(tmp_path / "release", blobs, clock).revision() == before + 1


def test_a_broken_creation_is_completed(
    tmp_path: Path, blobs: BlobStore, clock: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def failing(path: Path, content: bytes) -> None:
            raise _PowerCut

        patch.setattr(folder, "write_bytes", failing)
        with pytest.raises(_PowerCut):
            ReleaseRepository.create(tmp_path / "new", blobs, clock)
    with pytest.raises(StorageError, match="timestamp"):
        ReleaseRepository.open(tmp_path / "new", blobs, clock)
    assert ReleaseRepository.create(tmp_path / "new", blobs, clock).revision() == 1


def test_keys_are_readable_by_their_owner_alone(released: ReleaseRepository, tmp_path: Path, clock: Any) -> None:
    files = sorted((tmp_path / "release" / "keys").rglob("*.pem"))
    names = {f"{file.parent.name}/{file.stem}" for file in files}
    assert names == {
        "offline/root", "offline/targets", "online/snapshot", "online/timestamp", "online/assignments",
        "online/task-heart", "online/task-bank",
    }  # fmt: skip
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    metadata = b"".join(file.read_bytes() for file in (tmp_path / "release" / "metadata").iterdir())
    assert b"PRIVATE" not in metadata
    files[-1].chmod(0o644)
    with pytest.raises(TrustError, match="read by others"):
        released.refresh_timestamp()


def test_publishing_needs_no_offline_key(released: ReleaseRepository, tmp_path: Path, artifact: Make) -> None:
    for role in ("root", "targets"):
        (tmp_path / "release" / "keys" / "offline" / f"{role}.pem").unlink()
    released.publish_version("heart", 3, [artifact("heart", 3)])
    released.assign(_assignment(3, 3))
    released.refresh_timestamp()
    with pytest.raises(StorageError, match="the key of role targets"):
        released.delegate_task("lungs")
    with pytest.raises(StorageError, match="the key of role root"):
        released.renew_offline()


def test_another_key_in_the_file_publishes_nothing(released: ReleaseRepository, tmp_path: Path, artifact: Make) -> None:
    before = released.revision()
    (tmp_path / "release/keys/online/task-heart.pem").write_bytes(CryptoSigner.generate_ed25519().private_bytes)
    with pytest.raises(MetadataRefused, match="task-heart"):
        released.publish_version("heart", 3, [artifact("heart", 3)])
    assert released.revision() == before


@pytest.mark.parametrize("name", ["timestamp.json", "snapshot", "targets", "task-heart", "assignments", "root"])
def test_altered_files_are_not_opened(
    name: str, released: ReleaseRepository, tmp_path: Path, blobs: BlobStore, clock: Callable[[], int]
) -> None:
    metadata = tmp_path / "release" / "metadata"
    files = [metadata / name] if name.endswith(".json") else list(metadata.glob(f"*.{name}.json"))
    for file in files:
        file.write_bytes(file.read_bytes().replace(b'"version":', b'"versioN":', 1))
    with pytest.raises(FedloopError):
        ReleaseRepository.open(tmp_path / "release", blobs, clock)


def test_every_version_of_every_role_stays_readable(released: ReleaseRepository) -> None:
    released.renew_offline()
    for role in ("root", "targets", "snapshot", "timestamp", "task-heart", "assignments"):
        newest = Metadata.from_bytes(released.metadata(role, 0) or b"").signed.version
        assert newest >= 2
        for version in range(1, newest + 1):
            content = released.metadata(role, version)
            assert content is not None
            assert Metadata.from_bytes(content).signed.version == version
        assert released.metadata(role, newest + 1) is None
    for role, version in (("unknown", 0), ("../keys/online/timestamp", 1), ("", 0), ("timestamp", -1)):
        assert released.metadata(role, version) is None


def test_blobs_are_served_by_digest_and_offset(released: ReleaseRepository, artifact: Make) -> None:
    from fedloop_core.artifact import FileReference

    model = artifact("heart", 1).model
    digest = bytes.fromhex(FileReference.of(model).sha256)
    assert released.blob_length(digest) == len(model)
    assert released.read_blob(digest, 10, 20) == model[10:30]
    assert released.read_blob(digest, len(model) - 3, 100) == model[-3:]
    assert released.blob_length(bytes(32)) is None
    assert released.blob_length(b"short") is None
    with pytest.raises(StorageError):
        released.read_blob(bytes(32), 0, 1)


def test_a_watcher_wakes_with_the_publication(released: ReleaseRepository, artifact: Make) -> None:
    known = released.revision()
    assert released.wait_for_revision(known, 0.01) == known
    assert released.wait_for_revision(known - 1, 10) == known
    seen: list[int] = []
    watcher = threading.Thread(target=lambda: seen.append(released.wait_for_revision(known, 10)))
    watcher.start()
    released.publish_version("heart", 3, [artifact("heart", 3)])
    watcher.join(10)
    assert seen == [known + 1]


def test_many_threads_lose_no_assignment(released: ReleaseRepository) -> None:
    before = released.revision()
    threads = [
        threading.Thread(target=released.assign, args=(_assignment(1, 1, group=f"group-{i}"),)) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(released.assignments("heart")) == 9
    assert released.revision() == before + 8


def test_roles_are_renewed_before_they_expire(released: ReleaseRepository, clock: Any) -> None:
    def version(role: str) -> int:
        return int(Metadata.from_bytes(released.metadata(role, 0) or b"").signed.version)

    before = {role: version(role) for role in ("assignments", "task-heart", "targets", "snapshot")}
    clock.now += 200 * 86400
    released.refresh_timestamp()
    after = {role: version(role) for role in before}
    assert after == {role: n + (role != "targets") for role, n in before.items()}
    signed = Metadata.from_bytes(released.metadata("timestamp", 0) or b"").signed
    assert signed.unrecognized_fields[SIGNED_AT_FIELD] == clock.now
    assert signed.expires.timestamp() == clock.now + 86400


def test_it_is_a_source_for_hubs(released: ReleaseRepository) -> None:
    source: ReleaseSource = released  # mypy checks the protocol
    assert source.metadata("root", 0) == source.trusted_root()


@pytest.fixture
def folder_of_many_roots(released: ReleaseRepository, tmp_path: Path) -> Path:
    released.renew_offline()
    released.renew_offline()
    return tmp_path / "release"


def test_any_damage_to_the_folder_is_noticed(
    folder_of_many_roots: Path, blobs: BlobStore, clock: Callable[[], int]
) -> None:
    random = Random(7)  # noqa: S311 - the same damage in every run
    current = ReleaseRepository.open(folder_of_many_roots, blobs, clock)
    roles = ("targets", "snapshot", "task-heart", "assignments", "root")
    versions = {role: Metadata.from_bytes(current.metadata(role, 0) or b"").signed.version for role in roles}
    names = ["timestamp.json", "1.root.json", "2.root.json", *(f"{versions[role]}.{role}.json" for role in roles)]
    for name in names * 12:
        file = folder_of_many_roots / "metadata" / name
        whole = file.read_bytes()
        altered = bytearray(whole)
        altered[random.randrange(len(whole))] ^= 0x80  # never another spelling of the same hex digit
        file.write_bytes(altered if random.random() < 0.7 else whole[: random.randrange(len(whole))])
        with pytest.raises(FedloopError):
            ReleaseRepository.open(folder_of_many_roots, blobs, clock)
        file.write_bytes(whole)


def test_a_root_that_does_not_follow_is_refused(
    folder_of_many_roots: Path, blobs: BlobStore, clock: Callable[[], int], tmp_path: Path
) -> None:
    ReleaseRepository.create(tmp_path / "other", blobs, clock).renew_offline()
    foreign = (tmp_path / "other" / "metadata" / "2.root.json").read_bytes()
    (folder_of_many_roots / "metadata" / "2.root.json").write_bytes(foreign)
    with pytest.raises(MetadataRefused, match="root 2"):
        ReleaseRepository.open(folder_of_many_roots, blobs, clock)
