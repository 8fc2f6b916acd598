"""The current dialect: thread/start, thread/inject_items, turn/start (Codex 0.79 and later).

A turn is stateless: an ephemeral thread, the whole history injected item by item, a turn with empty input. A child
without `thread/inject_items` gets the conversation as text instead.
"""

from __future__ import annotations

from typing import Any

import orjson

from bridge.appserver.failures import finished_from_error
from bridge.appserver.routes import Call, Flow, RunningTurn, usage_from
from bridge.appserver.settings import ChildSettings
from bridge.appserver.transcript import client_instructions, flatten, system_texts, tool_text
from bridge.errors import InvalidRequest
from bridge.tools.instructions import join_developer_text
from bridge.tools.schema import compact_json
from bridge.tools.tags import neutralise
from bridge.turn.events import Finished, Usage, UsageUpdate
from bridge.turn.items import FunctionCall, FunctionOutput, Image, Item, Message, Part, Text
from bridge.turn.turn import Turn

OPT_OUT = (
    "configWarning",
    "warning",
    "deprecationNotice",
    "remoteControl/status/changed",
    "thread/started",
    "thread/status/changed",
    "thread/readState/changed",
    "item/started",
)
"""Notifications that say nothing we use."""


class CurrentDecoder:
    """Reads the current dialect from the wire. Its `codex/event/*` twins (0.79 to 0.107) are skipped."""

    delta = b'{"method":"item/agentMessage/delta","params":{'
    skip = (b'{"method":"codex/event/',)

    def read_delta(self, line: bytes) -> tuple[str, str, str]:
        params = orjson.loads(line)["params"]
        item, delta = params["itemId"], params["delta"]
        if type(delta) is not str or type(item) is not str:
            raise TypeError(params)
        return params["threadId"], item, delta


class CurrentTurn(RunningTurn):
    """One turn in the current dialect."""

    def __init__(self, turn: Turn, settings: ChildSettings, *, can_inject: bool) -> None:
        super().__init__()
        self._turn = turn
        self._settings = settings
        self._can_inject = can_inject
        self._turn_id: str | None = None

    def begin(self) -> Flow:
        result = yield Call(
            "thread/start",
            build_thread_start(self._turn, self._settings, history_as_text=not self._can_inject),
            claim=lambda result: str(result["thread"]["id"]),
        )
        thread_id = result["thread"]["id"]
        if self._can_inject:
            items = build_items(self._turn, self._settings)
            if not items:
                raise InvalidRequest(
                    "Nothing but system messages, which are left out here: there is nothing to answer."
                )
            yield Call("thread/inject_items", {"threadId": thread_id, "items": items})
        result = yield Call(
            "turn/start",
            build_turn_start(self._turn, thread_id, history_as_text=not self._can_inject),
        )
        self._turn_id = result["turn"]["id"]

    def interrupt(self) -> Call | None:
        if self.key is None or self._turn_id is None:
            return None
        return Call("turn/interrupt", {"threadId": self.key, "turnId": self._turn_id})

    def end(self) -> list[Call]:
        return [] if self.key is None else [Call("thread/unsubscribe", {"threadId": self.key})]

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method == "item/agentMessage/delta":
            if not isinstance(params["delta"], str):
                raise TypeError(params["delta"])
            self.text(params["itemId"], params["delta"])
        elif method == "item/reasoning/summaryTextDelta":
            self.reasoning(params["itemId"], params.get("summaryIndex", 0), params["delta"], raw=False)
        elif method == "item/reasoning/textDelta":
            self.reasoning(params["itemId"], params.get("contentIndex", 0), params["delta"], raw=True)
        elif method == "item/completed":
            self._item_completed(params["item"])
        elif method == "thread/tokenUsage/updated":
            self.usage(UsageUpdate(_usage(params["tokenUsage"])))
        elif method == "turn/started":
            self._turn_id = params["turn"]["id"]
        elif method == "error":
            self._error(params)
        elif method == "turn/completed":
            self._turn_completed(params["turn"])

    def _item_completed(self, item: dict[str, Any]) -> None:
        if item["type"] == "agentMessage":
            self.text_done(item["id"], item["text"])
        elif item["type"] == "reasoning":
            self.reasoning_done(item["id"], item.get("summary") or [], item.get("content") or [])

    def _error(self, params: dict[str, Any]) -> None:
        error = params["error"]
        if params.get("willRetry"):
            self.restart(str(error.get("message")))
        else:
            self.fail_later(_failure(error))

    def _turn_completed(self, turn: dict[str, Any]) -> None:
        status = turn.get("status")
        if status == "interrupted":
            self.cancelled()
            return
        if status != "completed":
            self.fail_later(_failure(turn.get("error")))
        for item in turn.get("items") or ():
            # Only what no notification brought: a message is complete once, and then known.
            if item.get("type") == "agentMessage" and item.get("id") not in self._streamed:
                self._item_completed(item)
        self.complete()


def build_thread_start(turn: Turn, settings: ChildSettings, *, history_as_text: bool) -> dict[str, Any]:
    """Parameters of thread/start. Sandbox, approval and directory are the operator's, never the client's."""
    guard = turn.parses_tool_calls
    texts = system_texts(_system_items(turn, settings), guard_tags=guard) if history_as_text else []
    params: dict[str, Any] = {
        "model": turn.model,
        "cwd": settings.workdir,
        "approvalPolicy": settings.approval_policy,
        "sandbox": settings.sandbox_mode,
        "ephemeral": True,
        "developerInstructions": join_developer_text(tool_text(turn), client_instructions(turn), *texts),
    }
    if not settings.native_tools:
        params["baseInstructions"] = ""
    return params


def build_turn_start(turn: Turn, thread_id: str, *, history_as_text: bool) -> dict[str, Any]:
    """Parameters of turn/start: empty input when the history was injected."""
    params: dict[str, Any] = {"threadId": thread_id, "input": []}
    if history_as_text:
        parts = flatten(turn.items, guard_tags=turn.parses_tool_calls)
        params["input"] = [
            {"type": "text", "text": part.text} if isinstance(part, Text) else {"type": "image", "url": part.url}
            for part in parts
        ]
    if turn.effort is not None:
        params["effort"] = turn.effort
    params["summary"] = turn.summary or "auto"
    if turn.output_format is not None and turn.output_format.schema is not None:
        params["outputSchema"] = turn.output_format.schema
    return params


def build_items(turn: Turn, settings: ChildSettings) -> list[dict[str, Any]]:
    """The history as Responses items, in the forms that `thread/inject_items` keeps.

    Codex drops `system` messages (so they become `developer`), replaces low-detail images by a text, and refuses
    the whole list for one remote image.
    """
    guard = turn.parses_tool_calls
    keep_system = not settings.drops_system_prompt(turn.endpoint, "current")
    return [
        _item(item, guard)
        for item in turn.items
        if keep_system or not (isinstance(item, Message) and item.role in ("system", "developer"))
    ]


def _system_items(turn: Turn, settings: ChildSettings) -> tuple[Item, ...]:
    return () if settings.drops_system_prompt(turn.endpoint, "current") else turn.items


def _item(item: Item, guard: bool) -> dict[str, Any]:
    if isinstance(item, Message):
        kind = "output_text" if item.role == "assistant" else "input_text"
        return {
            "type": "message",
            "role": "developer" if item.role == "system" else item.role,
            "content": [_part(part, kind, guard) for part in item.parts],
        }
    if isinstance(item, FunctionCall):
        return {
            "type": "function_call",
            "call_id": item.call_id,
            "name": item.name,
            "arguments": neutralise(item.arguments) if guard else item.arguments,
        }
    if isinstance(item, FunctionOutput):
        plain = all(isinstance(part, Text) for part in item.parts)
        output: Any = (
            (neutralise(item.text) if guard else item.text)
            if plain
            else [_part(part, "input_text", guard) for part in item.parts]
        )
        return {"type": "function_call_output", "call_id": item.call_id, "output": output}
    if guard:
        # In JSON a tag looks the same as in the text.
        return dict(orjson.loads(neutralise(compact_json(item.data))))
    return dict(item.data)


def _part(part: Part, kind: str, guard: bool) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": kind, "text": neutralise(part.text) if guard else part.text}
    return _image(part)


def _image(image: Image) -> dict[str, Any]:
    if not image.url.startswith("data:"):
        raise InvalidRequest(
            "Codex takes no remote images. Send the image as a data URL (data:image/png;base64,…).",
            code="unsupported_image_url",
        )
    detail = image.detail if image.detail in ("high", "original") else "auto"
    return {"type": "input_image", "image_url": image.url, "detail": detail}


def _failure(error: Any) -> Finished:
    if not isinstance(error, dict):
        return finished_from_error(str(error or "The turn failed; Codex did not say why."), None)
    return finished_from_error(str(error.get("message")), error.get("codexErrorInfo"), error.get("additionalDetails"))


def _usage(token_usage: dict[str, Any]) -> Usage:
    # The thread is this turn's alone, so its total is the turn's, however many model calls there were.
    counts = token_usage["total"]
    return usage_from(
        counts["inputTokens"],
        counts.get("cachedInputTokens", 0),
        counts["outputTokens"],
        counts.get("reasoningOutputTokens", 0),
    )
