"""A rehearsal that hides whole sites: what it tells of them, its model cards, and a retraining that their budget does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.privacy.found_by_audit import AUDIT as FOUND

from fedloop_core.cli import main
from fedloop_core.model_card import ModelCard, card_page
from fedloop_core.task.presets import preset_text
from fedloop_server.whole_sites.budget import SiteBudget
from fedloop_simulations.simulation import Simulation

AUDIT = FOUND.model_copy(update={"task": "breast-cancer"})


def simulated(tmp_path: Path, *words: str) -> dict[str, object]:
    document = preset_text("breast-cancer").replace("minimum_accuracy = 0.8", "minimum_accuracy = 0.1")
    (tmp_path / "task.toml").write_text(f"{document}\n[central_privacy]\nepsilon = 60.0\n", encoding="utf-8")
    AUDIT.write(tmp_path / "audit.json")
    given = [
        str(tmp_path / "task.toml"),
        "--rounds",
        "3",
        "--seed",
        "3",
        "--sites",
        "4",
        "--out",
        str(tmp_path / "out"),
    ]
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *given, "--audit", str(tmp_path / "audit.json"), *words])
    assert ended.value.code == 0
    found: dict[str, object] = json.loads((tmp_path / "out" / "summary.json").read_bytes())
    return found


@pytest.mark.slow
def test_what_hiding_costs_is_told_and_a_retraining_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simulation, "_whole_site_budget", lambda self: SiteBudget(epsilon=70.0))
    summary = simulated(tmp_path)
    runs = summary["runs"]
    assert isinstance(runs, list)
    assert len(runs) == 1
    told = runs[0]["whole_sites"]
    assert (told["epsilon"], told["releases"], told["lifetime_budget"]) == (60.0, 3, 70.0)
    assert 59.9 < told["spent"] <= told["lifetime_epsilon"] <= 70.0
    decisions = summary["decisions"]
    assert isinstance(decisions, list)
    assert any("the coordinator's budget for whole sites does not admit another run with" in why for why in decisions)
    assert not summary["retrained"]

    card = ModelCard.model_validate_json((tmp_path / "out" / "cards" / "version-1.json").read_bytes())
    page = (tmp_path / "out" / "cards" / "version-1.md").read_text(encoding="utf-8")
    assert (card.audit, page) == (AUDIT, card_page(card))
    assert card.privacy.central is not None
    assert card.privacy.central.lifetime_epsilon == told["lifetime_epsilon"]
    assert len([metric for metric in card.metrics if metric.scope == "all"]) == 3
    audit = summary["audit"]
    assert isinstance(audit, dict)
    assert (audit["bound"], audit["refuted"]) == (0.17, False)

    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"has spent {told['spent']:.3f}" in report
    assert f"charged at {told['lifetime_epsilon']:.3f} of 70 for life" in report
    assert "found a lower bound of epsilon 0.170" in report
    assert "Model card of version 1, with its privacy statement" in report
    assert "## What is not protected" in report
