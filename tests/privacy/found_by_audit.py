"""What an audit may have found."""

from __future__ import annotations

from fedloop_core.privacy.audit import AuditResult

AUDIT = AuditResult(
    task="wards",
    claimed=0.95,
    delta=1e-5,
    bound=0.17,
    highest=4.1,
    confidence=0.95,
    canaries=400,
    guesses=200,
    correct=110,
    runs=2,
    rounds=4,
    noise_multiplier=3.0,
    sampling_rate=0.5,
    private=True,
)
