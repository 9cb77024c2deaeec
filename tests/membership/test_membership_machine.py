"""Membership as a machine: what holds after any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_core.errors import JoinRefused, SiteRevoked
from fedloop_server.membership.machine import (
    MAXIMUM_TRIES,
    Joined,
    Left,
    Membership,
    Revoked,
    SiteKeys,
    SiteState,
    TokenIssued,
    TokenWithdrawn,
    TryFailed,
    apply,
    check_active,
    check_join,
)

NAMES = st.sampled_from([f"k{number}" for number in range(9)])
KEYS = st.builds(SiteKeys, NAMES, NAMES, NAMES)
STEPS = st.one_of(
    st.builds(TokenIssued, st.binary(min_size=1, max_size=2), st.integers(0, 20)),
    st.just(TokenWithdrawn()),
    st.just(TryFailed()),
    st.builds(Joined, KEYS),
    st.just(Revoked()),
    st.just(Left()),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_whatever_happens_a_token_admits_once_and_lost_keys_stay_lost(steps: list[object]) -> None:
    membership = Membership("north")
    allowed = False  # whether a token was issued since the site was last shut out
    joined_by: dict[int, bytes] = {}  # which keys each issued token admitted
    issued = 0
    for now, step in enumerate(steps):
        before = membership
        match step:
            case TokenIssued():
                issued += 1
                allowed = True
                membership = apply(membership, step)
            case Joined(keys):
                try:
                    again = check_join(membership, keys, foreign=(), now_unix=now)
                except JoinRefused:
                    continue
                assert allowed
                assert membership.token is not None
                assert membership.token.expires_unix >= now
                assert membership.token.tries < MAXIMUM_TRIES
                assert joined_by.setdefault(issued, keys.digest) == keys.digest
                if again:
                    assert membership.keys == keys
                    assert membership.state is SiteState.ACTIVE
                    continue
                assert not keys.ids & membership.spent
                membership = apply(membership, step)
                assert membership.state is SiteState.ACTIVE
            case Left() if membership.state is not SiteState.ACTIVE:
                with pytest.raises(SiteRevoked):
                    apply(membership, step)
                continue
            case TokenWithdrawn() | TryFailed() | Revoked() | Left():
                allowed = allowed and not isinstance(step, Revoked | Left)
                membership = apply(membership, step)
        assert membership.spent >= before.spent
        if membership.state is SiteState.ACTIVE:
            assert membership.keys is not None
            assert not membership.keys.ids & membership.spent
            check_active(membership)
        else:
            with pytest.raises(SiteRevoked):
                check_active(membership)
            assert membership.keys is None or membership.keys.ids <= membership.spent


def test_keys_of_another_site_and_one_key_for_two_purposes_are_refused() -> None:
    membership = apply(Membership("north"), TokenIssued(b"t", 10))
    for keys, foreign in ((SiteKeys("a", "b", "c"), ("b",)), (SiteKeys("a", "a", "c"), ())):
        with pytest.raises(JoinRefused) as refused:
            check_join(membership, keys, foreign=foreign, now_unix=0)
        assert refused.value.fields["reason"] == "keys"
