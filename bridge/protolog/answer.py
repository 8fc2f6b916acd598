"""An answer, put together again from events, chunks, packets, lines or one body: of any API that is spoken here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bridge.protolog.asked import Part, chat_call, joined_text, parts_from_items
from bridge.protolog.assist import AssistAnswer
from bridge.protolog.loose import loads, member, objects, text_of

_DELTAS = {
    "response.output_text.delta": ("message", "content"),
    "response.refusal.delta": ("message", "content"),
    "response.reasoning_summary_text.delta": ("reasoning", "summary"),
    "response.reasoning_text.delta": ("reasoning", "content"),
    "response.function_call_arguments.delta": ("function_call", "arguments"),
    "response.custom_tool_call_input.delta": ("custom_tool_call", "input"),
}
"""Events that tell a piece of an item: which kind of item, and which member of it."""
_BLOCKS = {
    "text": ("message", "content"),
    "thinking": ("reasoning", "content"),
    "partial_json": ("function_call", "arguments"),
}
"""The same for the members of a content block of Messages, and of its deltas."""
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

    @property
    def parts(self) -> list[Part]:
        """All that it says, of every choice; last what went wrong."""
        message = member(self.error, "message")
        failed = [Part("assistant", "error", message)] if isinstance(message, str) and message else []
        return [*(part for choice in self.choices for part in choice.parts), *failed]


def sent_values(kind: str, payload: Any) -> Iterator[Any]:
    """What a record of the client's side says: the events of a piece of a stream (else its text), a body, a line."""
    if kind in ("client_json", "client_line"):
        yield payload
    elif kind == "client_sse" and isinstance(payload, str):
        for line in payload.split("\n"):
            # An event has its data after its name; a packet of CAP may be the line itself.
            if line.startswith(("data:", "{")):
                data = line.removeprefix("data:")
                event = loads(data)
                yield data.strip() if event is None else event


class AnswerReader:
    """Takes what was sent, in any of the protocols."""

    def __init__(self) -> None:
        self._items: dict[str, dict[str, Any]] = {}
        self._done: list[dict[str, Any]] | None = None
        self._status: str | None = None
        self._choices: dict[int, _ChatChoice] = {}
        self._id: str | None = None
        self._error: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None
        self._assist = AssistAnswer()

    @property
    def has_begun(self) -> bool:
        """Whether anything was said."""
        return bool(self._items or self._done or self._choices or self._error) or self._assist.has_begun

    def take(self, event: Any) -> None:
        """The next event, or the whole body. What is no object says nothing."""
        if not isinstance(event, dict) or self._assist.take(event):
            return
        kind = text_of(event.get("type"))
        if isinstance(event.get("error"), dict):
            self._error = event["error"]
        elif kind == "error":
            self._error = {name: value for name, value in event.items() if name in ("code", "message", "param")}
        if isinstance(event.get("choices"), list):
            self._chat(event)
        elif event.get("object") == "response" or isinstance(event.get("output"), list):
            self._response(event)
        elif kind in _DELTAS:
            index = event.get("summary_index" if "summary" in kind else "content_index")
            self._piece(_item_key(event), _DELTAS[kind], text_of(event.get("delta")), index)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            if isinstance(event.get("item"), dict):
                self._items[_item_key(event)] = event["item"].copy()
        elif isinstance(event.get("response"), dict):
            self._response(event["response"], final=kind in _ENDS)
            if kind in _ENDS:
                self._status = self._status or kind.removeprefix("response.")
        elif kind.startswith("content_block_"):
            self._block(event)

    def answer(self) -> Answer:
        """What was said until now."""
        assist = self._assist
        if assist.has_begun:
            parts = [
                Part("assistant", said.kind, "".join(said.pieces), said.name, said.call_id) for said in assist.said
            ]
            return Answer([Choice(parts, assist.finish_reason)], error=assist.error, usage=assist.usage)
        if self._choices:
            choices = [choice.whole() for _, choice in sorted(self._choices.items())]
        else:
            items = self._done or [_joined(item) for item in self._items.values()]
            choices = [Choice(parts_from_items(items), self._status)]
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

    def _piece(self, key: str, of: tuple[str, str], text: str, index: Any = 0) -> None:
        made, where = of
        item = self._items.setdefault(key, {"type": made, "role": "assistant"})
        parts = item.setdefault(_PIECES, {}).setdefault(where, {})
        parts.setdefault(index if isinstance(index, int) else 0, []).append(text)

    def _block(self, event: dict[str, Any]) -> None:
        key, block = text_of(event.get("index")), member(event, "content_block")
        if text_of(member(block, "type")).endswith("tool_use"):
            call = {"name": member(block, "name"), "call_id": member(block, "id"), "arguments": member(block, "input")}
            self._items[key] = {"type": "function_call"} | {name: value or "" for name, value in call.items()}
        for said in (block, event.get("delta")):
            for name, of in _BLOCKS.items():
                if text := member(said, name):
                    self._piece(key, of, text_of(text))

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
        self._text.append(joined_text(said.get("content") or said.get("refusal")))
        thoughts = (said.get(name) for name in ("reasoning_content", "reasoning"))
        self._thoughts.append(next((thought for thought in thoughts if isinstance(thought, str)), ""))
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


def _item_key(event: dict[str, Any]) -> str:
    """What an item is known by; not everybody gives it an id."""
    item = event.get("item")
    named = event.get("item_id") or member(item, "id") or member(item, "call_id")
    return text_of(named or event.get("output_index"))


def _joined(item: dict[str, Any]) -> dict[str, Any]:
    """An item that may never have been finished, with the deltas that came of it."""
    whole = {name: value for name, value in item.items() if name != _PIECES}
    for where, parts in item.get(_PIECES, {}).items():
        texts = ["".join(deltas) for _, deltas in sorted(parts.items())]
        is_text = where in ("arguments", "input")
        whole[where] = texts[0] if is_text else [{"type": "output_text", "text": text} for text in texts]
    return whole
