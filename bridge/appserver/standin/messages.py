"""Codex's messages: the stand-in's, those that a recording lacks, and recorded ones under new ids. Pure."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from bridge.appserver.dialect import BEGINS, PROMPTS, Dialect

Message = dict[str, Any]


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
    return {"error": {"code": REFUSED, "message": message}}


def methods_of(dialects: Iterable[Dialect], called: Iterable[str] = ()) -> list[str]:
    """The methods of a child without a list of its own."""
    known = [*called, "initialize", "model/list", "account/read"]
    for dialect in dialects:
        known += _METHODS[dialect]
    return list(dict.fromkeys(known))


def refusal(method: str, known: Iterable[str]) -> str:
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


# Recorded ids become the ids of this process, in every message of a turn alike
#
# Ids are found by the names of members in Codex's own objects, not by searching texts: what a model, a client or a tool
# writes is never changed, even if it looks like an id.

Kind = Literal["thread", "turn", "item", "subscription"]

_MEMBERS: dict[str, Kind] = {
    "threadId": "thread",
    "thread_id": "thread",
    "conversationId": "thread",
    "conversation_id": "thread",
    "sessionId": "thread",
    "session_id": "thread",
    "turnId": "turn",
    "turn_id": "turn",
    "rootTurnId": "turn",
    "itemId": "item",
    "item_id": "item",
    "callId": "item",
    "call_id": "item",
    "subscriptionId": "subscription",
}
_OBJECTS: dict[str, Kind | None] = {
    "thread": "thread",
    "turn": "turn",
    "item": "item",
    "msg": None,
    "readState": None,
    "firstUnread": None,
    "internal_chat_message_metadata_passthrough": None,
}
"""Objects to look into, and what their `id` names."""
_LISTS: dict[tuple[Kind | None, str], Kind] = {("turn", "items"): "item", ("thread", "turns"): "turn"}
_PATHS = frozenset({("thread", "path"), (None, "rolloutPath")})
"""Files that are named after their thread."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class UniqueIds:
    """The ids that this process has given out."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._count = itertools.count(1)

    def give(self, recorded: str) -> str:
        """The recorded id where it is free, else one of the same form."""
        name = recorded
        while name in self._used:
            number = next(self._count)
            name = f"00000000-0000-4000-a000-{number:012x}" if _UUID.fullmatch(recorded) else f"{recorded}-{number}"
        self._used.add(name)
        return name

    def fresh(self) -> str:
        """An id where nothing is recorded."""
        return self.give("00000000-0000-4000-a000-000000000000")


class IdMap:
    """Maps recorded ids to those of one live thread, which may replay several recorded ones."""

    def __init__(self, ids: UniqueIds, thread: str) -> None:
        self.requests: dict[Any, int] = {}
        """The child's own requests: recorded ids and ours."""
        self._ids = ids
        self._thread = thread
        self._threads: set[str] = set()
        self._given: dict[tuple[Kind, str], str] = {}
        self._played: set[object] = set()

    def begin(self, position: object, thread: str | None) -> None:
        """A recorded call begins. One that is replayed again gets new ids for its turn and items."""
        if position in self._played:
            self._given.clear()
        self._played.add(position)
        if thread is not None:
            self._threads.add(thread)

    def message(self, message: Message) -> Message:
        """A reply, a notification or a request with our ids."""
        named: Kind | None = "turn" if str(message.get("method")).startswith("codex/event/") else None
        changed = {
            part: self._object(message[part], named)
            for part in ("params", "result")
            if isinstance(message.get(part), dict)
        }
        return message | changed

    def _object(self, node: dict[str, Any], kind: Kind | None, /) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        for name, value in node.items():
            named = kind if name == "id" else _MEMBERS.get(name)
            if name == "requestId" and isinstance(value, str | int):
                known = self.requests.get(value, value)
                value = str(known) if isinstance(value, str) else known
            elif isinstance(value, str) and value and named is not None:
                value = self._id(named, value)
            elif isinstance(value, str) and (kind, name) in _PATHS:
                for thread in self._threads:
                    value = value.replace(thread, self._thread)
            elif isinstance(value, dict) and name in _OBJECTS:
                value = self._object(value, _OBJECTS[name])
            elif isinstance(value, list) and (inner := _LISTS.get((kind, name))) is not None:
                value = [self._object(entry, inner) if isinstance(entry, dict) else entry for entry in value]
            changed[name] = value
        return changed

    def _id(self, kind: Kind, recorded: str) -> str:
        if kind == "thread":
            return self._thread if recorded in self._threads else recorded
        if (kind, recorded) not in self._given:
            self._given[kind, recorded] = self._ids.give(recorded)
        return self._given[kind, recorded]
