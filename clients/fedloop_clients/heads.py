"""Newest heads of two hash chains that each side keeps for the other.

A chain cannot show by itself that its end was cut off. So the coordinator keeps the head of each site's ledger, and each
site the head of the coordinator's audit log; whoever shows an older head later, or another one of the same number, was put
back from a copy, or is a second copy.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedloop_clients.privacy.ledger import Head, Ledger
from fedloop_clients.state_file import StateFile
from fedloop_core.errors import LedgerRolledBack, StorageError, UsageError
from fedloop_core.strict import Strict
from fedloop_proto.coordination.v1.coordination_pb2 import LogHead

__all__ = [
    "FILE_NAME",
    "AcceptedHead",
    "Countersignature",
    "GuardState",
    "LedgerGuard",
    "LedgerStop",
    "accept_restored",
    "countersign",
    "standing_stop",
]

FILE_NAME = "ledger-guard.json"
_LOG = logging.getLogger(__name__)
_HINT = (
    "Charges may have been undone. Put the newest copy of the ledger back, or, when there is none, "
    "run `fedloop site ledger accept-restored` and tell the coordinator."
)


class AcceptedHead(Strict):
    """A head that a person has given up as lost, and who."""

    sequence: int
    digest: str
    by: str
    unix: int


class LedgerStop(Strict):
    """Why the daemon refuses everything: the head that the coordinator knows, and the ledger's own number then."""

    code: Literal["FL-PRIV-003"] = "FL-PRIV-003"
    sentence: str
    seen_sequence: int
    seen_digest: str
    own_sequence: int
    unix: int


class GuardState(Strict):
    """The file: a stop that holds until a person acts, and the heads that were given up."""

    format: Literal[1] = 1
    stop: LedgerStop | None = None
    accepted: tuple[AcceptedHead, ...] = ()


class LedgerGuard:
    """Stops the site when its ledger is not the one that the coordinator has seen.

    Args:
        path: where the stop is kept, so that a restart does not lift it; None keeps it in memory.
        site: the site's name.
        ledger: the site's ledger.
        clock: seconds since 1970.
    """

    def __init__(self, path: Path | None, site: str, ledger: Ledger, clock: Callable[[], int]) -> None:
        self._file = StateFile(path, GuardState())
        self._site = site
        self._ledger = ledger
        self._clock = clock
        self._unsaved: LedgerStop | None = None  # a stop that the disk would not take

    def stop(self) -> LedgerStop | None:
        """The stop that holds, if any.

        Raises:
            StorageError: the file cannot be read.
        """
        return self._unsaved or self._file.read().stop

    def require_running(self) -> None:
        """Nothing while no stop holds.

        Raises:
            LedgerRolledBack: the site is stopped.
            StorageError: the file cannot be read.
        """
        stop = self.stop()
        if stop is not None:
            raise LedgerRolledBack(stop.sentence, hint=_HINT)

    def check(self, seen: LogHead) -> bool:
        """Compares the ledger with the newest head of it that the coordinator knows; returns whether it begins a stop.

        A number above the ledger's own says that entries are gone: a restored snapshot. Another digest at a number that
        the ledger has says that there are two ledgers: a second installation on the same data.

        Raises:
            StorageError: ledger or file cannot be read.
        """
        if seen.sequence == 0:
            return False
        own = self._ledger.digest_at(seen.sequence)
        if own == seen.digest:
            return False
        given_up = {(head.sequence, head.digest) for head in self._file.read().accepted}
        if (seen.sequence, seen.digest.hex()) in given_up:
            return False
        number = self._ledger.head().sequence
        what = (
            f"ends at entry {number}, and the coordinator has seen entry {seen.sequence}: it was put back from a copy"
            if own is None
            else f"has another entry {seen.sequence} than the coordinator has seen: a second ledger is in use"
        )
        self._begin(
            LedgerStop(
                sentence=f"the ledger of site {self._site} {what}. The site refuses all work until a person acts.",
                seen_sequence=seen.sequence,
                seen_digest=seen.digest.hex(),
                own_sequence=number,
                unix=self._clock(),
            )
        )
        return True

    def _begin(self, stop: LedgerStop) -> None:
        _LOG.critical("STOPPED, %s: %s %s", stop.code, stop.sentence, _HINT)
        self._unsaved = stop
        try:
            self._file.change(lambda state: state.model_copy(update={"stop": stop}))
        except StorageError:
            _LOG.exception("the stop cannot be written; it holds in memory")
            return
        self._unsaved = None


def standing_stop(path: Path) -> LedgerStop:
    """The stop that ``accept_restored`` would lift.

    Raises:
        UsageError: the site is not stopped.
        StorageError: the file cannot be read.
    """
    return _stop_of(StateFile(path, GuardState()).read())


def _stop_of(state: GuardState) -> LedgerStop:
    if state.stop is None:
        raise UsageError("the site is not stopped because of its ledger: nothing is to be accepted.")
    return state.stop


def accept_restored(path: Path, *, by: str, now_unix: int) -> LedgerStop:
    """Lifts the stop of a site whose newer ledger is lost; the daemon notices by itself.

    The head that the coordinator knew is given up, and no other: were the ledger put back once more, the site would stop
    again. What the lost entries charged is known to nobody any more, so whoever calls this answers for it: lower the
    budgets of new data, or let the old data rest. The coordinator must give that head up too.

    Args:
        path: the guard's file.
        by: who decides, as the audit log will name them.
        now_unix: seconds since 1970.

    Raises:
        UsageError: the site is not stopped.
        StorageError: the file cannot be read or written.
    """
    file = StateFile(path, GuardState())
    lifted: list[LedgerStop] = []

    def lift(state: GuardState) -> GuardState:
        stop = _stop_of(state)
        lifted.append(stop)
        accepted = AcceptedHead(sequence=stop.seen_sequence, digest=stop.seen_digest, by=by, unix=now_unix)
        return GuardState(accepted=(*state.accepted, accepted))

    file.change(lift)
    return lifted[0]


@dataclass(frozen=True)
class Countersignature:
    """The head that an answer carries, and whether the one that the coordinator named contradicts it."""

    head: Head
    contradicted: bool


def countersign(remembered: Head | None, named: Head) -> Countersignature:
    """Which head of the coordinator's audit log a site signs.

    The one that is named, unless it is older than one that was named before, or another of the same number. Then the site
    signs what it remembers: its signature on that newer or other head, beside the coordinator's own signature on the
    instruction that named this one, shows anybody that the coordinator's log was cut, rewritten or put back from a copy, or
    that two coordinators use one key. A site cannot see what lies between two heads: an entry that was rewritten before the
    first head that any site signed shows nowhere.
    """
    if remembered is None or named.sequence > remembered.sequence:
        return Countersignature(named, contradicted=False)
    return Countersignature(remembered, contradicted=named != remembered)
