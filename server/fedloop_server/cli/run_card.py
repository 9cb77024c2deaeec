"""The model card of the version that a run made: ``fedloop run card``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloop_core.commands import AS_JSON, as_owner
from fedloop_core.errors import UsageError
from fedloop_server.cli.run_office import made_version, office, readable_view, say

if TYPE_CHECKING:
    from fedloop_core.model_card import ModelCard

__all__ = ["card", "card_in"]

PAGE, DOCUMENT = "model-card.md", "model-card.json"


def card(
    run: Annotated[str, typer.Argument(help="Name of the run, or how it begins.")],
    home: Annotated[
        Path, typer.Option("--home", envvar="FEDLOOP_HOME", help="The coordinator's folder.", callback=as_owner)
    ] = Path(),
    audit: Annotated[
        Path | None, typer.Option(help="What `fedloop privacy audit TASK --out FILE` wrote; it is told in the card.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help=f"Folder for {PAGE} and {DOCUMENT}, instead of printing.")] = None,
    as_json: bool = AS_JSON,
) -> None:
    """Tell what the version that a run made is: its purpose, data, measures, privacy, limits and lineage."""
    from fedloop_core.durable import write_bytes
    from fedloop_core.model_card import card_page
    from fedloop_core.privacy.audit import AuditResult

    found = card_in(home, run)
    if audit is not None:
        found = found.model_copy(update={"audit": AuditResult.read(audit, found.task)})
    page, document = card_page(found), found.model_dump_json(indent=1)
    if out is None:
        say(found.model_dump_json() if as_json else page)
        return
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is no folder.", hint="Name another --out.")
    write_bytes(out / PAGE, page.encode())
    write_bytes(out / DOCUMENT, (document + "\n").encode())
    say(found.model_dump_json() if as_json else f"Written: {out / PAGE} for people, {out / DOCUMENT} for machines.")


def card_in(home: Path, run: str) -> ModelCard:
    """The card that the registry holds, or what can be said of a version whose gate has not decided yet.

    Raises:
        RunError: the run has made no version.
    """
    from fedloop_server.runs.card import card_of

    view = readable_view(home, run)
    number, task = made_version(view), view.plan.task.name
    with office(home) as (coordinator, _), closing(coordinator.registry()) as registry:
        kept = registry.card(task, number)
        return card_of(view.plan, view.state, registry.version(task, number)) if kept is None else kept
