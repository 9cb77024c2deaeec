"""Pages that are typed into terminals: their commands, what they print, and a person who copies what one command told into the next.

Three kinds of blocks: ``<!-- run -->`` to its end, ``<!-- run until it works -->`` again and again, and ``<!-- run in NAME -->`` in a
terminal of its own, where the command goes on after what the page shows. What differs each time is masked in page and output alike.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Person", "Typed", "environment_of", "matches", "typed_in"]

PATIENCE_SECONDS = 600.0
_BLOCK = re.compile(
    r"<!-- run(?P<until> until it works)?(?: in (?P<terminal>\w+))? -->\n```console\n(?P<text>.*?)```", re.DOTALL
)
_MASKS = (
    (r"\b(?:[0-9A-F]{4} ){7}[0-9A-F]{4}\b", "FINGERPRINT"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(?::\d\d)? UTC", "MOMENT"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b(localhost|127\.0\.0\.1):\d+", r"\1:PORT"),
    (r"fedloop-join-1\.\S+", "TOKEN"),
    (r"\[y/N\]: y?\s*", "[y/N]\n"),
)


@dataclass(frozen=True)
class Typed:
    """A command, the lines that the page shows below it, and where it runs."""

    command: str
    expected: tuple[str, ...]
    terminal: str = ""
    until_it_works: bool = False


def typed_in(page: Path) -> Iterator[Typed]:
    """The commands of a page in their order."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        for part in re.split(r"^\$ ", block["text"], flags=re.MULTILINE)[1:]:
            command, *expected = part.rstrip("\n").split("\n")
            yield Typed(command, tuple(expected), block["terminal"] or "", block["until"] is not None)


def matches(expected: tuple[str, ...], output: str, folder: Path) -> bool:
    """A line of dots stands for any lines, also none; dots within a line for any text; blanks for any blanks."""
    page = _masked("\n".join(expected).replace("/home/ann", str(folder)))
    pattern = []
    for line in page.split("\n"):
        if line == "...":
            pattern.append(r"(?:[^\n]*\n)*?")
        elif line.strip():
            pieces = [r"\s+".join(map(re.escape, re.split(r"\s+", piece))) for piece in line.split("...")]
            pattern.append(r"[^\n]*".join(pieces) + r"[^\S\n]*\n+")
    return re.fullmatch(r"\n*" + "".join(pattern), _masked(output).rstrip("\n") + "\n") is not None


def _masked(text: str) -> str:
    for pattern, word in _MASKS:
        text = re.sub(pattern, word, text)
    return text


class Person:
    """Types commands in a folder, keeps variables between them, pastes the newest token, and answers ``y`` where the page does."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = dict(environment)
        self._variables: dict[str, str] = {}
        self._token = ""
        self._terminals: dict[str, subprocess.Popen[str]] = {}
        self._printed: dict[str, list[str]] = {}
        self._readers: list[threading.Thread] = []

    def type(self, typed: Typed) -> None:
        """Types it and compares what it prints.

        Raises:
            AssertionError: it prints something else; the message shows both.
        """
        if typed.terminal:
            self._open(typed)
            return
        deadline = time.monotonic() + PATIENCE_SECONDS
        status, output = self._run(typed)
        while typed.until_it_works and status != 0 and time.monotonic() < deadline:
            time.sleep(1)
            status, output = self._run(typed)
        self._compare(typed, output)

    def close(self) -> dict[str, str]:
        """Ctrl-C in every terminal, the newest first; what each printed."""
        for process in reversed(self._terminals.values()):
            process.send_signal(signal.SIGINT)
        for process in self._terminals.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(90)
            if process.poll() is None:
                process.kill()
                process.wait()
        for reader in self._readers:
            reader.join(10)
        return {name: "".join(printed) for name, printed in self._printed.items()}

    def _run(self, typed: Typed) -> tuple[int, str]:
        command = re.sub(r"fedloop-join-1\.\S+", self._token, typed.command)
        assigned = re.match(r"([A-Z]+)=\$\(", command)
        script = f"exec 2>&1\n{command}\n" + (f'printf %s "${assigned[1]}"\n' if assigned else "")
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self._environment | self._variables,
            input="y\n" if any(line.endswith("[y/N]: y") for line in typed.expected) else "",
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        if assigned:
            self._variables[assigned[1]] = done.stdout
            return done.returncode, ""
        token = re.search(r"^fedloop-join-1\.\S+$", done.stdout, re.MULTILINE)
        self._token = token[0] if token else self._token
        return done.returncode, done.stdout

    def _compare(self, typed: Typed, output: str) -> None:
        shown = "\n".join(typed.expected)
        assert matches(typed.expected, output, self.folder), f"$ {typed.command}\n{output}\nThe page shows:\n{shown}"

    def _open(self, typed: Typed) -> None:
        process = subprocess.Popen(
            ["bash", "-c", f"exec 2>&1; exec {typed.command}"],
            cwd=self.folder,
            env=self._environment | self._variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        printed: list[str] = []
        self._terminals[typed.terminal], self._printed[typed.terminal] = process, printed
        self._readers.append(threading.Thread(target=_drain, args=(process, printed), daemon=True))
        self._readers[-1].start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not matches(typed.expected, "".join(printed), self.folder):
            if process.poll() is not None or time.monotonic() > deadline:
                self._compare(typed, "".join(printed))
            time.sleep(0.2)


def _drain(process: subprocess.Popen[str], printed: list[str]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        printed.extend(iter(lines.readline, ""))


def environment_of(home: Path, programs: Path) -> dict[str, str]:
    """What a person's shell has: the programs of this installation first, English, one thread."""
    return {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "COLUMNS": "120",
        "OMP_NUM_THREADS": "1",
        "LANG": "C.UTF-8",
    }
