"""The surroundings of a coordinator that is set up: members in the database, what the front refused, the wish to stop."""

from __future__ import annotations

import hashlib
from contextlib import closing
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedloop_core.keys import SigningKey
from fedloop_server.deployed import ENDS_THE_REPLY, IGNORED, FrontRefusals, MemberDirectory, deployed_surroundings
from fedloop_server.front.client import FrontClient
from fedloop_server.front.refusals import Reason, Refusal
from fedloop_server.home import CoordinatorHome
from fedloop_server.membership import Members
from fedloop_server.membership.machine import SiteKeys
from fedloop_server.membership.records import IssuedCertificate, JoinedSite
from fedloop_server.runs.heads import LedgerHead

NOW = 1_800_000_000


def admit(members: Members, name: str, node_id: int | None) -> SigningKey:
    digest, key = hashlib.sha256(name.encode()).digest(), SigningKey.generate()
    members.add(name)
    members.issue_token(name, digest, NOW + 60)
    certificate = IssuedCertificate(b"pem", digest.hex(), NOW + 1000)
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    node_key = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    joined = JoinedSite(node_key, key.verifying.raw, certificate, 1, "0.2")
    keys = SiteKeys(*(f"{kind} of {name}" for kind in ("certificate", "node", "signing")))
    members.record_join(digest, keys, lambda _: joined, "")
    if node_id is not None:
        members.set_node(node_key, node_id)
    return key


def test_only_active_members_with_a_node_are_in_the_directory(tmp_path: Path) -> None:
    with closing(CoordinatorHome(tmp_path).database()) as database:
        members = Members(database, lambda: NOW)
        directory = MemberDirectory(members)
        key = admit(members, "north", 2**63 + 5)  # Flower's ids need all 64 bits
        admit(members, "south", None)
        admit(members, "west", 8)
        members.add("invited")
        members.revoke("west", "its key was lost")
        assert {node: site.site for node, site in directory.nodes().items()} == {2**63 + 5: "north"}
        assert directory.nodes()[2**63 + 5].signing_key.raw == key.verifying.raw
        assert directory.active() == {"north", "south"}
        members.revoke("north", "as a test")
        assert directory.nodes() == {}
        assert directory.active() == {"south"}


def test_a_run_finds_everything_in_the_coordinators_folder(tmp_path: Path) -> None:
    home = CoordinatorHome(tmp_path)
    with closing(home.database()) as database:
        admit(Members(database, lambda: NOW), "north", 7)
    with deployed_surroundings(home, "run-1") as around:
        assert around.directory.active() == {"north"}
        head = LedgerHead(3, b"h" * 32)
        around.heads.advance({"north": head, "gone": head})
        assert around.heads.seen("north") == head
        assert around.stop is not None
        assert not around.stop.wished()
        assert around.doorbell is not None
        around.doorbell.ring()  # no front is up: it costs nothing but the try
        assert around.refusals is not None
        assert list(around.refusals.since(0)) == []
        assert around.audit is not None
        assert around.audit.head().sequence == 0


class Front(FrontClient):
    """A front that has refused one request."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(Path("front.sock"))
        self._refusal = refusal

    def refusals(self, since: int) -> tuple[Refusal, ...]:
        return (self._refusal,) if self._refusal.number > since else ()


@pytest.mark.parametrize(
    ("path", "reason", "seconds", "told"),
    [
        ("/v1/fleet/push-object", Reason.BODY_TOO_LARGE, 0.0, ("FL-NET-002", "a part of it is larger")),
        ("/v1/fleet/push-object", Reason.REPLY_TOO_LARGE, 0.0, ("FL-NET-002", "it is larger")),
        ("/v1/fleet/push-messages", Reason.MALFORMED, 0.0, ("FL-NET-002", "malformed")),
        ("/v1/fleet/push-object", Reason.SLOW_BODY, 0.0, ("FL-NET-002", "too slowly")),
        ("/v1/fleet/push-object", Reason.HEADERS, 0.0, ("FL-NET-002", "another length")),
        ("/v1/fleet/pull-messages", Reason.CLOCK, 10.2, ("FL-TRUST-010", "10 s ahead of")),
        ("/v1/fleet/pull-messages", Reason.CLOCK, -400.0, ("FL-TRUST-010", "400 s behind")),
        ("/v1/fleet/push-object", Reason.RATE, 0.0, None),
        ("/v1/fleet/pull-messages", Reason.MALFORMED, 0.0, None),
        ("/v1/fleet/push-object", Reason.NOT_READY, 0.0, None),
    ],
)
def test_what_the_front_refused_and_does_not_pass_is_told(
    path: str, reason: Reason, seconds: float, told: tuple[str, str] | None
) -> None:
    with closing(Front(Refusal(7, 0.0, "north", path, reason, seconds))) as front:
        assert list(FrontRefusals(front).since(7)) == []
        found = list(FrontRefusals(front).since(6))
    if told is None:
        assert found == []
        return
    (refused,) = found
    assert (refused.number, refused.site, refused.code) == (7, "north", told[0])
    assert told[1] in refused.reason


def test_every_reason_of_the_front_ends_a_reply_or_is_ignored_for_a_reason() -> None:
    assert set(ENDS_THE_REPLY).isdisjoint(IGNORED)
    assert {*ENDS_THE_REPLY, *IGNORED, Reason.CLOCK} == set(Reason)
