"""A turn's items as chat messages.

The API wants each call's output right after the answer that made the call. So all calls of one answer stand in one
assistant message, together with the text before them, and one `tool` message for each follows in the order of the
calls, wherever the client put the outputs.

Calls that follow each other were one answer's. A call after an output is a new answer's: it may depend on that output.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from bridge.backends.openai_compatible.names import ToolNames
from bridge.backends.openai_compatible.presets import Preset
from bridge.backends.openai_compatible.signatures import extra_content, unpack
from bridge.errors import InvalidRequest
from bridge.tools.freeform import arguments_of, arguments_or_none
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Message, Part, RawItem, Text
from bridge.turn.turn import Turn

Json = dict[str, Any]

SEE_BELOW = "The output is an image; it is in the message that follows."
_DETAILS = ("auto", "low", "high")


def build_messages(turn: Turn, names: ToolNames, preset: Preset) -> list[Json]:
    """All that was said, the instructions first. Items that only the Responses API has are left out.

    Raises InvalidRequest for an output whose call does not come before it, and when nothing is left.
    """
    history = _History()
    signatures: dict[str, str] = {}
    if turn.instructions:
        history.add(Message("system", (Text(turn.instructions),)))
    for item in turn.items:
        if isinstance(item, RawItem):
            signatures |= unpack(item)
        else:
            history.add(item)
    writer = _Writer(turn.model, names, preset, signatures)
    messages = [message for entry in history.entries for message in writer.write(entry)]
    if not messages:
        raise InvalidRequest("The input holds nothing that this model could be given; send a message.", param="input")
    return _with_one_system(messages) if preset.one_system else messages


class _Answer:
    """What the assistant said at once: a text, calls, and what each of them gave back, as far as it did."""

    def __init__(self, parts: tuple[Part, ...] = ()) -> None:
        self.parts = parts
        self.calls: list[FunctionCall] = []
        self.outputs: list[list[Part] | None] = []


class _History:
    """Items in, messages and answers out. An output goes to its call, however late it comes."""

    def __init__(self) -> None:
        self.entries: list[Message | _Answer] = []
        self._answer: _Answer | None = None
        """The one that a call would be part of."""
        self._waiting: dict[str, list[tuple[_Answer, int]]] = {}
        """Calls by id. An id may come again in a later answer: the newest that waits gets the output."""

    def add(self, item: Message | FunctionCall | FunctionOutput) -> None:
        if isinstance(item, FunctionCall):
            self._call(item)
        elif isinstance(item, FunctionOutput):
            self._output(item)
        elif item.role == "assistant":
            self._begin(item.parts)
        else:
            self._answer = None
            self.entries.append(item)

    def _begin(self, parts: tuple[Part, ...] = ()) -> _Answer:
        self._answer = _Answer(parts)
        self.entries.append(self._answer)
        return self._answer

    def _call(self, call: FunctionCall) -> None:
        answer = self._answer or self._begin()
        waiting = self._waiting.setdefault(call.call_id, [])
        if waiting and waiting[-1][0] is not answer:
            waiting.clear()
        waiting.append((answer, len(answer.calls)))
        answer.calls.append(call)
        answer.outputs.append(None)

    def _output(self, output: FunctionOutput) -> None:
        self._answer = None
        waiting = self._waiting.get(output.call_id)
        if waiting is None:
            raise InvalidRequest(
                f"No tool call found for the output with call_id {output.call_id!r}. "
                "Send the call and its output together.",
                param="input",
                code="missing_function_call",
            )
        # The last one stays: an output in several pieces is one output.
        answer, number = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        answer.outputs[number] = [*(answer.outputs[number] or ()), *output.parts]


class _Writer:
    def __init__(self, model: str, names: ToolNames, preset: Preset, signatures: dict[str, str]) -> None:
        self._model = model
        self._names = names
        self._preset = preset
        self._signatures = signatures

    def write(self, entry: Message | _Answer) -> Iterator[Json]:
        if isinstance(entry, _Answer):
            yield from self._answer(entry)
        elif entry.role == "user" and any(isinstance(part, Image) for part in entry.parts):
            yield {"role": "user", "content": [_part(part) for part in entry.parts]}
        else:
            yield {"role": "user" if entry.role == "user" else "system", "content": entry.text}
            if entry.role != "user":
                yield from _images(entry.parts, "")

    def _answer(self, answer: _Answer) -> Iterator[Json]:
        # As OpenAI's own answers have it: null, not an empty text, where there are calls alone.
        message: Json = {"role": "assistant", "content": _text(answer.parts) if answer.parts else None}
        if answer.calls:
            message["tool_calls"] = [self._call(call, first=number == 0) for number, call in enumerate(answer.calls)]
        yield message
        outputs = [
            (self._id(call.call_id), output)
            for call, output in zip(answer.calls, answer.outputs, strict=True)
            if output is not None
        ]
        for call_id, output in outputs:
            shown = _text(output) or (SEE_BELOW if any(isinstance(part, Image) for part in output) else "")
            yield {"role": "tool", "tool_call_id": call_id, "content": shown}
        # A `tool` message takes text alone (and must follow the calls at once), so images come after all of them,
        # in a message of the only role that may have any.
        yield from _images(answer.parts, "")
        for call_id, output in outputs:
            yield from _images(output, f"From the output of {call_id}:")

    def _call(self, call: FunctionCall, *, first: bool) -> Json:
        arguments = arguments_of(call.arguments) if call.custom else arguments_or_none(call.arguments)
        signed: Json = {}
        if self._preset.signatures:
            signed = extra_content(self._signatures.get(call.call_id), self._model, first=first)
        return {
            "id": self._id(call.call_id),
            "type": "function",
            "function": {"name": self._names.of(call.full_name), "arguments": arguments},
            **signed,
        }

    def _id(self, call_id: str) -> str:
        longest = self._preset.longest_id
        if longest is None or len(call_id) <= longest:
            return call_id
        digest = f"_{zlib.crc32(call_id.encode('utf-8', 'replace')):08x}"
        return call_id[: longest - len(digest)] + digest


def _text(parts: Iterable[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))


def _images(parts: Iterable[Part], about: str) -> Iterator[Json]:
    images = [part for part in parts if isinstance(part, Image)]
    if images:
        said: list[Part] = [Text(about)] if about else []
        yield {"role": "user", "content": [_part(part) for part in (*said, *images)]}


def _part(part: Part) -> Json:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    detail = {"detail": part.detail} if part.detail in _DETAILS else {}
    return {"type": "image_url", "image_url": {"url": part.url, **detail}}


def _with_one_system(messages: list[Json]) -> list[Json]:
    count = next((n for n, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    joined = "\n\n".join(message["content"] for message in messages[:count])
    return [{"role": "system", "content": joined}, *messages[count:]]
