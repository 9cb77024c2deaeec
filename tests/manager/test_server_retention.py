"""What a coordinator deletes by age: what must stay stays, and each deletion is told."""

from __future__ import annotations

import json
import math
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedloop_core import cli
from fedloop_core.audit import AuditAction
from fedloop_core.errors import RunError, SettingsInvalid
from fedloop_core.task import Task
from fedloop_server.app import _model
from fedloop_server.founding import Wishes, found
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.retention import CoordinatorRetention, KeptWeights, due_weights
from fedloop_server.manager.state import Status, Wish
from fedloop_server.manager.stores import coordinator_stores
from fedloop_server.registry import Stage
from fedloop_server.runs.events import AttemptStarted, RunFinished, RunStopped
from fedloop_server.runs.plan import RunPlan
from fedloop_server.runs.statement import lineage_of, privacy_of
from fedloop_server.runs.thinning import nothing_is_thinned
from fedloop_server.service.process import Service
from fedloop_server.settings import RetentionSettings

DAY = 86_400
NOW = 1_800_000_000.0


def wards() -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "wards",
            "features": ({"kind": "numeric", "name": "a", "range": (-4.0, 4.0)},),
            "label": {"kind": "classes", "name": "outcome", "classes": ("no", "yes")},
            "model": {"kind": "logistic"},
            "privacy": {"epsilon": math.inf},
        }
    )


def run(
    home: CoordinatorHome,
    name: str,
    status: Status,
    ended: float,
    *,
    version: bool = False,
    warm_from: int | None = None,
) -> None:
    plan = RunPlan(
        run_id=name, task=wards(), seed=1, private=False, expected_sites=1, durable=False, warm_from=warm_from
    )
    home.store_plan(plan)
    journal = home.journal(name)
    journal.record(AttemptStarted(attempt=1, unix=ended - 60))
    if status.over:
        journal.record((RunFinished if status is Status.FINISHED else RunStopped)(unix=ended))
    (home.run_folder(name) / "round-1.safetensors").write_bytes(bytes(1000))
    with closing(home.registry()) as registry:
        registry.register_task(plan.task)
        registry.open_run(name, plan.task.digest.hex())
        if version:
            registry.register_version(name, privacy_of(plan, journal.state), lineage_of(plan, journal.state))
    with closing(home.queue()) as queue:
        entry = queue.submit(plan)
        job = entry.job.model_copy(update={"status": status, "ended_unix": ended if status.over else None})
        queue.keep([entry], [entry.__class__(entry.number, job, Wish.NONE)])


def promote(home: CoordinatorHome, version: int, *stages: Stage) -> None:
    with closing(home.registry()) as registry:
        for stage in stages:
            registry.promote("wards", version, stage)


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    """Four versions of long ago, a run that made none, a young one, and one that still goes on."""
    found(tmp_path / "c", Wishes("wards", ("localhost",), "127.0.0.1"), actor="operator:me")
    home = CoordinatorHome(tmp_path / "c")
    for number in range(1, 5):
        run(home, f"made-{number}", Status.FINISHED, NOW - (500 - number) * DAY, version=True)
    run(home, "old", Status.STOPPED, NOW - 400 * DAY)
    run(home, "young", Status.STOPPED, NOW - 10 * DAY)
    run(home, "going", Status.RUNNING, NOW, warm_from=2)
    promote(home, 3, Stage.CANARY, Stage.PRODUCTION)
    return home


def sweep(home: CoordinatorHome) -> tuple[list[str], list[str]]:
    with closing(home.queue()) as queue:
        went = CoordinatorRetention(home, queue, home.audit(), lambda: NOW).once()
    return [run.run_id for run in went.runs], [one.run_id for one in went.weights]


def weights(home: CoordinatorHome) -> set[str]:
    return {path.parent.name for path in (home.folder / "runs").glob("*/round-1.safetensors")}


def test_only_what_nobody_needs_goes_and_the_version_stays(home: CoordinatorHome) -> None:
    # 2 is about to be started from, 3 is in production, 4 is the newest
    assert sweep(home) == (["old"], ["made-1"])
    assert weights(home) == {"made-2", "made-3", "made-4", "young", "going"}
    assert not home.run_folder("old").exists()
    assert {path.name for path in home.run_folder("made-1").iterdir()} >= {"plan.json", "journal.jsonl"}
    with closing(home.registry()) as registry:
        assert registry.version("wards", 1).run_id == "made-1"
    noted = [(e.actor, e.action, e.subject) for e in home.audit().entries()][-2:]
    assert noted == [
        ("retention", AuditAction.RUN_REMOVED, "old"),
        ("retention", AuditAction.DATA_DELETED, "made-1"),
    ]
    before = home.audit().head()
    assert sweep(home) == ([], [])
    assert home.audit().head() == before


def test_no_run_starts_from_weights_that_went_and_says_why(
    home: CoordinatorHome, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep(home)
    plan = RunPlan(run_id="next", task=wards(), seed=1, private=False, expected_sites=1, durable=False, warm_from=1)
    with closing(home.registry()) as registry, pytest.raises(RunError, match=r"version 1 of wards .* no longer kept"):
        _model(home, registry, plan, None)


def test_nothing_goes_while_a_backup_is_written(home: CoordinatorHome) -> None:
    with nothing_is_thinned(home.folder / "runs"):
        assert sweep(home) == ([], [])
    assert sweep(home) == (["old"], ["made-1"])


def test_the_limits_are_those_of_the_file_as_it_is_now(home: CoordinatorHome) -> None:
    settings = home.folder / "server.toml"
    text = settings.read_text()
    assert "run_days = 365" in text
    settings.write_text(
        text.replace("run_days = 365", "run_days = 3650").replace("weights_days = 365", "weights_days = 499")
    )
    assert sweep(home) == ([], [])
    settings.write_text(text.replace("run_days = 365", "run_days = 0"))
    with pytest.raises(SettingsInvalid):
        sweep(home)
    assert "old" in weights(home)


KEPT: dict[str, tuple[dict[str, Any], bool]] = {
    "old": ({}, True),
    "on the day": ({"ended_unix": NOW - 30 * DAY}, False),
    "its task's newest": ({"newest": True}, False),
    "in production": ({"stage": Stage.PRODUCTION}, False),
    "on trial": ({"stage": Stage.CANARY}, False),
    "retired": ({"stage": Stage.RETIRED}, True),
    "about to be started from": ({"wanted": True}, False),
    "ended nobody knows when": ({"ended_unix": None}, False),
    "gone already": ({"bytes": 0}, False),
}


@pytest.mark.parametrize(("parts", "goes"), KEPT.values(), ids=KEPT.keys())
def test_which_weights_go(parts: dict[str, Any], goes: bool) -> None:
    base: dict[str, Any] = {
        "run_id": "r",
        "task": "wards",
        "version": 1,
        "stage": Stage.CANDIDATE,
        "newest": False,
        "wanted": False,
        "ended_unix": NOW - 31 * DAY,
        "bytes": 10,
    }
    assert bool(due_weights([KeptWeights(**(base | parts))], 30, NOW)) is goes


def said(home: CoordinatorHome, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main(["server", "retention", *words, "--home", str(home.folder)])
    out = capsys.readouterr()
    assert ended.value.code == status, out
    return out.out + out.err


def test_the_command_shows_first_and_deletes_when_it_is_told(
    home: CoordinatorHome, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)
    monkeypatch.setattr(CoordinatorRetention.__init__, "__defaults__", (lambda: NOW,))
    shown = said(home, capsys)
    assert "kept 365 days after they ended" in shown
    assert "due: weights of version 1 of wards, in run made-1" in shown
    dry = json.loads(said(home, capsys, "--delete", "--dry-run", "--json"))
    assert (dry["due_runs"], dry["due_weights"], dry["deleted"]) == (["old"], ["made-1"], False)
    assert weights(home) >= {"made-1", "old"}
    assert "deleted: run old, which made no version" in said(home, capsys, "--delete")
    assert not weights(home) & {"made-1", "old"}
    assert "Nothing is due." in said(home, capsys)
    said(home, capsys, "--dry-run", status=2)


def test_every_store_of_a_coordinator_is_named() -> None:
    stores = coordinator_stores(RetentionSettings())
    places = " ".join(store.place for store in stores)
    for name in ("runs/", "coordinator.db", "blobs/", "audit.jsonl", "logs/", "flower/superlink/state.db"):
        assert name in places
    assert all(store.kept and store.deleted_by and store.stays for store in stores)
    assert [store.days for store in stores if store.days is not None] == [365, 365, 90]


def test_the_service_deletes_by_itself(home: CoordinatorHome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CoordinatorRetention.__init__, "__defaults__", (lambda: NOW,))
    service = Service(home)
    service.start()
    try:
        end = time.monotonic() + 60
        while "made-1" in weights(home):
            assert time.monotonic() < end, "the weights are still there"
            time.sleep(0.05)
    finally:
        service.stop()
