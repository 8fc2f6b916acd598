"""Nothing outlives its turn: connections, tasks, memory. And nothing is lost on a consumer who takes their time."""

from __future__ import annotations

import gc
import json
import os
import tracemalloc
import warnings
from contextlib import suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import trio
from backends.upstream.rig import LEAVES_GENERATORS, Rig, long_story, rigged, turn
from trio.testing import MockClock, wait_all_tasks_blocked
from upstream.answers import CUT, RESET, Gate, Plain, Stream, html, refusal
from upstream.chatgpt import DEFAULT_TEXT
from upstream.events import answer, call, completed, failed, padding, text
from upstream.noting import collect

from bridge.core.collect import Result
from bridge.errors import NotReady
from bridge.upstream.client import MAX_WAITING

STORY = answer(text("one ", "two"))


def open_sockets() -> set[str]:
    """Of this process, each by its own name: others in it may close theirs meanwhile."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(os.readlink(descriptor))
    return {each for each in found if each.startswith("socket:")}


async def left_at_once(rig: Rig, left: float) -> None:
    """The backend must see the connection close; a busy machine may take a moment for it."""
    await rig.chatgpt.until(lambda: rig.chatgpt.gone)
    (request,) = rig.chatgpt.gone
    assert request.left_at is not None
    assert request.left_at - left < 5


# Leaving


@pytest.mark.parametrize(
    "reply",
    [
        lambda gate: Stream(STORY, gate=gate),
        lambda gate: Stream([gate, *STORY]),
        lambda gate: Stream([*STORY[:5], gate, *STORY[5:]]),
        lambda gate: Plain(503, b"{}", gate=gate),
    ],
    ids=["before the headers", "before the first event", "in the middle", "before a refusal"],
)
async def test_a_consumer_that_leaves_closes_the_connection(tmp_path: Path, reply: Any) -> None:
    gate = Gate()
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(reply(gate))
        stream = await rig.start()
        await rig.chatgpt.until(lambda: gate.held)
        left = monotonic()
        stream.close()
        await left_at_once(rig, left)
        assert (await rig.answered()).text == DEFAULT_TEXT


@LEAVES_GENERATORS
async def test_a_consumer_that_leaves_a_full_buffer_closes_the_connection(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream(long_story(60, 1_000_000)))
        stream = await rig.start()
        await stream.next()
        await wait_all_tasks_blocked()
        left = monotonic()
        stream.close()
        await left_at_once(rig, left)


async def test_a_consumer_that_is_cancelled_loses_nothing(tmp_path: Path) -> None:
    """`next` may be cancelled and called again."""
    gate = Gate()
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([*STORY[:5], gate, *STORY[5:]]))
        stream = await rig.start()
        result = Result()
        result.add(await stream.next())
        while "one" not in result.text:
            result.add(await stream.next())
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.next()
        gate.open()
        while result.end is None:
            result.add(await stream.next())
        stream.close()
        assert result.text == "one two"


async def test_a_turn_that_is_left_before_it_began_asks_nothing(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        stream = await rig.start()
        stream.close()
        stream.close()
        result = await collect(stream)
        assert result.end is not None
        assert result.end.outcome == "cancelled"
        assert rig.chatgpt.requests == []


async def test_a_turn_that_is_left_between_attempts_is_not_tried_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(refusal(429, None, retry_after="20"))
        stream = await rig.start()
        await rig.chatgpt.until(lambda: rig.statuses == [429])
        await trio.sleep(10)
        stream.close()
        result = await collect(stream)
        assert result.end is not None
        assert result.end.outcome == "cancelled"
        await trio.sleep(100)
        assert rig.statuses == [429]


async def test_a_turn_that_is_left_while_refreshing_keeps_the_new_login(tmp_path: Path) -> None:
    """The one-time token is used: who does not wait for the answer has no login any more."""
    gate = Gate()
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.expire_access()
        rig.chatgpt.token_gate = gate
        stream = await rig.start()
        await rig.chatgpt.until(lambda: gate.held)
        stream.close()
        gate.open()
        result = await collect(stream)
        assert result.end is not None
        assert result.end.outcome == "cancelled"
        assert rig.statuses == [401]
        (token,) = rig.chatgpt.logins.access
        assert json.loads(rig.auth.read_bytes())["tokens"]["access_token"] == token
        assert (await rig.answered()).text == DEFAULT_TEXT


async def test_an_upstream_that_stops_ends_its_turns(tmp_path: Path) -> None:
    """Whoever waits for an event hears that there is none, and nobody begins a turn any more."""
    gate = Gate()
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([*STORY[:5], gate]))
        stream = await rig.start()
        await rig.chatgpt.until(lambda: gate.held)
        left = monotonic()
        rig.upstream.shut_down()
        result = await collect(stream)
        assert result.text == "one "
        assert result.end is not None
        assert result.end.error is not None
        assert (result.end.error.code, result.end.error.http_status) == ("shutdown_initiated", 503)
        await left_at_once(rig, left)
        await rig.upstream.drain()
        with pytest.raises(NotReady):
            await rig.start()


async def test_turns_leave_no_connection_and_no_task(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Whatever they came to. A few connections are kept for the next turns, and closed with the upstream."""
    before, tasks = open_sockets(), trio.lowlevel.current_statistics().tasks_living
    async with rigged(tmp_path, first_event=5, idle=5) as rig:
        await rig.answered()
        running = trio.lowlevel.current_statistics().tasks_living
        for reply in (
            Stream(STORY),
            Stream([*STORY, Gate()]),
            Stream([*STORY[:5], RESET]),
            Stream([*STORY[:5], CUT]),
            Stream([*STORY[:5], Gate()]),
            Stream([*STORY[:5], b"data: {\n\n", Gate()]),
            Stream([b"data: 7\n\n", *[padding(1000)] * 1000]),
            Stream(answer(end=failed("server_error"))),
            Stream([Gate()]),
            Plain(400, b"x" * 1_000_000),
            html(200, "x" * 1_000_000),
            refusal(400),
        ):
            for _ in range(3):
                rig.chatgpt.will(reply)
                await rig.ask()
        for gate in (Gate(), Gate()):
            rig.chatgpt.will(Stream([*STORY[:5], gate]))
            stream = await rig.start()
            await rig.chatgpt.until(partial(attrgetter("held"), gate))
            stream.close()
        await trio.sleep(100)
        assert trio.lowlevel.current_statistics().tasks_living <= running + 5
        assert len(open_sockets() - before) < 12
    await trio.sleep(1)
    gc.collect()
    assert trio.lowlevel.current_statistics().tasks_living == tasks
    assert not open_sockets() - before


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Stream([b"data: 7\n\n", *STORY]), id="broken event"),
        pytest.param(Plain(400, b"x" * 1_000_000), id="long refusal"),
        pytest.param(
            Stream([b"no gzip"], headers={"content-encoding": "gzip"}),
            id="broken gzip",
            marks=pytest.mark.xfail(reason="httpx2's generators are left behind", strict=True),
        ),
    ],
)
async def test_an_answer_that_is_not_read_to_its_end_leaves_nothing(tmp_path: Path, reply: Any) -> None:
    """Neither to the garbage collector, which trio warns of."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with rigged(tmp_path) as rig:
            rig.chatgpt.will(reply)
            await rig.failed()
        gc.collect()
    assert [str(warning.message) for warning in seen] == []


async def test_a_connection_is_used_again(tmp_path: Path) -> None:
    """A handshake with a provider far away costs more than many a short answer."""
    async with rigged(tmp_path) as rig:
        for _ in range(5):
            await rig.answered()
        rig.chatgpt.will(refusal(400), html(403))
        await rig.ask()
        await rig.ask()
        await rig.answered()
        # A turn that begins while the last bytes of the one before are read takes a second one.
        assert {request.connection for request in rig.chatgpt.requests} <= {1, 2}


async def test_turns_do_not_disturb_each_other(tmp_path: Path) -> None:
    """One is left, one fails, one is slow; the others get their own answers."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(*[lambda request: Stream(answer(text(request.body["instructions"])))] * 40)
        got: list[str] = []

        async def run(number: int) -> None:
            stream = await rig.start(turn(instructions=f"turn {number}"))
            if number % 4 == 3:
                return stream.close()
            got.append((await collect(stream)).text)
            return None

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(run, number)
        assert sorted(got) == sorted(f"turn {number}" for number in range(40) if number % 4 != 3)


# A consumer who takes their time


async def test_a_slow_consumer_slows_the_upstream_down_and_loses_nothing(tmp_path: Path) -> None:
    pieces = [f"{number:07d}" + "x" * 99_993 for number in range(300)]
    deltas = [{**STORY[4], "delta": piece} for piece in pieces]
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([*STORY[:4], *deltas, long_story(1, 1)[-1]]))
        stream, result = await rig.start(), Result()
        result.add(await stream.next())
        tracemalloc.start()
        await wait_all_tasks_blocked(0.05)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert not rig.chatgpt.requests[0].written, "all of it was read although nobody takes it"
        assert held < 6 * MAX_WAITING
        while result.end is None:
            result.add(await stream.next())
        stream.close()
        assert result.end.outcome == "completed"
        assert result.text == "".join(pieces)


async def test_calls_that_nobody_takes_slow_the_upstream_down(tmp_path: Path) -> None:
    """Arguments are as heavy as text."""
    calls = answer(call("f", "x" * 1_000_000), end=completed(output=False))
    (one,) = [event for event in calls if event["type"] == "response.output_item.done"]
    done = [one | {"item": one["item"] | {"id": f"fc_{n}", "call_id": f"call_{n}"}} for n in range(60)]
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([calls[0], *done, calls[-1]]))
        stream = await rig.start()
        await stream.next()
        await wait_all_tasks_blocked(0.05)
        assert not rig.chatgpt.requests[0].written, "all of it was read although nobody takes it"
        stream.close()
