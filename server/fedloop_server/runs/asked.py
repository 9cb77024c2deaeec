"""Questions under way: sent, asked again after errors that may pass, and given up.

A site's process, its connection or Flower's record of it may die while it works, and a question or its answer may be lost on
the way without a word. The site keeps what it has answered, so the same instruction is sent again and costs nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, Message, RecordDict

from fedloop_core.arrays import NamedArrays
from fedloop_core.federation.records import array_record, pack
from fedloop_server.runs.heads import HeadsOfRun
from fedloop_server.runs.leaving import revoked
from fedloop_server.runs.post import BrokenReply, Post
from fedloop_server.runs.replies import (
    BROKEN_REPLY,
    NO_REPLY,
    Question,
    SiteAnswer,
    SiteFailure,
    Traffic,
    read_reply,
)
from fedloop_server.runs.roster import Roster

__all__ = ["Asked", "Patience", "Sending"]

# flwr.common.constant.ErrorCode: the app raised or crashed, the message, the reply or the node is gone. Others, such as a
# bundle that is none, do not pass by themselves.
_MAY_PASS = frozenset({2, 3, 4, 5, 8})


@dataclass(frozen=True)
class Patience:
    """How often a site is asked again, and how long one that is not connected is waited for; in seconds.

    ``idle``: a site that waits for questions so long, and was asked before, has lost the question or its answer.
    """

    first_pause: float = 0.5
    longest_pause: float = 5.0
    absence: float = 120.0
    idle: float = 5.0

    def pause(self, tries: int) -> float:
        """Seconds before the next try, after so many."""
        return min(self.first_pause * 2.0 ** (tries - 1), self.longest_pause)


@dataclass(frozen=True)
class Sending:
    """One question as it is sent: an envelope under a type of Flower's."""

    question: Question
    message_type: str
    envelope: bytes


@dataclass
class _Open:
    """A question without an answer. ``message`` None: nothing is under way, and ``again`` says when to send it."""

    sending: Sending
    began: float
    node: int = 0
    message: str | None = None
    earlier: tuple[str, ...] = ()  # messages with this question that may still be answered
    asked: float = 0.0  # when the message was sent
    tries: int = 0
    again: float = 0.0
    trouble: str = ""
    refusal: int = 0  # the newest refusal of the front when it was sent


class Asked:
    """The questions of one call, by site.

    Args:
        post: the grid.
        roster: who is there.
        heads: the sites' ledgers as they were seen.
        sendings: made when they are sent, since a site near by begins before the next question is sealed.
        arrays: what goes with each question; packed when something is sent, and let go while it is waited for.
        patience: None when neither sites nor their connections can come back.
        clock: monotonic seconds.
        deadline_seconds: from now.
    """

    def __init__(
        self,
        post: Post,
        roster: Roster,
        heads: HeadsOfRun,
        sendings: Mapping[str, Callable[[], Sending]],
        arrays: NamedArrays,
        *,
        patience: Patience | None,
        clock: Callable[[], float],
        deadline_seconds: float,
    ) -> None:
        self._post = post
        self._roster = roster
        self._heads = heads
        self._unsent = dict(sendings)
        self._arrays = arrays
        self._bytes = sum(array.nbytes for array in arrays.values())
        self._patience = patience
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._deadline = clock() + deadline_seconds
        self._open: dict[str, _Open] = {}

    @property
    def waiting(self) -> frozenset[str]:
        """Sites that have not answered yet."""
        return frozenset(self._open) | frozenset(self._unsent)

    @property
    def overdue(self) -> bool:
        """Whether the deadline has passed."""
        return self._clock() >= self._deadline

    def hopeless(self) -> Iterator[SiteFailure]:
        """Sites that need not be asked: revoked, kept out by the front, or not connected for too long."""
        for site in list(self._unsent):
            kept_out = self._roster.kept_out(site)
            if site not in self._roster.active:
                del self._unsent[site]
                yield revoked(site)
            elif kept_out is not None:
                del self._unsent[site]
                yield SiteFailure(site, kept_out.code, {}, kept_out.reason)
            elif self._is_gone(site):
                del self._unsent[site]
                yield SiteFailure(site, NO_REPLY, {}, "it is not connected")

    def send(self) -> None:
        """Sends every question that was not sent yet."""
        now = self._clock()
        record = array_record(self._arrays) if self._unsent else ArrayRecord()
        if self._post.near:
            for site in list(self._unsent):
                self._open[site] = _Open(self._unsent.pop(site)(), now)
                self._send([self._open[site]], record)
            return
        fresh = {site: _Open(make(), now) for site, make in self._unsent.items()}
        self._unsent.clear()
        self._open |= fresh
        self._send(list(fresh.values()), record)

    def poll(self) -> Iterator[SiteAnswer | SiteFailure]:
        """Yields what has come, one at a time, and sends again what may be.

        Raises:
            RunCancelled: a person wants the run to stop.
        """
        self._roster.look()
        for site, waiting in list(self._open.items()):
            failure = self._lost(site, waiting)
            if failure is None:
                yield from self._take(site, waiting)
            else:
                del self._open[site]
                yield failure

    def give_up(self) -> Iterator[SiteFailure]:
        """A failure for each site that has not answered."""
        for site, waiting in list(self._open.items()):
            del self._open[site]
            trouble = f"; {waiting.trouble}, asked {waiting.tries} times" if waiting.trouble else ""
            reason = f"no answer within {self._deadline_seconds:g} s{trouble}"
            yield SiteFailure(site, NO_REPLY, {}, reason, traffic=self._traffic(waiting))

    def _lost(self, site: str, waiting: _Open) -> SiteFailure | None:
        """Why no answer of a site can be waited for."""
        if site not in self._roster.active:
            return revoked(site, self._traffic(waiting))
        refused, kept_out = self._roster.refused.get(site), self._roster.kept_out(site)
        if kept_out is not None:
            return SiteFailure(site, kept_out.code, {}, kept_out.reason, traffic=self._traffic(waiting))
        if refused is not None and waiting.tries and refused.number > waiting.refusal:
            return SiteFailure(site, refused.code, {}, refused.reason, traffic=self._traffic(waiting))
        if waiting.message is None and self._is_gone(site):
            said = waiting.trouble or "it is not connected"
            return SiteFailure(site, NO_REPLY, {}, said, traffic=self._traffic(waiting))
        return None

    def _is_gone(self, site: str) -> bool:
        if self._roster.node(site) is not None:
            return False
        return self._patience is None or self._roster.absent_seconds(site) > self._patience.absence

    def _take(self, site: str, waiting: _Open) -> Iterator[SiteAnswer | SiteFailure]:
        """Pulls a site's reply; at most one is yielded."""
        node = self._roster.node(site)
        if (
            waiting.message is not None and node is not None and node != waiting.node
        ):  # it joined anew: the old one is gone
            waiting.message, waiting.earlier, waiting.again = None, (), 0.0
        reply = self._late_reply(waiting)
        if reply is None and waiting.message is not None:
            reply = self._post.pull(waiting.message)
            if reply is None:
                self._mind_idleness(site, waiting)
            elif isinstance(reply, Message) and reply.has_error() and self._try_again(waiting, reply.error.code):
                return
        if reply is not None:
            del self._open[site]
            yield self._read(site, waiting, reply)
        elif waiting.message is None and node is not None and self._clock() >= waiting.again:
            self._send([waiting], array_record(self._arrays))

    def _late_reply(self, waiting: _Open) -> Message | BrokenReply | None:
        """The answer to a message that was taken for lost."""
        for message in waiting.earlier:
            reply = self._post.pull(message)
            if isinstance(reply, BrokenReply) or (reply is not None and not reply.has_error()):
                return reply
        return None

    def _mind_idleness(self, site: str, waiting: _Open) -> None:
        """Asks again at once when a site waits for questions although it was asked one."""
        if self._patience is None or self.overdue:
            return
        enough = self._patience.idle * 2.0 ** len(waiting.earlier)
        if self._clock() - waiting.asked >= enough and self._roster.idle_seconds(site) >= self._patience.idle:
            waiting.earlier += (waiting.message,) if waiting.message is not None else ()
            waiting.message, waiting.again = None, 0.0
            waiting.trouble = "the question or its answer was lost on the way"

    def _read(self, site: str, waiting: _Open, reply: Message | BrokenReply) -> SiteAnswer | SiteFailure:
        traffic = self._traffic(waiting)
        if isinstance(reply, Message) and reply.has_error():
            return SiteFailure(site, BROKEN_REPLY, {}, _flower_error(reply.error.code), traffic=traffic)
        content: object = reply.content if isinstance(reply, Message) and reply.has_content() else None
        if not isinstance(content, RecordDict):  # Flower inflates whatever a message's head names as its content
            return SiteFailure(site, BROKEN_REPLY, {}, "its reply is no message of records", traffic=traffic)
        key = self._roster.key(site, waiting.node)
        if key is None:
            return revoked(site, traffic)
        return read_reply(waiting.sending.question, key.signing_key, content, self._heads, traffic)

    def _try_again(self, waiting: _Open, code: int) -> bool:
        """Plans another try, if there is a point in it; past the deadline none is made, and the site has not answered."""
        if self._patience is None or code not in _MAY_PASS:
            return False
        waiting.message = None
        waiting.again = self._clock() + self._patience.pause(waiting.tries)
        waiting.trouble = _flower_error(code)
        return True

    def _send(self, questions: list[_Open], record: ArrayRecord) -> None:
        """Sends questions to sites that have a node; the others go on waiting for one."""
        messages, sent = [], []
        for waiting in questions:
            node = self._roster.node(waiting.sending.question.site)
            if node is None:
                continue
            waiting.node, waiting.refusal = node, self._roster.newest_refusal
            waiting.tries += 1
            content = pack(waiting.sending.envelope, record)
            ttl = max(self._deadline - self._clock(), 1.0)
            messages.append(Message(content, node, waiting.sending.message_type, ttl=ttl))
            sent.append(waiting)
        if not messages:
            return
        for waiting, identifier in zip(sent, self._post.push(messages), strict=True):
            waiting.message, waiting.asked = identifier, self._clock()
            if identifier is None and self._patience is not None:
                waiting.again = self._clock() + self._patience.pause(waiting.tries)
                waiting.trouble = "Flower did not take the message"

    def _traffic(self, waiting: _Open) -> Traffic:
        out = (len(waiting.sending.envelope) + self._bytes) * waiting.tries
        return Traffic(self._clock() - waiting.began, out)


def _flower_error(code: int) -> str:
    return f"its client app failed (Flower error {code})"
