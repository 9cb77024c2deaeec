"""Runs as people read them: tables for ``list`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedloop_core.printable import printable
from fedloop_server.cli.run_documents import LeftOutDocument, RoundDocument, RunDocument, RunLine, SiteDocument
from fedloop_server.cli.run_words import bytes_words, estimate_words, every_words, moment, took_words, zoned

__all__ = ["list_table", "make_table", "show_tables"]

_LAST_ROUNDS = 12
_LONGEST_REASON = 200  # characters, below a list
_SCHEDULED = "scheduled"
_OVER = frozenset({"finished", "failed", "stopped"})
_LIFE = (
    "For life: all runs of the site, as its ledger counts them towards its budgets, more strictly than one run alone."
)


def make_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """A table whose cells are plain text on one line, whatever they hold; the columns in ``right`` are flush right."""
    table = Table(title=title or None, title_justify="left")
    for name in columns:
        table.add_column(Text(name), justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def list_table(lines: Sequence[RunLine]) -> RenderableType:
    """All runs, one a line; below it, why those stand that do not go on, and how the newest came to its end."""
    later = any(line.status == _SCHEDULED for line in lines)
    rows = [
        (
            line.run,
            line.task,
            line.status,
            f"{line.round}/{line.rounds}",
            f"{line.sites}/{line.expected_sites}",
            moment(line.started_unix),
            took_words(line.took),
            *((moment(line.not_before_unix if line.status == _SCHEDULED else None),) if later else ()),
        )
        for line in lines
    ]
    columns = ("run", "task", "state", "round", "sites", "started", "took", *(("starts",) if later else ()))
    table = make_table("", columns, rows, right=("round", "sites", "took"))
    return Group(table, *(Text(_told_reason(line)) for line in _to_explain(lines)))


def _to_explain(lines: Sequence[RunLine]) -> Iterator[RunLine]:
    """Those that are not over, and the one that ended last: ``show`` says of every other why it ended."""
    ended = [line for line in lines if line.status in _OVER]
    newest = max(ended, key=lambda line: line.ended_unix or 0.0, default=None)
    return (line for line in lines if line.reason and (line.status not in _OVER or line is newest))


def _told_reason(line: RunLine) -> str:
    said = printable(line.reason)
    if len(said) <= _LONGEST_REASON:
        return printable(f"{line.run}: ") + said
    return printable(f"{line.run}: {said[:_LONGEST_REASON].rstrip()}… (`fedloop run show {line.run}` says all of it)")


def show_tables(document: RunDocument, *, every_round: bool = False) -> RenderableType:
    """Everything of one run."""
    parts: list[RenderableType] = [_text(line) for line in _facts(document)]
    if document.rounds:
        parts.append(_rounds(document, every_round=every_round))
    if document.sites:
        parts.append(_sites(document.sites, document.measure))
    if document.aggregation != "mean" and any(site.share is not None for site in document.sites):
        parts.append(_shares(document))
    parts.extend(_text(line) for line in _shortened(document))
    if any(site.epsilon is not None for site in document.sites) and document.private:
        parts.append(_privacy(document.sites))
        parts.append(Text(_LIFE))
    if document.artifacts:
        parts.append(_artifacts(document))
    parts.extend(_text(line) for line in _left_out(document))
    parts.extend(_text(f"gate: {reason}") for reason in document.gate_reasons)
    parts.append(Text(f"next: {document.next_step}"))
    return Group(*parts)


def _facts(document: RunDocument) -> Iterator[str]:
    line = document.line
    yield f"run:      {line.run}, {line.status}{f' ({line.reason})' if line.reason else ''}"
    warm = "" if document.warm_from is None else f", warm from version {document.warm_from}"
    yield f"task:     {line.task}, digest {document.task_digest[:16]}, seed {document.seed}{warm}"
    if line.not_before_unix is not None:
        every = "" if line.every_seconds is None else f", then every {every_words(line.every_seconds)}"
        yield f"starts:   {zoned(line.not_before_unix)}{every}"
    if line.started_unix is not None:
        ended = "" if line.ended_unix is None else f", ended {moment(line.ended_unix)}"
        yield f"started:  {moment(line.started_unix)}{ended}, took {took_words(line.took)}"
    yield (
        f"rounds:   {line.round} of {line.rounds} closed, in {_many(document.attempts, 'attempt')}; each asks for "
        f"{document.quorum} of {line.expected_sites} sites within {took_words(document.deadline_seconds)}"
    )
    if document.planned_epsilon is None:
        yield "privacy:  none (epsilon = inf)"
    else:
        rehearsal = "" if document.private else " (a rehearsal: not private)"
        yield (
            f"privacy:  epsilon {document.planned_epsilon:g} for each site's training rows, "
            f"{document.planned_evaluation_epsilon or 0.0:g} for its evaluation rows{rehearsal}"
        )
    noised = [found.central for found in document.rounds if found.central is not None]
    if noised:
        yield (
            f"sites:    epsilon {noised[-1].epsilon:.3f} so far for each whole site, in {_many(noised[-1].releases, 'release')}, "
            f"updates clipped to {noised[-1].clipping_norm:.3g}"
        )
    if document.measured is not None:
        yield f"measured: {document.measure.replace('_', ' ')} {estimate_words(document.measured)} over all sites"
    traffic = f"{bytes_words(document.bytes_out)} to sites, {bytes_words(document.bytes_in)} back"
    yield f"traffic:  {traffic}"
    if line.version is not None:
        released = {None: "not judged yet", True: "may be released", False: "held back"}[document.released]
        yield f"version:  {line.version} of {line.task}, {released}"


def _rounds(document: RunDocument, *, every_round: bool) -> Table:
    shown = document.rounds if every_round else document.rounds[-_LAST_ROUNDS:]
    hidden = len(document.rounds) - len(shown)
    title = f"Rounds (the last {len(shown)}; --rounds shows all)" if hidden else "Rounds"
    columns = ("round", "asked", "answered", "left out", "seconds", "to sites", "back", document.measure)
    rows = [
        (
            str(r.round) if r.closed else f"{r.round} (open)",
            str(len(r.asked)),
            str(len(r.answered)),
            ", ".join(out.site for out in r.left_out) or "-",
            _seconds(r),
            bytes_words(r.bytes_out),
            bytes_words(r.bytes_in),
            estimate_words(r.measured),
        )
        for r in shown
    ]
    return make_table(title, columns, rows, right=("round", "asked", "answered", "seconds", "to sites", "back"))


def _seconds(found: RoundDocument) -> str:
    return "-" if found.seconds is None else f"{found.seconds:.2f}"


def _sites(sites: Sequence[SiteDocument], measure: str) -> Table:
    columns = ("site", "rows", "answered", "left out", "seconds", "to site", "back", measure)
    rows = [
        (
            site.site,
            _rows(site),
            f"{site.answered} of {site.asked}",
            str(site.left_out) if site.member else "not a member",
            f"{site.seconds:.1f}",
            bytes_words(site.bytes_out),
            bytes_words(site.bytes_in),
            estimate_words(site.measured),
        )
        for site in sites
    ]
    return make_table("Sites", columns, rows, right=("rows", "answered", "left out", "seconds", "to site", "back"))


def _shares(document: RunDocument) -> Table:
    rows = [(site.site, f"{site.share:.3f}") for site in document.sites if site.share is not None]
    title = f"Mean share of each site's updates in what moved the model, by {document.aggregation}"
    return make_table(title, ("site", "share"), rows, right=("share",))


def _shortened(document: RunDocument) -> Iterator[str]:
    """Whose updates were longer than the bound, in which rounds, and by how much at most."""
    for site in document.sites:
        own = [(r.round, u.norm, u.bounded_to) for r in document.rounds for u in r.updates if u.site == site.site]
        long = [(number, norm, bound) for number, norm, bound in own if bound is not None]
        if long:
            _, norm, bound = max(long, key=lambda found: found[1] / found[2])
            rounds = _listed([number for number, _, _ in long])
            yield f"{site.site}'s update was shortened in {rounds}, at most from a norm of {norm:.3g} to {bound:.3g}."


def _rows(site: SiteDocument) -> str:
    return "-" if site.rows is None else f"{'about ' if site.rows_noised else ''}{site.rows}"


def _privacy(sites: Sequence[SiteDocument]) -> Table:
    columns = ("site", "this run", "for life", "budget", "evaluation rows, for life", "delta")
    rows = [
        (
            site.site,
            _number(site.epsilon),
            _number(site.lifetime_epsilon),
            _number(site.budget),
            _number(site.evaluation_epsilon),
            "-" if site.delta is None else f"{site.delta:g}",
        )
        for site in sites
        if site.member
    ]
    return make_table("Epsilon spent on training rows", columns, rows, right=columns[1:])


def _artifacts(document: RunDocument) -> Table:
    rows = [
        (f"version {a.version}", a.kind, estimate_words(a.measured), str(len(a.measured_by_site)))
        for a in document.artifacts
    ]
    columns = ("of", "artifact", document.measure, "sites")
    return make_table("Artifacts, as the sites measured them", columns, rows, right=("sites",))


def _left_out(document: RunDocument) -> Iterator[str]:
    """Each reason once, with the rounds that it concerns."""
    outs = [*document.left_out, *(out for r in document.rounds for out in r.left_out)]
    grouped: dict[tuple[str, str, str], list[LeftOutDocument]] = {}
    for out in outs:
        grouped.setdefault((out.site, out.code, out.reason), []).append(out)
    for (site, code, reason), found in grouped.items():
        meaning = f": {found[0].meaning.rstrip('.')}" if found[0].meaning else ""
        yield f"{site} was left out of {_where(found, document.line.rounds)}: {reason.rstrip('.')} ({code}{meaning})."


def _where(found: Sequence[LeftOutDocument], planned: int) -> str:
    numbers = sorted({out.round for out in found if 0 < out.round <= planned})
    words = [_listed(numbers)] if numbers else []
    if any(out.round == 0 for out in found):
        words.insert(0, "the run")
    if any(out.round > planned for out in found):
        words.append("an evaluation of an artifact")
    return " and ".join(words)


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"round {numbers[0]}"
    whole = numbers[-1] - numbers[0] == len(numbers) - 1
    return f"rounds {numbers[0]} to {numbers[-1]}" if whole else f"rounds {', '.join(map(str, numbers))}"


def _text(said: str) -> Text:
    """As it is, but for what a terminal would obey: some of it came from sites."""
    return Text(printable(said))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
