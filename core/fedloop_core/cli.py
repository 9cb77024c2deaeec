"""The root of the ``fedloop`` command, and the boundary of its process.

Each layer brings its commands by an entry point in the group ``fedloop.commands``: a ``typer.Typer`` becomes a group of
commands, a function one command. A layer is imported when one of its commands runs, not before, so that help is quick
and a layer whose packages are not installed stops nobody.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import click
import rich.markup
import typer
from typer.core import TyperGroup

from fedloop_core.commands import unanswered
from fedloop_core.errors import FedloopError, SettingsInvalid, TaskInvalid, UsageError

__all__ = ["BUG", "INTERRUPTED", "main", "root"]

BUG = 70
"""Exit status after an exception that nobody foresaw."""
INTERRUPTED = 130
"""Exit status after Ctrl-C."""

_GROUP = "fedloop.commands"
_KINDS = {
    "integer range": "a whole number",
    "integer": "a whole number",
    "float range": "a number",
    "float": "a number",
}
_EXTRAS: Mapping[str, str] = {
    "fedloop_simulations": "simulation",
    "fedloop_server": "server",
    "fedloop_clients": "site",
    "fedloop_edge": "edge",
}


class _LayerCommands(TyperGroup):
    """Commands of all installed layers; each layer is imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of all commands, without importing what they do."""
        return sorted({entry.name for entry in metadata.entry_points(group=_GROUP)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command as help shows it: name and summary, read from the source and not imported."""
        entry = _entry(cmd_name)
        return None if entry is None else click.Command(cmd_name, help=_summary(entry))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is to run, imported.

        Raises:
            click.UsageError: there is no such command.
            UsageError: its layer needs packages that are not installed.
        """
        entry = _entry(args[0])
        if entry is None:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {args[0]!r}.{guess}", ctx)
        return entry.name, _load(entry), args[1:]


root = typer.Typer(cls=_LayerCommands, no_args_is_help=True, add_completion=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fedloop {metadata.version('fedloop')}")
        raise typer.Exit


@root.callback()
def _fedloop(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and stop."
    ),
) -> None:
    """Federated training under differential privacy, signed releases to devices, and the feedback between them."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs ``fedloop`` and ends the process: the one place where errors become sentences and exit statuses."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = typer.main.get_command(root).main(given, prog_name="fedloop", standalone_mode=False)
    except FedloopError as error:
        sys.exit(_tell(error, given))
    except (click.Abort, KeyboardInterrupt) as error:
        question = unanswered(error, typer.main.get_command(root), given)
        sys.exit(_interrupted() if question is None else _tell(question, given))
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), end="", file=sys.stderr)  # with rich, it has printed itself
        sys.exit(UsageError.exit_status)
    except click.ClickException as error:
        sys.exit(_tell(_misused(error), given))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nobody to tell
        sys.exit(1)
    except ModuleNotFoundError as error:
        entry = _entry(given[0]) if given else None
        sys.exit(_bug(error) if entry is None or _is_ours(error) else _tell(_not_installed(entry, error), given))
    except Exception as error:  # noqa: BLE001 - the process boundary
        sys.exit(_bug(error))
    if status == INTERRUPTED:  # typer's rendering of Ctrl-C
        sys.exit(_interrupted())
    sys.exit(status if isinstance(status, int) else 0)


def _entry(name: str) -> metadata.EntryPoint | None:
    found = metadata.entry_points(group=_GROUP, name=name)
    return next(iter(found), None)


def _load(entry: metadata.EntryPoint) -> click.Command:
    try:
        loaded = entry.load()
    except ModuleNotFoundError as error:
        if _is_ours(error) and error.name != entry.module:
            raise
        raise _not_installed(entry, error) from error
    if isinstance(loaded, typer.Typer):
        command: click.Command = typer.main.get_group(loaded)
    else:
        single = typer.Typer(add_completion=False)
        single.command()(loaded)
        command = typer.main.get_command(single)
    command.name = entry.name
    return command


def _is_ours(error: ModuleNotFoundError) -> bool:
    return (error.name or "").startswith("fedloop_")


def _not_installed(entry: metadata.EntryPoint, error: ModuleNotFoundError) -> UsageError:
    return UsageError(
        f"`fedloop {entry.name}` needs packages that are not installed ({error.name}).",
        hint=f"Run: pip install '{_distribution(entry)}'",
        command=entry.name,
    )


def _distribution(entry: metadata.EntryPoint) -> str:
    extra = _EXTRAS.get(entry.module.partition(".")[0])
    return f"fedloop[{extra}]" if extra else "fedloop"


def _summary(entry: metadata.EntryPoint) -> str:
    """First line of the docstring of a function, or of the module that holds a group, without importing it."""
    try:
        spec = importlib.util.find_spec(entry.module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        return rich.markup.escape(f"Not installed. Run: pip install '{_distribution(entry)}'")
    tree = ast.parse(Path(spec.origin).read_bytes())
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == entry.attr)
    said = ast.get_docstring(next(functions, tree))
    return inspect.cleandoc(said).partition("\n")[0] if said else ""


def _misused(error: click.ClickException) -> UsageError:
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "fedloop"
    said = error.format_message()
    for typed, plain in _KINDS.items():
        said = said.replace(f"is not a valid {typed}.", f"is not {plain}.")
    return UsageError(said, hint=f"`{path} --help` shows what can be given.")


def _tell(error: FedloopError, arguments: Sequence[str]) -> int:
    problems = error.problems if isinstance(error, TaskInvalid | SettingsInvalid) else ()
    if "--json" in arguments:
        told = {"code": error.code, "message": error.message, "hint": error.hint, "fields": dict(error.fields)}
        print(json.dumps({"error": told | ({"problems": problems} if problems else {})}))
    else:
        for line in (str(error), *problems):
            print(line, file=sys.stderr)
    return error.exit_status


def _interrupted() -> int:
    print("Stopped by Ctrl-C.", file=sys.stderr)
    return INTERRUPTED


def _bug(error: Exception) -> int:
    details = "".join(traceback.format_exception(error))
    try:
        descriptor, log = tempfile.mkstemp(prefix="fedloop-bug-", suffix=".log")  # readable by its owner alone
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"fedloop {metadata.version('fedloop')}, Python {sys.version}\n{details}")
        where = f"The details are in {log}; please report them."
    except OSError as reason:
        where = f"The details could not be written: {reason.strerror}."
    print(f"This is a bug in fedloop, not in what you did ({type(error).__name__}). {where}", file=sys.stderr)
    return BUG
