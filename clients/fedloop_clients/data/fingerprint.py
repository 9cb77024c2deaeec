"""A fingerprint of rows that the site can recognise and nobody else can guess."""

from __future__ import annotations

import hashlib
import hmac

from fedloop_core.dataset import Dataset

__all__ = ["fingerprint"]


def fingerprint(dataset: Dataset, secret: bytes) -> bytes:
    """HMAC-SHA256 over the sorted digests of the rows: the order of rows does not matter, their number does.

    Without the secret, small data sets could be confirmed by guessing their rows.
    """
    columns = [*dataset.inputs.values(), dataset.labels]
    rows = sorted(
        hashlib.sha256(b"".join(column[at].tobytes() for column in columns)).digest() for at in range(len(dataset))
    )
    state = hmac.new(secret, digestmod=hashlib.sha256)
    for row in rows:
        state.update(row)
    return state.digest()
