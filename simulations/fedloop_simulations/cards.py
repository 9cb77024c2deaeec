"""The model cards of a simulation's versions, as files beside its summary, and what it tells of whole sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fedloop_core.durable import write_bytes
from fedloop_core.model_card import ModelCard, card_page
from fedloop_core.privacy.audit import AuditResult
from fedloop_core.task import Task
from fedloop_server.runs.state import RunState
from fedloop_simulations.coordinator import Coordinator
from fedloop_simulations.summary import AuditSummary, WholeSitesSummary

__all__ = ["CARDS", "audit_summary", "card_file", "cards_of", "whole_sites_summary", "write_cards"]

CARDS = "cards"
"""The folder."""


def card_file(version: int) -> str:
    """The machine-readable card of a version, below the simulation's folder; the page for people ends in ``.md``."""
    return f"{CARDS}/version-{version}.json"


def cards_of(coordinator: Coordinator, task: Task, audit: AuditResult | None) -> Iterator[ModelCard]:
    """The cards that the registry keeps, with the audit that was given."""
    for record in coordinator.registry.versions(task.name):
        card = coordinator.registry.card(task.name, record.number)
        if card is not None:
            yield card.model_copy(update={"audit": audit})


def write_cards(cards: Iterator[ModelCard], out: Path) -> None:
    """Writes each for machines and for people.

    Raises:
        StorageError: the folder cannot be written.
    """
    for card in cards:
        document = out / card_file(card.version)
        write_bytes(document, (card.model_dump_json(indent=1) + "\n").encode())
        write_bytes(document.with_suffix(".md"), card_page(card).encode())


def audit_summary(found: AuditResult | None) -> AuditSummary | None:
    """What is told of an audit."""
    if found is None:
        return None
    return AuditSummary(
        claimed=found.claimed,
        bound=found.bound,
        delta=found.delta,
        confidence=found.confidence,
        canaries=found.canaries,
        refuted=found.refuted,
        private=found.private,
    )


def whole_sites_summary(task: Task, state: RunState) -> WholeSitesSummary | None:
    """What a run has cost whole sites; None where its task does not hide them."""
    central = task.central_privacy
    if central is None:
        return None
    told = next((closed.central for closed in reversed(state.rounds) if closed.central is not None), None)
    return WholeSitesSummary(
        epsilon=central.epsilon,
        delta=central.delta,
        releases=0 if told is None else told.releases,
        spent=0.0 if told is None else told.epsilon,
        lifetime_epsilon=max((charged.spent for charged in state.charged), default=None),
        lifetime_budget=next((charged.budget for charged in state.charged), None),
    )
