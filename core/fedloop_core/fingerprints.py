"""Fingerprints: short texts by which people compare, by phone, what reached them over a way that they do not trust."""

from __future__ import annotations

__all__ = ["FINGERPRINT_BYTES", "fingerprint", "is_same_fingerprint"]

FINGERPRINT_BYTES = 16
"""Enough where somebody would have to find a second content for one that is fixed."""

_GROUP = 4


def fingerprint(digest: bytes, length: int = FINGERPRINT_BYTES) -> str:
    """The first ``length`` bytes of a digest, in groups: ``AB12 CD34 …``."""
    text = digest[:length].hex().upper()
    return " ".join(text[at : at + _GROUP] for at in range(0, len(text), _GROUP))


def is_same_fingerprint(told: str, right: str) -> bool:
    """Whether a person has typed this fingerprint: whole, whatever stands between its letters and digits."""
    return _plain(told) == _plain(right)


def _plain(text: str) -> str:
    return "".join(character for character in text.upper() if character.isalnum())
