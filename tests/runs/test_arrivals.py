"""Waiting for replies: Flower is asked for those that the front has passed on whole, and now and then for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import cast

import pytest
from flwr.app import Message
from flwr.serverapp import Grid

from fedloop_server.runs.post import Post
from fedloop_server.runs.surroundings import ArrivedReplies


class Replies:
    """A grid that has replies, and a front that tells of some of them; the front's waiting moves the clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.there: dict[str, Message] = {}
        self.asked: list[str] = []
        self.told: list[str] = []
        self.begun: set[str] = set()
        self.down = False
        self.slept = 0.0

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for identifier in message_ids:
            self.asked.append(identifier)
            if identifier in self.there:
                yield self.there.pop(identifier)

    def since(self, number: int, seconds: float) -> ArrivedReplies:
        if self.down:
            return ArrivedReplies(number, frozenset())
        if number >= len(self.told):
            self.now += seconds
        return ArrivedReplies(len(self.told), frozenset(self.told[number:]), frozenset(self.begun))

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds

    def clock(self) -> float:
        return self.now


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Replies:
    made = Replies()
    monkeypatch.setattr("fedloop_server.runs.post.time.sleep", made.sleep)
    return made


@pytest.fixture
def post(replies: Replies) -> Post:
    return Post(cast(Grid, replies), None, replies, replies.clock)


def reply() -> Message:
    return cast(Message, object())


def test_only_replies_that_are_whole_are_asked_for(replies: Replies, post: Post) -> None:
    replies.there = {"a": reply(), "b": reply()}
    replies.told = ["a"]
    assert post.pull("a") is None
    post.wait(0.05)
    assert post.pull("a") is not None
    assert post.pull("b") is None
    assert replies.asked == ["a"]
    assert replies.now == 0.0  # who is told of a reply waits for nothing


def test_a_reply_that_nobody_tells_of_is_found_all_the_same(replies: Replies, post: Post) -> None:
    replies.there = {"a": reply()}
    found = None
    while found is None:
        assert replies.now <= 3.0
        post.wait(0.05)
        found = post.pull("a")
    assert replies.now == 3.0
    assert replies.asked == ["a"]
    post.wait(0.05)
    post.pull("b")
    assert replies.asked == ["a"]


def test_a_reply_of_which_parts_are_missing_is_not_asked_for(replies: Replies, post: Post) -> None:
    """Flower would wait for them, and nobody else's reply would be looked at meanwhile."""
    replies.there = {"a": reply()}
    replies.begun = {"a"}
    while replies.now < 10.0:
        post.wait(0.05)
        assert post.pull("a") is None
    assert replies.asked == []
    replies.begun, replies.told = set(), ["a"]
    post.wait(0.05)
    assert post.pull("a") is not None


def test_a_front_that_is_down_costs_no_more_than_waiting(replies: Replies, post: Post) -> None:
    replies.down = True
    replies.there = {"a": reply()}
    turns = 0
    while post.pull("a") is None:
        post.wait(0.05)
        turns += 1
    assert turns == pytest.approx(60, abs=2)
    assert replies.slept == pytest.approx(3.0, abs=0.1)
    assert replies.asked == ["a"]


def test_a_reply_that_is_told_of_and_is_not_there_yet_is_asked_for_again(replies: Replies, post: Post) -> None:
    replies.told = ["a"]
    post.wait(0.05)
    assert post.pull("a") is None
    replies.there = {"a": reply()}
    post.wait(0.05)
    assert post.pull("a") is not None
    assert replies.now == 1.0


def test_without_arrivals_every_reply_is_asked_for_at_once(replies: Replies) -> None:
    replies.there = {"a": reply()}
    post = Post(cast(Grid, replies), None)
    assert post.pull("b") is None
    assert post.pull("a") is not None
    post.wait(0.05)
    assert replies.slept == 0.05
