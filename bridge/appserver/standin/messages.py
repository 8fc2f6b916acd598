"""Codex's messages in each dialect: those of the stand-in, and those that a recording lacks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bridge.appserver.dialect import BEGINS, PROMPTS, Dialect
from bridge.appserver.standin.recorded import Message


class CurrentNotifications:
    """Notifications of the current dialect. `used` is what the thread has used so far, and is kept up to date."""

    def __init__(self, thread: str, turn: str, used: Counter[str] | None = None) -> None:
        self._used: Counter[str] = Counter() if used is None else used
        self._before = Counter(self._used)
        self._base = {"threadId": thread, "turnId": turn}
        self._turn = turn
        self._thread = thread
        self._text: list[str] = []

    def started(self) -> list[Message]:
        return [_note("turn/started", {"threadId": self._thread, "turn": self._turn_object("inProgress")})]

    def delta(self, item: str, delta: str) -> list[Message]:
        self._text.append(delta)
        return [_note("item/agentMessage/delta", {**self._base, "itemId": item, "delta": delta})]

    def message_done(self, item: str, text: str) -> list[Message]:
        done = {"type": "agentMessage", "id": item, "text": text, "phase": None}
        return [_note("item/completed", {"item": done, **self._base})]

    def reasoning(self, item: str, index: int, delta: str, *, raw: bool) -> list[Message]:
        name, position = ("textDelta", "contentIndex") if raw else ("summaryTextDelta", "summaryIndex")
        return [_note(f"item/reasoning/{name}", {**self._base, "itemId": item, "delta": delta, position: index})]

    def reasoning_done(self, item: str, summary: list[str], content: list[str]) -> list[Message]:
        done = {"type": "reasoning", "id": item, "summary": summary, "content": content}
        return [_note("item/completed", {"item": done, **self._base})]

    def usage(self, counts: dict[str, int]) -> list[Message]:
        """What the turn has used so far; a thread counts on."""
        self._used.clear()
        self._used.update(self._before + Counter(counts))
        usage = {"total": _tokens(self._used), "last": _tokens(counts)}
        return [_note("thread/tokenUsage/updated", {**self._base, "tokenUsage": usage})]

    def retry(self, message: str) -> list[Message]:
        return [_note("error", {"error": self._error(message, None), "willRetry": True, **self._base})]

    def failed(self, message: str, info: Any) -> list[Message]:
        error = self._error(message, info)
        return [
            _note("error", {"error": error, "willRetry": False, **self._base}),
            _note("turn/completed", {"threadId": self._thread, "turn": self._turn_object("failed", error)}),
        ]

    def completed(self) -> list[Message]:
        return [_note("turn/completed", {"threadId": self._thread, "turn": self._turn_object("completed")})]

    def interrupted(self) -> list[Message]:
        return [_note("turn/completed", {"threadId": self._thread, "turn": self._turn_object("interrupted")})]

    def _turn_object(self, status: str, error: Any = None) -> Message:
        return {"id": self._turn, "items": [], "status": status, "error": error}

    def _error(self, message: str, info: Any) -> Message:
        return {"message": message, "codexErrorInfo": info, "additionalDetails": None}


class LegacyNotifications:
    """Notifications of the legacy dialect; each delta in three spellings, as Codex 0.107 sends it.

    A conversation is one turn's alone: what it has `used` is nothing.
    """

    def __init__(self, conversation: str, turn: str, used: Counter[str] | None = None) -> None:
        self._conversation = conversation
        self._turn = turn
        self._ids = {"thread_id": conversation, "turn_id": turn}
        self._last: str | None = None

    def started(self) -> list[Message]:
        return [self._event("task_started", {"turn_id": self._turn})]

    def delta(self, item: str, delta: str) -> list[Message]:
        twin = {"threadId": self._conversation, "turnId": self._turn, "itemId": item, "delta": delta}
        return [
            self._event("agent_message_content_delta", {**self._ids, "item_id": item, "delta": delta}),
            {"method": "item/agentMessage/delta", "params": twin},
            self._event("agent_message_delta", {"delta": delta}),
        ]

    def message_done(self, item: str, text: str) -> list[Message]:
        self._last = text
        done = {"type": "AgentMessage", "id": item, "content": [{"type": "Text", "text": text}]}
        return [
            self._event("item_completed", {**self._ids, "item": done}),
            self._event("agent_message", {"message": text}),
        ]

    def reasoning(self, item: str, index: int, delta: str, *, raw: bool) -> list[Message]:
        name, position = (
            ("reasoning_raw_content_delta", "content_index") if raw else ("reasoning_content_delta", "summary_index")
        )
        return [self._event(name, {**self._ids, "item_id": item, "delta": delta, position: index})]

    def reasoning_done(self, item: str, summary: list[str], content: list[str]) -> list[Message]:
        done = {"type": "Reasoning", "id": item, "summary_text": summary, "raw_content": content}
        return [self._event("item_completed", {**self._ids, "item": done})]

    def usage(self, counts: dict[str, int]) -> list[Message]:
        total = {
            "input_tokens": counts.get("input", 0),
            "cached_input_tokens": counts.get("cached", 0),
            "output_tokens": counts.get("output", 0),
            "reasoning_output_tokens": counts.get("reasoning", 0),
            "total_tokens": counts.get("input", 0) + counts.get("output", 0),
        }
        return [self._event("token_count", {"info": {"total_token_usage": total, "last_token_usage": total}})]

    def retry(self, message: str) -> list[Message]:
        return [self._event("stream_error", {"message": message})]

    def failed(self, message: str, info: Any) -> list[Message]:
        return [
            self._event("error", {"message": message, "codex_error_info": info}),
            self._event("task_complete", {"last_agent_message": None}),
        ]

    def completed(self) -> list[Message]:
        return [self._event("task_complete", {"last_agent_message": self._last})]

    def interrupted(self) -> list[Message]:
        return [self._event("turn_aborted", {"turn_id": self._turn, "reason": "interrupted"})]

    def _event(self, kind: str, members: Message) -> Message:
        return {
            "method": f"codex/event/{kind}",
            "params": {
                "id": self._turn,
                "msg": {"type": kind, **members},
                "conversationId": self._conversation,
            },
        }


Notifications = CurrentNotifications | LegacyNotifications


def _tokens(counts: Mapping[str, int]) -> Message:
    return {
        "totalTokens": counts.get("input", 0) + counts.get("output", 0),
        "inputTokens": counts.get("input", 0),
        "cachedInputTokens": counts.get("cached", 0),
        "outputTokens": counts.get("output", 0),
        "reasoningOutputTokens": counts.get("reasoning", 0),
    }


def _note(method: str, params: Message) -> Message:
    return {"method": method, "params": params, "emittedAtMs": 0}


# Replies: those of the stand-in, and those that a recording lacks

REFUSED = -32600
"""Codex has one code for every invalid call."""

NO_TURN = "no active turn to interrupt"

_METHODS: dict[Dialect, tuple[str, ...]] = {
    "current": ("thread/start", "turn/start", "turn/interrupt", "thread/unsubscribe"),
    "legacy": (
        "newConversation",
        "addConversationListener",
        "sendUserTurn",
        "sendUserMessage",
        "interruptConversation",
        "removeConversationListener",
        "archiveConversation",
    ),
}


def error(message: str) -> Message:
    """The reply to a rejected call."""
    return {"error": {"code": REFUSED, "message": message}}


def methods_of(dialects: Iterable[Dialect], called: Iterable[str] = ()) -> list[str]:
    """The methods of a child without a list of its own."""
    known = [*called, "initialize", "model/list", "account/read"]
    for dialect in dialects:
        known += _METHODS[dialect]
    return list(dict.fromkeys(known))


def refusal(method: str, known: Iterable[str]) -> str:
    """The error message for an unknown method."""
    return f"Invalid request: unknown variant `{method}`, expected one of " + ", ".join(f"`{name}`" for name in known)


def model_list(models: Iterable[str], default: str | None = None) -> Message:
    """A list of these models; without a `default` it is the first."""
    names = list(dict.fromkeys(models))
    default = default or next(iter(names), None)
    return {"result": {"data": [{"id": name, "model": name, "isDefault": name == default} for name in names]}}


def reply_to(method: str, params: Message, thread: str, fresh: str) -> Message | None:
    """A made-up reply to an accepted call, or None. `fresh` is the id of what the call creates."""
    if method in BEGINS:
        result: dict[str, Any] = {"model": params.get("model")}
        result |= {"thread": {"id": thread}} if BEGINS[method] == "current" else {"conversationId": thread}
        return {"result": result}
    if method in PROMPTS:
        started: dict[str, Any] = {"turn": {"id": fresh, "items": [], "status": "inProgress", "error": None}}
        return {"result": started if "/" in method else {}}
    results: dict[str, dict[str, Any]] = {
        "account/read": {"account": None, "requiresOpenaiAuth": False},
        "thread/inject_items": {},
        "turn/interrupt": {},
        "thread/unsubscribe": {"status": "unsubscribed"},
        "addConversationListener": {"subscriptionId": fresh},
        "interruptConversation": {"abortReason": "interrupted"},
        "removeConversationListener": {},
        "archiveConversation": {},
    }
    return {"result": results[method]} if method in results else None


# The ends of turns that a recording lacks


def interrupted(dialect: Dialect, thread: str, turn: str, asker: Any) -> list[Message]:
    """The end of a turn that the call `asker` interrupted, in the order in which Codex sends it."""
    idle = {"method": "thread/status/changed", "params": {"threadId": thread, "status": {"type": "idle"}}}
    end = [idle, *CurrentNotifications(thread, turn).interrupted()]
    if dialect == "current":
        return [{"id": asker, "result": {}}, *end]
    reply = {"id": asker, "result": {"abortReason": "interrupted"}}
    return [*LegacyNotifications(thread, turn).interrupted(), reply, *end]


def failed(dialect: Dialect, thread: str, turn: str, message: str) -> list[Message]:
    """The end of a turn that cannot continue."""
    current = CurrentNotifications(thread, turn).failed(message, "other")
    if dialect == "current":
        return current
    return [*LegacyNotifications(thread, turn).failed(message, "other"), current[-1]]
