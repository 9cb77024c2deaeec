"""A user's own tables: what fits is read, what does not is told, and what is missing is named."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fedloop_clients.data.opening import read_file
from fedloop_clients.data.sentences import skipped_words
from fedloop_core.errors import ColumnMissing, FedloopError, FileMissing, SourceInvalid, TooFewRows, UsageError
from fedloop_core.task import Task
from fedloop_core.task.reader import parse_task
from fedloop_simulations.data import Shares, load_world

TEXT = """\
format = 1
name = "mine"
[[features]]
kind = "numeric"
name = "age"
range = [0, 120]
[[features]]
kind = "numeric"
name = "weight"
range = [0, 300]
missing = "mean"
[[features]]
kind = "categorical"
name = "sex"
values = ["f", "m"]
[label]
kind = "classes"
name = "outcome"
classes = ["no", "yes"]
[model]
kind = "mlp"
[privacy]
epsilon = 8
"""
TASK = parse_task(TEXT)
HEADER = "age,weight,sex,outcome"
GOOD = [f"{30 + number},70.5,{'fm'[number % 2]},{('no', 'yes')[number // 2 % 2]}" for number in range(40)]


def write(path: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path.write_text("\n".join(lines) + "\n", encoding=encoding)
    return path


def test_one_file_for_each_site(tmp_path: Path) -> None:
    write(tmp_path / "north.csv", HEADER, *GOOD)
    write(tmp_path / "south.CSV", "outcome,other,sex,weight,age", *["yes,9,f,,50"] * 20)
    write(tmp_path / "notes.txt", "not a table")
    world = load_world(TASK, data=tmp_path)
    assert [site.name for site in world.sites] == ["north", "south"]
    assert len(world.sites[0].train) == 14
    assert np.isnan(world.sites[1].train.inputs["numeric"][:, 1]).all()
    assert world.sites[1].train.inputs["numeric"][0, 0] == 50.0
    with pytest.raises(UsageError, match="has the data of 2 sites, and 3 were asked for"):
        load_world(TASK, data=tmp_path, sites=3)


def test_one_file_over_sites_shares_out_the_skipped_rows_too(tmp_path: Path) -> None:
    file = write(tmp_path / "all.csv", HEADER, *GOOD, "x,70,f,no", "50,70,?,no", "50,70,f,maybe")
    world = load_world(TASK, data=file, sites=2, seed=3)
    assert [site.skipped for site in world.sites] == [2, 1]
    assert world.sites[1].problems == ("all.csv:43: column 'sex' is '?', which is not one of f, m.",)
    held = [len(s.train) + len(s.evaluation) + len(t.rows) for s, t in zip(world.sites, world.stream, strict=True)]
    assert held == [20, 20]
    assert len(load_world(TASK, data=file).sites) == 3


@dataclass(frozen=True)
class BadRow:
    """A row that is skipped, and why."""

    name: str
    row: str
    why: str


BAD_ROWS = (
    BadRow("empty number", ",70,f,no", "column 'age' is missing, and may not be."),
    BadRow("NaN", "nan,70,f,no", "column 'age' is not a finite number: 'nan'."),
    BadRow("infinite", "inf,70,f,no", "column 'age' is not a finite number: 'inf'."),
    BadRow("text", "old,70,f,no", "column 'age' is not a number: 'old'."),
    BadRow(
        "decimal comma",
        '"3,5",70,f,no',
        "column 'age' is not a number: '3,5' (for decimal commas: data.decimal = \",\" in site.toml).",
    ),
    BadRow("unknown category", "50,70,x,no", "column 'sex' is 'x', which is not one of f, m."),
    BadRow("empty category", "50,70,,no", "column 'sex' is missing, and may not be."),
    BadRow("unknown label", "50,70,f,perhaps", "label 'outcome' is 'perhaps', which is not one of no, yes."),
    BadRow("empty label", "50,70,f,", "label 'outcome' is missing, and may not be."),
    BadRow("too few cells", "50,70,f", "has 3 cells; there are 4 columns."),
    BadRow("too many cells", "50,70,f,no,1", "has 5 cells; there are 4 columns."),
)


@pytest.mark.parametrize("bad", BAD_ROWS, ids=lambda bad: bad.name)
def test_a_bad_row_is_skipped_and_told(bad: BadRow, tmp_path: Path) -> None:
    table = read_file(write(tmp_path / "site.csv", HEADER, GOOD[0], bad.row, "", GOOD[1]), TASK)
    assert skipped_words(table, TASK.feature_schema) == (f"site.csv:3: {bad.why}",)
    assert table.rows.units == ("row-2", "row-5")


def test_many_bad_rows_are_told_up_to_twenty_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", HEADER, *GOOD, *["x,1,f,no"] * 30)
    (site,) = load_world(TASK, data=tmp_path).sites
    assert (site.skipped, len(site.problems), site.problems[-1]) == (30, 21, "and 10 more rows")


def test_a_site_without_a_row_that_fits_stays_with_none(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", HEADER, *GOOD)
    write(tmp_path / "b.csv", HEADER, "x,1,f,no")
    write(tmp_path / "c.csv", HEADER)
    world = load_world(TASK, data=tmp_path)
    assert [(len(site.train), site.skipped) for site in world.sites] == [(14, 0), (0, 1), (0, 0)]
    assert world.sites[2].train.inputs["numeric"].shape == (0, 2)


@dataclass(frozen=True)
class BadFile:
    """Bytes that are no table of the task, the error, and its words."""

    name: str
    content: bytes
    error: type[FedloopError]
    words: str


BAD_FILES = (
    BadFile("empty", b"", SourceInvalid, "is empty"),
    BadFile(
        "missing columns", b"age,sex\n1,f\n", ColumnMissing, "has no column 'weight', 'outcome'. It has: age, sex."
    ),
    BadFile("colons", b"age:weight:sex:outcome\n", ColumnMissing, "It has: age:weight:sex:outcome"),
    BadFile("column twice", b"age,weight,sex,outcome,age\n", SourceInvalid, "has two columns 'age'"),
    BadFile("latin-1", "age\n1\nä".encode("latin-1"), SourceInvalid, "a.csv:3: is not UTF-8 text"),
    BadFile(
        "open quote",
        HEADER.encode() + b'\n50,"70,f,no\n',
        SourceInvalid,
        "a.csv:2: a quotation mark opens a cell that nothing closes",
    ),
    BadFile("no row that fits", HEADER.encode() + b"\nx,1,f,no\n", TooFewRows, "1 were skipped. The first: a.csv:2:"),
    BadFile("more sites than rows", f"{HEADER}\n{GOOD[0]}\n".encode(), UsageError, "3 sites cannot share 1 rows"),
)


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad.name)
def test_a_bad_file_is_an_error_that_names_it(bad: BadFile, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(bad.content)
    with pytest.raises(bad.error) as raised:
        load_world(TASK, data=file)
    assert bad.words in str(raised.value)
    assert "a.csv" in str(raised.value)


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    for wanted, words in ((tmp_path / "none", "none is not there"), (tmp_path, "holds no CSV file")):
        with pytest.raises(FileMissing, match=words):
            load_world(TASK, data=wanted)
    with pytest.raises(FileMissing, match="Is a directory"):
        read_file(tmp_path, TASK)
    write(tmp_path / "a.csv", HEADER, *GOOD)
    write(tmp_path / "a.CSV", HEADER, *GOOD)
    with pytest.raises(UsageError, match=r"two files in .* have one name"):
        load_world(TASK, data=tmp_path)


def test_marks_quotes_and_spaces_of_spreadsheets_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'\xef\xbb\xbf age , weight,"sex",outcome\r\n 50 ,, f , no \r\n')
    table = read_file(file, TASK)
    assert table.skipped == 0
    assert table.rows.inputs["numeric"].tolist()[0][0] == 50.0


def test_all_rows_of_a_unit_stay_together(tmp_path: Path) -> None:
    task = parse_task(TEXT + 'unit_column = "patient"\n')
    rows = [f"{row},p{number // 4}" for number, row in enumerate(GOOD)]
    file = write(tmp_path / "a.csv", HEADER + ",patient", *rows, "50,70,f,no,")
    world = load_world(task, data=file, sites=2, shares=Shares(0.4, 0.2, 0.4))
    homes = [set(part.units) for site in world.sites for part in (site.train, site.evaluation)]
    homes += [set(stream.rows.units) for stream in world.stream]
    assert sum(map(len, homes)) == 10
    assert set().union(*homes) == {f"p{number}" for number in range(10)}
    assert world.sites[0].problems == ("a.csv:42: column 'patient' is missing, and names whose privacy the row is.",)
    with pytest.raises(UsageError, match="11 sites cannot share 10 values of 'patient'"):
        load_world(task, data=file, sites=11)


def _with_label(label: str) -> Task:
    classes = '[label]\nkind = "classes"\nname = "outcome"\nclasses = ["no", "yes"]\n'
    return parse_task(TEXT.replace(classes, label).replace("epsilon = 8", "epsilon = inf"))


def test_numbers_and_survival_as_labels(tmp_path: Path) -> None:
    number = _with_label('[label]\nkind = "regression"\nname = "stay"\nrange = [0, 99]\n')
    table = read_file(write(tmp_path / "a.csv", "age,weight,sex,stay", "1,2,f,3.5", "1,2,f,long"), number)
    assert table.rows.labels.tolist() == [3.5]
    assert skipped_words(table, number.feature_schema) == ("a.csv:3: label 'stay' is not a number: 'long'.",)
    survival = _with_label('[label]\nkind = "survival"\ntime = "days"\nevent = "died"\ntime_range = [0, 99]\n')
    lines = ["1,2,f,30,1", "1,2,f,31,0", "1,2,f,-1,0", "1,2,f,5,2", "1,2,f,,1"]
    table = read_file(write(tmp_path / "b.csv", "age,weight,sex,days,died", *lines), survival)
    assert table.rows.labels.tolist() == [[30.0, 1.0], [31.0, 0.0]]
    assert [why.partition(": ")[2] for why in skipped_words(table, survival.feature_schema)] == [
        "label 'days' is '-1', which is no time from 0 on.",
        "label 'died' is '2', which is not one of 0, 1.",
        "label 'days' is missing, and may not be.",
    ]
    assert read_file(write(tmp_path / "c.csv", "age,weight,sex,days,died"), survival).rows.labels.shape == (0, 2)


def test_images_are_numbers_in_one_cell(tmp_path: Path) -> None:
    image = '[[features]]\nkind = "image"\nname = "scan"\nheight = 4\nwidth = 4\n[label]'
    text = TEXT[: TEXT.index("[[features]]")] + TEXT[TEXT.index("[label]") :].replace("[label]", image)
    task = parse_task(text.replace('"mlp"', '"cnn"'))
    cells = " ".join(str(number / 16) for number in range(16))
    lines = [f"{cells},no", f'"[{cells.replace(" ", ", ")}]",yes', "1 2 3,no", f"{cells[:-3]} x,no"]
    table = read_file(write(tmp_path / "a.csv", "scan,outcome", *lines), task)
    assert table.rows.inputs["scan"].shape == (2, 1, 4, 4)
    assert table.rows.inputs["scan"][1, 0, 3, 3] == 15 / 16
    assert table.skipped == 2
