"""A site's data file: the four hospitals' files as they are, and a split that does not move when rows come."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_clients.data.mapping import ColumnMapping
from fedloop_clients.data.opening import open_source, read_source
from fedloop_clients.data.sentences import skipped_words
from fedloop_clients.data.settings import DataSettings
from fedloop_clients.data.site_data import SiteData
from fedloop_clients.data.source import evaluation_rows, load_site_data, read_site_rows
from fedloop_clients.home import SiteHome
from fedloop_core.dataset import Dataset
from fedloop_core.errors import ColumnMissing, FileMissing, SettingsInvalid
from fedloop_core.task import Task
from fedloop_core.task.presets import load_preset
from fedloop_core.task.reader import parse_task
from fedloop_simulations.data import load_world

HEART = Path(__file__).parents[2].parent / "shared" / "data" / "heart_disease_4hospitals"
needs_files = pytest.mark.skipif(not HEART.is_dir(), reason="the UCI files are not on this machine")
TASK = load_preset("heart")
TOML = """\
format = 1
site = "SITE"
[data]
file = "FILE"
columns = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"]
missing = ["?"]
map.num = { recode = { 0 = "healthy", 1 = "diseased", 2 = "diseased", 3 = "diseased", 4 = "diseased" } }
[budget]
training = { epsilon = 10.0 }
evaluation = { epsilon = 10.0 }
"""
SECRET = bytes(range(32))
SMALL = parse_task("""\
format = 1
name = "small"
[[features]]
kind = "numeric"
name = "age"
range = [0, 120]
missing = "mean"
[[features]]
kind = "categorical"
name = "sex"
values = ["0", "1", "none", "4.0"]
missing = "category"
[label]
kind = "classes"
name = "outcome"
classes = ["no", "yes"]
[model]
kind = "mlp"
[privacy]
epsilon = 8
""")


def home_with(folder: Path, site: str, file: Path | str, toml: str = TOML) -> SiteHome:
    home = SiteHome(folder / site)
    home.prepare()
    home.settings_file.write_text(toml.replace("SITE", site).replace("FILE", str(file)))
    home.fingerprint_secret_file.write_bytes(SECRET)
    return home


@dataclass(frozen=True)
class Hospital:
    """Rows that fit, rows that are skipped, and how many of those that fit are healthy."""

    name: str
    fit: int
    skipped: int
    healthy: int


HOSPITALS = (
    Hospital("cleveland", 303, 0, 164),
    Hospital("hungarian", 261, 33, 163),
    Hospital("switzerland", 46, 77, 1),
    Hospital("va", 130, 70, 29),
)


@needs_files
@pytest.mark.parametrize("hospital", HOSPITALS, ids=lambda hospital: hospital.name)
def test_a_hospitals_file_loads_as_it_is(hospital: Hospital, tmp_path: Path) -> None:
    home = home_with(tmp_path, hospital.name, HEART / f"processed.{hospital.name}.data")
    table = read_site_rows(home, TASK)
    assert (len(table.rows), table.skipped) == (hospital.fit, hospital.skipped)
    assert int(np.sum(table.rows.labels == 0)) == hospital.healthy
    data = load_site_data(home, TASK)
    training, evaluation = data.training(), data.evaluation()
    assert len(training) + len(evaluation) == hospital.fit
    assert 0.05 < len(evaluation) / hospital.fit < 0.35
    assert data.skipped_share == pytest.approx(hospital.skipped / (hospital.fit + hospital.skipped))


@needs_files
def test_its_rows_are_those_that_a_simulation_reads(tmp_path: Path) -> None:
    world = load_world(TASK, data=HEART, evaluation_share=1.0)
    for site in world.sites:
        home = home_with(tmp_path, site.name, HEART / f"processed.{site.name}.data")
        secret = SiteData(site.train.concatenate(site.evaluation), site.train.take([]), secret=SECRET)
        assert SiteData(read_site_rows(home, TASK).rows, site.train.take([]), secret=SECRET).fingerprint() == (
            secret.fingerprint()
        )


def test_a_site_writes_values_labels_and_gaps_its_own_way(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    lines = ["1.0,0,1.0", "NULL,1.0,0", "5,none,1.", "-,4.0,0.0", "6,-,1", "7,4,1", "8,1,2"]
    file.write_text("\n".join(lines))
    settings = DataSettings(
        file="a.csv",
        columns=("age", "sex", "outcome"),
        missing=("-", "null", "none"),
        map={"outcome": ColumnMapping(recode={"0": "no", "1": "yes"})},
    )
    table = read_source(open_source(file, settings), SMALL, settings.mappings("site.toml"))
    assert skipped_words(table, SMALL.feature_schema) == (
        "a.csv:6: column 'sex' is '4', which is not one of 0, 1, none, 4.0.",
        "a.csv:7: label 'outcome' is '2', which is not one of no, yes.",
    )
    assert table.rows.labels.tolist() == [1, 0, 1, 0, 1]
    assert table.rows.inputs["categorical"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert np.isnan(table.rows.inputs["numeric"][:, 0]).tolist() == [False, True, False, True, False]


def test_what_is_wrong_with_the_source_is_one_sentence(tmp_path: Path) -> None:
    home = home_with(tmp_path, "north", "rows.csv")
    with pytest.raises(FileMissing, match=r"north/rows.csv: No such file"):
        load_site_data(home, TASK)
    columns = json.dumps([f"c{at}" for at in range(11)] + ["age", "sex", "outcome"])
    home.settings_file.write_text(
        re.sub("columns = .*", f"columns = {columns}", TOML)
        .replace("map.num", "map.outcome")
        .replace("SITE", "north")
        .replace("FILE", "rows.csv")
    )
    with pytest.raises(
        SettingsInvalid, match="names the class 'diseased', which task 'small' has not: its classes are"
    ):
        load_site_data(home, SMALL)
    few = home_with(tmp_path, "south", "rows.csv", TOML.replace('"sex", ', ""))
    (few.folder / "rows.csv").write_text(",".join("1" * 13) + "\n")
    with pytest.raises(ColumnMissing, match="has no column 'sex'"):
        load_site_data(few, TASK)


def test_skipped_rows_are_logged_up_to_twenty(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = home_with(tmp_path, "north", "rows.csv")
    (home.folder / "rows.csv").write_text("?,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n" * 25)
    data = load_site_data(home, TASK)
    assert (len(data.training()), data.skipped_share) == (0, 1.0)
    assert len(caplog.messages) == 21
    assert "rows.csv:1: column 'age' is missing" in caplog.messages[0]
    assert caplog.messages[-1].endswith("and 5 more rows")


def rows(values: list[int], units: list[str] | None = None) -> Dataset:
    numeric = np.array(values, dtype=np.float32).reshape(-1, 1)
    names = tuple(f"row-{at}" for at in range(len(values))) if units is None else tuple(units)
    return Dataset({"numeric": numeric}, np.zeros(len(values), dtype=np.int64), names)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.lists(st.integers(0, 5), max_size=10))
def test_no_row_changes_sides_when_rows_come_or_move(before: list[int], more: list[int]) -> None:
    both = [*before, *more]
    np.random.default_rng(len(both)).shuffle(both)
    old = evaluation_rows(rows(before), 0.4, SECRET, by_row=True)
    new = evaluation_rows(rows(both), 0.4, SECRET, by_row=True)
    for value in set(before):  # rows that hold the same cannot be told apart: their numbers on each side only grow
        for side in (True, False):
            then = sum(v == value and s == side for v, s in zip(before, old, strict=True))
            now = sum(v == value and s == side for v, s in zip(both, new, strict=True))
            assert now >= then


def test_a_unit_is_on_one_side_with_all_its_rows() -> None:
    units = [f"p{number % 200}" for number in range(600)]
    chosen = evaluation_rows(rows(list(range(600)), units), 0.25, SECRET, by_row=False)
    sides = {unit: {bool(c) for u, c in zip(units, chosen, strict=True) if u == unit} for unit in set(units)}
    assert all(len(side) == 1 for side in sides.values())
    assert 0.15 < chosen.mean() < 0.35
    other = evaluation_rows(rows(list(range(600)), units), 0.25, bytes(32), by_row=False)
    assert (other != chosen).any()


def task_of_small(column: str) -> Task:
    return SMALL.model_copy(update={"privacy": SMALL.privacy.model_copy(update={"unit_column": column})})


def test_units_of_a_column_are_kept_apart(tmp_path: Path) -> None:
    toml = TOML[: TOML.index("columns")] + TOML[TOML.index("[budget]") :]
    home = home_with(tmp_path, "north", "rows.csv", toml)
    lines = [f"{number},1,no,p{number % 50}" for number in range(200)]
    (home.folder / "rows.csv").write_text("\n".join(["age,sex,outcome,patient", *lines]))
    data = load_site_data(home, task_of_small("patient"))
    assert not set(data.training().units) & set(data.evaluation().units)
    assert len(set(data.training().units) | set(data.evaluation().units)) == 50


def test_a_file_without_rights_is_named(tmp_path: Path) -> None:
    home = home_with(tmp_path, "north", "rows.csv")
    (home.folder / "rows.csv").touch(mode=0o000)
    if os.access(home.folder / "rows.csv", os.R_OK):
        pytest.skip("root reads every file")
    with pytest.raises(FileMissing, match="Permission denied"):
        load_site_data(home, TASK)


def test_a_person_is_on_one_side_in_every_task_where_the_site_names_the_column(tmp_path: Path) -> None:
    toml = TOML[: TOML.index("columns")] + TOML[TOML.index("[budget]") :]
    home = home_with(tmp_path, "north", "rows.csv", toml)
    home.fingerprint_secret_file.write_bytes(SECRET)
    people = [f"p{number % 100}" for number in range(300)] + [""] * 40
    lines = [f"{number % 90},{number % 2},{'yes' if number % 3 else 'no'},{who}" for number, who in enumerate(people)]
    (home.folder / "rows.csv").write_text("age,sex,outcome,patient\n" + "\n".join(lines) + "\n")
    document = SMALL.model_dump()
    fewer = Task.model_validate(document | {"features": document["features"][:1]}, strict=False)
    by_person = Task.model_validate(document | {"privacy": {"epsilon": 8.0, "unit_column": "patient"}}, strict=False)

    def who_of(units: tuple[str, ...]) -> set[str]:
        return {people[int(unit.removeprefix("row-")) - 2] for unit in units}  # the first line is the header

    def evaluated(task: Task) -> set[str]:
        return who_of(load_site_data(home, task).evaluation().units)

    assert evaluated(SMALL) & {who for who in people if who not in evaluated(fewer)}  # by row, each schema has its own
    home.settings_file.write_text(home.settings_file.read_text().replace("[data]", '[data]\nperson_column = "patient"'))
    sides = evaluated(SMALL) - {""}
    assert sides == evaluated(fewer) - {""} == set(load_site_data(home, by_person).evaluation().units)
    trained = who_of(load_site_data(home, SMALL).training().units)
    assert not sides & (trained - {""})
    assert "" in trained & evaluated(SMALL)  # rows of nobody who is known stay rows
