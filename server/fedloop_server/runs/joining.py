"""How sites become members: they are described the task, and answer with their data gate's verdict.

At the start all are asked and waited for. Later, whoever has come is asked beside a round and is a member from the opening
at which the answer is there: nobody waits for a late joiner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fedloop_core.errors import DataGateFailed, PolicyRefused, UpdateRefused
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import DataDescription, DescribeData, Instruction
from fedloop_server.runs.asked import Asked
from fedloop_server.runs.events import Member, SiteAdmitted, SiteLeftOut
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.leaving import left_out_of
from fedloop_server.runs.replies import BROKEN_REPLY, NO_REPLY, SiteAnswer, SiteFailure

__all__ = ["Joining"]

_COMES_BACK = frozenset({NO_REPLY, BROKEN_REPLY})
_FINGERPRINT_BYTES = 32  # HMAC-SHA256
_RULE = re.compile(r"[a-z]{1,20}(-[a-z]{1,20}){0,3}")
_MOST_RULES = 8


class Joining:
    """Describes the task to sites and admits those whose data fit.

    Args:
        task: of the run.
        journal: of the run.
        exchange: asks the sites.
        fixed: digest of the weights that no round moves; a site that builds others refuses the run.
    """

    def __init__(self, task: Task, journal: RunJournal, exchange: Exchange, fixed: bytes = b"") -> None:
        self._task = task
        self._fixed = fixed
        self._journal = journal
        self._exchange = exchange
        self._asked: list[Asked] = []
        self._declined: set[str] = set()  # in this attempt
        self._told: dict[str, tuple[str, str]] = {}

    def describe_all(self) -> None:
        """Asks every site that is connected, and waits for their answers until the deadline."""
        barred = self._journal.state.barred_sites
        work = self._work(site for site in self._exchange.sites if site not in barred)
        for reply in self._exchange.ask(0, work, {}, deadline_seconds=self._task.rounds.deadline_seconds):
            self._take(reply)

    def welcome(self) -> None:
        """Takes in those who have answered since the last opening, and asks those who have come since."""
        for asked in self._asked:
            for reply in asked.poll():
                self._take(self._exchange.note(reply))
            if asked.overdue:
                for failure in asked.give_up():
                    self._take(failure)
        self._asked = [asked for asked in self._asked if asked.waiting]
        state = self._journal.state
        known = {member.site for member in state.members} | state.barred_sites | self._declined
        fresh = set(self._exchange.sites).difference(known, *(asked.waiting for asked in self._asked))
        if fresh:
            deadline = self._task.rounds.deadline_seconds
            asked = self._exchange.send(0, self._work(sorted(fresh)), {}, deadline_seconds=deadline)
            asked.send()
            self._asked.append(asked)

    def _work(self, sites: Iterable[str]) -> dict[str, Instruction]:
        document = self._task.canonical()
        described = DescribeData(task_document=document, fixed_weights=self._fixed)
        return {site: Instruction(describe_data=described) for site in sites}

    def _take(self, reply: SiteAnswer | SiteFailure) -> None:
        if isinstance(reply, SiteFailure):
            self._leave_out(reply)
            return
        description = reply.answer.data_description
        failure = _refused(reply, description, self._task.gates.data.maximum_rows)
        if failure is not None:
            self._leave_out(failure)
            return
        by_rows = self._task.rounds.weighting == "rows"
        member = Member(
            site=reply.site,
            weight=max(1, description.rows) if by_rows else 1,
            rows=max(1, description.rows),
            rows_noised=description.rows_noised,
            data_fingerprint=description.data_fingerprint.hex(),
            blocks_left_out=description.blocks_left_out,
        )
        self._journal.record(SiteAdmitted(member=member))

    def _leave_out(self, failure: SiteFailure) -> None:
        passes = failure.code in _COMES_BACK or (failure.code == PolicyRefused.code and not failure.for_good)
        if not passes:
            self._declined.add(failure.site)
        told = self._told.get(failure.site)
        if told != (failure.code, failure.reason):  # a site that is asked at every opening is told of once
            self._told[failure.site] = (failure.code, failure.reason)
            self._journal.record(SiteLeftOut(left_out=left_out_of(failure, 0)))


def _refused(reply: SiteAnswer, description: DataDescription, maximum_rows: int) -> SiteFailure | None:
    """Why a site with this description is no member."""
    site, traffic = reply.site, reply.traffic
    if not description.admitted:
        return SiteFailure(site, DataGateFailed.code, {}, f"data gate: {_rules(description)}", True, traffic)
    if description.rows > maximum_rows:
        said = f"data gate: maximum-rows ({description.rows} told, {maximum_rows} allowed)"
        return SiteFailure(site, DataGateFailed.code, {"rule": "maximum-rows"}, said, True, traffic)
    if len(description.data_fingerprint) != _FINGERPRINT_BYTES:  # a version's lineage names it
        said = (
            f"its description has a fingerprint of {len(description.data_fingerprint)} bytes, not {_FINGERPRINT_BYTES}"
        )
        return SiteFailure(site, UpdateRefused.code, {"reason": "fingerprint"}, said, traffic=traffic)
    return None


def _rules(description: DataDescription) -> str:
    """Rules of the site's data gate that failed; what is none is not repeated."""
    named = [rule if _RULE.fullmatch(rule) else "another rule" for rule in description.reasons[:_MOST_RULES]]
    return ", ".join(dict.fromkeys(named)) or "no rule named"
