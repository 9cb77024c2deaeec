"""The four hospitals: the rows of the published protocol, and how the files are fetched."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from fedloop_core.errors import FileMissing, UsageError
from fedloop_core.task.presets import load_preset
from fedloop_simulations.data import fetch_heart, heart_folder, load_world
from fedloop_simulations.data.heart import HOSPITALS

HEART = Path(__file__).parents[2].parent / "shared" / "data" / "heart_disease_4hospitals"
needs_files = pytest.mark.skipif(not HEART.is_dir(), reason="the UCI files are not on this machine")
TASK = load_preset("heart")
ROW = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0"


@needs_files
def test_protocol_rows_and_split() -> None:
    world = load_world(TASK, data=HEART, evaluation_share=1.0)
    assert [site.name for site in world.sites] == list(HOSPITALS)
    sizes = [(len(site.train), len(site.evaluation), site.skipped) for site in world.sites]
    assert sizes == [(199, 104, 0), (172, 89, 33), (30, 16, 77), (85, 45, 70)]
    assert all(len(stream.rows) == 0 for stream in world.stream)
    healthy = [int(np.sum(np.concatenate([s.train.labels, s.evaluation.labels]) == 0)) for s in world.sites]
    assert healthy == [164, 163, 1, 29]
    assert [len(site.problems) for site in world.sites] == [0, 21, 21, 21]
    assert world.sites[2].problems[-1] == "and 57 more rows"
    assert world.sites[1].problems[0].startswith("processed.hungarian.data:3: column 'chol' is missing")


@needs_files
def test_preset_lets_every_hospital_in() -> None:
    gate = TASK.gates.data
    for site in load_world(TASK, data=HEART).sites:
        assert len(site.train) >= gate.minimum_rows
        assert site.skipped <= gate.maximum_skipped * (len(site.train) + site.skipped)


@needs_files
def test_the_share_divides_the_test_rows_and_leaves_training_alone() -> None:
    whole, half = (load_world(TASK, data=HEART, evaluation_share=share) for share in (1.0, 0.5))
    for before, after, stream in zip(whole.sites, half.sites, half.stream, strict=True):
        assert after.train.units == before.train.units
        assert sorted(after.evaluation.units + stream.rows.units) == sorted(before.evaluation.units)
        assert abs(len(after.evaluation) - len(stream.rows)) <= 1


@needs_files
def test_values_are_those_of_the_files() -> None:
    cleveland = load_world(TASK, data=HEART, evaluation_share=1.0).sites[0]
    at = cleveland.train.units.index("row-4")
    assert cleveland.train.inputs["numeric"][at].tolist() == pytest.approx([37.0, 130.0, 250.0, 187.0, 3.5])
    assert cleveland.train.inputs["categorical"][at].tolist() == [1, 2, 0, 0, 0]
    assert cleveland.train.labels[at] == 0


def test_bad_lines_are_skipped_and_told(tmp_path: Path) -> None:
    bad = {
        "?" + ROW[4:]: "column 'age' is missing, and may not be.",
        "old" + ROW[4:]: "column 'age' is not a number: 'old'.",
        ROW + ",1": "has 15 cells; there are 14 columns.",
        ROW.replace("63.0,1.0,1.0", "63.0,1.0,7.0"): "column 'cp' is '7.0', which is not one of 1, 2, 3, 4.",
        ROW[:-1] + "?": "label 'num' is missing, and may not be.",
        ROW[:-1] + "nan": "label 'num' is 'nan', which is not one of healthy, diseased.",
    }
    good = [ROW] * 10 + [ROW[:-1] + "3"] * 10
    for hospital in HOSPITALS:
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join([*good, *bad]) + "\n")
    site = load_world(TASK, data=tmp_path).sites[0]
    assert site.problems == tuple(
        f"processed.cleveland.data:{line}: {why}" for line, why in enumerate(bad.values(), start=21)
    )
    assert site.skipped == len(bad)
    assert (len(site.train), len(site.evaluation)) == (13, 4)


def test_a_hospital_without_a_row_that_fits_stays_with_none(tmp_path: Path) -> None:
    for hospital in HOSPITALS:
        rows = [ROW] * 10 + [ROW[:-1] + "1"] * 10 if hospital != "va" else [ROW[:-1] + "?"]
        (tmp_path / f"processed.{hospital}.data").write_text("\n".join(rows))
    world = load_world(TASK, data=tmp_path)
    assert [(len(site.train), len(site.evaluation)) for site in world.sites][3] == (0, 0)
    assert len(world.sites[0].train) == 13


def test_wrong_questions_are_refused(tmp_path: Path) -> None:
    (tmp_path / "processed.cleveland.data").write_text("\n".join([ROW] * 5))
    with pytest.raises(FileMissing, match="hungarian"):
        load_world(TASK, data=tmp_path)
    with pytest.raises(UsageError, match="has the data of 4 sites, and 3 were asked for"):
        load_world(TASK, data=tmp_path, sites=3)
    with pytest.raises(UsageError, match="at most 1, not 2"):
        load_world(TASK, data=tmp_path, evaluation_share=2.0)


@needs_files
def test_files_are_fetched_after_asking_and_once(tmp_path: Path) -> None:
    questions: list[str] = []
    urls: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return True

    def download(url: str) -> bytes:
        urls.append(url)
        return (HEART / url.rpartition("/")[2]).read_bytes()

    assert fetch_heart(tmp_path / "heart", confirm, download=download) == tmp_path / "heart"
    assert len(urls) == 4
    assert all(url.startswith("https://archive.ics.uci.edu/") for url in urls)
    fetch_heart(tmp_path / "heart", confirm, download=download)
    (tmp_path / "heart" / "processed.va.data").write_text("cut off")
    fetch_heart(tmp_path / "heart", confirm, download=download)
    assert len(questions) == 2
    assert urls[4:] == ["https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.va.data"]


@needs_files
def test_the_cache_is_used_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert heart_folder() == tmp_path / "fedloop" / "heart"
    shutil.copytree(HEART, heart_folder())
    assert len(load_world(TASK, confirm=lambda _: False).sites) == 4


def test_no_download_without_a_yes_and_none_that_is_another_file(tmp_path: Path) -> None:
    def unreachable(url: str) -> bytes:
        raise OSError("Name or service not known")

    with pytest.raises(UsageError, match="--data"):
        fetch_heart(tmp_path, lambda _: False, download=unreachable)
    with pytest.raises(FileMissing, match=r"cannot be downloaded from UCI: .* not known\. Put processed"):
        fetch_heart(tmp_path, lambda _: True, download=unreachable)
    with pytest.raises(FileMissing, match="is not the published file"):
        fetch_heart(tmp_path, lambda _: True, download=lambda _: b"<html>")
    assert list(tmp_path.iterdir()) == []
