"""Appending to the audit log and finding its head."""

from __future__ import annotations

from pathlib import Path

from fedloop_core.audit import AuditAction, AuditHead, AuditLog


def test_entries_follow_one_another_and_the_head_is_the_last(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "home" / "audit.jsonl", clock=lambda: 12.7)
    assert log.head() == AuditHead(0, bytes(32))
    first = log.record("operator:ann", AuditAction.INITIALISE, "coordinator")
    second = log.record("operator:ann", AuditAction.SITE_ADDED, "va", expires=5, epsilon=0.5, note="Ärzte\n")
    assert list(AuditLog(log.path).entries()) == [first, second]
    assert (first.sequence, first.unix, second.previous) == (1, 12, first.digest)
    assert log.head() == AuditHead(2, bytes.fromhex(second.digest)) == log.verify().head
