"""``fedloop site``: what people and scripts type."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fedloop_clients.approvals import Asked
from fedloop_clients.heads import FILE_NAME, GuardState, LedgerStop
from fedloop_clients.home import SiteHome
from fedloop_clients.joining import join
from fedloop_clients.state_file import StateFile
from fedloop_clients.status import SiteStatus, write_status
from fedloop_core.audit import AuditAction
from fedloop_core.cli import main
from fedloop_core.errors import EnvelopeRefused, JoinRefused, NotSetUp, UsageError

if TYPE_CHECKING:
    from tests.onboarding.conftest import Coordinator


def run(*words: str, home: SiteHome, given: str = "", expect: int = 0) -> str:
    """The command in this process: status and all that it printed."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        patch.setenv("FEDLOOP_HOME", str(home.folder))
        patch.setattr(sys, "stdin", io.StringIO(given))
        with pytest.raises(SystemExit) as ended:
            main(["site", *words])
    assert ended.value.code == expect, said.getvalue()
    return said.getvalue()


def run_json(*words: str, home: SiteHome, given: str = "", expect: int = 0) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(run(*words, "--json", home=home, given=given, expect=expect))
    return said


def actions(home: SiteHome) -> list[AuditAction]:
    return [entry.action for entry in home.audit().entries()]


def test_a_person_joins_and_compares_the_fingerprint(coordinator: Coordinator, home: SiteHome) -> None:
    token = coordinator.token()
    said = run("join", token.to_text(), home=home, given="n\n", expect=UsageError.exit_status)
    assert token.fingerprint() in said
    assert "Nothing was sent" in said
    assert not home.folder.exists()
    said = run("join", "-", home=home, given=token.to_text() + "\n", expect=UsageError.exit_status)
    assert "Give --fingerprint, or --yes." in said
    said = run("join", token.to_text(), home=home, given="y\n")
    assert "Site north has joined" in said
    assert "fedloop site doctor" in said
    assert actions(home) == [AuditAction.SITE_JOINED]
    assert "has joined already" in run("join", token.to_text(), home=home)
    assert actions(home) == [AuditAction.SITE_JOINED]


def test_a_script_joins_with_a_file_and_a_fingerprint(coordinator: Coordinator, home: SiteHome, tmp_path: Path) -> None:
    token, file = coordinator.token(), tmp_path / "token"
    file.write_text(token.to_text())
    words = ("join", "--token-file", str(file))
    assert (
        run_json(*words, home=home, expect=UsageError.exit_status)["error"]["hint"] == "Give --fingerprint, or --yes."
    )
    wrong = run_json(*words, "--fingerprint", "0000", home=home, expect=JoinRefused.exit_status)
    assert wrong["error"]["fields"] == {"reason": "fingerprint"}
    assert coordinator.front.sent == []
    said = run_json(*words, "--fingerprint", token.fingerprint().lower().replace(" ", ""), home=home)
    assert (said["site"], said["already"], said["protocol"]) == ("north", False, 1)
    assert said["coordinator_key"] == coordinator.key.verifying.raw.hex()
    assert token.secret not in json.dumps(said)


def test_the_installed_command_reads_a_token_from_a_pipe(coordinator: Coordinator, home: SiteHome) -> None:
    token = coordinator.token()
    fedloop = Path(sys.executable).with_name("fedloop")
    words = [str(fedloop), "site", "join", "-", "--fingerprint", token.fingerprint(), "--home", str(home.folder)]
    ended = subprocess.run(words, input=token.to_text(), env=os.environ, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert home.membership().site == "north"


def test_tokens_that_are_none(coordinator: Coordinator, home: SiteHome, tmp_path: Path) -> None:
    text = coordinator.token().to_text()
    run("join", text[:-9], "--yes", home=home, expect=JoinRefused.exit_status)
    said = run("join", "hello", "--yes", home=home, expect=JoinRefused.exit_status)
    assert "one begins with fedloop-join-1. Copy" in said
    run("join", home=home, expect=UsageError.exit_status)
    assert "cannot read" in run("join", "--token-file", str(tmp_path / "none"), home=home, expect=4)
    assert "go together" in run("join", text, "--yes", "--key", "x", home=home, expect=UsageError.exit_status)
    assert not home.folder.exists()


def test_the_doctor_in_sentences_and_in_json(coordinator: Coordinator, joined_home: SiteHome) -> None:
    said = run("doctor", home=joined_home, expect=1)
    assert "problem  data" in said
    assert "-> " in said
    (joined_home.folder / "data.csv").write_text("a,b\n1,2\n")
    assert "Nothing keeps this site from working." in run("doctor", home=joined_home)
    told = run_json("doctor", home=joined_home)
    assert (told["joined"], told["problems"]) == (True, 0)
    levels = {finding["check"]: finding["level"] for finding in told["findings"]}
    assert (levels["hub"], levels["tls"], levels["data"]) == ("ok", "ok", "ok")


def test_the_doctor_of_no_site_promises_nothing(home: SiteHome) -> None:
    said = run("doctor", home=home, expect=1)
    assert said.endswith("\nnot joined yet: fedloop site join TOKEN\n")
    assert "Nothing keeps" not in said
    assert not home.folder.exists()


def test_the_doctor_before_joining(coordinator: Coordinator, home: SiteHome, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(coordinator.token().to_text())
    told = run_json("doctor", "--token-file", str(file), home=home)
    assert {finding["check"] for finding in told["findings"]} >= {"name", "route", "tls", "front", "clock"}


def test_commands_before_joining_say_so(home: SiteHome) -> None:
    for words in (("status",), ("pause",), ("approve", "--list"), ("renew",), ("leave", "--yes"), ("show-policy",)):
        said = run_json(*words, home=home, expect=NotSetUp.exit_status)
        assert said["error"]["code"] == NotSetUp.code
    assert not home.folder.exists()


def test_status_shows_all_there_is(coordinator: Coordinator, joined_home: SiteHome) -> None:
    told = run_json("status", home=joined_home)
    assert (told["ledger"], told["processes"], told["daemon"]) == (None, None, None)
    ledger = joined_home.ledger()
    ledger.open_block("original", 10.0, 1e-5)
    ledger.close()
    write_status(joined_home.folder, SiteStatus(unix=5, activity="training", run_id="r1", round=3, hub="no way."))
    joined_home.standing().pause(True)
    told = run_json("status", home=joined_home)
    assert (told["ledger"]["sequence"], told["paused"], told["daemon"]["run_id"]) == (2, True, "r1")
    said = run("status", home=joined_home)
    assert "2 entries, head" in said
    assert "the daemon does not run): training run r1, round 3; no way." in said
    assert "paused: the site refuses all training" in said


def test_pausing_and_going_on(joined_home: SiteHome) -> None:
    run("pause", home=joined_home)
    run("pause", home=joined_home)
    assert joined_home.standing().read().paused
    run("unpause", home=joined_home)
    assert not joined_home.standing().read().paused
    assert actions(joined_home) == [AuditAction.PAUSED, AuditAction.UNPAUSED]


def test_leaving_is_asked(joined_home: SiteHome) -> None:
    assert "nothing was changed" in run("leave", home=joined_home, given="n\n", expect=UsageError.exit_status)
    run_json("leave", home=joined_home, expect=UsageError.exit_status)
    assert not joined_home.standing().read().leaving
    run("leave", "--yes", home=joined_home)
    assert joined_home.standing().read().leaving
    assert actions(joined_home) == [AuditAction.SITE_LEFT]


@pytest.fixture
def ask(joined_home: SiteHome) -> Callable[[str], None]:
    def waits(run_id: str) -> None:
        """``r2`` is by patient."""
        asked = Asked(
            run_id=run_id,
            task="heart",
            task_digest="ab" * 32,
            rounds=20,
            epsilon=5.0,
            evaluation_epsilon=1.0,
            delta=1e-4,
            signed_by="cd" * 32,
            asked_unix=1_000_000_000,
            unit_column="patient" if run_id == "r2" else None,
        )
        joined_home.approvals()._file.change(lambda state: state.with_asked(asked))

    return waits


def test_a_person_decides_on_runs(joined_home: SiteHome, ask: Callable[[str], None]) -> None:
    assert "No run waits" in run("approve", "--list", home=joined_home)
    ask("r1")
    ask("r2")
    assert run_json("status", home=joined_home)["waiting_for_approval"] == ["r1", "r2"]
    said = run("approve", home=joined_home)
    assert "r1: task heart, 20 rounds, asked 2001-09-09 01:46 UTC" in said
    assert (
        "epsilon 5 and 1 for evaluations, delta 0.0001, for each row: for a person with k rows about k times as much"
        in said
    )
    assert "delta 0.0001, for all rows of each 'patient' together" in said
    run("approve", "r3", home=joined_home, expect=UsageError.exit_status)
    run("approve", "r1", home=joined_home)
    declined = run_json("approve", "r2", "--decline", home=joined_home)
    assert (declined["run_id"], declined["approved"]) == ("r2", False)
    assert actions(joined_home) == [AuditAction.APPROVED, AuditAction.POLICY_REFUSED]
    state = run_json("approve", "--list", home=joined_home)
    assert state["waiting"] == []
    assert [decision["approved"] for decision in state["decisions"]] == [True, False]
    run("approve", "r1", "--decline", home=joined_home)  # an approval is taken back
    said = run("approve", home=joined_home)
    assert said.count("r1: ") == 1
    assert "r1: declined by" in said
    assert "r2: declined by" in said
    run("approve", "r2", "--every-run", home=joined_home)
    said = run("approve", home=joined_home)
    assert "every run of task heart: approved by" in said
    assert "declined" not in said


def test_joining_anew_forgets_how_new_the_authorities_were(coordinator: Coordinator, joined_home: SiteHome) -> None:
    """As the refusal of an older notice says: for a coordinator whose clock was set back."""
    joined_home.trusted().accept(2_000_000_000)
    with pytest.raises(EnvelopeRefused):
        joined_home.trusted().accept(1_900_000_000)
    join(coordinator.token(), joined_home, proxy="", confirm=lambda token: True, again=True)
    joined_home.trusted().accept(1_900_000_000)


def test_renewing_by_hand(coordinator: Coordinator, joined_home: SiteHome) -> None:
    before = joined_home.site_certificate.read_bytes()
    assert run_json("renew", home=joined_home)["expires_unix"] > 0
    assert joined_home.site_certificate.read_bytes() != before
    assert actions(joined_home) == [AuditAction.SITE_RENEWED]


def test_the_policy_is_shown(joined_home: SiteHome) -> None:
    text = joined_home.settings_file.read_text()
    joined_home.settings_file.write_text(text.replace('# tasks = ["heart"]', 'tasks = ["heart"]'))
    said = run("show-policy", home=joined_home)
    assert "tasks: heart" in said
    assert "training rows, for life: epsilon 10, delta 1e-06" in said
    assert run_json("show-policy", home=joined_home)["policy"]["tasks"] == ["heart"]
    joined_home.settings_file.write_text(text.replace("paused = false", "paused = 1"))
    error = run_json("show-policy", home=joined_home, expect=3)["error"]
    assert "site.toml:35:1: policy.paused must be true or false, not 1." in error["problems"][0]


def test_the_policy_shows_the_budget_that_holds(joined_home: SiteHome) -> None:
    ledger = joined_home.ledger()
    ledger.open_block("original", 5.0, 1e-5)
    ledger.close()
    said = run("show-policy", home=joined_home)
    assert "in the ledger, for life: block original has epsilon 5, delta 1e-05" in said
    assert "now: nothing. site.toml names epsilon 10 at delta 1e-06 for training rows" in said
    told = run_json("show-policy", home=joined_home)
    assert told["open_blocks"] == {"original": {"epsilon": "5.0", "delta": 1e-5}}


def test_a_ledger_that_was_put_back_is_accepted_by_a_person(joined_home: SiteHome) -> None:
    assert "begins with the first run" in run("ledger", "verify", home=joined_home, expect=UsageError.exit_status)
    ledger = joined_home.ledger()
    ledger.open_block("original", 10.0, 1e-5)
    ledger.close()
    assert run_json("ledger", "verify", home=joined_home)["sequence"] == 2
    run("ledger", "accept-restored", "--yes", home=joined_home, expect=UsageError.exit_status)
    unasked = run("ledger", "accept-restored", home=joined_home, expect=UsageError.exit_status)
    assert "nothing is to be accepted" in unasked
    assert "Go on" not in unasked  # nobody is asked to answer for a loss that did not happen
    stop = LedgerStop(sentence="It was put back.", seen_sequence=9, seen_digest="ab" * 32, own_sequence=1, unix=5)
    StateFile(joined_home.folder / FILE_NAME, GuardState()).change(lambda state: GuardState(stop=stop))
    assert "It was put back." in run("doctor", home=joined_home, expect=1)
    asked = run("ledger", "accept-restored", home=joined_home, expect=UsageError.exit_status)
    assert "It was put back. What was charged in its lost entries is gone. Go on, and answer for it?" in asked
    assert run_json("ledger", "accept-restored", "--yes", home=joined_home) == {"given_up": 9, "own": 1}
    assert actions(joined_home) == [AuditAction.OVERRIDE]
