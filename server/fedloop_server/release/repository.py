"""The release repository: signs versions and assignments as TUF metadata and serves them to hubs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from securesystemslib.signer import CryptoSigner, Signer
from tuf.api.metadata import DelegatedRole, Delegations, Root, TargetFile, Targets

from fedloop_core.errors import AssignmentRefused, ReleaseError
from fedloop_core.release import (
    ASSIGNMENTS_PATTERN,
    ASSIGNMENTS_ROLE,
    SITE_ROLE_PREFIX,
    Assignment,
    artifact_path,
    parse_artifact_path,
    site_artifact_path,
    site_pattern,
    site_role,
    task_pattern,
    task_role,
)
from fedloop_server.blobs import BlobStore
from fedloop_server.release.artifact import PublishedArtifact
from fedloop_server.release.folder import MetadataFolder
from fedloop_server.release.keys import KeyFolder
from fedloop_server.release.metadata import Lifetimes, Moment, deserialize, first, publish, renew, sign
from fedloop_server.release.served import ServedRelease

__all__ = ["ReleaseRepository"]


class ReleaseRepository(ServedRelease):
    """A TUF repository over a folder (``metadata/``, ``keys/``) and a blob store; one process writes, threads may share it.

    ``root`` and ``targets`` have offline keys; ``targets`` delegates ``<task>/*`` to ``task-<task>``, ``site/<site>/*`` to
    ``site-<site>``, whose key is the site's and not here, and ``assignments/*`` to ``assignments``. A publication is whole: its files are written in the order of trust, bottom up, and the timestamp
    last, so that a crash in between leaves the release before it. Every version of every role is kept.

    ``clock`` gives seconds since 1970; devices compare expiry with
    their own clock, so it must be the real time wherever devices use theirs.
    """

    def __init__(
        self, folder: Path, blobs: BlobStore, clock: Callable[[], int], moment: Moment, lifetimes: Lifetimes
    ) -> None:
        """For ``create`` and ``open``."""
        super().__init__(MetadataFolder(folder / "metadata"), blobs, moment)
        self._keys = KeyFolder(folder / "keys")
        self._clock = clock
        self._lifetimes = lifetimes
        self._writing = threading.RLock()

    @classmethod
    def create(
        cls, folder: Path, blobs: BlobStore, clock: Callable[[], int], lifetimes: Lifetimes | None = None
    ) -> ReleaseRepository:
        """A new repository with new keys; one whose creation was broken off is completed.

        Raises:
            ReleaseError: there is one in the folder.
            StorageError: the folder cannot be written.
        """
        files = MetadataFolder(folder / "metadata")
        if files.exists:
            raise ReleaseError(f"{folder} holds a release repository.", hint="Open it, or name another folder.")
        lifetimes = lifetimes or Lifetimes()
        keys = KeyFolder(folder / "keys")
        now = clock()
        root = Root(consistent_snapshot=True)
        for role in ("root", "targets", "snapshot", "timestamp"):
            root.add_key(keys.create(role).public_key, role)
        targets = Targets(delegations=Delegations(keys={}, roles={}))
        _delegate(targets, ASSIGNMENTS_ROLE, ASSIGNMENTS_PATTERN, [keys.create(ASSIGNMENTS_ROLE)], 1)
        signed: dict[str, bytes] = {}
        for role, content in (("root", root), ("targets", targets), (ASSIGNMENTS_ROLE, Targets())):
            renew(_unsigned(content), role, now, lifetimes)
            signed[role] = sign(content, role, [keys.signer(role)])
        publication = first(
            signed["root"],
            signed["targets"],
            {ASSIGNMENTS_ROLE: signed[ASSIGNMENTS_ROLE]},
            keys.signer,
            now,
            lifetimes,
        )
        files.write(publication)
        return cls(folder, blobs, clock, publication.moment, lifetimes)

    @classmethod
    def open(
        cls, folder: Path, blobs: BlobStore, clock: Callable[[], int], lifetimes: Lifetimes | None = None
    ) -> ReleaseRepository:
        """The repository in a folder.

        Raises:
            StorageError: files are missing.
            MetadataRefused: files were altered.
        """
        return cls(folder, blobs, clock, MetadataFolder(folder / "metadata").load(), lifetimes or Lifetimes())

    def delegate_task(self, task: str, cosigners: Sequence[Signer] = (), threshold: int = 1) -> None:
        """Lets ``task-<task>`` sign the task's versions, with an online key of its own and those of the cosigners.

        Needs the offline key of ``targets``. A task that is delegated stays as it is.

        Raises:
            UsageError: the name is not that of a task.
            ReleaseError: the threshold cannot be met by these keys.
            StorageError: the offline key is not there, or the disk fails.
        """
        role = task_role(task)
        with self._writing:
            if role in self._moment.delegated:
                return
            if not 1 <= threshold <= 1 + len(cosigners):
                raise ReleaseError(f"task {task}: {threshold} of {1 + len(cosigners)} signatures cannot be asked for.")
            signers = [self._keys.create(role), *cosigners]
            targets = self._moment.role("targets").signed
            _delegate(targets, role, task_pattern(task), signers, threshold)
            self._publish({role: _unsigned(Targets()), "targets": targets}, {role: signers})

    def delegate_site(self, site: str, signer: CryptoSigner) -> None:
        """Lets a site sign artifacts for its own devices, with its own key alone. One that is delegated stays as it is.

        Needs the offline key of ``targets``.

        Raises:
            UsageError: the name is not that of a site.
            StorageError: the offline key is not there, or the disk fails.
        """
        role = site_role(site)
        with self._writing:
            if role in self._moment.delegated:
                return
            targets = self._moment.role("targets").signed
            _delegate(targets, role, site_pattern(site), [signer], 1)
            self._publish({role: _unsigned(Targets()), "targets": targets}, {role: [signer]})

    def publish_for_site(
        self, site: str, task: str, version: int, artifacts: Sequence[PublishedArtifact], signer: Signer
    ) -> None:
        """Lists a version of a site's own, signed by the site, for its devices alone.

        Raises:
            ArtifactRefused: an artifact is not what its description says.
            MetadataRefused: the signer is not the site's.
            ReleaseError: the site is not delegated.
            StorageError: the disk fails.
        """
        role = site_role(site)
        files: dict[str, bytes] = {}
        for artifact in artifacts:
            artifact.checked(task, version)
            for name, content in artifact.files():
                files[site_artifact_path(site, task, version, artifact.kind, name)] = content
        with self._writing:
            if role not in self._moment.delegated:
                raise ReleaseError(f"site {site} is not delegated.", hint="Delegate it first, with its own key.")
            for content in files.values():
                self._blobs.put(content)
            listed = self._moment.role(role).signed
            listed.targets.update(
                {path: TargetFile.from_data(path, content, ["sha256"]) for path, content in files.items()}
            )
            self._publish({role: listed}, {role: [signer]})

    def publish_version(
        self,
        task: str,
        version: int,
        artifacts: Sequence[PublishedArtifact],
        cosigners: Sequence[Signer] = (),
    ) -> None:
        """Stores the artifacts of a version and lists them in the signed release. Listed is not yet assigned.

        Publishing the same files again changes nothing.

        Raises:
            ArtifactRefused: an artifact is not what its description says.
            MetadataRefused: fewer signers than the task's threshold.
            ReleaseError: the task is not delegated, the version is listed with other files, or has no artifacts.
            StorageError: the disk fails.
        """
        if not artifacts:
            raise ReleaseError(f"task {task} version {version} has no artifacts to publish.")
        for artifact in artifacts:
            artifact.checked(task, version)
        files = {
            artifact_path(task, version, artifact.kind, name): content
            for artifact in artifacts
            for name, content in artifact.files()
        }
        with self._writing:
            listed = self._role_of(task)
            new = {path: TargetFile.from_data(path, content, ["sha256"]) for path, content in files.items()}
            old = {path: listed.targets[path] for path in _paths_of(listed, version)}
            if old == new:
                return
            if old:
                raise ReleaseError(
                    f"task {task} version {version} is published with other files.",
                    hint="A version never changes: publish a new one.",
                )
            for content in files.values():
                self._blobs.put(content)
            listed.targets.update(new)
            self._publish({task_role(task): listed}, {task_role(task): [*self._task_signer(task), *cosigners]})

    def revoke_version(self, task: str, version: int, cosigners: Sequence[Signer] = ()) -> None:
        """Takes a version out of the release; its blobs stay. One that is not listed is left so.

        Raises:
            ReleaseError: the task is not delegated or a group is assigned the version.
            MetadataRefused: fewer signers than the task's threshold.
        """
        with self._writing:
            listed = self._role_of(task)
            groups = sorted(a.group for a in self.assignments(task) if a.version == version)
            if groups:
                raise ReleaseError(
                    f"task {task} version {version} is assigned to {', '.join(groups)}.",
                    hint="Assign another version to these groups first.",
                )
            paths = _paths_of(listed, version)
            if not paths:
                return
            for path in paths:
                del listed.targets[path]
            self._publish({task_role(task): listed}, {task_role(task): [*self._task_signer(task), *cosigners]})

    def assign(self, assignment: Assignment) -> None:
        """Assigns a listed version to a group of devices.

        Raises:
            AssignmentRefused: unknown task, version not listed, or a counter that does not rise.
            StorageError: the disk fails.
        """
        task, group = assignment.task, assignment.group
        with self._writing:
            if task_role(task) not in self._moment.delegated:
                raise AssignmentRefused(f"no task {task} is released.", hint="Delegate it first.", reason="task")
            if assignment.version not in self.listed_versions(task):
                raise AssignmentRefused(
                    f"task {task} version {assignment.version} is not listed in the release.",
                    hint="Publish it first.",
                    reason="version",
                )
            current = self.current_assignment(task, group)
            if current is not None and assignment.counter <= current.counter:
                raise AssignmentRefused(
                    f"task {task} group {group}: counter {assignment.counter} is not above {current.counter}.",
                    hint="Every assignment of a group, also one that goes back, needs a higher counter.",
                    reason="counter",
                )
            content = assignment.to_bytes()
            self._blobs.put(content)
            listed = self._moment.role(ASSIGNMENTS_ROLE).signed
            listed.targets[assignment.path] = TargetFile.from_data(assignment.path, content, ["sha256"])
            self._publish({ASSIGNMENTS_ROLE: listed}, {})

    def refresh_timestamp(self) -> None:
        """Signs snapshot and timestamp anew; also roles with one online signer in the second half of their lifetime.

        Call it more often than the timestamp's lifetime, by default daily.

        Raises:
            StorageError: a key is not there or the disk fails.
        """
        with self._writing:
            aging: dict[str, Targets] = {}
            delegations = self._moment.role("targets").signed.delegations
            for role, delegated in (delegations.roles if delegations and delegations.roles else {}).items():
                signed = self._moment.role(role).signed
                left = signed.expires.timestamp() - self._clock()
                ours = not role.startswith(SITE_ROLE_PREFIX)  # a site renews its own
                if ours and delegated.threshold == 1 and left < self._lifetimes.of(role).total_seconds() / 2:
                    aging[role] = signed
            self._publish(aging, {})

    def renew_offline(self) -> None:
        """Signs ``root`` and ``targets`` anew with their offline keys; call it before they expire, by default in a year.

        Raises:
            StorageError: an offline key is not there or the disk fails.
        """
        with self._writing:
            root = deserialize(self._moment.root, Root, "root").signed
            self._publish({"root": root, "targets": self._moment.role("targets").signed}, {})

    def _publish(self, changed: Mapping[str, Root | Targets], signers: Mapping[str, Sequence[Signer]]) -> None:
        now = self._clock()
        signed: dict[str, bytes] = {}
        for role, content in changed.items():
            renew(content, role, now, self._lifetimes)
            signed[role] = sign(content, role, signers.get(role) or [self._keys.signer(role)])
        publication = publish(self._moment, signed, self._keys.signer, now, self._lifetimes)
        self._files.write(publication)
        self._become(publication.moment)

    def _role_of(self, task: str) -> Targets:
        role = task_role(task)
        if role not in self._moment.delegated:
            raise ReleaseError(
                f"no task {task} is released.", hint="Delegate it first; that needs the offline key of targets."
            )
        return self._moment.role(role).signed

    def _task_signer(self, task: str) -> list[Signer]:
        return [self._keys.signer(task_role(task))]


def _delegate(targets: Targets, role: str, pattern: str, signers: Sequence[Signer], threshold: int) -> None:
    delegations = targets.delegations or Delegations(keys={}, roles={})
    roles = dict(delegations.roles or {})
    roles[role] = DelegatedRole(role, [], threshold, terminating=True, paths=[pattern])
    targets.delegations = Delegations(keys=delegations.keys, roles=roles)
    for signer in signers:
        targets.add_key(signer.public_key, role)


def _unsigned(content: Root | Targets) -> Root | Targets:
    content.version = 0  # the first signing makes it 1
    return content


def _paths_of(listed: Targets, version: int) -> list[str]:
    return [path for path in listed.targets if parse_artifact_path(path).version == version]
