"""Room for bodies and connections: ceilings, and a share for everybody."""

from __future__ import annotations

import asyncio
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloop_server.front.bodies import BodyBudget, NoRoom
from fedloop_server.front.descriptors import connections_that_fit


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.booleans()), max_size=25))
@settings(deadline=None, max_examples=50)
def test_bodies_never_hold_more_than_the_ceiling_and_their_shares(bodies: list[tuple[str, int, bool]]) -> None:
    async def scenario() -> None:
        budget = BodyBudget(10, each=2, seconds=30.0, free=1)
        inside: list[tuple[str, int]] = []

        async def hold(owner: str, size: int) -> None:
            async with budget.room(owner, size):
                counted = (owner, 0 if size <= 1 else min(size, 10))
                inside.append(counted)
                assert sum(size for _, size in inside) <= 10
                assert sum(held == owner and size > 0 for held, size in inside) <= 2
                try:
                    await asyncio.sleep(0)
                finally:
                    inside.remove(counted)

        tasks = [(asyncio.create_task(hold(owner, size)), goes) for owner, size, goes in bodies]
        await asyncio.sleep(0)
        for task, goes in tasks:
            if goes:
                task.cancel()
        await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        for task, _ in tasks:
            assert task.cancelled() or task.exception() is None
        async with budget.room("d", 10):  # all of it was given back
            pass

    asyncio.run(scenario())


def test_who_finds_no_room_in_time_is_sent_away_and_small_bodies_need_none() -> None:
    async def scenario() -> None:
        budget = BodyBudget(10, each=2, seconds=0.05, free=1)
        async with budget.room("a", 4):
            with pytest.raises(NoRoom):
                async with budget.room("a", 2):  # a second one leaves half for others
                    pass
            async with budget.room("a", 1), budget.room("b", 6), budget.room("c", 1):
                with pytest.raises(NoRoom):
                    async with budget.room("c", 2):
                        pass
        async with budget.room("a", 2), budget.room("a", 2):
            with pytest.raises(NoRoom):
                async with budget.room("a", 2):
                    pass
            async with budget.room("b", 6):
                pass

    asyncio.run(scenario())


def test_who_holds_nothing_comes_before_those_who_hold_something() -> None:
    async def scenario() -> None:
        budget = BodyBudget(8, each=2, seconds=30.0)
        order: list[str] = []
        slow = asyncio.Event()

        async def hold(owner: str, until: asyncio.Event) -> None:
            async with budget.room(owner, 2):
                order.append(owner)
                if owner == "slow":
                    slow.set()
                await until.wait()

        others, all_of_them = asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(10.0), asyncio.TaskGroup() as tasks:
            for owner in ("quick", "b", "c", "d", "quick", "slow"):  # the last two find no room
                tasks.create_task(hold(owner, all_of_them if owner in ("quick", "slow") else others))
                await asyncio.sleep(0)
            assert order == ["quick", "b", "c", "d"]
            others.set()
            await slow.wait()
            all_of_them.set()
        assert order[4:] == ["slow", "quick"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("wanted", "descriptors", "fits"),
    [(512, 20_000, 512), (512, 768, 512), (512, 767, 511), (512, 300, 44), (512, 64, 8), (4, 64, 4), (512, resource.RLIM_INFINITY, 512)],
)  # fmt: skip
def test_connections_leave_descriptors_for_the_rest(wanted: int, descriptors: int, fits: int) -> None:
    assert connections_that_fit(wanted, descriptors) == fits
