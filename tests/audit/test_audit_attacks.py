"""Logs that somebody wrote to: what is noticed, and what only a countersignature notices."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fedloop_core.audit import (
    AuditAction,
    AuditEntry,
    AuditHead,
    AuditLog,
    Countersignatures,
    KeyFrom,
    check_countersignatures,
    countersigned,
)
from fedloop_core.errors import AuditBroken, StorageError
from fedloop_core.federation.answers import sign_answer
from fedloop_core.keys import SigningKey, VerifyingKey
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, LogHead

Lines = list[str]
KEY = SigningKey.generate()
KEYS = {"va": KEY.verifying}


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    made = AuditLog(tmp_path / "audit.jsonl", clock=lambda: 1000)
    for number in range(6):
        made.record("operator:ann", AuditAction.SITE_ADDED, f"site-{number}", number=number)
    return made


def answer(head: AuditHead, site: str = "va", key: SigningKey = KEY) -> bytes:
    return sign_answer(Answer(site=site, audit=LogHead(sequence=head.sequence, digest=head.digest)), key)


def rewrite(log: AuditLog, change: Callable[[Lines], Lines]) -> None:
    lines = change(log.path.read_text(encoding="utf-8").splitlines())
    log.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def altered(line: str, **changes: object) -> str:
    """An entry with other words, and the digest that it had."""
    return json.dumps(json.loads(line) | changes, sort_keys=True, separators=(",", ":"))


def sealed(line: str, **changes: object) -> str:
    """An entry with other words, and the digest that fits them."""
    return AuditEntry.model_validate_json(altered(line, **changes)).sealed().to_line()


def chain(lines: Lines) -> Lines:
    """All digests made anew, as somebody with the code would."""
    previous, out = "0" * 64, []
    for number, line in enumerate(lines, 1):
        entry = AuditEntry.model_validate_json(sealed(line, previous=previous, sequence=number))
        previous = entry.digest
        out.append(entry.to_line())
    return out


ATTACKS: list[tuple[str, Callable[[Lines], Lines], str]] = [
    ("an altered entry", lambda x: [*x[:2], altered(x[2], subject="other"), *x[3:]], "line 3: entry 3 .* was altered"),
    ("an altered entry with a fitting digest", lambda x: [*x[:2], sealed(x[2], subject="other"), *x[3:]],
     "line 4: entry 4 .* does not follow entry 3"),
    ("a wrong digest", lambda x: [*x[:2], altered(x[2], digest="ab" * 32), *x[3:]], "line 3: entry 3 .* was altered"),
    ("a removed entry", lambda x: [*x[:2], *x[3:]], "line 3: entry 4 .* does not follow entry 2"),
    ("a removed first entry", lambda x: x[1:], "line 1: entry 2 .* does not follow entry 0"),
    ("two entries in another order", lambda x: [x[0], x[2], x[1], *x[3:]], "line 2: entry 3 .* does not follow entry 1"),
    ("an inserted entry", lambda x: [*x[:3], sealed(x[2], sequence=4), *x[3:]], "line 4: entry 4 .* does not follow"),
    ("an entry twice", lambda x: [*x[:3], x[2], *x[3:]], "line 4: entry 3 .* does not follow entry 3"),
    ("not JSON", lambda x: [*x[:2], "by hand", *x[3:]], "line 3 is not an audit entry"),
    ("an empty line", lambda x: [*x[:2], "", *x[2:]], "line 3 is not an audit entry"),
    ("another action", lambda x: [altered(x[0], action="party"), *x[1:]], "line 1 is not an audit entry"),
    ("one more key", lambda x: [altered(x[0], more=1), *x[1:]], "line 1 is not an audit entry"),
    ("a space", lambda x: [x[0].replace(":", ": ", 1), *x[1:]], "line 1: entry 1 .* was altered"),
    ("a key twice", lambda x: [x[0].replace("{", '{"actor":"x",', 1), *x[1:]], "line 1: entry 1 .* was altered"),
    ("a line without end", lambda x: [x[0], "x" * 200_000, *x[1:]], "line 2 is longer than any audit entry"),
    ("a number as text", lambda x: [altered(x[0], sequence="1"), *x[1:]], "line 1 is not an audit entry"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [row[1:] for row in ATTACKS], ids=[row[0] for row in ATTACKS])
def test_the_first_entry_that_does_not_follow_is_named(
    change: Callable[[Lines], Lines], sentence: str, log: AuditLog
) -> None:
    rewrite(log, change)
    with pytest.raises(AuditBroken, match=sentence):
        log.verify()


BEHIND: list[tuple[str, Callable[[Lines], Lines], str]] = [
    ("a truncated tail", lambda x: x[:3], "cut back: site va countersigned entry 5, and the log ends at entry 3"),
    ("an emptied log", lambda x: [], "cut back: site va countersigned entry 5, and the log ends at entry 0"),
    ("a whole chain written anew", lambda x: chain([sealed(x[0], subject="nobody"), *x[1:]]),
     "written anew: entry 5 is not the one that site va countersigned"),
    ("an entry removed and the rest chained anew", lambda x: chain([*x[:2], *x[3:]]), "written anew: entry 5"),
    ("an entry inserted and the rest chained anew", lambda x: chain([*x[:2], x[2], *x[2:]]), "written anew: entry 5"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [row[1:] for row in BEHIND], ids=[row[0] for row in BEHIND])
def test_a_countersignature_tells_what_the_chain_cannot(
    change: Callable[[Lines], Lines], sentence: str, log: AuditLog
) -> None:
    rewrite(log, lambda lines: lines[:5])
    head = log.head()
    countersigned(log.path).keep("va", answer(head), head)
    log.record("operator:ann", AuditAction.SITE_ADDED, "one more")
    checked = check_countersignatures(log.entries(), countersigned(log.path).all(), KEYS)
    assert [(one.site, one.sequence, one.verified) for one in checked] == [("va", 5, True)]
    rewrite(log, change)
    log.verify()  # the chain alone holds
    with pytest.raises(AuditBroken, match=sentence):
        check_countersignatures(log.entries(), countersigned(log.path).all(), KEYS)


def forged(log: AuditLog, signed: bytes, head: AuditHead | None = None) -> None:
    Countersignatures(log.path).keep("va", signed, head or log.head())


def spoiled(log: AuditLog) -> Path:
    forged(log, answer(log.head()))
    return Countersignatures(log.path).folder / "va.json"


FORGED: list[tuple[str, Callable[[AuditLog], object], str]] = [
    ("another site's key", lambda g: forged(g, answer(g.head(), key=SigningKey.generate())), "is not the site's"),
    ("another site's answer", lambda g: forged(g, answer(g.head(), site="nj")), "is not the site's"),
    ("no answer", lambda g: forged(g, b"\xff\xff"), "is not the site's"),
    ("an answer without a head", lambda g: forged(g, sign_answer(Answer(site="va"), KEY)), "names entry 0"),
    ("an answer about another entry", lambda g: forged(g, answer(AuditHead(2, bytes(32)))), "names entry 2"),
    ("a file that is none of ours", lambda g: spoiled(g).write_text("{}"), "is not a countersignature"),
    ("a file under another name", lambda g: spoiled(g).rename(spoiled(g).with_name("nj.json")), "of site va"),
]  # fmt: skip


@pytest.mark.parametrize(("forge", "sentence"), [row[1:] for row in FORGED], ids=[row[0] for row in FORGED])
def test_a_forged_countersignature_is_named(forge: Callable[[AuditLog], object], sentence: str, log: AuditLog) -> None:
    forge(log)
    with pytest.raises(AuditBroken, match=sentence):
        check_countersignatures(log.entries(), countersigned(log.path).all(), KEYS)


def test_the_newest_answer_of_each_site_is_kept(log: AuditLog) -> None:
    heads = [AuditHead(e.sequence, bytes.fromhex(e.digest)) for e in log.entries()]
    kept = Countersignatures(log.path)
    assert kept.all() == ()
    kept.keep("va", answer(AuditHead()), AuditHead())  # a log that was empty says nothing
    assert kept.of("va") is None
    for site, head in [("va", heads[3]), ("va", heads[1]), ("nj", heads[2]), ("nj", heads[2]), ("va", heads[4])]:
        kept.keep(site, answer(head, site), head)
    assert [(one.site, one.sequence) for one in kept.all()] == [("nj", 3), ("va", 5)]
    other: dict[str, VerifyingKey] = {"nj": KEY.verifying}
    checked = check_countersignatures(log.entries(), kept.all(), other)
    assert [(one.site, one.verified) for one in checked] == [("nj", True), ("va", False)]


def test_the_key_that_was_kept_counts_where_the_site_told_none(log: AuditLog) -> None:
    head, kept = log.head(), Countersignatures(log.path)
    kept.keep("va", answer(head), head, KEY.verifying)
    (found,) = check_countersignatures(log.entries(), kept.all(), {})
    assert found.key is KeyFrom.COORDINATOR
    (found,) = check_countersignatures(log.entries(), kept.all(), KEYS)
    assert found.key is KeyFrom.SITE
    another = {"va": SigningKey.generate().verifying}
    with pytest.raises(AuditBroken, match="is not the site's"):
        check_countersignatures(log.entries(), kept.all(), another)
    file = kept.folder / "va.json"
    file.write_text(file.read_text().replace(KEY.verifying.raw.hex(), another["va"].raw.hex()))
    with pytest.raises(AuditBroken, match="is not the site's"):
        check_countersignatures(log.entries(), kept.all(), {})


def test_what_is_no_site_or_too_long_is_not_kept(log: AuditLog) -> None:
    with pytest.raises(ValueError, match="no name of a site"):
        Countersignatures(log.path).keep("../va", b"", log.head())
    with pytest.raises(StorageError, match="too many to keep"):
        Countersignatures(log.path).keep("va", bytes(2 << 20), log.head())
