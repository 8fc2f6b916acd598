"""The answer that a client got, put together again from what it was sent: events, chunks, lines or one body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bridge.protolog.export.asked import Part, chat_call, parts_from_item
from bridge.protolog.export.heard import heard_text
from bridge.protolog.export.loose import loads, member, objects, text_of
from bridge.protolog.recording import Piece, Recording

_DELTAS = {
    "response.output_text.delta": ("message", "content"),
    "response.refusal.delta": ("message", "content"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary"),
    "response.reasoning_text.delta": ("reasoning", "content"),
    "response.function_call_arguments.delta": ("function_call", "arguments"),
    "response.custom_tool_call_input.delta": ("custom_tool_call", "input"),
}
"""Events that tell a piece of an item: which kind of item, and which member of it."""
_PIECES = "\0pieces"
"""Where an item that is not done yet has its deltas."""
_ENDS = ("response.completed", "response.incomplete", "response.failed", "response.cancelled")


@dataclass(slots=True)
class Choice:
    """One of the answers; almost always there is one alone."""

    parts: list[Part] = field(default_factory=list)
    finish_reason: str | None = None

    def joined(self, kind: str) -> str:
        """All of its texts of a kind."""
        return "".join(part.text for part in self.parts if part.kind == kind)

    @property
    def calls(self) -> list[Part]:
        """The calls, in order."""
        return [part for part in self.parts if part.kind == "call"]


@dataclass(slots=True)
class Answer:
    """What became of a request. `source`: `client`, or `backend` where the answer did not go to the client."""

    choices: list[Choice]
    source: str = "client"
    response_id: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


def collect_answer(recording: Recording) -> Answer:
    """The final answer of a recording, as much of it as was sent."""
    building = _Building()
    for event in sent_objects(recording.client):
        building.take(event)
    answer = building.answer()
    end = recording.end or {}
    # A transcript has no client; and one that asked for an answer in the background got nothing but its name.
    unsent = not recording.client or end.get("outcome") == "completed"
    if unsent and not any(choice.parts for choice in answer.choices):
        text = heard_text(recording)
        if text:
            answer.choices, answer.source = [Choice([Part("assistant", "text", text)])], "backend"
    if isinstance(end.get("error"), dict):
        answer.error = end["error"]
    if isinstance(end.get("usage"), dict):
        answer.usage = end["usage"]
    return answer


def sent_objects(pieces: Iterable[Piece]) -> Iterator[dict[str, Any]]:
    """The JSON objects that the client was sent, in order."""
    for piece in pieces:
        if piece.kind == "client_sse" and isinstance(piece.payload, str):
            for line in piece.payload.split("\n"):
                if line.startswith("data:"):
                    event = loads(line[5:])
                    if isinstance(event, dict):
                        yield event
        elif piece.kind in ("client_json", "client_line") and isinstance(piece.payload, dict):
            yield piece.payload


class _Building:
    """Takes what was sent, in either protocol."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, Any]] = {}
        self._done: list[dict[str, Any]] | None = None
        self._status: str | None = None
        self._choices: dict[int, _ChatChoice] = {}
        self._id: str | None = None
        self._error: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        kind = text_of(event.get("type"))
        if isinstance(event.get("choices"), list):
            self._chat(event)
        elif event.get("object") == "response" or isinstance(event.get("output"), list):
            self._response(event)
        elif kind in _DELTAS:
            self._delta(kind, event)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            item = event.get("item")
            if isinstance(item, dict) and isinstance(item.get("id"), str):
                self._items[item["id"]] = dict(item)
        elif isinstance(event.get("response"), dict):
            self._response(event["response"], final=kind in _ENDS)
            if kind in _ENDS:
                self._status = self._status or kind.removeprefix("response.")
        elif isinstance(event.get("error"), dict):
            self._error = event["error"]
        elif kind == "error":
            self._error = {name: value for name, value in event.items() if name in ("code", "message", "param")}

    def answer(self) -> Answer:
        if self._choices:
            choices = [choice.whole() for _, choice in sorted(self._choices.items())]
        else:
            items = self._done or [_joined(item) for item in self._items.values()]
            choices = [Choice([part for item in items for part in parts_from_item(item)], self._status)]
        return Answer(choices, response_id=self._id, error=self._error, usage=self._usage)

    def _response(self, response: dict[str, Any], *, final: bool = True) -> None:
        self._id = response["id"] if isinstance(response.get("id"), str) else self._id
        if not final:
            return
        if isinstance(response.get("status"), str):
            self._status = response["status"]
        if output := list(objects(response.get("output"))):
            self._done = output
        if isinstance(response.get("error"), dict):
            self._error = response["error"]
        if isinstance(response.get("usage"), dict):
            self._usage = response["usage"]

    def _delta(self, kind: str, event: dict[str, Any]) -> None:
        made, where = _DELTAS[kind]
        item = self._items.setdefault(text_of(event.get("item_id")), {"type": made, "role": "assistant"})
        delta = text_of(event.get("delta"))
        index = event.get("summary_index" if where == "summary" else "content_index")
        parts = item.setdefault(_PIECES, {}).setdefault(where, {})
        parts.setdefault(index if isinstance(index, int) else 0, []).append(delta)

    def _chat(self, event: dict[str, Any]) -> None:
        self._id = event["id"] if isinstance(event.get("id"), str) else self._id
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        for choice in objects(event["choices"]):
            index = choice.get("index")
            said = choice.get("delta") or choice.get("message")
            into = self._choices.setdefault(index if isinstance(index, int) else 0, _ChatChoice())
            if isinstance(said, dict):
                into.take(said)
            if isinstance(choice.get("finish_reason"), str):
                into.finish_reason = choice["finish_reason"]


class _ChatChoice:
    """One choice of a chat completion, from chunks or from a message."""

    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[int, Part] = {}

    def take(self, said: dict[str, Any]) -> None:
        self._text.append(text_of(said.get("content") or said.get("refusal")))
        self._thoughts.append(text_of(said.get("reasoning_content")))
        for place, call in enumerate(objects(said.get("tool_calls"))):
            index = call.get("index")
            index = index if isinstance(index, int) else place
            new, old = chat_call(call), self._calls.get(index, Part("assistant", "call", ""))
            self._calls[index] = Part(
                "assistant", "call", old.text + new.text, old.name or new.name, old.call_id or new.call_id
            )

    def whole(self) -> Choice:
        texts = (("reasoning", "".join(self._thoughts)), ("text", "".join(self._text)))
        parts = [Part("assistant", kind, text) for kind, text in texts if text]
        return Choice([*parts, *(call for _, call in sorted(self._calls.items()))], self.finish_reason)


def _joined(item: dict[str, Any]) -> dict[str, Any]:
    """An item that may never have been finished, with the deltas that came of it."""
    pieces = item.pop(_PIECES, {})
    for where, parts in pieces.items():
        texts = ["".join(deltas) for _, deltas in sorted(parts.items())]
        whole = where in ("arguments", "input")
        item[where] = texts[0] if whole else [{"type": "output_text", "text": text} for text in texts]
    return item


def call_members(part: Part) -> dict[str, Any]:
    """A call as a row has it. `parsed` is there when the arguments are JSON."""
    parsed = loads(part.text)
    members: dict[str, Any] = {"id": part.call_id or None, "name": part.name, "arguments": part.text}
    return members if parsed is None else members | {"parsed": parsed}


def error_members(error: dict[str, Any] | None) -> dict[str, Any] | None:
    """What a row tells of an error."""
    if error is None:
        return None
    return {name: member(error, name) for name in ("code", "message", "http_status", "type", "param")}
