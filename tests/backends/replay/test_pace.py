"""Recorded things happen again in their order, and at their distance."""

from __future__ import annotations

import trio
import trio.testing

from bridge.playback.backend import Order, Pace


async def test_moments_keep_their_distance(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await Pace(1, 100.0, began).until(103.0)
    assert trio.current_time() == began + 3
    await Pace(2, 100.0, began).until(110.0)
    assert trio.current_time() == began + 5
    # What is over already is not waited for.
    await Pace(1, 100.0, began).until(50.0)
    assert trio.current_time() == began + 5


async def test_speed_zero_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    await Pace(0, 0.0, began).until(1e9)
    assert trio.current_time() == began


async def test_turns_continue_in_recorded_order() -> None:
    order, said = Order(), []
    moments = {0: [1, 4, 5], 1: [2, 3, 6]}

    async def tell(attempt: int) -> None:
        for moment in moments[attempt]:
            await order.wait(attempt, moment)
            said.append(moment)
        order.leave(attempt)

    for attempt in moments:
        order.join(attempt)
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for attempt in reversed(moments):
                nursery.start_soon(tell, attempt)
    assert said == [1, 2, 3, 4, 5, 6]


async def test_a_turn_that_has_not_begun_or_has_left_delays_no_other() -> None:
    order = Order()
    order.join(0)
    with trio.fail_after(5):
        await order.wait(0, 5.0)
        order.join(1)
        order.leave(1)
        await order.wait(0, 6.0)
        order.leave(0)
        await order.wait(0, 7.0)
