"""Between a backend with tool calls in text and the encoders: `<tool_call>` blocks become calls, streamed if possible.

Each assistant message has a parser of its own, because Codex starts a broken stream again under a new item. Pieces keep
their boundaries as long as no tag is near.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from bridge import exact_json
from bridge.core.events import (
    CallBegun,
    CallDelta,
    Finished,
    Restarted,
    TextDelta,
    TextDone,
    TurnEvent,
)
from bridge.core.items import FunctionTool
from bridge.core.stages import ItemOrder
from bridge.core.turn import Turn
from bridge.tools.call_stream import CallPiece, CallStart
from bridge.tools.parser import DAMAGED, ParsedCall, ParserEvent, Rejected, Repair, ToolCallParser
from bridge.tools.payload import arguments_or_none, text_of
from bridge.tools.schema import compile_schema

Record = Callable[[str, dict[str, Any]], None]
"""(kind, payload): writes repairs, rejections and calls to the log."""


class ToolStage:
    """Takes calls out of the text. `record` gets every call, repair and rejection, and an unmet tool choice."""

    def __init__(self, turn: Turn, new_id: Callable[[str], str], record: Record | None = None) -> None:
        self._turn = turn
        self._new_id = new_id
        self._record = record or (lambda kind, payload: None)
        self._known = _by_name(turn.functions)
        self._tools = {name: _predicate(tool) for name, tool in self._known.items()}
        # Their text is in JSON, or is all of it if it is not JSON: that is known only at the end.
        self._whole = frozenset(name for name, tool in self._known.items() if tool.custom)
        self._parsers: dict[str, ToolCallParser] = {}
        self._begun: dict[str, CallBegun] = {}
        """The incomplete call of each message."""
        self._calls = 0
        self._order = ItemOrder()

    def feed(self, events: list[TurnEvent]) -> list[TurnEvent]:
        """The same events with calls taken out of the text."""
        out: list[TurnEvent] = []
        for event in events:
            if isinstance(event, TextDelta):
                self._text(event, out)
            elif isinstance(event, TextDone):
                self._end_item(event.item, out)
                out.append(event)
            elif isinstance(event, Restarted):
                self._parsers.clear()
                self._begun.clear()
                self._calls = 0
                out.append(event)
            elif isinstance(event, Finished):
                for item in list(self._parsers):
                    self._end_item(item, out, event)
                self._check_choice(event)
                out.append(event)
            else:
                out.append(event)
        return self._order.feed(out)

    def _text(self, event: TextDelta, out: list[TurnEvent]) -> None:
        parser = self._parsers.get(event.item)
        if parser is None:
            parser = self._parsers[event.item] = ToolCallParser(self._tools, whole=self._whole)
        run: list[str] = []
        for piece in event.pieces:
            for parsed in parser.feed(piece):
                if isinstance(parsed, str):
                    run.append(parsed)
                else:
                    run = self._flush(event.item, run, out)
                    self._parsed(event.item, parsed, out)
        self._flush(event.item, run, out)

    def _end_item(self, item: str, out: list[TurnEvent], end: Finished | None = None) -> None:
        """The text of this item is complete. A call that a failure cuts off is text, because it must not run.

        A call that has begun cannot become text. It stays incomplete, so that it does not run either.
        """
        parser = self._parsers.pop(item, None)
        cut = end is not None and end.outcome in ("failed", "cancelled")
        for parsed in parser.finish() if parser is not None else ():
            if isinstance(parsed, str):
                out.append(TextDelta(item, [parsed]))
            elif isinstance(parsed, ParsedCall) and item in self._begun:
                if cut or (end is not None and end.outcome == "incomplete" and DAMAGED in parsed.repairs):
                    del self._begun[item]
                else:
                    self._parsed(item, parsed, out)
            elif cut and isinstance(parsed, ParsedCall):
                if parsed.source:
                    out.append(TextDelta(item, [parsed.source]))
            elif not (cut and isinstance(parsed, CallStart | CallPiece)):
                self._parsed(item, parsed, out)

    def _flush(self, item: str, run: list[str], out: list[TurnEvent]) -> list[str]:
        if run:
            out.append(TextDelta(item, run))
        return []

    def _parsed(self, item: str, parsed: ParserEvent, out: list[TurnEvent]) -> None:
        if isinstance(parsed, CallPiece):
            self._piece(item, parsed.text, out)
        elif isinstance(parsed, CallStart):
            if not self._is_withheld(item):
                self._begun[item] = begun = self._begin(self._known[parsed.name])
                out.append(begun)
        elif isinstance(parsed, ParsedCall):
            self._called(item, parsed, out)
        elif isinstance(parsed, Repair):
            self._record("tool_repair", {"repairs": [parsed.name], "source": parsed.source})
        elif isinstance(parsed, Rejected):
            self._record("tool_reject", {"reason": parsed.reason, "source": parsed.source})

    def _is_withheld(self, item: str) -> bool:
        """Whether another call is one too many, because the client accepts only one."""
        return bool(self._calls) and not self._turn.parallel and item not in self._begun

    def _begin(self, tool: FunctionTool) -> CallBegun:
        self._calls += 1
        item_id = self._new_id("ctc" if tool.custom else "fc")
        return CallBegun(item_id, self._new_id("call"), tool.name, tool.namespace, tool.custom)

    def _piece(self, item: str, text: str, out: list[TurnEvent]) -> None:
        begun = self._begun.get(item)
        if begun is None:
            return
        last = out[-1] if out else None
        if isinstance(last, CallDelta) and last.id == begun.id:
            last.pieces.append(text)
        else:
            out.append(CallDelta(begun.id, [text]))

    def _called(self, item: str, parsed: ParsedCall, out: list[TurnEvent]) -> None:
        if self._is_withheld(item):
            self._record("tool_reject", {"reason": "not_parallel", "name": parsed.name, "source": parsed.source})
            return
        tool = self._known[parsed.name]
        begun = self._begun.pop(item, None) or self._begin(tool)
        arguments = text_of(parsed.arguments) if tool.custom else arguments_or_none(parsed.arguments)
        call = begun.complete(arguments, parsed.repairs, parsed.source)
        out.append(call)
        self._record("tool_call", {"name": call.name, "call_id": call.call_id, "source": call.source})
        if parsed.repairs:
            self._record("tool_repair", {"name": call.name, "repairs": list(parsed.repairs)})

    def _check_choice(self, end: Finished) -> None:
        choice = self._turn.tool_choice
        if choice.mode in ("required", "named") and not self._calls and end.outcome == "completed":
            self._record("tool_reject", {"reason": "choice_unmet", "tool_choice": choice.name or choice.mode})


def _by_name(functions: Iterable[FunctionTool]) -> dict[str, FunctionTool]:
    """The functions by the names that a model may use: also without a namespace if that is unambiguous."""
    short: dict[str, list[FunctionTool]] = {}
    for tool in functions:
        short.setdefault(tool.name, []).append(tool)
    return {name: tools[0] for name, tools in short.items() if len(tools) == 1} | {
        tool.full_name: tool for tools in short.values() for tool in tools
    }


def _predicate(tool: FunctionTool) -> Callable[[str], bool] | None:
    """For a strict tool: whether an arguments string validates against its schema."""
    if not tool.strict or tool.parameters is None:
        return None
    validates = compile_schema(tool.parameters)
    if validates is None:
        # Nothing conforms to an invalid schema; the client sees its mistake in the arguments.
        return None

    def valid(arguments: str) -> bool:
        try:
            return validates(exact_json.loads(arguments))
        except orjson.JSONDecodeError:
            return False

    return valid
