"""What a model version promises about the people in its data: for machines, and as a page for those people.

The statement travels in each artifact's ``artifact.json``, so that whoever runs a model can read what was promised.
"""

from __future__ import annotations

import math
from typing import Literal

from fedloop_core.strict import Strict
from fedloop_core.task.purpose import Purpose

__all__ = ["CentralPromise", "PrivacyStatement", "ReleaseMade", "SitePrivacy", "statement_page"]


_VOID = "VOID"
_NO_MECHANISM = "none"


class SitePrivacy(Strict):
    """What one site spent on training rows and evaluation rows, for this version and for life."""

    site: str
    epsilon: float
    delta: float
    lifetime_epsilon: float
    evaluation_epsilon: float


class ReleaseMade(Strict):
    """One kind of thing that left a site while the version was made: what, guarded by which mechanism, paid by which rows."""

    what: str
    mechanism: str
    charged_to: Literal["training rows", "evaluation rows", "whole sites", "nobody"]


class CentralPromise(Strict):
    """What is promised to each whole site, against who sees models and not against the coordinator.

    ``epsilon`` is of the ``releases`` that were made. ``lifetime_epsilon``: the most that any of its sites has spent over all runs of the
    coordinator when it was charged for this one, all planned rounds with it; the budget for that, None: no limit. ``private`` is false when the noise could be repeated.
    """

    private: bool
    unit: Literal["site"] = "site"
    epsilon: float
    delta: float
    releases: int
    noise_multiplier: float
    fewest_updates: int
    lifetime_epsilon: float | None = None
    lifetime_budget: float | None = None
    lifetime_delta: float | None = None


class PrivacyStatement(Strict):
    """What is promised; ``private`` is false when noise could be repeated or was absent. ``purpose``: None where the task named none.

    ``clipping_norm`` bounds one unit's gradient; None where nothing is clipped. ``coordinator_sees`` is the most that the
    coordinator learns of a round. ``not_protected`` are sentences.
    """

    private: bool
    unit: str
    adjacency: Literal["add-or-remove"]
    mechanism: str
    sites: tuple[SitePrivacy, ...]
    clipping_norm: float | None = None
    coordinator_sees: Literal["each site's update", "the sum of the updates"] = "each site's update"
    releases: tuple[ReleaseMade, ...] = ()
    central: CentralPromise | None = None
    not_protected: tuple[str, ...] = ()
    purpose: Purpose | None = None


def statement_page(statement: PrivacyStatement, *, task: str, version: int) -> str:
    """One page of Markdown in plain words."""
    lines = [f"# What version {version} of {task} promises about the people in its data", ""]
    if statement.purpose is not None:
        lines += [f"It was made for `{statement.purpose.name}`{_sentence(statement.purpose.text)}", ""]
    if statement.private:
        lines += _promise(statement)
    else:
        lines += _no_promise(statement)
    if statement.central is not None:
        lines += ["", "## Whole sites", "", *_whole_sites(statement.central)]
    lines += [
        "",
        "## Who saw what",
        "",
        f"- The coordinator saw {statement.coordinator_sees} of each round, and no row.",
    ]
    lines += ["- Each site saw its own rows, and each round's model.", "- Whoever holds the model sees the model."]
    if statement.releases:
        lines += ["", "## What left the sites", "", "| what | how it is guarded | paid by |", "|---|---|---|"]
        lines += [f"| {made.what} | {_guard(statement, made)} | {made.charged_to} |" for made in statement.releases]
    if statement.sites:
        void = (
            [f"{_VOID}: the noise can be repeated, and these numbers bound nothing.", ""] if _is_void(statement) else []
        )
        lines += ["", "## Numbers", "", *void, *_numbers(statement)]
    if statement.not_protected:
        lines += ["", "## What is not protected", "", *(f"- {sentence}" for sentence in statement.not_protected)]
    return "\n".join(lines) + "\n"


def _is_void(statement: PrivacyStatement) -> bool:
    """Whether noise was added that can be repeated, as in a rehearsal from a seed: what is said of it holds for nobody."""
    return not statement.private and statement.mechanism != _NO_MECHANISM


def _no_promise(statement: PrivacyStatement) -> list[str]:
    if _is_void(statement):
        how = "with noise that can be repeated from a seed, as in a rehearsal"
        marked = f"What is marked {_VOID} below would hold for a run whose noise nobody can repeat, and does not hold for this version."
    else:
        how, marked = "without differential privacy", ""
    lines = [
        f"Nothing. It was made {how}: somebody who knows the model may",
        "find out whether a person was in the data.",
    ]
    return [*lines, marked] if marked else lines


def _guard(statement: PrivacyStatement, made: ReleaseMade) -> str:
    """How a thing was guarded, marked where the guard's noise can be repeated."""
    central = statement.central
    void = central is not None and not central.private if made.charged_to == "whole sites" else _is_void(statement)
    return f"{_VOID}: {made.mechanism}" if void else made.mechanism


def _sentence(text: str) -> str:
    return f": {' '.join(text.split()).rstrip('.')}." if text.strip() else "."


def _promise(statement: PrivacyStatement) -> list[str]:
    unit = "row" if statement.unit == "record" else f"`{statement.unit}` (all rows with one value together)"
    highest = max((site.epsilon for site in statement.sites), default=math.inf)
    delta = max((site.delta for site in statement.sites), default=1.0)
    factor = "" if highest > 10 else f", which is {math.exp(highest):,.1f}"
    return [
        f"Whether any one {unit} was in a site's training data or not, everything that was told while this version was made, and the",
        f"model itself, would have come out as it did with almost the same chance: at most e^epsilon times as likely{factor}, where",
        f"epsilon is at most {highest:.2f}, apart from a chance of {delta:g}. So nobody learns much about one person by looking at the model",
        "that they could not have learnt without that person's data.",
        "",
        f"- How: {statement.mechanism}.",
        f"- One {unit} moved a step by a gradient of at most {statement.clipping_norm:g} before noise was added."
        if statement.clipping_norm is not None
        else "- Nothing was clipped.",
        "- Noise was added at each site, before anything left it: the promise does not rest on what the coordinator does.",
    ]


def _whole_sites(promise: CentralPromise) -> list[str]:
    if not promise.private:
        return ["Nothing: the coordinator's noise can be repeated."]
    return [
        f"Whoever sees the models, and nothing else of the coordinator, learns little about what one site's updates were: epsilon {promise.epsilon:.2f},",
        f"apart from a chance of {promise.delta:g}, over {promise.releases} models, for adding or removing all updates of one site. The coordinator cut each update",
        f"to a fixed length and added noise {promise.noise_multiplier:.3g} times as long to their sum, of {promise.fewest_updates} updates or more. This rests on the coordinator:",
        "it saw the updates before the noise.",
        *_for_life(promise),
    ]


def _for_life(promise: CentralPromise) -> list[str]:
    """What the sites have spent over all runs, where that is known."""
    if promise.lifetime_epsilon is None or promise.lifetime_delta is None:
        return []
    of = "without a limit" if promise.lifetime_budget is None else f"of at most {promise.lifetime_budget:g}"
    return [
        f"With all runs of this coordinator before it, a site has spent epsilon {promise.lifetime_epsilon:.2f} {of} for life, at delta",
        f"{promise.lifetime_delta:g}; this run is counted with all rounds that it planned.",
    ]


def _numbers(statement: PrivacyStatement) -> list[str]:
    rows = [
        f"| {site.site} | {site.epsilon:.3f} | {site.delta:g} | {site.lifetime_epsilon:.3f} | {site.evaluation_epsilon:.3f} |"
        for site in statement.sites
    ]
    return [
        "| site | epsilon of this version | delta | epsilon for life | epsilon on evaluation rows |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "Neighbours are two tables that differ by adding or removing one unit. The numbers are each site's own word about its ledger.",
    ]
