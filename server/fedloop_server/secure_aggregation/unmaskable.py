"""What unmasking needs besides the masked sum and the sites' shares: kept before shares are asked for, so that another process can go on.

None of it is a site's secret: public keys, digests, commitments, names and signatures, as the coordinator was told them.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import SiteSignature, Unmask
from fedloop_core.strict import Strict

__all__ = ["Dealt", "Goal", "Unmaskable"]


@dataclass(frozen=True)
class Goal:
    """What is summed; see ``fedloop_core.secure_aggregation.messages.Terms``. ``model_digest`` is of the model of this round."""

    task_digest: bytes
    model_digest: bytes
    values: int
    largest_value: float
    total_weight: int


class _Bytes(Strict):
    """Bytes are base64 in JSON."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")


class Dealt(_Bytes):
    """What a member has told: its public mask key, the commitment to its seed, and for each holder digests of both shares."""

    site: str
    mask_key: bytes
    seed_commitment: bytes
    digests: tuple[tuple[bytes, bytes], ...]
    """Of the share of the seed and of that of the mask key, in the order of the holders."""


class Unmaskable(_Bytes):
    """An instance of which one list of survivors is settled.

    ``cohort`` is the transcript of all ``holders``, who have told keys. ``dealt`` are those of them who have dealt shares, in the order of
    their names: the masks are between them. ``signed``: survivors with what they have signed the list with.
    """

    run_id: str
    round: int
    number: int
    task_digest: bytes
    model_digest: bytes
    values: int
    largest_value: float
    total_weight: int
    threshold: int
    cohort: bytes
    holders: tuple[str, ...]
    dealt: tuple[Dealt, ...]
    survivors: tuple[str, ...]
    signed: tuple[tuple[str, bytes], ...]

    @property
    def instance(self) -> Instance:
        """Which."""
        return Instance(self.run_id, self.round, self.number)

    @property
    def goal(self) -> Goal:
        """What is summed."""
        return Goal(self.task_digest, self.model_digest, self.values, self.largest_value, self.total_weight)

    @property
    def question(self) -> Unmask:
        """The one question for shares: every site answers it once, and the same again."""
        return Unmask(self.instance, tuple(SiteSignature(site, signature) for site, signature in self.signed))
