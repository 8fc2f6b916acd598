"""Answers without a model, a network or Codex; the same request always gets the same answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from bridge import exact_json
from bridge.appserver.standin import MOCK_TEXT, NOTHING_TO_ECHO, read_items, tool_result
from bridge.core.backend import Backend, EventStream
from bridge.core.events import Finished, TextDelta, TextDone, ToolCall, TurnEvent, Usage, UsageUpdate
from bridge.core.items import FunctionCall, FunctionTool, Item, RawItem
from bridge.core.turn import Turn, estimate_input, estimate_text
from bridge.protocols.responses.build import build_codex_request, check_pairs, offered_name

SESSION = "session_mock"
REQUEST = "request"
"""The mode that answers with the whole request as JSON: `exec --mock-mode echo`."""
PIECE = 800
"""Characters of a delta."""


class MockBackend(Backend):
    """Plays one of the modes of the stand-in, but in this process and with fixed ids: nothing is started.

    A client that `loops` runs the tool and sends its output in the next turn; for others `tool-loop` answers with the
    call and the text at once. Besides the modes of the stand-in there is REQUEST.
    """

    def __init__(
        self, mode: str, *, name: str = "mock", loops: bool = False, sent: Callable[[bytes], None] | None = None
    ) -> None:
        self.name = name
        self._mode = mode
        self._loops = loops
        self._sent = sent

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        check_pairs(turn.items)
        body = build_codex_request(turn, turn.session or SESSION)
        request = exact_json.dumps(body)
        if self._sent is not None:
            self._sent(request)
        events = self._answer(turn, body["input"], request)
        answer = "".join(piece for event in events if isinstance(event, TextDelta) for piece in event.pieces)
        answer += "".join(event.arguments for event in events if isinstance(event, ToolCall))
        usage = Usage(estimate_input(turn), 0, estimate_text(answer))
        return ListStream([*events, UsageUpdate(usage), Finished("completed")])

    def models(self) -> list[str]:
        return [f"mock-{self._mode}"]

    def _answer(self, turn: Turn, items: list[dict[str, Any]], request: bytes) -> list[TurnEvent]:
        user, outputs = read_items(items)
        if self._mode == REQUEST:
            return _text(request.decode())
        if self._mode == "echo":
            return _text(user or NOTHING_TO_ECHO)
        if self._mode == "text":
            return _text(MOCK_TEXT)
        if self._mode == "tool-call":
            return [_call(turn)]
        if outputs:
            return _text(tool_result(outputs))
        return [_call(turn)] if self._loops else [_call(turn), *_text(tool_result(()))]


class ListStream:
    """A turn whose events are known from the beginning."""

    def __init__(self, events: list[TurnEvent]) -> None:
        self._events = events

    async def next(self) -> list[TurnEvent]:
        await trio.lowlevel.checkpoint()
        return self._events

    def close(self) -> None:
        pass


def _text(text: str) -> list[TurnEvent]:
    pieces = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    return [TextDelta("msg_mock", pieces), TextDone("msg_mock")]


def _call(turn: Turn) -> ToolCall:
    """A call of the forced tool, else of the first one, else of one that was not offered."""
    earlier = sum(_is_call(item) for item in turn.items)
    number = f"_{earlier + 1}" if earlier else ""
    tools = {tool.full_name: tool for tool in turn.functions}
    tool = tools.get(turn.tool_choice.name or "", next(iter(tools.values()), None))
    name, arguments = ("mock_tool", '{"value":42}') if tool is None else (offered_name(tool), _example(tool))
    return ToolCall(f"fc_mock{number}", f"call_mock{number}", name, arguments)


def _example(tool: FunctionTool) -> str:
    from bridge.tools.examples import example_for  # compiles schemas, and is slow to load
    from bridge.tools.schema import compact_json

    return compact_json(example_for(tool.parameters)) if tool.parameters is not None else "{}"


def _is_call(item: Item) -> bool:
    return isinstance(item, FunctionCall) or (isinstance(item, RawItem) and item.type == "function_call")
