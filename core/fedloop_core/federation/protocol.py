"""The generation of the messages between coordinator and sites: neighbours work together, others are told so.

``PROTOCOL`` rises when a message changes in a way that an older side would misunderstand, and not with every release.
"""

from __future__ import annotations

from fedloop_core.errors import VersionRefused

__all__ = ["PROTOCOL", "check_protocol"]

PROTOCOL = 1


def check_protocol(theirs: int, *, peer: str, ours: int = PROTOCOL) -> None:
    """Accepts a peer of the same generation, of the one before and of the one after.

    Args:
        theirs: what the peer says; 0 is a peer from before there were generations.
        peer: who it is, for the sentence: "the coordinator", "site north".
        ours: this side's generation.

    Raises:
        VersionRefused: the generations are too far apart; says which side is to be upgraded.
    """
    if theirs >= 1 and abs(theirs - ours) <= 1:
        return
    older = "this side" if theirs > ours else peer
    raise VersionRefused(
        f"{peer} speaks generation {theirs} of the protocol, this side {ours}; only neighbours work together.",
        hint=f"Upgrade fedloop on {older}.",
        theirs=theirs,
        ours=ours,
    )
