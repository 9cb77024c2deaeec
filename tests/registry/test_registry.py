"""The registry over a real SQLite file."""

from __future__ import annotations

import dataclasses
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_core.artifact import ArtifactDescription, FileReference, Lineage, TensorSpec
from fedloop_core.errors import ArtifactRefused, RegistryError, StorageError
from fedloop_core.privacy_statement import PrivacyStatement, SitePrivacy
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import LogisticModel, Privacy, Task
from fedloop_server.blobs import BlobStore
from fedloop_server.database import Database
from fedloop_server.registry import Registry, RunState, Stage, StageChange, Verdict, VersionMetric, live_version
from fedloop_server.release import PublishedArtifact

TASK = Task(
    format=1,
    name="heart",
    features=(NumericFeature(kind="numeric", name="age", range=(0.0, 120.0)),),
    label=ClassLabel(kind="classes", name="ill", classes=("no", "yes")),
    model=LogisticModel(kind="logistic"),
    privacy=Privacy(epsilon=float("inf")),
)
DIGEST = TASK.digest.hex()
PRIVACY = PrivacyStatement(
    private=False,
    unit="record",
    adjacency="add-or-remove",
    mechanism="none",
    sites=(
        SitePrivacy(
            site="va", epsilon=float("inf"), delta=1e-5, lifetime_epsilon=float("inf"), evaluation_epsilon=0.1 + 0.2
        ),
    ),
)


class Clock:
    """Counts calls, so that every moment is another and known."""

    now = 1000

    def __call__(self) -> int:
        self.now += 1
        return self.now


@dataclass
class Shelf:
    registry: Registry
    blobs: BlobStore
    url: str

    def run(self, run_id: str, parent: int | None = None) -> None:
        self.registry.open_run(run_id, DIGEST, parent)

    def version(self, run_id: str, parent: int | None = None) -> int:
        self.run(run_id, parent)
        return self.registry.register_version(run_id, PRIVACY, lineage(run_id, parent)).number


def lineage(run_id: str, parent: int | None = None, task_digest: str = DIGEST) -> Lineage:
    return Lineage(
        run_id=run_id,
        parent_version=parent,
        task_digest=task_digest,
        data_fingerprints={"va": "ab" * 32},
        software={"torch": "2.13"},
    )


def artifact(version: int, model: bytes = b"model") -> PublishedArtifact:
    description = ArtifactDescription(
        format=1,
        task="heart",
        version=version,
        kind="onnx-int8",
        runtimes=("onnxruntime",),
        cpu_class="any",
        rows="one",
        model=FileReference.of(model),
        golden=FileReference.of(b"golden"),
        profile=FileReference.of(b"profile"),
        inputs=(TensorSpec(name="age", dtype="float32", shape=(1,)),),
        output=TensorSpec(name="logits", dtype="float32", shape=(2,)),
        features=TASK.feature_schema,
        operators=("Gemm",),
        golden_tolerance=0.005,
        privacy=PRIVACY,
        lineage=lineage("run-1"),
    )
    return PublishedArtifact.of(description, model=model, golden=b"golden", profile=b"profile")


def metric(**other: Any) -> VersionMetric:
    fields: dict[str, Any] = {"scope": "all", "artifact": "float", "metric": "accuracy", "value": 0.8, "low": 0.7, "high": 0.9,
                              "total": 203.4}  # fmt: skip
    return VersionMetric(**{**fields, **other})


@pytest.fixture
def shelf(tmp_path: Path, database_url: str) -> Iterator[Shelf]:
    blobs = BlobStore(f"file://{tmp_path}/blobs")
    registry = Registry(Database(database_url), blobs, Clock())
    registry.register_task(TASK)
    yield Shelf(registry, blobs, database_url)
    registry.close()


def test_a_version_is_given_back_whole_also_by_another_registry(shelf: Shelf) -> None:
    registry = shelf.registry
    shelf.run("run-1")
    made = registry.register_version("run-1", PRIVACY, lineage("run-1"), [metric()])
    record = registry.add_artifact("heart", 1, artifact(1))
    registry.add_metrics("heart", 1, [metric(artifact="onnx-int8"), metric(scope="va")])
    gate = registry.add_gate_result("heart", 1, "quality", Verdict.UNDECIDABLE, "0.70 to 0.90")
    other = Registry(Database(shelf.url), shelf.blobs, Clock())
    version = other.version("heart", 1)
    assert version == dataclasses.replace(
        made,
        metrics=(metric(), metric(artifact="onnx-int8"), metric(scope="va")),
        artifacts=(record,),
        gates=(gate,),
    )
    assert (version.privacy, version.lineage, version.stage) == (PRIVACY, lineage("run-1"), Stage.CANDIDATE)
    assert other.read_artifact("heart", 1, "onnx-int8") == artifact(1)
    assert Task.from_canonical(other.tasks()[0].document) == TASK
    assert other.production("heart") is None
    other.close()


def test_registering_a_task_again_changes_nothing(shelf: Shelf) -> None:
    first = shelf.registry.tasks()
    assert shelf.registry.register_task(TASK) == first[0]
    edited = TASK.model_copy(update={"description": "another edition"})
    shelf.registry.register_task(edited)
    assert {task.name for task in shelf.registry.tasks()} == {"heart"}
    assert len(shelf.registry.tasks()) == 2
    shelf.version("run-1")
    shelf.registry.open_run("run-2", edited.digest.hex())
    assert shelf.registry.register_version("run-2", PRIVACY, lineage("run-2", None, edited.digest.hex())).number == 2
    assert [run.run_id for run in shelf.registry.runs("heart")] == ["run-1", "run-2"]


def test_runs_end_once(shelf: Shelf) -> None:
    registry = shelf.registry
    shelf.run("run-1")
    assert registry.run("run-1").state is RunState.RUNNING
    done = registry.finish_run("run-1", RunState.FAILED, "no quorum", '{"rounds": 3}')
    assert (done.state, done.reason, done.summary) == (RunState.FAILED, "no quorum", '{"rounds": 3}')
    assert done.finished_at is not None
    assert done.finished_at > done.started_at
    assert registry.run("run-1") == done


@pytest.mark.parametrize("artifact_and_value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", ["value", "low", "high", "total"])
def test_a_metric_that_is_not_finite_is_refused(field: str, artifact_and_value: float) -> None:
    with pytest.raises(RegistryError, match="accuracy of float at all"):
        metric(**{field: artifact_and_value})


REFUSALS = [
    ("unknown task digest", lambda s: s.registry.open_run("x", "0" * 64), "no task with digest"),
    ("run opened twice", lambda s: s.run("run-1"), "run run-1 exists"),
    ("unknown parent", lambda s: s.run("run-9", 7), "no version 7"),
    ("unknown run", lambda s: s.registry.run("run-9"), "no run run-9"),
    ("run ends as running", lambda s: s.registry.finish_run("run-1", RunState.RUNNING), "cannot end"),
    ("summary is not JSON", lambda s: s.registry.finish_run("run-1", RunState.FAILED, "", "x"), "not JSON"),
    ("summary has NaN", lambda s: s.registry.finish_run("run-1", RunState.FAILED, "", '{"a":NaN}'), "NaN"),
    ("summary is a list", lambda s: s.registry.finish_run("run-1", RunState.FAILED, "", "[]"), "not a JSON object"),
    ("second version of a run", lambda s: s.registry.register_version("run-1", PRIVACY, lineage("run-1")),
     "has produced heart version 1"),
    ("lineage of another run", lambda s: s.registry.register_version("run-1", PRIVACY, lineage("run-2")), "lineage"),
    ("lineage of another task", lambda s: s.registry.register_version("run-1", PRIVACY, lineage("run-1", None, "0" * 64)),
     "lineage"),
    ("lineage of another parent", lambda s: s.registry.register_version("run-1", PRIVACY, lineage("run-1", 1)),
     "lineage"),
    ("unknown version", lambda s: s.registry.version("heart", 9), r"no version 9\. Its newest: 1\."),
    ("unknown task", lambda s: s.registry.version("lungs", 1), r"task lungs has no version 1\. It has none yet"),
    ("metric twice", lambda s: s.registry.add_metrics("heart", 1, [metric(), metric()]), "accuracy of float at all"),
    ("gate of no version", lambda s: s.registry.add_gate_result("heart", 9, "q", Verdict.PASS, ""), "no version 9"),
    ("artifact of no version", lambda s: s.registry.add_artifact("heart", 9, artifact(9)), "no version 9"),
    ("another artifact of a kind", lambda s: s.registry.add_artifact("heart", 1, artifact(1, b"other")),
     "another artifact onnx-int8"),
    ("artifact that is not there", lambda s: s.registry.read_artifact("heart", 1, "onnx-fp32"), "no artifact"),
    ("candidate straight into production", lambda s: s.registry.promote("heart", 1, Stage.PRODUCTION), "cannot become"),
    ("back to candidate", lambda s: s.registry.promote("heart", 1, Stage.CANDIDATE), "cannot become"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call", "message"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_what_does_not_fit_is_refused_and_changes_nothing(name: str, call: Any, message: str, shelf: Shelf) -> None:
    shelf.version("run-1")
    shelf.registry.add_artifact("heart", 1, artifact(1))
    before = (shelf.registry.versions("heart"), shelf.registry.runs("heart"), shelf.registry.history("heart"))
    with pytest.raises(RegistryError, match=message):
        call(shelf)
    after = (shelf.registry.versions("heart"), shelf.registry.runs("heart"), shelf.registry.history("heart"))
    assert after == before


def test_an_artifact_must_be_of_the_version(shelf: Shelf) -> None:
    shelf.version("run-1")
    with pytest.raises(ArtifactRefused):
        shelf.registry.add_artifact("heart", 1, artifact(2))
    assert shelf.registry.add_artifact("heart", 1, artifact(1)) == shelf.registry.add_artifact("heart", 1, artifact(1))


def test_production_passes_on_and_comes_back(shelf: Shelf) -> None:
    registry = shelf.registry
    one, two = shelf.version("run-1"), shelf.version("run-2")
    for number in (one, two):
        registry.promote("heart", number, Stage.CANARY, "first wave")
        registry.promote("heart", number, Stage.PRODUCTION)
    assert registry.version("heart", one).stage is Stage.RETIRED
    with pytest.raises(RegistryError, match="needs a reason"):
        registry.promote("heart", one, Stage.PRODUCTION)
    registry.promote("heart", one, Stage.PRODUCTION, "worse in the wild")
    live = registry.production("heart")
    assert live is not None
    assert live.number == one
    history = registry.history("heart")
    assert [(c.version, c.before, c.after) for c in history] == [
        (1, None, Stage.CANDIDATE),
        (2, None, Stage.CANDIDATE),
        (1, Stage.CANDIDATE, Stage.CANARY),
        (1, Stage.CANARY, Stage.PRODUCTION),
        (2, Stage.CANDIDATE, Stage.CANARY),
        (1, Stage.PRODUCTION, Stage.RETIRED),
        (2, Stage.CANARY, Stage.PRODUCTION),
        (2, Stage.PRODUCTION, Stage.RETIRED),
        (1, Stage.RETIRED, Stage.PRODUCTION),
    ]
    assert history[-1].reason == "worse in the wild"
    assert [live_version(history, change.at) for change in history] == [None, None, None, 1, 1, None, 2, None, 1]


def test_one_canary_at_a_time(shelf: Shelf) -> None:
    one, two = shelf.version("run-1"), shelf.version("run-2")
    shelf.registry.promote("heart", one, Stage.CANARY)
    with pytest.raises(RegistryError, match="version 1 is canary"):
        shelf.registry.promote("heart", two, Stage.CANARY)
    shelf.registry.promote("heart", one, Stage.RETIRED, "refused by devices")
    shelf.registry.promote("heart", two, Stage.CANARY)


def test_the_last_word_of_each_gate_counts(shelf: Shelf) -> None:
    registry = shelf.registry
    number = shelf.version("run-1")
    registry.add_gate_result("heart", number, "quality", Verdict.FAIL, "accuracy 0.5 is below 0.7.")
    registry.add_gate_result("heart", number, "privacy", Verdict.PASS, "")
    with pytest.raises(RegistryError, match="gate quality: accuracy"):
        registry.promote("heart", number, Stage.CANARY)
    registry.add_gate_result("heart", number, "quality", Verdict.UNDECIDABLE, "more rows")
    registry.promote("heart", number, Stage.CANARY)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(Stage)), max_size=12))
def test_no_order_of_promotions_makes_two_live_versions(
    steps: list[tuple[int, Stage]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("registry")
    registry = Registry(Database(f"sqlite:///{folder}/r.db"), BlobStore(f"file://{folder}/b"), Clock())
    registry.register_task(TASK)
    made = Shelf(registry, BlobStore(f"file://{folder}/b"), "")
    for run in ("a", "b", "c"):
        made.version(run)
    for number, stage in steps:
        try:
            registry.promote("heart", number, stage, "because")
        except RegistryError:
            continue
        stages = [version.stage for version in registry.versions("heart")]
        assert stages.count(Stage.PRODUCTION) <= 1
        assert stages.count(Stage.CANARY) <= 1
    live = registry.production("heart")
    assert live_version(registry.history("heart"), 10**9) == (None if live is None else live.number)
    registry.close()


def test_numbers_are_given_once_whatever_the_threads(shelf: Shelf) -> None:
    for i in range(8):
        shelf.run(f"run-{i}")
    numbers: list[int] = []

    def register(run_id: str) -> None:
        numbers.append(shelf.registry.register_version(run_id, PRIVACY, lineage(run_id)).number)

    threads = [threading.Thread(target=register, args=(f"run-{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 9))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_database_itself_holds_the_rules(shelf: Shelf, tmp_path: Path) -> None:
    shelf.version("run-1")
    shelf.version("run-2")
    connection = sqlite3.connect(tmp_path / "coordinator.db")
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.execute("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE versions SET stage = 'production'")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute("DELETE FROM runs")
    connection.close()


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageError, match="not a database"):
        Database(f"sqlite:///{tmp_path}/junk.db")


def test_live_version_of_an_empty_history() -> None:
    assert live_version([], 5) is None
    assert live_version([StageChange("heart", 1, Stage.CANARY, Stage.PRODUCTION, "", 7)], 6) is None
