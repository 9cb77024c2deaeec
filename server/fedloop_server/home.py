"""The coordinator's folder: keys, registry, blobs, releases, and one folder for each run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from fedloop_core.audit import AuditLog, Countersignatures, countersigned
from fedloop_core.backup.sqlite_copy import copy_sqlite
from fedloop_core.durable import write_bytes
from fedloop_core.errors import ContentDamaged, RunError, StorageError
from fedloop_core.keys import SigningKey
from fedloop_server.blobs import BlobStore
from fedloop_server.database import Database
from fedloop_server.manager.queue import RunQueue
from fedloop_server.membership import Authorities, Members, Notices
from fedloop_server.registry import Registry
from fedloop_server.runs.events import Event
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.room import Room
from fedloop_server.runs.state import RunState
from fedloop_server.settings import SETTINGS_FILE, ServerSettings, load_settings, read_file
from fedloop_server.whole_sites.budget import SiteBudget

if TYPE_CHECKING:
    from fedloop_server.whole_sites.book import WholeSites

__all__ = ["CoordinatorHome"]


@dataclass(frozen=True)
class CoordinatorHome:
    """Where everything of one coordinator lies; opening it twice gives two views of the same."""

    folder: Path

    @property
    def settings(self) -> ServerSettings:
        """server.toml as it is now; a simulation's folder has none.

        Raises:
            SettingsInvalid: it cannot be read or has mistakes.
        """
        if not (self.folder / SETTINGS_FILE).exists():
            return ServerSettings.rehearsal()
        return load_settings(self.folder)

    @property
    def keys(self) -> Path:
        """Folder of private keys (0700)."""
        return self.folder / "keys"

    @property
    def front(self) -> Path:
        """Folder of what the front reads."""
        return self.folder / "front"

    @property
    def envelope_key(self) -> SigningKey:
        """The key that sites pin when they join; made at first use."""
        return SigningKey.load_or_create(self.keys / "envelope.pem")

    def blobs(self) -> BlobStore:
        """Content-addressed files."""
        return BlobStore(self.settings.blobs or (self.folder / "blobs").resolve().as_uri())

    def database(self) -> Database:
        """All tables of the coordinator; the caller closes it."""
        if self.settings.database:
            return Database(self.settings.database)
        self.folder.mkdir(parents=True, exist_ok=True)
        file, former = self.folder / "coordinator.db", self.folder / "registry.db"
        if former.exists() and not file.exists():  # as coordinators named it that kept a registry alone
            copy_sqlite(former, file)
        return Database(f"sqlite:///{file.resolve()}")

    def audit(self) -> AuditLog:
        """Who did what at this coordinator."""
        return AuditLog(self.folder / "audit.jsonl")

    def members(self) -> Members:
        """The sites."""
        return Members(self.database())

    def notices(self) -> Notices:
        """Sealed envelopes that wait for sites."""
        return Notices(self.database())

    def authorities(self) -> Authorities:
        """Who signs certificates.

        Raises:
            SettingsInvalid: the institution's own authority cannot be read.
        """
        settings = self.settings
        own = read_file(Path(settings.certificate.authority)) if settings.certificate else b""
        return Authorities(self.keys, settings.name, own=own)

    def queue(self) -> RunQueue:
        """Runs that wait, go on and ended; the caller closes it."""
        return RunQueue(self.database())

    def countersignatures(self) -> Countersignatures:
        """What sites have signed of the audit log."""
        return countersigned(self.audit().path)

    def whole_sites(self, budget: SiteBudget | None = None) -> WholeSites:
        """What runs have spent on whole sites, within server.toml's budget, or a rehearsal's own; the caller closes it."""
        from fedloop_server.whole_sites.book import WholeSites  # accounting: most commands need none

        return WholeSites(self.database(), self.settings.whole_sites if budget is None else budget)

    def registry(self) -> Registry:
        """Versions, artifacts, gates and stages."""
        return Registry(self.database(), self.blobs(), lambda: int(time.time()))

    def run_folder(self, run_id: str) -> Path:
        """Plan, journal and checkpoints of a run."""
        return self.folder / "runs" / run_id

    def store_plan(self, plan: RunPlan) -> None:
        """Stores what is fixed before the run starts.

        Raises:
            RunError: a run of this id has another plan.
        """
        path = self.run_folder(plan.run_id) / "plan.json"
        if path.exists():
            if path.read_bytes() != plan.to_bytes():
                raise RunError(f"run {plan.run_id} exists with another plan.", hint="Choose another run id.")
            return
        write_bytes(path, plan.to_bytes())

    def plan(self, run_id: str) -> RunPlan:
        """The stored plan.

        Raises:
            ContentDamaged: it is not what was stored, or of a later release.
            RunError: there is no such run.
            StorageError: it cannot be read.
        """
        path = self.run_folder(run_id) / "plan.json"
        what = f"run {run_id}: its plan {path} cannot be read"
        try:
            return RunPlan.from_bytes(path.read_bytes())
        except FileNotFoundError as error:
            raise RunError(f"there is no run {run_id} in {self.folder}.") from error
        except OSError as error:
            raise StorageError(f"{what}: {error.strerror}.", hint="Correct rights.") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ContentDamaged(
                f"{what}: {f'{where}: ' if where else ''}{first['msg']}.",
                hint=f"Put it back from a backup, or remove the run: fedloop run remove {run_id}",
            ) from error

    def journal(
        self, run_id: str, observe: Callable[[RunState, Event], None] | None = None, room: Room | None = None
    ) -> RunJournal:
        """The run's journal, replayed.

        Raises:
            ContentDamaged: plan or journal is damaged.
            RunError: there is no such run.
            StorageError: one of them cannot be read.
        """
        return RunJournal(self.run_folder(run_id), durable=self.plan(run_id).durable, observe=observe, room=room)

    def trained_arrays(self, run_id: str) -> dict[str, NDArray[np.generic]]:
        """Weights and scaler at the end of a run: what a later run starts warm from.

        Those of the round before never stand in for them: a version names the weights that it came from.

        Raises:
            ContentDamaged: plan, journal or checkpoint is damaged; the hint names the file to put back.
            RunError: the run has no checkpoint.
            StorageError: one of them cannot be read.
        """
        from fedloop_server.runs.model import model_of  # torch: membership and most commands need none

        plan = self.plan(run_id)
        journal = self.journal(run_id)
        if journal.state.checkpoint is None:
            raise RunError(f"run {run_id} ended before its first checkpoint.")
        return journal.load_checkpoint(journal.state.checkpoint, model_of(plan.task, plan.seed).names)
