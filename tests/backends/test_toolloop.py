"""Several steps as one stream: calls are answered, usage is summed, and there is one end."""

from __future__ import annotations

import pytest
import trio

from bridge.app.tool_loop import MAX_STEPS, ToolLoop
from bridge.core.events import (
    Finished,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.core.items import FunctionCall, FunctionOutput, Message, Text
from bridge.core.turn import Turn
from bridge.errors import BackendCrashed, BridgeError

TURN = Turn("m", "m", (Message("user", (Text("hi"),)),))
END = Finished("completed")
TEXT: list[TurnEvent] = [TextDelta("m", ["done"]), TextDone("m")]

Step = list[list[TurnEvent]]
"""The batches of one step."""


def call(number: int, name: str = "f") -> ToolCall:
    return ToolCall(f"fc_{number}", f"call_{number}", name, f'{{"n":{number}}}')


class ScriptedStream:
    """A step whose batches are known; after the last one it says nothing more."""

    def __init__(self, batches: Step) -> None:
        self._batches = iter(batches)
        self.closed = 0

    async def next(self) -> list[TurnEvent]:
        await trio.lowlevel.checkpoint()
        for batch in self._batches:
            return batch
        await trio.sleep_forever()
        raise AssertionError

    def close(self) -> None:
        self.closed += 1


class Model:
    """Plays one step after the other, and remembers what it was asked."""

    def __init__(self, *steps: Step | BridgeError) -> None:
        self._steps = list(steps)
        self.turns: list[Turn] = []
        self.streams: list[ScriptedStream] = []
        self.handled: list[str] = []
        self.busy = trio.Event()
        """While it is not set, starting a step and handling a call wait."""
        self.busy.set()

    async def start(self, turn: Turn) -> ScriptedStream:
        await self.busy.wait()
        step = self._steps[len(self.turns)]
        self.turns.append(turn)
        if isinstance(step, BridgeError):
            raise step
        self.streams.append(ScriptedStream(step))
        return self.streams[-1]

    async def handle(self, called: ToolCall) -> str:
        await self.busy.wait()
        self.handled.append(called.call_id)
        if called.name == "broken":
            raise ValueError("no such thing")
        if called.name == "silent":
            raise ValueError
        return f"{called.name} {called.arguments}"

    def loop(self, max_steps: int = MAX_STEPS) -> ToolLoop:
        return ToolLoop(self.start, TURN, self.handle, max_steps=max_steps)


async def read(loop: ToolLoop) -> list[TurnEvent]:
    """All events to the end; no batch is empty."""
    events: list[TurnEvent] = []
    while not (events and isinstance(events[-1], Finished)):
        batch = await loop.next()
        assert batch
        events += batch
    return events


async def test_a_turn_without_calls_is_passed_on() -> None:
    """As it comes; its usage just before its end."""
    model = Model([[TextDelta("m", ["do"])], [UsageUpdate(Usage(3, 1, 2))], [TextDelta("m", ["ne"]), END]])
    loop = model.loop()
    assert await loop.next() == [TextDelta("m", ["do"])]
    assert await read(loop) == [TextDelta("m", ["ne"]), UsageUpdate(Usage(3, 1, 2)), END]
    assert (model.turns, model.handled) == ([TURN], [])
    assert "step=1 of 4" in repr(loop)


async def test_calls_are_answered_in_order() -> None:
    """The next step has the history, then each call with its output; of a step's end nothing is told."""
    model = Model([[call(1), call(2, "g")], [UsageUpdate(Usage(3)), END]], [[*TEXT, END]])
    assert await read(model.loop()) == [call(1), call(2, "g"), *TEXT, UsageUpdate(Usage(3)), END]
    assert model.handled == ["call_1", "call_2"]
    assert model.turns[1].items[1:] == (
        FunctionCall("call_1", "f", '{"n":1}'),
        FunctionOutput("call_1", (Text('f {"n":1}'),)),
        FunctionCall("call_2", "g", '{"n":2}'),
        FunctionOutput("call_2", (Text('g {"n":2}'),)),
    )


async def test_usage_is_summed() -> None:
    """Of each step the last that it told, once, at the end."""
    model = Model(
        [[UsageUpdate(Usage(1)), call(1), UsageUpdate(Usage(10, 4, 5, 2)), END]],
        [[call(2), END]],
        [[*TEXT, UsageUpdate(Usage(20, 8, 7, 1, estimated=True)), END]],
    )
    events = await read(model.loop())
    assert [event for event in events if isinstance(event, UsageUpdate)] == [
        UsageUpdate(Usage(30, 12, 12, 3, estimated=True))
    ]
    assert events[-1] == END


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("broken", "err: no such thing"),
        pytest.param(
            "silent",
            "err: ValueError",
        ),
    ],
)
async def test_a_tool_that_fails_is_an_output(name: str, output: str) -> None:
    """The model is told, and the loop goes on."""
    model = Model([[call(1, name), call(2), END]], [[*TEXT, END]])
    assert (await read(model.loop()))[-1] == END
    outputs = [item.text for item in model.turns[1].items if isinstance(item, FunctionOutput)]
    assert outputs == [output, 'f {"n":2}']


@pytest.mark.parametrize("limit", [1, 3])
async def test_the_limit_is_a_failure(limit: int) -> None:
    """The calls of the last step are told, but not answered; the usage is."""
    steps: list[list[list[TurnEvent]]] = [[[call(number), UsageUpdate(Usage(5)), END]] for number in range(limit)]
    model = Model(*steps)
    *events, usage, end = await read(model.loop(limit))
    assert events == [call(number) for number in range(limit)]
    assert usage == UsageUpdate(Usage(5 * limit))
    assert isinstance(end, Finished)
    assert end.outcome == "failed"
    assert end.error is not None
    assert end.error.code == "max_steps_exceeded"
    assert (len(model.turns), len(model.handled)) == (limit, limit - 1)
    assert [stream.closed for stream in model.streams] == [1] * limit


@pytest.mark.parametrize(
    "end",
    [
        Finished("failed", error=BackendCrashed("gone")),
        Finished("incomplete", reason="max_output_tokens"),
        Finished("cancelled"),
    ],
)
async def test_a_step_that_ends_badly_ends_it_all(end: Finished) -> None:
    """Also when it called: what is incomplete is not run."""
    model = Model([[call(1), END]], [[call(2), end]])
    assert (await read(model.loop()))[-1] == end
    assert model.handled == ["call_1"]


async def test_a_step_that_cannot_start() -> None:
    """The first as any other: the error is the caller's."""
    for steps in ([BackendCrashed("gone")], [[[call(1), END]], BackendCrashed("gone")]):
        loop = Model(*steps).loop()
        with pytest.raises(BackendCrashed):
            await read(loop)
        loop.close()


async def test_what_was_void_is_not_answered() -> None:
    """A stream that begins anew has not called."""
    model = Model([[call(1)], [Restarted("broke"), *TEXT, END]])
    assert await read(model.loop()) == [call(1), Restarted("broke"), *TEXT, END]
    assert model.handled == []


async def test_a_cancelled_next_may_be_called_again() -> None:
    """While a step starts, while a tool runs, while a step speaks: nothing is lost, nothing is done twice."""
    model = Model([[call(1), call(2), END]], [[*TEXT, END]])
    loop = model.loop()
    model.busy = trio.Event()
    await cancelled(loop)
    model.busy.set()
    assert await loop.next() == [call(1), call(2)]
    model.busy = trio.Event()
    await cancelled(loop)
    model.busy.set()
    assert await loop.next() == [*TEXT, END]
    assert model.handled == ["call_1", "call_2"]
    assert len(model.turns) == 2


async def cancelled(loop: ToolLoop) -> None:
    """A `next` that is given up while it waits."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.next)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


async def test_close_lets_the_running_step_go() -> None:
    """Those before are closed already; before the first there is none."""
    model = Model([[call(1), END]], [[TextDelta("m", ["do"])]])
    loop = model.loop()
    loop.close()
    await loop.next()
    await loop.next()
    assert [stream.closed for stream in model.streams] == [1, 0]
    loop.close()
    assert [stream.closed for stream in model.streams] == [1, 1]
