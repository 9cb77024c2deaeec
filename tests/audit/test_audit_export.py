"""JSON lines, syslog after RFC 5424, and the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.audit import AuditAction, AuditEntry, AuditLog, countersigned, export_syslog, selected
from fedloop_core.errors import AuditBroken, NotSetUp, UsageError
from fedloop_core.federation.answers import sign_answer
from fedloop_core.keys import SigningKey
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, LogHead

NAME = r"[\x21\x23-\x3c\x3e-\x5c\x5e-\x7e]{1,32}"
PARAMETER = rf' {NAME}="(?:[^"\\\]]|\\["\\\]])*"'
MESSAGE = re.compile(
    rf"<(\d{{1,3}})>1 \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ [\x21-\x7e]{{1,255}} fedloop - [\x21-\x7e]{{1,32}} "
    rf"((?:\[{NAME}(?:{PARAMETER})*\])+) [\x20-\x7e]*"
)


def entry(
    actor: str = "a", subject: str = "x", action: AuditAction = AuditAction.RELEASE, **details: Any
) -> AuditEntry:
    return AuditEntry(
        sequence=1,
        unix=0,
        actor=actor,
        action=action,
        subject=subject,
        details=details,
        previous="0" * 64,
        digest="0" * 64,
    ).sealed()


def run(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "fedloop_core", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


def test_a_syslog_message_is_as_the_rfc_writes_it() -> None:
    (line,) = export_syslog([entry(note='say "]\\"\nnow', epsilon=0.5)], "co ordinator")
    start = (
        '<109>1 1970-01-01T00:00:00Z co_ordinator fedloop - release [fedloop@32473 sequence="1" actor="a" subject="x" '
    )
    assert line.startswith(start)
    assert line.endswith('[details@32473 note="say \\"\\]\\\\\\"\\\\u000anow" epsilon="0.5"] a release x')
    (refused,) = export_syslog([entry(action=AuditAction.ENVELOPE_REFUSED)], "h")
    assert refused.startswith("<108>1 ")


TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


@given(
    actor=TEXT,
    subject=TEXT,
    details=st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40), TEXT, max_size=5),
    host=TEXT,
)
def test_every_syslog_message_is_well_formed_and_one_line(
    actor: str, subject: str, details: dict[str, str], host: str
) -> None:
    made = AuditEntry(
        sequence=1,
        unix=0,
        actor=actor,
        action=AuditAction.RELEASE,
        subject=subject,
        details=details,
        previous="0" * 64,
        digest="0" * 64,
    )
    (line,) = export_syslog([made], host)
    assert MESSAGE.fullmatch(line)
    assert len(line.splitlines()) == 1


def test_entries_are_selected_by_time_and_action(tmp_path: Path) -> None:
    times = iter([10, 20, 30])
    log = AuditLog(tmp_path / "audit.jsonl", clock=lambda: next(times))
    for action in (AuditAction.RELEASE, AuditAction.BACKUP, AuditAction.RELEASE):
        log.record("a", action, "x")
    assert [e.unix for e in selected(log.entries(), since_unix=20)] == [20, 30]
    assert [e.unix for e in selected(log.entries(), actions=(AuditAction.RELEASE,))] == [10, 30]
    assert [json.loads(line)["unix"] for line in log.export_json_lines()] == [10, 20, 30]
    assert len(list(log.export_syslog("h"))) == 3


@pytest.fixture
def home(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "audit.jsonl", clock=lambda: 1_700_000_000)
    log.record("operator:ann", AuditAction.INITIALISE, "coordinator")
    log.record("operator:ann", AuditAction.SITE_ADDED, "va\x1b[31m", expires=5)
    return tmp_path


def test_verify_show_and_export(home: Path) -> None:
    log, key = AuditLog(home / "audit.jsonl"), SigningKey.generate()
    head = log.head()
    signed = sign_answer(Answer(site="va", audit=LogHead(sequence=2, digest=head.digest)), key)
    countersigned(log.path).keep("va", signed, head, key.verifying)
    keys = home / "keys.json"
    keys.write_text(json.dumps({"va": key.verifying.raw.hex()}))
    status, out, _ = run("audit", "verify", "--home", str(home), "--keys", str(keys), "--json")
    assert status == 0
    assert json.loads(out) == {
        "head": {"sequence": 2, "digest": head.digest.hex()},
        "unfinished_bytes": 0,
        "countersigned": [{"site": "va", "sequence": 2, "verified": True, "key": "given"}],
    }
    status, out, _ = run("audit", "verify", "--home", str(home))
    assert "2 entries" in out
    assert "by the key that the coordinator kept" in out
    status, out, _ = run("audit", "show", "--home", str(home), "--last", "1")
    assert "2023-11-14 22:13:20Z operator:ann site-added va\\u001b[31m expires=5" in out
    status, out, _ = run("audit", "show", "--home", str(home), "--json", "--action", "initialise")
    assert [e["action"] for e in json.loads(out)["entries"]] == ["initialise"]
    status, out, _ = run("audit", "export", "--home", str(home), "--since", "2023-11-14T22:13")
    assert out.splitlines() == list(log.export_json_lines())
    file = home / "out.log"
    status, out, _ = run("audit", "export", "--home", str(home), "--format", "syslog", "--out", str(file), "--json")
    assert json.loads(out) == {"file": str(file), "entries": 2}
    assert all(MESSAGE.fullmatch(line) for line in file.read_text(encoding="utf-8").splitlines())


def test_a_broken_log_ends_with_its_own_status(home: Path) -> None:
    path = home / "audit.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("ann", "bob", 1), encoding="utf-8")
    for command in ("verify", "show", "export"):
        status, _, error = run("audit", command, "--home", str(home))
        assert status == AuditBroken.exit_status
        assert "FL-STORE-002" in error
        assert "line 1" in error


BAD = [
    ("no log", ["verify", "--home", "{home}/nowhere"], NotSetUp, "there is no audit log"),
    ("no time", ["show", "--home", "{home}", "--since", "yesterday"], UsageError, "is no time"),
    ("no action", ["show", "--home", "{home}", "--action", "party"], UsageError, "party"),
    ("no keys file", ["verify", "--home", "{home}", "--keys", "{home}/none"], UsageError, "cannot be read"),
    ("keys that are none", ["verify", "--home", "{home}", "--keys", "{home}/audit.jsonl"], UsageError, "signing keys"),
    ("two forms on one output", ["export", "--home", "{home}", "--format", "syslog", "--json"], UsageError, "--out FILE"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error", "sentence"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_what_cannot_be_done_is_a_sentence(
    arguments: list[str], error: type[Exception], sentence: str, home: Path
) -> None:
    status, out, err = run("audit", *(a.format(home=home) for a in arguments))
    assert status == error.exit_status  # type: ignore[attr-defined]
    assert sentence in out + err
