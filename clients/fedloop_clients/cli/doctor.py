"""Find out what may keep the site from working."""

from __future__ import annotations

from pathlib import Path

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, tell_json

__all__ = ["doctor"]

_NAME_WIDTH = 12
_LEVEL_WIDTH = 8


def doctor(
    home: Path = HOME,
    task: Path | None = typer.Option(None, "--task", help="A task file: which rows of the data file fit it?"),
    token_file: Path | None = typer.Option(None, "--token-file", help="Before joining: look at the way it leads."),
    proxy: str | None = typer.Option(None, "--proxy", help="Try this proxy instead of site.toml's."),
    seconds: float = typer.Option(5.0, "--seconds", min=0.5, max=60.0, help="For each step over the network."),
    as_json: bool = AS_JSON,
) -> None:
    """Look at files, way, certificates, clock, data, ledger and machine; say what is wrong and what to do."""
    from fedloop_clients.cli.membership import read_token
    from fedloop_clients.doctor import CHECKS, Level, Scene, examine
    from fedloop_clients.home import SiteHome
    from fedloop_core.task.reader import read_task

    scene = Scene(
        SiteHome(home.resolve()),
        token=None if token_file is None else read_token("", token_file),
        task=None if task is None else read_task(task),
        proxy=proxy,
        seconds=seconds,
    )
    findings = examine(scene, CHECKS)
    joined = scene.home.membership_file.exists()
    problems = sum(finding.level is Level.PROBLEM for _, finding in findings)
    if as_json:
        told = [
            {"check": name, "level": found.level.value, "sentence": found.sentence, "action": found.action}
            for name, found in findings
        ]
        tell_json({"joined": joined, "problems": problems, "findings": told})
    else:
        for name, found in findings:
            print(f"{found.level.value:{_LEVEL_WIDTH}} {name:{_NAME_WIDTH}} {found.sentence}")
            if found.action:
                print(f"{'':{_LEVEL_WIDTH}} {'':{_NAME_WIDTH}} -> {found.action}")
        print(_summary(problems, joined=joined, asked=scene.token is not None))
    raise typer.Exit(int(problems > 0 or not (joined or scene.token)))


def _summary(problems: int, *, joined: bool, asked: bool) -> str:
    """``asked``: about the way that a token leads, before joining."""
    if problems:
        return f"{problems} to be put right."
    if joined:
        return "Nothing keeps this site from working."
    return f"{'Nothing keeps this site from joining; ' if asked else ''}not joined yet: fedloop site join TOKEN"
