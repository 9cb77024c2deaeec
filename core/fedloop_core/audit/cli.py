"""Check, show and export the audit log of a coordinator or a site."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TextIO

import typer

from fedloop_core.audit.countersignatures import Countersigned, KeyFrom, check_countersignatures, countersigned
from fedloop_core.audit.entries import AuditAction, AuditEntry
from fedloop_core.audit.export import export_json_lines, export_syslog, selected
from fedloop_core.audit.log import AuditLog
from fedloop_core.commands import as_owner
from fedloop_core.errors import NotSetUp, StorageError, UsageError
from fedloop_core.keys import VerifyingKey

__all__ = ["Form", "commands", "export", "show", "verify"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)

_HOME = typer.Option(
    Path(), "--home", envvar="FEDLOOP_HOME", help="Folder of the coordinator or the site.", callback=as_owner
)
_SINCE = typer.Option("", "--since", help="Only from then on: 2026-03-31, 2026-03-31T12:00, or back from now: 24h, 7d.")
_ACTION = typer.Option([], "--action", help="Only this action; give it several times for several.")
_JSON = typer.Option(False, "--json", help="Print JSON instead of sentences.")
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


class Form(StrEnum):
    """How entries are exported."""

    JSON = "json"
    SYSLOG = "syslog"


@commands.callback()
def _audit() -> None:
    """Check, show and export the audit log of a coordinator or a site."""


@commands.command()
def verify(
    home: Path = _HOME,
    keys: Path | None = typer.Option(
        None, "--keys", help="JSON file of signing keys that sites have told, {site: hex}, instead of those kept here."
    ),
    as_json: bool = _JSON,
) -> None:
    """Check that every entry follows from the one before it, and that the log holds what sites have countersigned."""
    log = _log(home)
    report = log.verify()
    signed = check_countersignatures(log.entries(), countersigned(log.path).all(), _keys(keys))
    if as_json:
        sites = [
            {"site": one.site, "sequence": one.sequence, "verified": one.verified, "key": one.key.value}
            for one in signed
        ]
        head = {"sequence": report.head.sequence, "digest": report.head.digest.hex()}
        print(json.dumps({"head": head, "unfinished_bytes": report.unfinished, "countersigned": sites}))
        return
    print(f"{log.path} holds: {report.head.sequence} entries, the last {report.head.digest.hex()}.")
    if report.unfinished:
        print(
            f"  A crash left {report.unfinished} bytes of an entry that does not count; the next entry takes them away."
        )
    for one in signed:
        print(f"  {_told(one)}")


@commands.command()
def show(
    home: Path = _HOME,
    since: str = _SINCE,
    action: list[AuditAction] = _ACTION,
    last: int = typer.Option(20, "--last", min=1, help="At most so many entries, the newest."),
    as_json: bool = _JSON,
) -> None:
    """Show the newest entries, oldest first."""
    entries = deque(_selected(home, since, action), maxlen=last)
    if as_json:
        print(json.dumps({"entries": [entry.model_dump(mode="json") for entry in entries]}))
        return
    for entry in entries:
        print(_sentence(entry))
    if not entries:
        print("No entries.")


@commands.command()
def export(
    home: Path = _HOME,
    since: str = _SINCE,
    action: list[AuditAction] = _ACTION,
    form: Form = typer.Option(Form.JSON, "--format", help="JSON lines as in the log, or syslog after RFC 5424."),
    out: Path | None = typer.Option(None, "--out", help="File to write; standard output otherwise."),
    host: str = typer.Option("", "--host", help="Name of this machine in syslog; its own otherwise."),
    as_json: bool = _JSON,
) -> None:
    """Write entries for another system, each on a line."""
    if as_json and form is Form.SYSLOG and out is None:
        raise UsageError("--json and --format syslog cannot share standard output.", hint="Give --out FILE.")
    entries = _selected(home, since, action)
    lines = export_json_lines(entries) if form is Form.JSON else export_syslog(entries, host or socket.gethostname())
    count = 0
    with _target(out) as file:
        for line in lines:
            print(line, file=file)
            count += 1
    if out is not None:
        print(json.dumps({"file": str(out), "entries": count}) if as_json else f"Wrote {count} entries to {out}.")


def _log(home: Path) -> AuditLog:
    log = AuditLog(home / "audit.jsonl")
    if not log.path.exists():
        raise NotSetUp(f"there is no audit log in {home}.", hint="Name the folder of a coordinator or a site: --home.")
    return log


def _selected(home: Path, since: str, actions: list[AuditAction]) -> Iterator[AuditEntry]:
    return selected(_log(home).entries(), since_unix=_moment(since), actions=actions or tuple(AuditAction))


def _moment(since: str) -> float:
    if not since:
        return 0
    back = re.fullmatch(r"(\d{1,6})([mhdw])", since)
    if back is not None:
        return time.time() - int(back[1]) * _UNITS[back[2]]
    try:
        moment = datetime.fromisoformat(since)
    except ValueError as error:
        raise UsageError(
            f"--since {since} is no time.", hint="Write 2026-03-31, 2026-03-31T12:00, 24h or 7d."
        ) from error
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _keys(file: Path | None) -> Mapping[str, VerifyingKey]:
    if file is None:
        return {}
    hint = 'Write {"site": "64 hex digits", …}.'
    try:
        read = json.loads(file.read_bytes())
        return {str(site): VerifyingKey(bytes.fromhex(raw)) for site, raw in read.items()}
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.", hint=hint) from error
    except (ValueError, AttributeError, TypeError) as error:
        raise UsageError(f"{file} does not hold sites' signing keys.", hint=hint) from error


@contextmanager
def _target(out: Path | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        return
    try:
        with out.open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise StorageError(f"cannot write {out}: {error.strerror}.", hint="Free space or correct rights.") from error


def _sentence(entry: AuditEntry) -> str:
    moment = datetime.fromtimestamp(entry.unix, UTC).strftime("%Y-%m-%d %H:%M:%S")
    details = "".join(f" {name}={json.dumps(value)}" for name, value in entry.details.items())
    said = f"{entry.sequence:>5} {moment}Z {entry.actor} {entry.action} {entry.subject}{details}"
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in said)


def _told(one: Countersigned) -> str:
    signature = {
        KeyFrom.SITE: "its signature is right by the key that was given",
        KeyFrom.COORDINATOR: "its signature is right by the key that the coordinator kept",
        KeyFrom.NOBODY: "its signature was not checked: no key is known",
    }[one.key]
    return f"site {one.site} countersigned entry {one.sequence}; {signature}"
