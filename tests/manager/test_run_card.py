"""The model card of a version: what it says, where it is kept, and that it says nothing that was not told already."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from tests.manager.test_run_statement import made, said, task
from tests.privacy.found_by_audit import AUDIT

from fedloop_core.model_card import ModelCard, card_page
from fedloop_server.home import CoordinatorHome
from fedloop_server.registry import VersionMetric
from fedloop_server.runs.card import card_of

METRICS = [
    VersionMetric("all", "onnx-fp32", "accuracy", 0.8, 0.75, 0.85, 100.4),
    VersionMetric("north", "onnx-fp32", "accuracy", 0.7, 0.6, 0.8, 50.2),
    VersionMetric("south", "onnx-fp32", "accuracy", 0.9, 0.85, 0.95, 50.2),
]


@pytest.fixture
def home(tmp_path: Path) -> CoordinatorHome:
    """A coordinator with a version that was measured, and its card."""
    home = CoordinatorHome(tmp_path / "home")
    made(home, "wards-1", task(2.0, purpose="triage"))
    with closing(home.registry()) as registry:
        registry.add_metrics("wards", 1, METRICS)
        registry.keep_card(card_of(home.plan("wards-1"), home.journal("wards-1").state, registry.version("wards", 1)))
    return home


def test_the_page_has_the_sections_that_readers_of_cards_know(
    home: CoordinatorHome, capsys: pytest.CaptureFixture[str]
) -> None:
    page = said(home, capsys, "card", "wards-1")
    sections = [line for line in page.splitlines() if line.startswith("## ")]
    assert sections == [
        "## What it is",
        "## What it is for",
        "## What it learnt from",
        "## How good it is",
        "## Privacy",
        "## Limits",
        "## Where it comes from",
    ]
    assert "`triage`: Helps physicians. The sites were told so before they took part" in page
    assert "| north | about 40 | 0 |" in page
    assert "| onnx-fp32 | all sites | 0.800 | 0.750 to 0.850 | 100 |" in page
    assert "- Over the sites, onnx-fp32 ranges from 0.700 (north) to 0.900 (south)." in page
    assert "epsilon is at most 1.90" in page
    assert "### What is not protected" in page
    assert "No result of an audit was given for this card." in page


def test_machines_read_the_same_card_that_the_registry_keeps(
    home: CoordinatorHome, capsys: pytest.CaptureFixture[str]
) -> None:
    told = ModelCard.model_validate_json(said(home, capsys, "card", "wards-1", "--json"))
    with closing(home.registry()) as registry:
        assert registry.card("wards", 1) == told
        assert told.privacy == registry.version("wards", 1).privacy
        registry.keep_card(told.model_copy(update={"limits": ("none",)}))
        assert registry.card("wards", 1) == told  # kept once
    assert (told.purpose is not None, told.lineage.run) == (True, "wards-1")


def test_a_card_is_written_as_two_files_with_the_audit_that_is_given(
    home: CoordinatorHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    AUDIT.write(tmp_path / "audit.json")
    words = ("card", "wards-1", "--audit", str(tmp_path / "audit.json"), "--out", str(tmp_path / "cards"))
    assert "for people" in said(home, capsys, *words)
    card = ModelCard.model_validate_json((tmp_path / "cards" / "model-card.json").read_bytes())
    page = (tmp_path / "cards" / "model-card.md").read_text(encoding="utf-8")
    assert (card.audit, page) == (AUDIT, card_page(card))
    assert "found a lower bound of epsilon 0.170 with 95% confidence. A lower bound is no proof" in page


BAD = [
    ("no file", None, "holds no result of an audit"),
    ("no audit", "{}", "holds no result of an audit"),
    ("not JSON", "epsilon 3", "holds no result of an audit"),
    ("infinite bound", AUDIT.model_dump_json().replace("0.17", "1e999"), "holds no result of an audit"),
    ("of another task", AUDIT.model_copy(update={"task": "heart"}).model_dump_json(), "of task heart, not of wards"),
]


@pytest.mark.parametrize(("content", "sentence"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_is_no_audit_of_the_task_is_refused(
    content: str | None, sentence: str, home: CoordinatorHome, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "a.json").write_text(content, encoding="utf-8")
    assert sentence in said(home, capsys, "card", "wards-1", "--audit", str(tmp_path / "a.json"), status=2)


def test_a_card_holds_nothing_exact_of_a_private_run(home: CoordinatorHome) -> None:
    """What a card may say of a site: numbers that were charged, and nothing of its journal, norms or fingerprints."""
    with closing(home.registry()) as registry:
        card = registry.card("wards", 1)
    assert card is not None
    assert all(site.noised for site in card.sites)
    assert set(type(card.sites[0]).model_fields) == {"site", "units", "noised", "blocks_left_out"}
    text = card.model_dump_json()
    assert "0" * 64 not in text  # the fingerprint of the rows
    assert not {"norm", "share", "fingerprint"} & set(json.loads(text))


def test_a_run_without_a_version_has_no_card_and_a_version_without_one_is_described(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = CoordinatorHome(tmp_path)
    made(home, "wards-1", task(2.0))
    assert "Nobody has measured it." in said(home, capsys, "card", "wards-1")
    made(home, "none-1", task(3.0), version=False)
    assert "has made no version, and promises nothing" in said(home, capsys, "card", "none-1", status=7)
