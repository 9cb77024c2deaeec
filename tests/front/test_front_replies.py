"""What the front counts of the reply that a site is sending."""

from __future__ import annotations

import pytest

from fedloop_server.front import Reason
from fedloop_server.front.flower_wire import Announcement, ObjectPushed
from fedloop_server.front.refusals import Denial
from fedloop_server.front.replies import Arrivals, Replies


def test_an_object_of_an_earlier_reply_is_turned_away_and_the_open_one_goes_on() -> None:
    replies = Replies(100, 10, Arrivals())
    replies.open("north", Announcement("question-2", frozenset({"b"})))
    replies.want("north", frozenset({"b"}))
    with pytest.raises(Denial) as caught:  # a SuperNode tried it again since an outage began
        replies.add("north", ObjectPushed("a", 5))
    assert (caught.value.status, caught.value.reason, caught.value.site) == (400, Reason.STRAY, "north")
    replies.add("north", ObjectPushed("b", 100))
    with pytest.raises(Denial) as caught:
        replies.add("north", ObjectPushed("b", 101))
    assert caught.value.reason is Reason.REPLY_TOO_LARGE
