"""The report in a few sentences, from its numbers alone."""

from __future__ import annotations

from collections import Counter

from fedloop_simulations.report.model import RunReport, StreamPhase
from fedloop_simulations.report.spelling import with_value

__all__ = ["headline"]

_SHIFTS = {
    "none": "nothing",
    "covariate": "instruments were recalibrated",
    "label": "the mix of outcomes changed",
    "concept": "the same inputs came to mean something else",
}


def headline(report: RunReport) -> tuple[str, ...]:
    """What happened: one sentence for training and release, one for the shift, one for the recovery."""
    told = (*report.attack, _trained(report), _shifted(report), _recovered(report))
    return tuple(sentence for sentence in told if sentence)


def _trained(report: RunReport) -> str:
    sites = f"{len(report.sites)} {'site' if len(report.sites) == 1 else 'sites'}"
    sentence = f"{sites} trained together without moving a row"
    if report.devices:
        devices = len(report.devices)
        sentence += f", and {devices} {'device' if devices == 1 else 'devices'} answered"
    before = report.phase("before")
    return f"{sentence} {_worth(report, before)}." if before else f"{sentence}."


def _shifted(report: RunReport) -> str:
    changed = report.drift_tick if report.drift_kind != "none" else None
    false = [score.site for score in report.drift if score.alarmed and (changed is None or score.tick < changed)]
    if changed is None:
        if not report.drift:
            return ""
        told = f"{_listed(report, false)} raised a false alarm" if false else "no monitor raised a false alarm"
        return f"Nothing changed in the world, {'yet' if false else 'and'} {told}."
    sentence = f"At tick {changed} {_SHIFTS[report.drift_kind]}"
    under = report.phase("under")
    if under is not None:
        sentence += f" and the {report.measure.words} came to {report.shown(under.value)}"
    alarms = sorted((s for s in report.drift if s.alarmed and s.tick >= changed), key=lambda score: score.tick)
    if alarms:
        noticed = len({score.site for score in alarms})
        sentence += (
            f"; {noticed} of {len(report.sites)} sites noticed, {alarms[0].site} first, at tick {alarms[0].tick}"
        )
    else:
        sentence += "; no monitor noticed"
    return f"{sentence}; {_listed(report, false)} had raised a false alarm before." if false else f"{sentence}."


def _listed(report: RunReport, sites: list[str]) -> str:
    named = [site for site in report.sites if site in sites]
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _recovered(report: RunReport) -> str:
    after, serving = report.phase("after"), Counter(report.serving.values())
    newest = max((version for version in serving if version is not None), default=1)
    if newest < 2:
        return ""
    sentence = (
        f"Version {newest} was trained on what came back and now runs on {serving[newest]} of {serving.total()} devices"
    )
    return f"{sentence}, {_worth(report, after)}." if after else f"{sentence}."


def _worth(report: RunReport, phase: StreamPhase) -> str:
    return with_value(report.measure, phase.value, report.unit)
