"""What the coordinator may say over the hub without being asked: two kinds, signed like every instruction. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fedloop_core.errors import EnvelopeRefused
from fedloop_core.federation.protocol import check_protocol
from fedloop_core.keys import VerifyingKey, unseal

__all__ = ["AuthoritiesTrusted", "NoticeTaken", "RunCalledOff", "open_notice"]

_MOST_BYTES = 256 * 1024


@dataclass(frozen=True)
class RunCalledOff:
    """The attempt of the run, and those before it, end."""

    run_id: str
    attempt: int


@dataclass(frozen=True)
class AuthoritiesTrusted:
    """From now on exactly these authorities (PEM bundle) are the coordinator's; ``expires_unix`` is the notice's."""

    certificates: bytes
    expires_unix: int


NoticeTaken = RunCalledOff | AuthoritiesTrusted


def open_notice(envelope: bytes, key: VerifyingKey, *, site: str, now_unix: int, protocol: int) -> NoticeTaken:
    """Opens a notice's envelope.

    Args:
        envelope: a serialised ``coordination.v1.Envelope``.
        key: the pinned key.
        site: this site.
        now_unix: seconds since 1970.
        protocol: this side's generation.

    Raises:
        EnvelopeRefused: too long, not signed for this site, expired, or of another kind.
        VersionRefused: the coordinator's generation is too far away.
    """
    if len(envelope) > _MOST_BYTES:
        raise EnvelopeRefused(f"site {site}: a notice of {len(envelope)} bytes is too long.", reason="format")
    instruction, _ = unseal(envelope, key, site=site, now_unix=now_unix)
    check_protocol(instruction.protocol, peer="the coordinator", ours=protocol)
    match instruction.WhichOneof("work"):
        case "cancel_run" if instruction.run_id:
            return RunCalledOff(instruction.run_id, instruction.attempt)
        case "trust_authorities" if instruction.trust_authorities.certificates:
            return AuthoritiesTrusted(instruction.trust_authorities.certificates, instruction.expires_unix)
        case _:
            raise EnvelopeRefused(f"site {site}: a notice says nothing that may come over the hub.", reason="work")
