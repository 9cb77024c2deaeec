"""A fingerprint of rows that the site can recognise and nobody else can guess."""

from __future__ import annotations

import hashlib
import hmac

from fedloop_core.dataset import Dataset

__all__ = ["fingerprint", "row_digests"]


def fingerprint(dataset: Dataset, secret: bytes) -> bytes:
    """HMAC-SHA256 over the sorted digests of the rows: the order of rows does not matter, their number does.

    Without the secret, small data sets could be confirmed by guessing their rows.
    """
    state = hmac.new(secret, digestmod=hashlib.sha256)
    for row in sorted(row_digests(dataset)):
        state.update(row)
    return state.digest()


def row_digests(dataset: Dataset) -> list[bytes]:
    """SHA-256 of what each row holds, inputs and label; its unit does not count."""
    columns = [*dataset.inputs.values(), dataset.labels]
    return [hashlib.sha256(b"".join(column[at].tobytes() for column in columns)).digest() for at in range(len(dataset))]
