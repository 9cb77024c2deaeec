"""The report is one file that needs nothing beside it, repeats, shows what it is given and survives what is absent."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from pydantic import ValidationError

from fedloop_core.errors import StorageError
from fedloop_simulations.drift import DriftKind
from fedloop_simulations.report import (
    ArtifactLine,
    DeviceVersion,
    DriftScore,
    EventLine,
    PrivacyLine,
    RoundPoint,
    RunReport,
    StreamPhase,
    render_report,
    write_report,
)

SITES = ("north", "east")
EMPTY = RunReport(
    title="A rehearsal",
    task="tumours",
    fedloop="0.1.0",
    seed=7,
    epsilon=None,
    private=False,
    sites=SITES,
    last_tick=0,
    drift_kind="none",
)
VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use", "rect"}


def alarm(site: str, tick: int, *, alarmed: bool = True) -> DriftScore:
    return DriftScore(site=site, tick=tick, window=1, version=1, score=1.7 if alarmed else 0.2, alarmed=alarmed)


def phase(name: str, value: float) -> StreamPhase:
    return StreamPhase.model_validate({"phase": name, "value": value, "low": 0.3, "high": 1.0, "rows": 50})


FULL = EMPTY.model_copy(
    update={
        "epsilon": 8.0,
        "last_tick": 30,
        "drift_kind": "covariate",
        "drift_tick": 10,
        "rounds": tuple(
            RoundPoint(version=version, site=site, round=round_, value=0.9, low=0.8, high=0.95)
            for version in (1, 2)
            for site in SITES
            for round_ in (0, 5)
        ),
        "privacy": (
            PrivacyLine(site="north", epsilon=3.25, budget=16.0, evaluation_epsilon=1.5),
            PrivacyLine(site="east", epsilon=4.5, budget=None, evaluation_epsilon=None),
        ),
        "artifacts": (
            ArtifactLine(version=2, kind="onnx-int8", bytes=6004, latency_us=14.9, value=0.961, agreement=0.998),
            ArtifactLine(version=2, kind="tflite-int8", bytes=5480),
        ),
        "device_versions": (
            DeviceVersion(tick=0, device="north-0", version=None),
            DeviceVersion(tick=1, device="north-0", version=1),
            DeviceVersion(tick=20, device="north-0", version=2),
            DeviceVersion(tick=2, device="east-0", version=1),
        ),
        "drift": (alarm("east", 5, alarmed=False), alarm("east", 12), alarm("north", 11, alarmed=False)),
        "stream": (phase("before", 0.97), phase("under", 0.44), phase("after", 0.95)),
        "events": (EventLine(tick=12, text="east reports covariate drift in window 1."),),
    }
)


class Page(HTMLParser):
    """Text, ids and references of a page, and whether its elements nest."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self._note(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(attrs)

    def _note(self, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "xlink:href", "src", "action", "srcset", "poster", "data"):
                self.references.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("report", [EMPTY, FULL], ids=["empty", "full"])
def test_the_page_is_whole_and_asks_nothing_of_the_network(report: RunReport) -> None:
    html = render_report(report)
    page = Page(html)
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {reference.lstrip("#") for reference in page.references} <= set(page.ids)
    assert all(reference.startswith("#") for reference in page.references)
    for forbidden in ("<script", "@import", "url(http", "<link", "<img", "@font-face"):
        assert forbidden not in html
    assert "prefers-color-scheme: dark" in html


def test_the_same_report_is_the_same_bytes(tmp_path: Path) -> None:
    write_report(FULL, tmp_path / "a.html")
    write_report(FULL, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_charts_follow_the_pages_colours() -> None:
    html = render_report(FULL)
    assert html.count("<svg") == 6
    assert "var(--series-1)" in html
    assert "#a0000" not in html
    assert "#010101" not in html


def test_numbers_given_are_numbers_shown() -> None:
    text = Page(render_report(FULL)).text.replace("\u00a0", " ")
    for shown in (
        "97.0 %",
        "44.0 %",
        "95.0 %",
        "3.250",
        "16.000",
        "6,004",
        "14.9",
        "99.8 %",
        "north-0",
        "private: false",
    ):
        assert shown in text
    assert "east reports covariate drift in window 1." in text


def test_a_section_without_data_says_so() -> None:
    text = Page(render_report(EMPTY)).text
    assert "without differential privacy" in text
    for sentence in (
        "No rows were streamed",
        "No windows were watched",
        "No devices took part",
        "Nothing was exported",
    ):
        assert sentence in text


@pytest.mark.parametrize(
    ("kind", "tick", "drift", "says"),
    [
        pytest.param("none", None, (alarm("east", 3, alarmed=False),), "no monitor raised a false alarm", id="quiet"),
        pytest.param("none", None, (alarm("east", 3),), "yet east raised a false alarm", id="false alarm"),
        pytest.param("label", 9, (alarm("east", 12), alarm("east", 13)), "1 of 2 sites noticed, east first", id="seen"),
        pytest.param("concept", 9, (alarm("east", 12, alarmed=False),), "no monitor noticed", id="missed"),
        pytest.param("label", 9, (alarm("north", 4), alarm("east", 12)), "north had raised a false alarm", id="both"),
    ],
)
def test_the_headline_says_what_happened(
    kind: DriftKind, tick: int | None, drift: tuple[DriftScore, ...], says: str
) -> None:
    report = EMPTY.model_copy(update={"drift_kind": kind, "drift_tick": tick, "drift": drift, "last_tick": 20})
    assert says in Page(render_report(report)).text


def test_names_from_outside_are_text_and_never_markup() -> None:
    evil = '<script>alert("x")</script>&$a$'
    report = EMPTY.model_copy(
        update={
            "title": evil,
            "sites": (evil,),
            "last_tick": 5,
            "epsilon": 1.0,
            "device_versions": (DeviceVersion(tick=0, device=evil[:17], version=1),),
            "drift": (alarm(evil, 2),),
            "rounds": (RoundPoint(version=1, site=evil, round=1, value=0.5, low=0.4, high=0.6),),
            "privacy": (PrivacyLine(site=evil, epsilon=1.0, budget=2.0, evaluation_epsilon=1.0),),
            "events": (EventLine(tick=1, text=evil),),
        }
    )
    html = render_report(report)
    assert "<script" not in html
    Page(html)


@pytest.mark.slow
def test_a_large_federation_still_gets_a_page_of_reasonable_size() -> None:
    sites = tuple(f"site-{at:03}" for at in range(100))
    report = EMPTY.model_copy(
        update={
            "sites": sites,
            "last_tick": 20,
            "device_versions": tuple(DeviceVersion(tick=at % 3, device=f"d{at}", version=1) for at in range(200)),
            "drift": tuple(alarm(site, tick, alarmed=False) for site in sites for tick in range(5)),
            "rounds": tuple(
                RoundPoint(version=1, site=site, round=k, value=0.9, low=0.8, high=1.0)
                for site in sites
                for k in range(5)
            ),
        }
    )
    assert len(render_report(report)) < 2_500_000


@pytest.mark.parametrize(
    "update",
    [
        pytest.param({"drift": [alarm("west", 1)]}, id="a site that is not there"),
        pytest.param(
            {"stream": [{"phase": "before", "value": float("nan"), "low": 0, "high": 1, "rows": 1}]}, id="NaN"
        ),
        pytest.param({"epsilon": float("inf")}, id="infinite epsilon"),
    ],
)
def test_a_report_of_nonsense_is_refused(update: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        RunReport.model_validate({**EMPTY.model_dump(), **update}, strict=False)


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        write_report(EMPTY, tmp_path / "file" / "report.html")
