"""TurnEvents as the lines of `exec --json`: wire protocol v0 (docs/exec-wire.md).

The lines are a subset of the Responses API's events, with the members that an orchestrator needs. After the items comes
one `response.completed` or one `error`, and nothing more. A call that is cut off is never done, so that it is not run.
"""

from __future__ import annotations

from typing import Any

from orjson import dumps

from bridge.core.events import Finished, Restarted, TurnEvent, Usage
from bridge.errors import BridgeError, UpstreamError
from bridge.protocols.client import Json, NewId
from bridge.protocols.responses.item_encoder import TEXT_DELTA, DeltaFrame, ItemEncoder, OpenCall
from bridge.protocols.sse import interrupted, restart_error

INCOMPLETE = {
    "max_output_tokens": "The answer is incomplete: the model reached its limit of tokens.",
    "content_filter": "The answer is incomplete: the provider's content filter cut it off.",
}

_EVENTS: dict[str, tuple[str, ...]] = {
    "response.content_part.added": ("item_id", "part"),
    TEXT_DELTA: ("item_id",),
    "response.reasoning_text.delta": ("item_id", "content_index"),
    "response.reasoning_summary_text.delta": ("item_id", "summary_index"),
    "response.function_call_arguments.delta": ("item_id",),
    "response.custom_tool_call_input.delta": ("item_id",),
    **{f"response.web_search_call.{state}": ("item_id",) for state in ("in_progress", "searching", "completed")},
}
"""The events of the wire beside those of whole items, and their members in order; a delta has its piece, too."""
_ADDED = ("id", "type", "role", "call_id", "name", "namespace")
_DONE = (*_ADDED, "arguments", "input", "summary", "content", "encrypted_content")
_SEARCHED = ("id", "type", "status", "action")
"""The members of an item when it is added and when it is done."""


class WireEncoder(ItemEncoder):
    """One run. Call `begin` once, then `feed` until `finished`; `fail` ends it from outside."""

    def __init__(self, model: str, new_id: NewId) -> None:
        super().__init__(new_id)
        self._about = {"id": new_id("resp"), "model": model}

    def __repr__(self) -> str:
        return f"<WireEncoder {self._about['id']} finished={self.finished}>"

    def begin(self) -> list[bytes]:
        """The line before the answer."""
        return [dumps({"type": "response.created", "response": self._about})]

    def feed(self, events: list[TurnEvent]) -> list[bytes]:
        """The lines for a batch of events, without line ends."""
        self._encode(events)
        return self._take()

    def fail(self, error: BridgeError) -> list[bytes]:
        """The line for a failure outside the backend; no line after the end."""
        if not self.finished:
            self._fail(error)
        return self._take()

    def _delta_frame(self, kind: str, where: Json) -> DeltaFrame:
        kept = {name: where[name] for name in _EVENTS[kind]}
        return dumps({"type": kind, **kept})[:-1] + b',"delta":', b"}"

    def _write_deltas(self, frame: DeltaFrame, pieces: list[str]) -> None:
        head, end = frame
        self._out += [b"%b%b%b" % (head, dumps(piece), end) for piece in pieces]

    def _emit(self, kind: str, **members: Any) -> None:
        if kind in ("response.output_item.added", "response.output_item.done"):
            kept: Json = {"item": _item(members["item"], is_done=kind.endswith("done"))}
        elif kind in _EVENTS:
            kept = {name: members[name] for name in _EVENTS[kind]}
            if "part" in kept:
                kept["part"] = _part(kept["part"])
        else:
            return
        self._out.append(dumps({"type": kind, **kept}))

    def _close_call(self, opened: OpenCall, status: str) -> None:
        if status == "completed":
            super()._close_call(opened, status)

    def _restart(self, event: Restarted) -> None:
        if self.visible:
            self._fail(restart_error(event))

    def _finish(self, end: Finished) -> None:
        self._close_open("completed")
        if end.outcome == "incomplete":
            reason = end.reason or "incomplete"
            message = INCOMPLETE.get(reason, f"The answer is incomplete ({reason}).")
            self._fail(UpstreamError(message, code=reason))
        elif end.outcome != "completed":
            self._fail(end.error or interrupted())
        else:
            spent = self.usage or Usage()
            usage = {"input_tokens": spent.input, "output_tokens": spent.output, "cached_tokens": spent.cached}
            self._out.append(dumps({"type": "response.completed", "response": {**self._about, "usage": usage}}))
            self.finished = True

    def _fail(self, error: BridgeError) -> None:
        self.finished = True
        self.failure = error
        self._out.append(error_line(error))

    def _take(self) -> list[bytes]:
        lines, self._out = self._out, []
        return lines


def error_line(error: BridgeError) -> bytes:
    """The last line of a run that failed, perhaps before it began."""
    # A message can quote command-line arguments, which need not be UTF-8.
    message = error.message.encode("utf-8", "replace").decode() or f"The run failed ({error.code})."
    return dumps({"type": "error", "message": message, "code": error.code})


def _item(item: Json, *, is_done: bool) -> Json:
    names = _ADDED if not is_done else _SEARCHED if item["type"] == "web_search_call" else _DONE
    kept = {name: item[name] for name in names if name in item}
    if "content" in kept:
        kept["content"] = [_part(part) for part in kept["content"]]
    return kept


def _part(part: Json) -> Json:
    return {"type": part["type"], "text": part["text"]}
