"""CAP as it stands in a log: what a request wishes for, what packets or a whole answer say. Any form is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.protolog.loose import dumps, member, objects, text_of

_OPS = ("delta", "event", "error", "close")
_TOKENS = ("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
_TOOL = "tool: "
_WEB_SEARCH = "web_search"


def wishes_of(body: Any) -> dict[str, Any]:
    """`meta` of a ServiceRequest; the names under `codex` win."""
    meta = member(body, "payload", "meta")
    own = member(meta, "codex")
    plain = {name: value for name, value in meta.items() if name != "codex"} if isinstance(meta, dict) else {}
    return plain | (own if isinstance(own, dict) else {})


def has_empty_pieces(stream: bytes) -> bool:
    """Whether packets tell pieces without text. No bridge sends such; `log redact` leaves them."""
    return b'"op":"delta","p":""' in stream or b'"data":{"thought":"",' in stream


@dataclass(slots=True)
class Said:
    """One thing that an answer says: a text, reasoning, a call, a search, or other; in the pieces that it came in."""

    kind: str
    pieces: list[str]
    name: str = ""
    call_id: str = ""


class AssistAnswer:
    """An answer in CAP, put together again from its packets, or from the one object that it is."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.error: dict[str, Any] | None = None
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self._open: dict[tuple[str, str], Said] = {}
        """Thoughts that are told piece by piece."""

    @property
    def has_begun(self) -> bool:
        """Whether anything was said."""
        return bool(self.said or self.error or self.finish_reason)

    def take(self, told: dict[str, Any]) -> bool:
        """A packet, a ServiceResponse or a StreamError; False when it is none of them."""
        if told.get("op") in _OPS and "type" not in told:
            self._packet(told["op"], told.get("p"))
        elif isinstance(told.get("output"), dict) and "request_id" in told:
            self._whole(told["output"], told.get("metrics"))
        elif isinstance(told.get("message"), str) and told.get("severity") in ("transient", "fatal"):
            self._fail(told)
        else:
            return False
        return True

    def _packet(self, op: str, payload: Any) -> None:
        if op == "delta":
            self._text(text_of(payload))
        elif op == "error":
            self._fail(payload if isinstance(payload, dict) else {"message": text_of(payload)})
        elif op == "close":
            self.finish_reason = self.finish_reason or "completed"
        elif isinstance(data := member(payload, "data"), dict):
            self._event(text_of(member(payload, "type")), data)

    def _whole(self, output: dict[str, Any], metrics: Any) -> None:
        for name, kind in (("reasoning", "thought_trace"), ("tool_calls", "tool_call")):
            for data in objects(output.get(name)):
                self._event(kind, data)
        self._text(text_of(output.get("text")))
        if output.get("citations"):
            self._event("citation_block", {"items": output["citations"]})
        for notice in objects(output.get("notices")):
            self._event("user_error", notice)
        self.finish_reason = text_of(output.get("status")) or "completed"
        if isinstance(metrics, dict):
            self._event("metrics", metrics)

    def _event(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "thought_trace":
            self._thought(data)
        elif kind == "tool_call":
            if data.get("state") != "running":
                self._call(text_of(data.get("tool")), data.get("arguments"), text_of(data.get("call_id")))
        elif kind == "progress_indicator":
            label = text_of(data.get("label"))
            if label.startswith(_TOOL) and data.get("status") == "complete":
                self._call(label.removeprefix(_TOOL), None, "")
        elif kind == "metrics":
            self.usage = {name: data[name] for name in _TOKENS if name in data} or None
        elif kind == "citation_block":
            self.said.append(Said("other", [dumps(data.get("items"))], kind))
        else:
            if kind == "user_error" and isinstance(data.get("reason"), str):
                self.finish_reason = "incomplete"
            self.said.append(Said("other", [text_of(data.get("message") or data.get("content") or data)], kind))

    def _call(self, name: str, arguments: Any, call_id: str) -> None:
        """A call of the client's; or a search, which somebody else has made."""
        if name == _WEB_SEARCH:
            self.said.append(Said("search", [text_of(member(arguments, "query"))], name, call_id))
        else:
            self.said.append(Said("call", [text_of(arguments)], name, call_id))

    def _text(self, text: str) -> None:
        if text and self.said and self.said[-1].kind == "text":
            self.said[-1].pieces.append(text)
        elif text:
            self.said.append(Said("text", [text]))

    def _thought(self, data: dict[str, Any]) -> None:
        """A thought, or what is new of one; told whole, it counts more than its pieces."""
        key = text_of(data.get("item_id")), text_of(data.get("index"))
        text, begun = text_of(data.get("thought")), self._open.get(key)
        if begun is None:
            begun = Said("reasoning", [])
            self.said.append(begun)
        if data.get("final") is False:
            self._open[key] = begun
            begun.pieces.append(text)
        else:
            self._open.pop(key, None)
            begun.pieces = [text]

    def _fail(self, error: dict[str, Any]) -> None:
        self.error, self.finish_reason = error, "failed"
