"""Check, describe and begin task files."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fedloop_core.durable import write_bytes
from fedloop_core.errors import TaskError, UsageError
from fedloop_core.task.advice import advice_on
from fedloop_core.task.document import Task
from fedloop_core.task.presets import preset_names, preset_text, starter_text
from fedloop_core.task.reader import parse_task, read_task
from fedloop_core.task.summary import describe

__all__ = ["check", "commands", "init", "schema"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)


@commands.callback()
def _task() -> None:
    """Check, describe and begin task files."""


@commands.command()
def check(
    file: Path = typer.Argument(Path("task.toml"), help="The task file."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of sentences."),
) -> None:
    """Check a task file: every mistake with its line, or what the task is."""
    task = read_task(file)
    warnings = advice_on(task)
    if as_json:
        digest = task.digest.hex()
        print(json.dumps({"task": json.loads(task.canonical()), "digest": digest, "warnings": warnings}))
        return
    print(f"{file} is right.")
    for line in describe(task):
        print(f"  {line}")
    for warning in warnings:
        print(f"warning: {warning}")


@commands.command()
def schema() -> None:
    """Print the JSON schema of task files."""
    print(json.dumps(Task.model_json_schema(), indent=2))


@commands.command()
def init(
    name: str = typer.Argument(help="Name of the new task."),
    preset: str = typer.Option("", "--from", help=f"Begin with a preset: {', '.join(preset_names())}."),
    out: Path = typer.Option(Path("task.toml"), "--out", help="Where to write."),
    force: bool = typer.Option(False, "--force", help="Replace the file if it is there."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of sentences."),
) -> None:
    """Write a commented task file to begin with."""
    if out.exists() and not force:
        raise UsageError(f"{out} is there already.", hint="Give another --out, or --force to replace it.")
    text = preset_text(preset, task=name) if preset else starter_text(name)
    if not _is_named(text, name):
        hint = "Use up to 63 small letters, digits and '-', a letter first."
        raise UsageError(f"a task cannot be named {name!r}.", hint=hint)
    write_bytes(out, text.encode())
    if as_json:
        print(json.dumps({"file": str(out), "task": name}))
    else:
        print(f"Wrote {out}. Change what it says, then: fedloop task check {out}")


def _is_named(text: str, name: str) -> bool:
    """The text is ours and right: only a name that does not fit can spoil it."""
    try:
        return parse_task(text).name == name
    except TaskError:
        return False
