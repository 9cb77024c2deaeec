"""The model card of a version: for machines, and as a page for people (after Mitchell et al. 2019, arXiv 1810.03993).

It says nothing that was not told already: counts and measures as the sites noised and charged them, and what follows from the task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from fedloop_core.measure import Measure
from fedloop_core.privacy.audit import AuditResult, audit_sentence
from fedloop_core.privacy_statement import PrivacyStatement, statement_page
from fedloop_core.strict import Strict
from fedloop_core.task.purpose import Purpose

__all__ = ["CardGate", "CardLineage", "CardMetric", "CardModel", "CardSite", "ModelCard", "card_page"]

EVERYWHERE = "all"
"""The scope of a metric over all sites."""


class CardModel(Strict):
    """What it is: ``inputs`` and ``output`` by name, ``rounds`` of training and the ``rule`` that moved the model."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    classes: tuple[str, ...]
    rounds: int
    rule: str
    secure: bool


class CardSite(Strict):
    """A site whose rows shaped it: how many training units it told, exactly or with noise, and how many blocks it left out."""

    site: str
    units: int
    noised: bool
    blocks_left_out: int


class CardMetric(Strict):
    """An estimate of the measure with its interval, of one artifact at one site or at ``all``; ``rows`` may be noised."""

    scope: str
    artifact: str
    measure: Measure
    value: float
    low: float
    high: float
    rows: float


class CardGate(Strict):
    """What a gate said."""

    name: str
    verdict: str
    detail: str


class CardLineage(Strict):
    """Where it comes from. Digests of the sites' rows are in ``artifact.json`` and not here."""

    run: str
    parent_version: int | None
    task_digest: str
    software: dict[str, str]


class ModelCard(Strict):
    """Everything. ``confidence`` is that of the metrics' intervals, ``unit`` that of an absolute error; ``limits`` are sentences."""

    format: Literal[1] = 1
    task: str
    version: Annotated[int, Field(ge=1)]
    registered_unix: int
    model: CardModel
    purpose: Purpose | None
    sites: tuple[CardSite, ...]
    metrics: tuple[CardMetric, ...]
    confidence: float
    unit: str
    gates: tuple[CardGate, ...]
    released: bool | None
    privacy: PrivacyStatement
    limits: tuple[str, ...]
    lineage: CardLineage
    audit: AuditResult | None = None


def card_page(card: ModelCard) -> str:
    """Markdown in plain words."""
    lines = [f"# {card.task}, version {card.version}", "", "## What it is", "", *_model(card.model)]
    lines += ["", "## What it is for", "", *_purpose(card.purpose)]
    lines += ["", "## What it learnt from", "", *_sites(card)]
    lines += ["", "## How good it is", "", *_metrics(card)]
    lines += ["", "## Privacy", "", *_privacy(card)]
    lines += ["", "## Limits", "", *(f"- {sentence}" for sentence in card.limits)]
    lines += ["", "## Where it comes from", "", *_lineage(card.lineage)]
    return "\n".join(lines) + "\n"


def _model(model: CardModel) -> Iterator[str]:
    classes = f", one of: {', '.join(model.classes)}" if model.classes else ""
    yield f"A model of kind `{model.kind}` that predicts `{model.output}`{classes}."
    yield f"It reads {len(model.inputs)} inputs: {', '.join(f'`{name}`' for name in model.inputs)}."
    how = " of masked updates" if model.secure else ""
    yield f"It was trained in {model.rounds} rounds over sites that kept their rows; updates were joined by {model.rule}{how}."


def _purpose(purpose: Purpose | None) -> Iterator[str]:
    if purpose is None:
        yield "The task names no purpose. Its sites did not agree to any particular use."
        return
    told = f": {' '.join(purpose.text.split()).rstrip('.')}" if purpose.text.strip() else ""
    yield f"`{purpose.name}`{told}. The sites were told so before they took part; another use needs another agreement."


def _sites(card: ModelCard) -> Iterator[str]:
    unit = "rows" if card.privacy.unit == "record" else f"units of `{card.privacy.unit}`"
    about = "about " if any(site.noised for site in card.sites) else ""
    yield f"{about.capitalize()}{sum(site.units for site in card.sites):,} training {unit} at {len(card.sites)} sites."
    yield ""
    yield f"| site | training {unit} | blocks of rows left out |"
    yield "|---|---|---|"
    for site in card.sites:
        yield f"| {site.site} | {'about ' if site.noised else ''}{site.units:,} | {site.blocks_left_out} |"


def _metrics(card: ModelCard) -> Iterator[str]:
    if not card.metrics:
        yield "Nobody has measured it."
        return
    measure = card.metrics[0].measure
    unit = f" in {card.unit}" if card.unit else ""
    yield (
        f"{measure.words.capitalize()}{unit} on the sites' own evaluation rows, with {card.confidence:.0%} intervals; "
        f"{'higher' if measure.rises else 'lower'} is better."
    )
    yield ""
    yield f"| artifact | where | {measure.words} | interval | rows |"
    yield "|---|---|---|---|---|"
    for found in card.metrics:
        where = "all sites" if found.scope == EVERYWHERE else found.scope
        yield f"| {found.artifact} | {where} | {found.value:.3f} | {found.low:.3f} to {found.high:.3f} | {found.rows:,.0f} |"
    yield from _spread(card.metrics)
    if card.gates:
        decided = "lets it be released" if card.released else "holds it back"
        yield ""
        yield f"The quality gate {decided}:"
        yield ""
        for gate in card.gates:
            yield f"- {gate.name}: {gate.verdict} ({gate.detail})"


def _spread(metrics: Sequence[CardMetric]) -> Iterator[str]:
    """The worst and the best site of each artifact, where there are several."""
    yield ""
    for artifact in dict.fromkeys(found.artifact for found in metrics):
        own = sorted((f for f in metrics if f.artifact == artifact and f.scope != EVERYWHERE), key=lambda f: f.value)
        if len(own) > 1:
            yield f"- Over the sites, {artifact} ranges from {own[0].value:.3f} ({own[0].scope}) to {own[-1].value:.3f} ({own[-1].scope})."


def _privacy(card: ModelCard) -> Iterator[str]:
    _, *page = statement_page(card.privacy, task=card.task, version=card.version).rstrip().split("\n")
    yield from (f"#{line}" if line.startswith("#") else line for line in page[1:])
    yield ""
    yield "### Audit"
    yield ""
    if card.audit is None:
        yield "No result of an audit was given for this card."
    else:
        yield audit_sentence(card.audit)


def _lineage(lineage: CardLineage) -> Iterator[str]:
    parent = "from fresh weights" if lineage.parent_version is None else f"from version {lineage.parent_version}"
    yield f"- Run `{lineage.run}`, {parent}."
    yield f"- Task document with SHA-256 `{lineage.task_digest}`."
    yield f"- Made with {', '.join(f'{name} {version}' for name, version in sorted(lineage.software.items()))}."
