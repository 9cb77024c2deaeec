"""How sites become members: they are described the task, and answer with their data gate's verdict.

At the start all are asked and waited for. Later, whoever has come is asked beside a round and is a member from the opening
at which the answer is there: nobody waits for a late joiner.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedloop_core.errors import DataGateFailed, PolicyRefused
from fedloop_core.task.document import Task
from fedloop_proto.coordination.v1.coordination_pb2 import DescribeData, Instruction
from fedloop_server.runs.asked import Asked
from fedloop_server.runs.exchange import Exchange
from fedloop_server.runs.journal import RunJournal
from fedloop_server.runs.leaving import left_out_of
from fedloop_server.runs.replies import BROKEN_REPLY, NO_REPLY, SiteAnswer, SiteFailure
from fedloop_server.runs.state import Member, SiteAdmitted, SiteLeftOut

__all__ = ["Joining"]

_COMES_BACK = frozenset({NO_REPLY, BROKEN_REPLY})


class Joining:
    """Describes the task to sites and admits those whose data fit."""

    def __init__(self, task: Task, journal: RunJournal, exchange: Exchange) -> None:
        self._task = task
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
        return {site: Instruction(describe_data=DescribeData(task_document=document)) for site in sites}

    def _take(self, reply: SiteAnswer | SiteFailure) -> None:
        if isinstance(reply, SiteFailure):
            self._leave_out(reply)
            return
        description = reply.answer.data_description
        if not description.admitted:
            reasons = f"data gate: {', '.join(description.reasons)}"
            self._leave_out(SiteFailure(reply.site, DataGateFailed.code, {}, reasons, True, reply.traffic))
            return
        by_rows = self._task.rounds.weighting == "rows"
        member = Member(
            site=reply.site,
            weight=max(1, description.rows) if by_rows else 1,
            rows=max(1, description.rows),
            rows_noised=description.rows_noised,
            data_fingerprint=description.data_fingerprint.hex(),
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
