"""A coordinator that was put back from a copy counts attempts again that its sites have seen; they say so, and it catches up."""

from __future__ import annotations

from collections.abc import Callable

from fedloop_core.errors import AttemptBehind, EnvelopeRefused
from fedloop_server.runs.replies import SiteFailure

__all__ = ["catching_up", "check_attempt"]

_TRIES = 3  # sites may know different ones
_FARTHEST = 1000  # a site may claim anything


def check_attempt(failure: SiteFailure, attempt: int) -> None:
    """Nothing, unless a site refused an instruction since it knows a later attempt than this.

    Raises:
        AttemptBehind: it does; one too far away to be believed is an ordinary failure of the site.
    """
    known = failure.fields.get("attempt", "")
    if failure.code != EnvelopeRefused.code or not known.isdecimal():
        return
    if attempt < int(known) <= attempt + _FARTHEST:
        raise AttemptBehind(
            f"site {failure.site} has seen attempt {known} of this run; this is attempt {attempt}.",
            hint="The coordinator was put back from a copy: the run goes on with a later attempt.",
            attempt=int(known),
        )


def catching_up(drive: Callable[[int, bool], None]) -> None:
    """Drives an attempt, and again beyond those that sites know.

    Args:
        drive: an attempt that is at least the number, and that heeds what sites know when it is told to; the last try does
            not, so that no site alone can keep a run from going on.
    """
    at_least = 0
    for _ in range(_TRIES):
        try:
            drive(at_least, True)
        except AttemptBehind as error:
            at_least = int(error.fields["attempt"]) + 1
        else:
            return
    drive(at_least, False)
