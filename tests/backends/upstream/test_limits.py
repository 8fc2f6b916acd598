"""Time limits: until the first event, between two events, for the whole turn. All of it on a clock that jumps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from backends.upstream.rig import Rig, long_story, rigged
from trio.testing import MockClock
from upstream.answers import KEEPALIVE, Gate, Plain, Stream, refusal
from upstream.events import answer, text
from upstream.noting import collect

from bridge.errors import BackendTimeout

STORY = answer(text("one ", "two"))


class Ticking:
    """Gates of a stream that are opened one after the other, `every` seconds."""

    def __init__(self, number: int, every: float) -> None:
        self.gates = [Gate() for _ in range(number)]
        self._every = every

    async def run(self) -> None:
        for gate in self.gates:
            await trio.sleep(self._every)
            gate.open()

    def before(self, *parts: Any) -> list[Any]:
        """Each part behind its gate."""
        assert len(parts) == len(self.gates)
        return [each for pair in zip(self.gates, parts, strict=True) for each in pair]


async def silent(rig: Rig, seconds: float, said: str) -> None:
    """A turn that must end in a timeout after this time, close its connection, and not be tried again."""
    begun = trio.current_time()
    failure, _ = await rig.failed()
    assert isinstance(failure, BackendTimeout)
    assert (failure.code, failure.http_status) == ("backend_timeout", 504)
    assert said in failure.message
    assert f"{seconds:g} s" in failure.message
    assert trio.current_time() - begun == pytest.approx(seconds, abs=0.01)
    await rig.chatgpt.until(lambda: rig.chatgpt.gone)
    assert len(rig.chatgpt.requests) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Stream([], gate=Gate()),
        Stream([Gate()]),
        Stream([b": hello\n\n", Gate()]),
        Stream([b"event: response.created\ndata: {", Gate()]),
        Plain(503, b"", gate=Gate()),
    ],
    ids=["no headers", "headers alone", "a comment", "half an event", "no status"],
)
async def test_a_model_that_does_not_begin(tmp_path: Path, autojump_clock: MockClock, reply: Any) -> None:
    async with rigged(tmp_path, first_event=120, idle=5) as rig:
        rig.chatgpt.will(reply)
        await silent(rig, 120, "did not begin to answer")


async def test_comments_alone_are_no_beginning(tmp_path: Path, autojump_clock: MockClock) -> None:
    ticking = Ticking(30, 10)
    async with rigged(tmp_path, first_event=120) as rig, trio.open_nursery() as nursery:
        nursery.start_soon(ticking.run)
        rig.chatgpt.will(Stream(ticking.before(*[KEEPALIVE] * 30)))
        await silent(rig, 120, "did not begin to answer")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("after", [1, 5, len(STORY) - 1])
async def test_a_model_that_falls_silent(tmp_path: Path, autojump_clock: MockClock, after: int) -> None:
    async with rigged(tmp_path, first_event=5, idle=300) as rig:
        rig.chatgpt.will(Stream([*STORY[:after], Gate()]))
        await silent(rig, 300, "sent nothing more")


async def test_what_was_said_before_the_silence_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path, idle=300) as rig:
        rig.chatgpt.will(Stream([*STORY[:5], Gate()]))
        _, result = await rig.failed()
        assert result.text == "one "


async def test_comments_between_events_keep_the_turn_alive(tmp_path: Path, autojump_clock: MockClock) -> None:
    ticking = Ticking(20, 50)
    async with rigged(tmp_path, first_event=5, idle=60) as rig, trio.open_nursery() as nursery:
        nursery.start_soon(ticking.run)
        rig.chatgpt.will(Stream([*STORY[:4], *ticking.before(*[KEEPALIVE] * 20), *STORY[4:]]))
        begun = trio.current_time()
        assert (await rig.answered()).text == "one two"
        assert trio.current_time() - begun == pytest.approx(1000, abs=0.01)


async def test_the_first_event_has_its_time_in_each_attempt(tmp_path: Path, autojump_clock: MockClock) -> None:
    """A busy provider's pauses are not held against the one that answers in the end."""
    ticking = Ticking(1, 110)
    async with rigged(tmp_path, first_event=100) as rig, trio.open_nursery() as nursery:
        rig.chatgpt.will(refusal(429, None, retry_after="29"), refusal(429, None, retry_after="29"))
        rig.chatgpt.will(Stream(STORY, gate=ticking.gates[0]))
        nursery.start_soon(ticking.run)
        assert (await rig.answered()).text == "one two"


async def test_a_turn_that_takes_too_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    """However busy it is."""
    ticking = Ticking(50, 10)
    async with rigged(tmp_path, turn=95) as rig, trio.open_nursery() as nursery:
        nursery.start_soon(ticking.run)
        rig.chatgpt.will(Stream([*STORY[:4], *ticking.before(*[STORY[4]] * 50)]))
        begun = trio.current_time()
        failure, result = await rig.failed()
        assert failure.code == "backend_timeout"
        assert trio.current_time() - begun == pytest.approx(95, abs=0.01)
        assert "longer than 95 s" in failure.message
        assert result.text == "one " * 9
        await rig.chatgpt.until(lambda: rig.chatgpt.gone)
        nursery.cancel_scope.cancel()


async def test_a_pause_that_would_outlast_the_turn_is_not_made(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with rigged(tmp_path, turn=10) as rig:
        rig.chatgpt.will(refusal(429, None, "busy", retry_after="11"))
        begun = trio.current_time()
        failure, _ = await rig.failed()
        assert (failure.code, trio.current_time()) == ("rate_limit_exceeded", begun)


async def test_an_answer_that_is_complete_is_not_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    """The connection stays open after the last event; nobody but the connection notices."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream([*STORY, Gate()]))
        begun = trio.current_time()
        assert (await rig.answered()).text == "one two"
        assert trio.current_time() == begun
        await rig.chatgpt.until(lambda: rig.chatgpt.gone)
        assert trio.current_time() - begun < 5


async def test_a_consumer_that_waits_is_not_taken_for_a_silent_provider(
    tmp_path: Path, patient_clock: MockClock
) -> None:
    """The provider would go on, but there is no room: that is not its silence."""
    async with rigged(tmp_path, first_event=5, idle=5) as rig:
        rig.chatgpt.will(Stream(long_story(20, 1_000_000)))
        stream = await rig.start()
        await trio.sleep(1000)
        assert not rig.chatgpt.requests[0].written
        result = await collect(stream)
        assert result.end is not None
        assert (result.end.outcome, len(result.text)) == ("completed", 20_000_000)
