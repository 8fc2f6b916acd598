"""The chunks of a chat completion as TurnEvents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from bridge.core.events import CallBegun, Choice, Finished, ReasoningDone, TurnEvent, Usage, UsageUpdate
from bridge.core.items import FunctionTool
from bridge.errors import BridgeError, UpstreamError
from bridge.protocols.chat.build import MAX_NAME
from bridge.protocols.chat.calls import ANY_NAME, Calls, PartialCall, pack
from bridge.protocols.sse import JsonOrSseReader
from bridge.protocols.upstream import ToolNames, UpstreamBuffer, error_from_object, string
from bridge.tools.payload import arguments_or_none, text_of

BROKEN_OFF = ("error", "abort")
"""Finish reasons that are failures: `error` of OpenRouter, `abort` of vLLM."""

_LENGTH = ("length", "max_tokens", "model_length")
_FILTERED = ("content_filter", "safety", "recitation", "blocklist", "prohibited_content", "spii", "image_")
"""Gemini's own reasons occur as well, in capitals."""


def cut_short(finish_reason: str) -> str | None:
    """Why the answer is incomplete; None if it is complete."""
    reason = finish_reason.lower()
    if reason in _LENGTH:
        return "max_output_tokens"
    return "content_filter" if reason.startswith(_FILTERED) else None


def usage_of(said: Mapping[str, Any]) -> Usage:
    """`usage`, with the cached tokens as OpenAI, DeepSeek or Moonshot report them.

    Gemini and xAI leave the reasoning out of `completion_tokens`, but not out of `total_tokens`.
    """
    prompt, completion = _count(said.get("prompt_tokens")), _count(said.get("completion_tokens"))
    details = _object(said.get("prompt_tokens_details"))
    cached = details.get("cached_tokens") or said.get("prompt_cache_hit_tokens") or said.get("cached_tokens")
    reasoning = _count(_object(said.get("completion_tokens_details")).get("reasoning_tokens"))
    left_out = _count(said.get("total_tokens")) - prompt - completion
    if left_out > 0 and reasoning in (0, left_out):
        completion, reasoning = completion + left_out, left_out
    return Usage(prompt, min(_count(cached), prompt), completion, min(reasoning, completion))


def failure_of(said: Any) -> BridgeError:
    """An error object of a stream, or just a text. Its code may be an HTTP status, as a number (OpenRouter, Gemini)."""
    if not isinstance(said, dict):
        return error_from_object({"message": str(said)})
    code = said.get("code")
    status = int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0
    if 400 <= status <= 599:
        return error_from_object({name: value for name, value in said.items() if name != "code"}, status)
    return error_from_object(said)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return max(0, int(value)) if whole else 0


REASONING = ("reasoning_content", "reasoning", "thinking")
"""Members with reasoning. Some servers fill two of them with the same text: the first one counts."""

_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.:|/+=@#~$-]")
MAX_ID = 200


class ChatBuffer(UpstreamBuffer):
    """One answer. `functions` are those that were offered; None where that is not known, and any name may be called.
    `parallel`: the client accepts more than one call. `signs`: it can send back the signatures of calls.

    The end is `[DONE]`, or the end of the body after a finish_reason or after the last chunk, which holds the usage
    alone. A finish_reason is not yet the end: usage follows it, and from some servers further calls.

    A call streams from when its name is known. It is complete when its arguments are a whole object and another item
    has begun, else at the end. Only at the end come calls of functions that were not offered (their names may come in
    pieces), calls with signatures (these travel in an item before the calls; Gemini sends its calls whole), and the
    text of custom tools, which is in the JSON of their arguments.
    """

    reader = JsonOrSseReader

    def __init__(self, functions: Iterable[FunctionTool] | None, *, parallel: bool = True, signs: bool = False) -> None:
        super().__init__()
        self._names = ToolNames(functions or (), MAX_NAME)
        self._calls = Calls(ANY_NAME if functions is None else self._names.tools.keys())
        self._parallel = parallel
        self._signs = signs
        self._call_ids: set[str] = set()
        self._calling: PartialCall | None = None
        """The last call that has begun."""
        self._speaking: Literal["message", "reasoning"] | None = None
        self._saying = ""
        """The id of the open item."""
        self._items = 0
        self._spent: Mapping[str, Any] | None = None
        self._is_last = False
        """The chunk that has come is the last one, by its form."""

    def __repr__(self) -> str:
        return f"<ChatBuffer calls={len(self._calls.all)} reason={self.finish_reason} finished={self.finished}>"

    def receive_event(self, event: Any) -> None:
        # Gemini wraps its errors into a list.
        for chunk in event if isinstance(event, list) else (event,):
            self._chunk(chunk)

    def over(self, *, told: bool) -> None:
        if not self.finished and (told or self._is_last or self.finish_reason is not None):
            self._end()

    def _chunk(self, chunk: Mapping[str, Any]) -> None:
        if chunk.get("error"):
            return self._failed(chunk["error"])
        if not self.answer_id and chunk.get("id"):
            self.answer_id = str(chunk["id"])
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
            self.finish_reason = str(reason)
            if self.finish_reason in BROKEN_OFF:
                self._usage()
                self.ended = True
                message = f"The provider broke the answer off ({self.finish_reason}). Try again."
                self.fail(UpstreamError(message, severity="transient"))
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
            self._say(string(refusal))
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
                self._say(string(text))

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
        """Send the new pieces of these calls, if they can be sent before the end."""
        for call in calls:
            if self._signs or (call is not self._calls.all[0] and not self._parallel):
                continue
            if call.begun is None:
                if not self._calls.is_settled(call):
                    continue
                self._close()
                self._end_call()
                self._calling, call.begun = call, self._begun(call)
                self.call_begun(call.begun)
            if (call.custom or not call.begun.custom) and not call.is_over:
                for piece in call.pieces[call.sent :]:
                    self.call_delta(call.begun.id, piece)
                call.sent = len(call.pieces)

    def _end_call(self) -> None:
        """Another item begins: the last call is over, unless its arguments are not complete.

        A custom tool's text has no end of its own, so it ends here.
        """
        if self._calling is not None and (self._calling.custom or self._calling.is_complete):
            self._tell(self._calling)
            self._calling = None

    def _begun(self, call: PartialCall) -> CallBegun:
        tool, call_id = self._names.tools.get(call.name), self._call_id(call)
        if tool is None:
            return CallBegun(f"{'ctc' if call.custom else 'fc'}_{call_id}", call_id, call.name, custom=call.custom)
        item_id = f"ctc_{call_id}" if tool.custom else f"fc_{call_id}"
        return CallBegun(item_id, call_id, tool.name, tool.namespace, tool.custom)

    def _call_id(self, call: PartialCall) -> str:
        """The server's id, or one of the answer's id and the call's number. No two are the same."""
        number = len(self._call_ids)
        call_id = _legal_id(call.id) or f"call_{_legal_id(self.answer_id or '') or 'answer'}_{number}"
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
        self.called(begun.complete(self._arguments(call, begun)))

    def _arguments(self, call: PartialCall, begun: CallBegun) -> str:
        if call.custom:
            return call.arguments
        # A custom tool was offered as a function, so its text is in the JSON of the arguments.
        return text_of(call.arguments) if begun.custom else arguments_or_none(call.arguments)

    # The end

    def _end(self) -> None:
        self._close()
        cut = cut_short(self.finish_reason or "")
        calls = [call for call in self._calls.all if call.name or call.pieces]
        if cut is not None:
            # An incomplete call cannot run.
            calls = [call for call in calls if call.name and call.is_complete]
        if not self._parallel:
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
        """The signatures of an answer are in an item before its calls."""
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
        self.error_object = said if isinstance(said, dict) else {"message": str(said)}
        self.fail(failure_of(said))


class ChoicesBuffer:
    """Several choices in one stream (`n`), each decoded for itself: the counterpart of `ChoicesEncoder`."""

    def __init__(self, make: Callable[[], ChatBuffer]) -> None:
        self._make = make
        self.choices: dict[int, ChatBuffer] = {}

    def receive_or_skip(self, chunk: Mapping[str, Any]) -> None:
        """Decode a chunk or a whole completion. Parts of an unknown shape are skipped."""
        given = chunk.get("choices")
        choices = [choice for choice in given if isinstance(choice, dict)] if isinstance(given, list) else []
        for choice in choices:
            index = choice.get("index")
            buffer = self._of(index if isinstance(index, int) else 0)
            buffer.receive_or_skip({**chunk, "choices": [{**choice, "index": 0}], "usage": None})
        if chunk.get("usage") or chunk.get("error") or not choices:
            # Members of the whole answer go to the first choice.
            self._of(0).receive_or_skip({**chunk, "choices": []})

    def over(self, *, told: bool) -> None:
        """Nothing more comes."""
        for buffer in self.choices.values():
            buffer.over(told=told)

    def take(self) -> list[TurnEvent]:
        """The new events of each choice."""
        taken = [(index, buffer.take()) for index, buffer in sorted(self.choices.items())]
        return [Choice(index, events) for index, events in taken if events]

    def _of(self, index: int) -> ChatBuffer:
        if index not in self.choices:
            self.choices[index] = self._make()
        return self.choices[index]


def _legal_id(given: str) -> str:
    """An id that the client can send back."""
    return _NOT_IN_IDS.sub("_", given)[:MAX_ID]
