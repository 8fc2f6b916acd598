"""The chunks of a chat completion as TurnEvents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import orjson

from bridge.backends.openai_compatible.calls import Calls, PartialCall
from bridge.backends.openai_compatible.ends import BROKEN_OFF, broken_off, cut_short, failure_of, usage_of
from bridge.backends.openai_compatible.names import ToolNames
from bridge.backends.openai_compatible.presets import Preset
from bridge.backends.openai_compatible.reader import ChatReader
from bridge.backends.openai_compatible.signatures import pack
from bridge.backends.upstream.buffer import UpstreamBuffer
from bridge.errors import UpstreamError
from bridge.tools.freeform import arguments_or_none, text_of
from bridge.turn.events import CallBegun, Finished, ReasoningDone, ToolCall, UsageUpdate
from bridge.turn.turn import Turn

REASONING = ("reasoning_content", "reasoning", "thinking")
"""Where servers put the model's thoughts. Some fill two of them with the same: the first one counts."""

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.:|/+=@#~$-]")
MAX_ID = 200


class ChatBuffer(UpstreamBuffer):
    """One answer.

    The end is `[DONE]`, or the end of the body after a finish_reason or after the last chunk, which holds the usage
    alone. A finish_reason is not yet the end: usage follows it, and from some servers further calls.

    A call streams from when its name is known. It is complete when its arguments are a whole object and another item
    has begun, else at the end. Only at the end come calls of functions that were not offered (their names may come in
    pieces), calls with signatures (these travel in an item before the calls; Gemini sends its calls whole), and the
    text of custom tools, which stands in the JSON of their arguments.
    """

    reader = ChatReader

    def __init__(self, turn: Turn, preset: Preset) -> None:
        super().__init__()
        self._turn = turn
        self._preset = preset
        self._names = ToolNames(turn.functions)
        self._calls = Calls(self._names.tools.keys())
        self._signs = preset.signatures and turn.encrypted_reasoning
        self._call_ids: set[str] = set()
        self._calling: PartialCall | None = None
        """The call that has begun last."""
        self._speaking: Literal["message", "reasoning"] | None = None
        self._saying = ""
        """The item that is being said."""
        self._items = 0
        self._tag = ""
        self._spent: Mapping[str, Any] | None = None
        self._reason: str | None = None
        self._is_last = False
        """The chunk that has come is the last one, by its form."""

    def __repr__(self) -> str:
        return f"<ChatBuffer calls={len(self._calls.all)} reason={self._reason} finished={self.finished}>"

    def receive(self, data: bytes) -> None:
        try:
            chunk = orjson.loads(data)
            # Gemini wraps its errors into a list.
            for each in chunk if isinstance(chunk, list) else (chunk,):
                self._chunk(each)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UpstreamError(
                "The provider sent an event that makes no sense. Try again.", code="broken_event"
            ) from None

    def over(self, *, told: bool) -> None:
        if not self.finished and (told or self._is_last or self._reason is not None):
            self._end()

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            return self._failed(chunk["error"])
        if not self._tag and chunk.get("id"):
            self._tag = _legal_id(str(chunk["id"]))
        choices = chunk.get("choices")
        for choice in choices or ():
            if not choice.get("index"):
                self._choice(choice)
        spent = chunk.get("usage")
        if spent is None and "x_groq" in chunk:
            spent = (chunk["x_groq"] or {}).get("usage")
        if spent:
            self._spent = dict(spent)
        self._is_last = bool(spent) and not choices and (self._items > 0 or bool(self._calls.all))
        if choices is None and chunk.get("object") == "error":
            self._failed(chunk)
        return None

    def _choice(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or choice.get("message")
        if delta:
            self._delta(delta)
        if choice.get("error"):
            return self._failed(choice["error"])
        reason = choice.get("finish_reason")
        if reason:
            self._reason = str(reason)
            if self._reason in BROKEN_OFF:
                self._usage()
                self.ended = True
                self.fail(broken_off(self._reason))
        return None

    def _delta(self, delta: Mapping[str, Any]) -> None:
        content = delta.get("content")
        if len(delta) > 1 or content is None:
            for name in REASONING:
                if thought := delta.get(name):
                    if isinstance(thought, str):
                        self._think(thought)
                    break
        if isinstance(content, str):
            if content:
                self._say(content)
        elif content:
            self._parts(content)
        if refusal := delta.get("refusal"):
            self._say(_string(refusal))
        if calls := delta.get("tool_calls"):
            self._stream(self._calls.add(calls))
        elif function := delta.get("function_call"):
            self._stream(self._calls.add([{"function": function}]))

    def _parts(self, parts: list[Mapping[str, Any]]) -> None:
        """Content in parts, as Mistral's reasoning models have it."""
        for part in parts:
            if part.get("type") == "thinking":
                thinking = part.get("thinking") or ()
                for piece in [thinking] if isinstance(thinking, str) else [each.get("text") for each in thinking]:
                    if piece:
                        self._think(piece)
            elif text := part.get("text"):
                self._say(_string(text))

    def _say(self, piece: str) -> None:
        if self._speaking != "message":
            self._begin("message")
        self.text(self._saying, piece)

    def _think(self, piece: str) -> None:
        if self._speaking != "reasoning":
            self._begin("reasoning")
        self.reasoning(self._saying, 0, piece, raw=True)

    def _begin(self, kind: Literal["message", "reasoning"]) -> None:
        self._close()
        self._end_call()
        self._items += 1
        self._speaking, self._saying = kind, f"{kind}_{self._items}"

    def _close(self) -> None:
        if self._speaking == "message":
            self.text_done(self._saying, "")
        elif self._speaking == "reasoning":
            self.reasoning_done(self._saying, [], [])
        self._speaking = None

    # Calls

    def _stream(self, calls: list[PartialCall]) -> None:
        """Tell what is new of these calls, as far as it can be told before the end."""
        for call in calls:
            if self._signs or (call is not self._calls.all[0] and not self._turn.parallel):
                continue
            if call.begun is None:
                if not self._calls.is_settled(call):
                    continue
                self._close()
                self._end_call()
                self._calling, call.begun = call, self._begun(call)
                self.call_begun(call.begun)
            if not call.begun.custom and not call.is_over:
                for piece in call.pieces[call.told :]:
                    self.call_delta(call.begun.id, piece)
                call.told = len(call.pieces)

    def _end_call(self) -> None:
        """Something else begins: the last call is over, unless its arguments are still to come."""
        if self._calling is not None and self._calling.is_complete:
            self._tell(self._calling)
            self._calling = None

    def _begun(self, call: PartialCall) -> CallBegun:
        tool, call_id = self._names.tools.get(call.name), self._call_id(call)
        if tool is None:
            return CallBegun(f"fc_{call_id}", call_id, call.name)
        item_id = f"ctc_{call_id}" if tool.custom else f"fc_{call_id}"
        return CallBegun(item_id, call_id, tool.name, tool.namespace, tool.custom)

    def _call_id(self, call: PartialCall) -> str:
        """The server's id, or one of the answer's id and the call's number. No two are the same."""
        number = len(self._call_ids)
        call_id = _legal_id(call.id) or f"call_{self._tag or 'answer'}_{number}"
        while call_id in self._call_ids:
            call_id += f"_{number}"
        self._call_ids.add(call_id)
        return call_id

    def _tell(self, call: PartialCall) -> None:
        """The call is complete."""
        if call.is_over:
            return
        call.is_over = True
        begun = call.begun = call.begun or self._begun(call)
        self.called(
            ToolCall(
                begun.id,
                begun.call_id,
                begun.name,
                text_of(call.arguments) if begun.custom else arguments_or_none(call.arguments),
                namespace=begun.namespace,
                custom=begun.custom,
            )
        )

    # The end

    def _end(self) -> None:
        self._close()
        cut = cut_short(self._reason or "")
        calls = [call for call in self._calls.all if call.name or call.pieces]
        if cut is not None:
            # Half a call cannot be run.
            calls = [call for call in calls if call.name and call.is_complete]
        if not self._turn.parallel:
            calls = calls[:1]
        if not all(call.name for call in calls):
            self.ended = True
            return self.fail(UpstreamError("The provider sent a call without a name. Try again.", code="broken_event"))
        if self._signs:
            self._sign(calls)
        for call in calls:
            self._tell(call)
        self._usage()
        if cut is None:
            return self.complete()
        self.ended = True
        return self.finish(Finished("incomplete", reason=cut))

    def _sign(self, calls: list[PartialCall]) -> None:
        """The signatures of an answer travel in an item before its calls."""
        for call in calls:
            call.begun = self._begun(call)
        signed = {call.begun.call_id: call.signature for call in calls if call.signature and call.begun}
        if signed:
            self.add(ReasoningDone(f"reasoning_{self._items + 1}", pack(signed)))

    def _usage(self) -> None:
        if self._spent is not None:
            self.usage(UsageUpdate(usage_of(self._spent)))

    def _failed(self, said: Any) -> None:
        self._usage()
        self.ended = True
        self.fail(failure_of(said))


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _legal_id(given: str) -> str:
    """An id as the client may give it back."""
    return _NOT_IN_IDS.sub("_", given)[:MAX_ID]
