"""The command as people run it: a real process, its exit status, and nothing but sentences or JSON."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import typer

from fedloop_core import cli
from fedloop_core.errors import UsageError
from fedloop_core.task.presets import preset_names

BAD = 'format = 1\nname = "x"\nlearning_rate = 0.1\n'


def fedloop(
    *arguments: str, folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "fedloop_core", *arguments],
        cwd=folder,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout
    return done


@dataclass(frozen=True)
class Call:
    """A command line, its exit status, and what it says on stderr."""

    name: str
    arguments: tuple[str, ...]
    status: int
    words: str


CALLS = (
    Call("no command", (), 2, ""),
    Call("unknown command", ("tsk",), 2, "FL-USE-001: No such command 'tsk'. Did you mean 'task'? `fedloop --help`"),
    Call("unknown sub-command", ("task", "chek"), 2, "No such command 'chek'."),
    Call("unknown option", ("task", "check", "--jason"), 2, "`fedloop task check --help` shows what can be given."),
    Call("missing argument", ("task", "init"), 2, "FL-USE-001: Missing argument 'NAME'."),
    Call("missing file", ("task", "check", "none.toml"), 3, "FL-TASK-001: cannot read none.toml: No such file"),
    Call("bad task", ("task", "check", "bad.toml"), 3, "bad.toml:3:1: learning_rate is not a known key"),
    Call("bad name", ("task", "init", 'x" # '), 2, "FL-USE-001: a task cannot be named"),
    Call("unknown preset", ("task", "init", "x", "--from", "y"), 2, "Presets: breast-cancer, digits, heart."),
    Call("file is there", ("task", "init", "x", "--out", "bad.toml"), 2, "bad.toml is there already."),
    Call("no such folder to write to", ("task", "init", "x", "--out", "bad.toml/x"), 11, "FL-STORE-001: cannot write"),
)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_wrong_call_ends_with_a_sentence_and_a_status(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(BAD)
    done = fedloop(*call.arguments, folder=tmp_path)
    assert done.returncode == call.status
    assert call.words in done.stderr
    assert (tmp_path / "bad.toml").read_text() == BAD


def test_errors_are_json_on_stdout_when_asked(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(BAD)
    done = fedloop("task", "check", "bad.toml", "--json", folder=tmp_path)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 3
    assert done.stderr == ""
    assert (error["code"], error["message"]) == ("FL-TASK-002", "bad.toml has 5 mistakes.")
    assert error["fields"] == {"file": "bad.toml", "mistakes": 5}
    assert len(error["problems"]) == 5
    misused = fedloop("task", "check", "--json", "--foo", folder=tmp_path)
    assert json.loads(misused.stdout)["error"]["code"] == "FL-USE-001"
    assert misused.returncode == 2


@pytest.mark.parametrize("preset", ["", *preset_names()])
def test_check_accepts_what_init_writes(preset: str, tmp_path: Path) -> None:
    begun = fedloop("task", "init", "mine", *(["--from", preset] if preset else []), folder=tmp_path)
    assert (begun.returncode, begun.stderr) == (0, "")
    checked = fedloop("task", "check", folder=tmp_path)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.startswith("task.toml is right.\n  task:     mine")
    as_json = json.loads(fedloop("task", "check", "--json", folder=tmp_path).stdout)
    assert as_json["task"]["name"] == "mine"
    assert as_json["digest"] in checked.stdout
    assert fedloop("task", "init", "other", "--force", folder=tmp_path).returncode == 0
    assert 'name = "other"' in (tmp_path / "task.toml").read_text()


def test_schema_is_a_json_schema(tmp_path: Path) -> None:
    schema = json.loads(fedloop("task", "schema", folder=tmp_path).stdout)
    assert "privacy" in schema["required"]


def test_help_is_quick_and_imports_no_layer(tmp_path: Path) -> None:
    began = time.monotonic()
    done = fedloop("--help", folder=tmp_path)
    assert time.monotonic() - began < 2  # 0.2 s when nothing else runs
    assert done.returncode == 0
    assert "Check, describe and begin task files." in done.stdout
    assert fedloop("--version", folder=tmp_path).stdout == f"fedloop {metadata.version('fedloop')}\n"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fedloop_core task schema | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("{", "")


def _with_plugin(folder: Path, name: str, target: str, source: str) -> dict[str, str]:
    """A distribution that brings a command, as a folder on the path."""
    package, _, _ = target.partition(":")
    info = folder / "plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedloop.commands]\n{name} = {target}\n")
    if source:
        (folder / f"{package}.py").write_text(source)
    return {"PYTHONPATH": str(folder), "TMPDIR": str(folder)}


def test_a_layer_without_its_packages_says_what_to_install(tmp_path: Path) -> None:
    source = '"""Does things."""\nimport no_such_package\n'
    environment = _with_plugin(tmp_path, "extra", "extra_layer:run", source)
    done = fedloop("extra", folder=tmp_path, environment=environment)
    assert done.returncode == 2
    assert "`fedloop extra` needs packages that are not installed (no_such_package)." in done.stderr
    assert "Does things." in fedloop("--help", folder=tmp_path, environment=environment).stdout


def test_the_extra_of_a_layer_is_named() -> None:
    entry = metadata.EntryPoint("absent", "fedloop_simulations.absent:run", "fedloop.commands")
    with pytest.raises(UsageError, match=r"pip install 'fedloop\[simulation\]'"):
        cli._load(entry)
    assert cli._summary(entry) == r"Not installed. Run: pip install 'fedloop\[simulation]'"


def test_packages_missed_late_say_what_to_install_too(tmp_path: Path) -> None:
    source = 'def run() -> None:\n    """Runs."""\n    import no_such_package\n'
    environment = _with_plugin(tmp_path, "late", "late_layer:run", source)
    done = fedloop("late", folder=tmp_path, environment=environment)
    assert done.returncode == 2
    assert "no_such_package" in done.stderr


def test_a_bug_is_one_line_and_its_details_are_kept(tmp_path: Path) -> None:
    source = 'def run() -> None:\n    """Fails."""\n    raise RuntimeError("secret")\n'
    environment = _with_plugin(tmp_path, "broken", "broken_layer:run", source)
    done = fedloop("broken", folder=tmp_path, environment=environment)
    (log,) = tmp_path.glob("fedloop-bug-*.log")
    assert done.returncode == cli.BUG
    assert done.stderr == (
        f"This is a bug in fedloop, not in what you did (RuntimeError). The details are in {log}; please report them.\n"
    )
    assert "RuntimeError: secret" in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_an_interrupt_has_its_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        raise KeyboardInterrupt

    interrupted = typer.main.get_command(_single(run))
    monkeypatch.setattr(cli, "_load", lambda entry: interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main(["task"])
    assert ended.value.code == cli.INTERRUPTED
    assert "Stopped by Ctrl-C." in capsys.readouterr().err


@pytest.mark.parametrize(("option", "hint"), [("--yes", "Add --yes, or answer"), ("--quiet", "Answer")])
def test_a_question_whose_input_has_ended_says_what_to_give(
    option: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(yes: bool = typer.Option(False, option)) -> None:
        typer.confirm("Go on?", abort=True)

    group = typer.Typer()
    group.command("ask")(run)
    group.command("other")(lambda: None)
    monkeypatch.setattr(cli, "_load", lambda entry: typer.main.get_command(group))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(SystemExit) as ended:
        cli.main(["task", "ask"])
    assert ended.value.code == UsageError.exit_status
    said = capsys.readouterr().err
    assert "the question needs an answer" in said
    assert f"{hint} it at a terminal." in said
    assert "Ctrl-C" not in said


def test_a_no_is_no_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asking = typer.main.get_command(_single(lambda: typer.confirm("Go on?", abort=True)))
    monkeypatch.setattr(cli, "_load", lambda entry: asking)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    with pytest.raises(SystemExit) as ended:
        cli.main(["task"])
    assert ended.value.code == UsageError.exit_status
    assert "nothing was changed." in capsys.readouterr().err


def test_an_interrupt_at_a_question_is_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(_: object) -> str:
        raise KeyboardInterrupt

    asking = typer.main.get_command(_single(lambda: typer.confirm("Go on?", abort=True)))
    monkeypatch.setattr(cli, "_load", lambda entry: asking)
    monkeypatch.setattr("click.termui.visible_prompt_func", interrupt)
    with pytest.raises(SystemExit) as ended:
        cli.main(["task"])
    assert ended.value.code == cli.INTERRUPTED
    assert "Stopped by Ctrl-C." in capsys.readouterr().err


def _single(function: object) -> typer.Typer:
    app = typer.Typer()
    app.command()(function)  # type: ignore[type-var]
    return app
