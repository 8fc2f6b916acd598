"""A turn, and the turns that follow it while the model calls tools: one stream of events with one end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from bridge.app.answers import attempt_id
from bridge.core.backend import Backend, EventStream
from bridge.core.collect import ReasoningOutput, Result, TextOutput
from bridge.core.events import Finished, ToolCall, TurnEvent, Usage, UsageUpdate
from bridge.core.items import FunctionCall, FunctionOutput, Item, Message, RawItem, Text
from bridge.core.turn import AUTO, Turn
from bridge.errors import BridgeError


def follow_up(turn: Turn, result: Result, outputs: Sequence[str]) -> Turn:
    """`turn` continued by its result. `outputs` are those of `result.calls`, in that order; each follows its call.

    A choice that forced the first call is over: the model may now answer.
    """
    given = iter(outputs)
    items: list[Item] = list(turn.items)
    for output in result.outputs:
        if isinstance(output, TextOutput):
            items.append(Message("assistant", (Text(output.text),)))
        elif isinstance(output, ReasoningOutput):
            if output.encrypted is not None:
                items.append(RawItem("reasoning", _reasoning(output)))
        elif isinstance(output, ToolCall):
            items.append(FunctionCall(output.call_id, output.name, output.arguments, output.namespace, output.custom))
            items.append(FunctionOutput(output.call_id, (Text(next(given)),), output.custom))
    forced = turn.tool_choice.mode in ("required", "named")
    return replace(turn, items=tuple(items), tool_choice=AUTO if forced else turn.tool_choice, tool_text=None)


def _reasoning(output: ReasoningOutput) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": text} for text in output.summary_parts()]
    return {"type": "reasoning", "id": output.item, "summary": summary, "encrypted_content": output.encrypted}


MAX_STEPS = 4

Start = Callable[[Turn], Awaitable[EventStream]]
Handle = Callable[[ToolCall], Awaitable[str]]


class TooManySteps(BridgeError):
    """The model still calls tools after the last step."""

    code = "max_steps_exceeded"
    http_status = 502


class ToolLoop:
    """An EventStream over several steps. Usage is reported once, summed; the last step's end is the end.

    `handle` gives a call's output; its exception becomes the output `err: …`, and the loop continues. A cancelled
    `next` may be called again; a step that was about to start is then started again.
    """

    def __init__(self, start: Start, turn: Turn, handle: Handle, *, max_steps: int = MAX_STEPS) -> None:
        self._start = start
        self._turn = turn
        self._handle = handle
        self._max_steps = max_steps
        self._steps = 0
        self._stream: EventStream | None = None
        self._result = Result()
        self._usage: Usage | None = None
        self._outputs: list[str] = []

    def __repr__(self) -> str:
        return f"<ToolLoop step={self._steps} of {self._max_steps}>"

    async def next(self) -> list[TurnEvent]:
        while True:
            if self._stream is None:
                await self._next_step()
            assert self._stream is not None
            events = await self._stream.next()
            self._result.add(events)
            shown: list[TurnEvent] = [event for event in events if not isinstance(event, UsageUpdate | Finished)]
            end = self._result.end
            if end is not None:
                shown += self._end_step(end)
            if shown:
                return shown

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    async def _next_step(self) -> None:
        if self._steps:
            calls = self._result.calls
            while len(self._outputs) < len(calls):
                self._outputs.append(await self._output(calls[len(self._outputs)]))
        turn = follow_up(self._turn, self._result, self._outputs) if self._steps else self._turn
        self._stream = await self._start(turn)
        self._steps += 1
        self._turn, self._result, self._outputs = turn, Result(), []

    async def _output(self, call: ToolCall) -> str:
        try:
            return await self._handle(call)
        except Exception as error:  # any failure of a tool is reported to the model
            return f"err: {str(error) or type(error).__name__}"

    def _end_step(self, end: Finished) -> list[TurnEvent]:
        """The events that end the whole loop; none if another step follows."""
        if self._result.usage is not None:
            self._usage = (self._usage or Usage()) + self._result.usage
        usage: list[TurnEvent] = [] if self._usage is None else [UsageUpdate(self._usage)]
        self.close()
        if end.outcome != "completed" or not self._result.calls:
            return [*usage, end]
        if self._steps < self._max_steps:
            self._stream = None
            return []
        error = TooManySteps(
            f"The model still calls tools after {self._steps} step{'s' if self._steps > 1 else ''}. Allow more steps."
        )
        return [*usage, Finished("failed", error=error)]


def answer_calls(
    backend: Backend,
    turn: Turn,
    req_id: str,
    outputs: Mapping[str, str],
    *,
    max_steps: int = MAX_STEPS,
    on_missing: Callable[[str], None] = lambda name: None,
) -> ToolLoop:
    """A turn whose tools have these outputs, by name; `$args` is the arguments of the call. Each step is an attempt.

    `on_missing` gets the name of a tool without an output.
    """
    attempts = (attempt_id(req_id, index) for index in count())

    async def start(step: Turn) -> EventStream:
        return await backend.start(step, next(attempts))

    async def handle(call: ToolCall) -> str:
        output = outputs.get(call.name)
        if not isinstance(output, str):
            on_missing(call.name)
            raise LookupError(f"there is no output for {call.name}")
        return call.arguments if output == "$args" else output

    return ToolLoop(start, turn, handle, max_steps=max_steps)
