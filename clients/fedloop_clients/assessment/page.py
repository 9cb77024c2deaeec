"""An assessment as a page of Markdown, for the people who file it. Text of others is one line, and no markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fedloop_clients.assessment.document import AssessedTask, Assessment, Blank
from fedloop_core.commands import moment
from fedloop_core.printable import printable

__all__ = ["BLANK", "assessment_page"]

BLANK = "[TO FILL IN]"
"""Marks what a person must write; nothing else holds it."""

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~])")
_Lines = list[str]


def assessment_page(assessment: Assessment) -> str:
    """The page."""
    parts = (
        _head(assessment),
        _purpose(assessment),
        _data(assessment.task),
        _privacy(assessment),
        _spent(assessment),
        _recipients(assessment),
        _retention(assessment),
        _rights(assessment),
        _measures(assessment),
        _risks(assessment),
        _runs(assessment),
        _blanks(assessment.blanks),
    )
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _plain(text: str) -> str:
    """Text of others: one line, of which nothing is read as markup."""
    return _MARKUP.sub(r"\\\1", printable(" ".join(text.split())))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> _Lines:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(_plain(cell) for cell in row)} |" for row in rows]


def _head(made: Assessment) -> _Lines:
    task = made.task
    software = ", ".join(f"{name} {found}" for name, found in made.software.items())
    run = f", run {_plain(made.run.run_id)}" if made.run is not None else ""
    return [
        f"# Data protection assessment: task {_plain(task.name)} at site {_plain(made.site)}",
        "",
        "For the data protection officer. What follows is taken from the site's own settings and records. What fedloop cannot know is marked",
        f"{BLANK} and listed at the end. It is no legal advice.",
        "",
        f"- Made: {moment(made.made_unix)}",
        f"- Task: {_plain(task.name)}{run}",
        f"- Fingerprint of the task document (SHA-256): {task.digest}",
        f"- Format: {made.format}",
        f"- Software: {software}",
        f"- Controller and contact: {BLANK}",
    ]


def _purpose(made: Assessment) -> _Lines:
    task = made.task
    named = f"{_plain(task.purpose)}" if task.purpose else BLANK
    lines = ["## Purpose", "", f"- Purpose: {named}"]
    if task.purpose_text:
        lines.append(f"- In the task's words: {_plain(task.purpose_text)}")
    if task.description:
        lines.append(f"- The task: {_plain(task.description)}")
    lines += [
        "- The purpose is part of the signed task document: a run for another one has another fingerprint, and a retraining keeps it.",
        f"- Legal basis: {BLANK}",
        f"- Necessity and proportion: {BLANK}",
        "",
        "What the site allows:",
        "",
    ]
    return lines + [f"- {_plain(line)}" for line in made.policy]


def _data(task: AssessedTask) -> _Lines:
    rows = [(column.name, column.kind, column.unit, column.role) for column in task.columns]
    return [
        "## Data",
        "",
        "Columns of the site's table that the task reads. No value is told here, and no row leaves the site.",
        "",
        *_table(("column", "kind", "unit", "used as"), rows),
        "",
        f"- People concerned: {BLANK}",
        f"- Special categories of data: {BLANK}",
    ]


def _privacy(made: Assessment) -> _Lines:
    task = made.task
    lines = ["## What is promised", ""]
    if task.private:
        unit = "row" if task.unit == "row" else f"{_plain(task.unit)} (all rows with one value of that column together)"
        lines += [
            f"- Unit: one {unit}. Whether one unit was in the training data changes the chance of anything that a run tells by at most a",
            f"  factor of e^epsilon, epsilon {_number(task.epsilon)}, apart from a chance of {_number(task.delta)}, in one run of {task.rounds} rounds.",
            f"- Evaluation rows: epsilon {_number(task.evaluation_epsilon)} in one run.",
            f"- How: {task.mechanism}. One unit's gradient is cut to length {_number(task.clipping_norm)}.",
        ]
    else:
        lines.append("- Nothing: the task trains without differential privacy. What leaves may tell about single rows.")
    lines += ["", "What leaves the site:", ""]
    releases = [(made_.what, made_.mechanism, made_.charged_to) for made_ in made.releases]
    return lines + _table(("what", "how it is guarded", "paid by"), releases)


def _spent(made: Assessment) -> _Lines:
    lines = ["## What has been spent", ""]
    run = made.run
    if run is not None:
        lines += [
            f"- This run so far, on training rows: epsilon {_number(run.epsilon)}",
            f"- On evaluation rows: epsilon {_number(run.evaluation_epsilon)}",
            f"- Blocks of rows that are left out of it: {run.blocks_left_out}",
            "",
        ]
    if not made.blocks:
        return [*lines, "Nothing: the site has no ledger yet, which begins with its first run."]
    lines += ["For life, by all runs together:", ""]
    lines += [f"- {_plain(block.words)}" for block in made.blocks]
    rows = [
        (
            block.name,
            _number(block.epsilon),
            _number(block.budget),
            f"{block.delta:g}",
            str(block.runs),
            "-" if block.runs_left is None else f"{block.runs_left:.1f}",
        )
        for block in made.blocks
    ]
    return [*lines, "", *_table(("block of rows", "spent", "budget", "delta", "runs", "runs left"), rows)]


def _recipients(made: Assessment) -> _Lines:
    rows = [(one.who, one.gets, one.address) for one in made.recipients]
    seen = [(one.what, one.device, one.site, one.coordinator, one.other_sites) for one in made.disclosures]
    return [
        "## Recipients",
        "",
        *_table(("who", "gets", "address"), rows),
        "",
        f"- Legal names, countries and contracts: {BLANK}",
        f"- Transfers to other countries: {BLANK}",
        "",
        "Who sees what:",
        "",
        *_table(("what", "device", "this site", "coordinator", "other sites"), seen),
    ]


def _retention(made: Assessment) -> _Lines:
    rows = [
        (held.store.name, held.store.holds, held.store.kept, held.store.deleted_by, held.store.stays)
        for held in made.retention
    ]
    return [
        "## Retention",
        "",
        *_table(("store", "holds", "kept", "deleted by", "what stays, and why"), rows),
        "",
        f"- Data file and backups: {BLANK}",
    ]


def _rights(made: Assessment) -> _Lines:
    rights = made.rights
    since = "" if rights.first_erased_unix is None else f", the first since {moment(rights.first_erased_unix)}"
    lines = ["## Rights of people", "", f"- People who are left out now: {rights.people_erased}{since}"]
    lines += [f"- {_plain(sentence)}" for sentence in rights.sentences]
    return [*lines, f"- Whom people turn to, and how they were informed: {BLANK}"]


def _measures(made: Assessment) -> _Lines:
    rows = [(one.name, "yes" if one.holds else "no", one.how) for one in made.measures]
    return ["## Measures", "", *_table(("measure", "holds", "how"), rows)]


def _risks(made: Assessment) -> _Lines:
    lines = ["## What is not protected", "", *(f"- {_plain(sentence)}" for sentence in made.risks)]
    return [*lines, "", f"- How likely and severe these are for people, and what is decided: {BLANK}"]


def _runs(made: Assessment) -> _Lines:
    if not made.runs:
        return ["## Runs of this site", "", "None has begun."]
    rows = [(run.run_id, moment(run.begun_unix), run.task, run.purpose or "none named") for run in made.runs]
    return ["## Runs of this site", "", *_table(("run", "begun", "task", "purpose"), rows)]


def _blanks(blanks: Iterable[Blank]) -> _Lines:
    return ["## To be filled in by people", "", *(f"- {one.section}: {one.what}. {BLANK}" for one in blanks)]


def _number(value: float | None) -> str:
    return "without bound" if value is None else f"{value:.4g}"
