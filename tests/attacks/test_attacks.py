"""Everything that we know to try against one whole deployment: each try is refused, written down, and changes nothing."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node
from tests.attacks.attackers import NOBODY, as_nobody
from tests.attacks.conftest import Scene, soon
from tests.front.conftest import NodeKey
from tests.front.test_front_attacks import STRANGERS, Attack
from tests.membership.coordinators import SiteEnd
from tests.processes.test_closed_bundles import LEADS_OUT, PROJECT

from fedloop_clients.endpoint import Question, Reply
from fedloop_clients.socket_endpoint import SocketEndpoint
from fedloop_core.certificates import CertificateAuthority, certificate_request
from fedloop_core.errors import ProcessFailed
from fedloop_core.federation.answers import open_answer, sign_answer
from fedloop_core.keys import SigningKey, seal
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, Envelope, Instruction, SignedAnswer
from fedloop_server.manager.flower import FlowerControl
from fedloop_server.manager.state import FlowerPhase

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]  # the first test sets the federation up
PULL = "/v1/fleet/pull-messages"


def state_of(scene: Scene) -> list[object]:
    """What no attack may change: sites, nodes, runs, and south's ledger and answers."""
    members = scene.server.members()
    with closing(members.database):
        sites = [(site.name, site.state, site.node_id, site.certificate_fingerprint) for site in members.sites()]
    ledger = scene.south.ledger()
    head = ledger.head()
    ledger.close()
    runs = sorted(path.name for path in (scene.federation.home / "runs").iterdir())
    return [*sites, head, *runs]


@pytest.fixture
def unchanged(scene: Scene) -> Iterator[Scene]:
    before = state_of(scene)
    yield scene
    assert state_of(scene) == before


# --- from outside, with nothing but the authority's file -----------------------------------------------------------


def _refused_by_front(scene: Scene, attack: Attack, headers: dict[str, str] | None = None) -> None:
    since = scene.federation.log("coordinator", "front")
    answer = scene.stranger.call(attack.method, attack.path, attack.body, headers)
    assert (answer.status_code, answer.text) == (attack.status, "refused\n")
    path = attack.path.partition("?")[0]
    scene.federation.until_logged(
        "coordinator", "front", f'"path": "{path}"', f'"reason": "{attack.reason}"', since=since
    )


@pytest.mark.parametrize("attack", STRANGERS, ids=[attack.name for attack in STRANGERS])
def test_a_stranger_at_the_front(unchanged: Scene, attack: Attack) -> None:
    _refused_by_front(unchanged, attack)


def _pull(node: int) -> bytes:
    return PullMessagesRequest(node=Node(node_id=node)).SerializeToString()


def test_messages_are_not_pulled_with_a_strangers_key(unchanged: Scene) -> None:
    body = _pull(unchanged.node_id("north"))
    _refused_by_front(unchanged, Attack("", PULL, 401, "key", body=body), NodeKey().headers())


def test_messages_are_not_pulled_under_a_known_key_with_a_strangers_signature(unchanged: Scene) -> None:
    headers = _of_south(unchanged).headers(forged=True)
    body = _pull(unchanged.node_id("south"))
    _refused_by_front(unchanged, Attack("", PULL, 401, "signature", body=body), headers)


def _of_south(scene: Scene) -> NodeKey:
    made = NodeKey()
    key = load_ssh_private_key(scene.south.node_key.read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    made.key = key
    return made


def test_a_sites_messages_are_not_pulled_by_another_site(unchanged: Scene) -> None:
    since = unchanged.federation.log("coordinator", "superlink")
    answer = unchanged.stranger.call("POST", PULL, _pull(unchanged.node_id("north")), _of_south(unchanged).headers())
    assert answer.status_code in {400, 401, 403}
    unchanged.federation.until_logged("coordinator", "superlink", "pull-messages", str(answer.status_code), since=since)


JOINS: dict[str, tuple[Callable[[Scene], tuple[str, Any]], str, str]] = {
    "joins without a token": (lambda s: ("join", SiteEnd("west").join_request("")), "FL-TRUST-007", ""),
    "joins by a guessed token": (lambda s: ("join", SiteEnd("west").join_request("x" * 43)), "FL-TRUST-007", ""),
    "joins by a used token": (lambda s: ("join", SiteEnd("east").join_request(s.token.secret)), "FL-TRUST-007", ""),
    "renews another site's certificate": (
        lambda s: ("renew", SiteEnd("north").renew_request()),
        "FL-TRUST-007",
        "signature",
    ),
    "renews although it was revoked": (lambda s: ("renew", s.east.renew_request()), "FL-TRUST-008", ""),
}


@pytest.mark.parametrize("name", JOINS)
def test_nobody_becomes_a_site(unchanged: Scene, name: str) -> None:
    make, code, reason = JOINS[name]
    what, request = make(unchanged)
    before = len(unchanged.federation.audited("coordinator"))
    refusal = unchanged.stranger.membership(what, request)
    assert refusal.code == code
    assert reason in refusal.fields.get("reason", "")
    entries = unchanged.federation.audited("coordinator")[before:]
    assert [entry["details"]["code"] for entry in entries if entry["action"] == "request-refused"] == [code]
    assert entries[-1]["actor"] == "address:127.0.0.1"


def _by_another(scene: Scene) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = CertificateAuthority.create("another", int(time.time()))
    issued = authority.issue_site(certificate_request(key), "north", now_unix=int(time.time()))
    return scene.stranger.watch(key, issued)


def _by_ours(scene: Scene) -> tuple[str, str]:
    """As whoever stole the authority's key would."""
    key = ec.generate_private_key(ec.SECP256R1())
    issued = (
        scene.server.authorities().current().issue_site(certificate_request(key), "north", now_unix=int(time.time()))
    )
    return scene.stranger.watch(key, issued)


WATCHES: dict[str, tuple[Callable[[Scene], tuple[str, str]], tuple[str, str], str]] = {
    "without a certificate": (lambda s: s.stranger.watch(), ("UNAVAILABLE", ""), "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
    "with a certificate of another authority": (_by_another, ("UNAVAILABLE", ""), "CERTIFICATE_VERIFY_FAILED"),
    "with one that no site was given": (_by_ours, ("UNAUTHENTICATED", "FL-TRUST-005"), "that no site was given"),
    "with one of a revoked site": (
        lambda s: s.stranger.watch(s.east.key, s.east.certificate), ("PERMISSION_DENIED", "FL-TRUST-008"), "east",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WATCHES)
def test_nobody_else_watches_the_hub(unchanged: Scene, name: str) -> None:
    watch, (status, details), logged = WATCHES[name]
    since = unchanged.federation.log("coordinator", "service")
    said = watch(unchanged)
    assert said[0] == status
    assert details in said[1]
    unchanged.federation.until_logged("coordinator", "service", logged, since=since)


# --- users of the machines -----------------------------------------------------------------------------------------

SECRETS = {
    "a site's ledger": lambda s: s.south.ledger_file,
    "a site's answers": lambda s: s.south.outbox_file,
    "a site's signing key": lambda s: s.south.signing_key_file,
    "a site's certificate key": lambda s: s.south.site_key,
    "a site's node key": lambda s: s.south.node_key,
    "the copy of it that Flower is given": lambda s: s.south.flower / "supernode" / "given" / "node.key",
    "the coordinator's envelope key": lambda s: s.federation.home / "keys" / "envelope.pem",
    "the authority's key": lambda s: s.federation.home / "keys" / "ca.key",
    "the coordinator's database": lambda s: s.federation.home / "coordinator.db",
    "SuperLink's database": lambda s: s.federation.home / "flower" / "superlink" / "state.db",
}  # the kernel refuses, and nobody is told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("name", SECRETS)
def test_another_user_does_not_read(unchanged: Scene, name: str) -> None:
    path = SECRETS[name](unchanged)
    assert path.exists()
    assert as_nobody(path.read_bytes) == "PermissionError"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_does_not_reach_the_daemon(unchanged: Scene) -> None:
    def connects() -> str:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.connect(str(unchanged.south.daemon_socket.with_name("real.sock")))
        return "connected"

    assert as_nobody(connects) == "PermissionError"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_who_reaches_the_socket_is_not_answered(unchanged: Scene) -> None:
    """Where processes have users of their own, anybody may connect; the kernel says who it is."""
    real, question = unchanged.south.daemon_socket.with_name("real.sock"), unchanged.relay.heard[-1]
    since = unchanged.federation.log("south", "daemon")
    modes = {path: path.stat().st_mode for path in (real, real.parent)}
    try:
        for path in modes:
            path.chmod(0o777)
        asked = as_nobody(lambda: SocketEndpoint(real, patience=0.5).answer(question))
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert asked == ProcessFailed.__name__
    unchanged.federation.until_logged("south", "daemon", f"user {NOBODY} is not allowed to ask", since=since)


# --- whoever reaches SuperLink on loopback -------------------------------------------------------------------------

_HOSTILE = """
import time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

app = ServerApp()
client = ClientApp()
LOOT, SECRETS = Path({loot!r}), {secrets!r}

def steal(who):
    LOOT.joinpath(who).write_bytes(b"".join(Path(path).read_bytes() for path in SECRETS))

@app.main()
def main(grid, context):
    steal("server")

@client.train()
def train(message, context):
    steal("client")
    return Message(RecordDict(), reply_to=message)
"""


def _flower(scene: Scene, app: Path) -> FlowerControl:
    """Flower's own commands, as any user of the coordinator's machine may call them."""
    address = f"127.0.0.1:{scene.server.settings.superlink_port}"
    return FlowerControl(app.parent / "cli", address, scene.server.keys / "superlink-ca.pem", app=app)


@pytest.mark.parametrize(
    ("version", "logged"),
    [
        pytest.param("1.0.0", "Permission denied", id="runs a bundle that reads ledger and keys"),
        pytest.param(LEADS_OUT, "leads out of the apps folder", id="runs a bundle whose version leads out"),
    ],
)
def test_a_user_of_superlink(unchanged: Scene, tmp_path: Path, version: str, logged: str) -> None:
    app, loot = tmp_path / "app", tmp_path / "loot"
    for folder in (app, loot, tmp_path / "cli"):
        folder.mkdir()
    (app / "pyproject.toml").write_text(PROJECT.format(version=version))
    secrets = [str(unchanged.south.ledger_file), str(unchanged.south.signing_key_file)]
    (app / "hostile.py").write_text(_HOSTILE.format(loot=str(loot), secrets=secrets))
    control = _flower(unchanged, app)
    run = control.start({})
    unchanged.federation.until("the run has ended", lambda: control.status(run).phase is FlowerPhase.ENDED)
    assert control.status(run).words == "finished:failed"
    assert logged in unchanged.federation.log("coordinator", "apps/serverapp")
    assert not list(loot.iterdir())


def test_a_node_that_a_user_of_superlink_registers_is_none_for_the_front(unchanged: Scene, tmp_path: Path) -> None:
    key = NodeKey()
    (tmp_path / "app").mkdir()
    (tmp_path / "cli").mkdir()
    key.write(tmp_path / "node")
    node = _flower(unchanged, tmp_path / "app").register(tmp_path / "node.pub")
    _refused_by_front(unchanged, Attack("", PULL, 401, "key", body=_pull(node)), key.headers())


# --- a site's relay ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """The last question of the run that has ended, opened."""

    scene: Scene
    question: Question

    @property
    def instruction(self) -> Instruction:
        return Instruction.FromString(Envelope.FromString(self.question.envelope).instruction)

    def sealed(self, key: SigningKey | None = None, **parts: Any) -> Question:
        """The same question with other parts, sealed by the coordinator's key or another."""
        instruction = self.instruction
        instruction.expires_unix = soon()
        for name, value in parts.items():
            setattr(instruction, name, value)
        return Question(seal(instruction, key or self.scene.server.envelope_key), self.question.arrays)

    def flipped(self, where: str) -> Question:
        """With one bit turned over in a part of the envelope."""
        envelope = Envelope.FromString(self.question.envelope)
        content = bytearray(getattr(envelope, where))
        content[len(content) // 2] ^= 1
        setattr(envelope, where, bytes(content))
        return Question(envelope.SerializeToString(), self.question.arrays)

    def with_arrays(self) -> Question:
        moved = {name: np.add(array, np.ones_like(array)) for name, array in self.question.arrays.items()}
        return Question(self.question.envelope, moved)


QUESTIONS: dict[str, tuple[Callable[[Heard], Question], str]] = {
    "an envelope for another site": (lambda h: h.sealed(site="north"), "site"),
    "an envelope of a lower attempt": (lambda h: h.sealed(attempt=0), "attempt"),
    "an envelope that has expired": (lambda h: h.sealed(expires_unix=int(time.time()) - 1), "expired"),
    "an envelope of another key": (lambda h: h.sealed(SigningKey.generate()), "signature"),
    "an altered instruction": (lambda h: h.flipped("instruction"), "signature"),
    "an altered signature": (lambda h: h.flipped("signature"), "signature"),
    "altered arrays": (lambda h: h.with_arrays(), "altered"),
    "a run that was never described": (lambda h: h.sealed(run_id="stolen-1"), "undescribed"),
    "another task under a known run": (lambda h: h.sealed(task_digest=bytes(32)), "task"),
    "no envelope at all": (lambda h: Question(b"\xff" * 40, {}), "format"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_relay_that_asks(unchanged: Scene, name: str) -> None:
    make, reason = QUESTIONS[name]
    since = unchanged.federation.log("south", "daemon")
    reply = unchanged.relay.ask(make(Heard(unchanged, unchanged.relay.heard[-1])))
    answer = open_answer(reply.answer, unchanged.south.signing_key().verifying, site="south")
    assert (answer.refusal.code, answer.refusal.fields["reason"]) == ("FL-TRUST-001", reason)
    assert reply.arrays == {}
    unchanged.federation.until_logged("south", "daemon", "refuses", "FL-TRUST-001", since=since)
    refused = [entry for entry in unchanged.federation.audited("south") if entry["action"] == "envelope-refused"]
    assert reason in json.dumps([entry["details"] for entry in refused])


def test_a_relay_that_repeats_an_envelope_hears_the_same_again_and_nothing_is_charged(unchanged: Scene) -> None:
    question, first = unchanged.relay.heard[-1], unchanged.relay.told[-1]
    again = unchanged.relay.ask(question)
    assert Answer.FromString(SignedAnswer.FromString(again.answer).answer) == Answer.FromString(
        SignedAnswer.FromString(first.answer).answer
    )
    assert all(np.array_equal(array, first.arrays[name]) for name, array in again.arrays.items())


# --- what a relay says in its site's name --------------------------------------------------------------------------


def _forged(scene: Scene, reply: Reply) -> Reply:
    answer = Answer.FromString(SignedAnswer.FromString(reply.answer).answer)
    return Reply(sign_answer(answer, SigningKey.generate()), reply.arrays)


def _under_its_name(scene: Scene, reply: Reply) -> Reply:
    """Another key under the name of the site's."""
    signed = SignedAnswer.FromString(_forged(scene, reply).answer)
    signed.key_id = SignedAnswer.FromString(reply.answer).key_id
    return Reply(signed.SerializeToString(), reply.arrays)


def _moved(scene: Scene, reply: Reply) -> Reply:
    return Reply(reply.answer, {name: np.add(array, np.ones_like(array)) for name, array in reply.arrays.items()})


ANSWERS: dict[str, tuple[Callable[[Scene, Reply], Reply], str, str]] = {
    "forges an answer": (_forged, "FL-TRUST-011", "is not signed by the key that the site registered"),
    "forges an answer under the key's name": (_under_its_name, "FL-TRUST-011", "is not signed by the key"),
    "alters arrays": (_moved, "FL-UPD-001", "the arrays are not those that the answer names"),
    "repeats an answer of an earlier run": (lambda s, r: s.relay.told[2], "FL-UPD-001", "the answer is of run"),
    "repeats an answer of an earlier round": (lambda s, r: s.relay.told[-2], "FL-UPD-001", "the answer is of run"),
}


@pytest.fixture(scope="module")
def lied_to(scene: Scene) -> Iterator[Scene]:
    """A run goes on and south's relay passes all on, so far."""
    scene.federation.begin_run()
    scene.federation.until_round_of("north", "south")
    yield scene
    scene.federation.fedloop("run", "stop", scene.federation.run, "--home", str(scene.federation.home))


@pytest.mark.parametrize("name", ANSWERS)
def test_a_relay_that_answers(lied_to: Scene, name: str) -> None:
    """Its site is left out of that round by name and reason, and the others go on."""
    change, code, reason = ANSWERS[name]
    lied_to.federation.until_round_of("north", "south")
    lied_to.relay.meddle = lambda reply: change(lied_to, reply)
    try:
        left_out = lied_to.federation.until_left_out("south")
        assert (left_out["code"], left_out["for_good"]) == (code, False)
        assert reason in left_out["reason"]
        lied_to.federation.until_round_of("north")
    finally:
        lied_to.relay.meddle = lambda reply: reply
    entries = lied_to.federation.audited("coordinator")
    assert any(entry["action"] == "site-left-out" and entry["details"]["code"] == code for entry in entries)
