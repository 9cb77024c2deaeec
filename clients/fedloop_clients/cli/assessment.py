"""What a data protection officer files about the site's part in a task."""

from __future__ import annotations

import time
from pathlib import Path

import typer

from fedloop_clients.cli.options import HOME
from fedloop_core.commands import AS_JSON, tell_json
from fedloop_core.errors import UsageError

__all__ = ["assessment"]


def assessment(
    task: Path | None = typer.Argument(None, help="The task file, of a run that may come."),
    run: str = typer.Option("", "--run", help="Instead: a run that this site was asked to take part in."),
    out: Path | None = typer.Option(None, "--out", help="Where to write; standard output without it."),
    home: Path = HOME,
    as_json: bool = AS_JSON,
) -> None:
    """Write what an impact assessment needs: purpose, data, promises, spending, recipients, retention, rights, risks.

    It is Markdown, or with --json the same as data. What fedloop cannot know is marked for a person to fill in.
    """
    from fedloop_clients.assessment import Assessed, assess, assessment_page, known_run
    from fedloop_clients.home import SiteHome
    from fedloop_core.durable import write_bytes
    from fedloop_core.task.reader import read_task

    site = SiteHome(home.resolve())
    site.membership()
    if (task is None) == (not run):
        raise UsageError(
            "name either a task file or, with --run, a run.", hint="fedloop site assessment task.toml --out FILE"
        )
    assessed = known_run(site, run) if task is None else Assessed(read_task(task))
    made = assess(site, assessed, int(time.time()))
    content = made.model_dump_json(indent=1) + "\n" if as_json else assessment_page(made)
    if out is None:
        print(content, end="")
        return
    write_bytes(out, content.encode())
    if as_json:
        tell_json({"file": str(out), "blanks": len(made.blanks)})
    else:
        print(f"Wrote {out}. {len(made.blanks)} things in it are for a person to fill in: look for [TO FILL IN].")
