"""What is said where a recording is silent: replies that were cut off, and the ends of turns that have none. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bridge.appserver.standin.tape import BEGINS, PROMPTS, Dialect, Message
from bridge.appserver.standin.voices import CurrentVoice, LegacyVoice

REFUSED = -32600
"""Codex has one code for everything that is wrong with a call."""

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
    """The reply to a call that is refused."""
    return {"error": {"code": REFUSED, "message": message}}


def methods_of(dialects: Iterable[Dialect], called: Iterable[str]) -> list[str]:
    """The methods of a child whose list of them is not on record."""
    known = [*called, "initialize", "model/list", "account/read"]
    for dialect in dialects:
        known += _METHODS[dialect]
    return list(dict.fromkeys(known))


def refusal(method: str, known: Iterable[str]) -> str:
    """What an unknown method is told."""
    return f"Invalid request: unknown variant `{method}`, expected one of " + ", ".join(f"`{name}`" for name in known)


def model_list(models: Iterable[str]) -> Message:
    """The models that turns were asked of."""
    names = list(dict.fromkeys(models))
    return {"result": {"data": [{"id": name, "model": name, "isDefault": name == names[0]} for name in names]}}


def reply_to(method: str, params: Message, thread: str, fresh: str) -> Message | None:
    """The reply to a call of a thread; None where nothing sensible can be said. `fresh` is an id for what it makes."""
    if method in BEGINS:
        result: dict[str, Any] = {"model": params.get("model")}
        result |= {"thread": {"id": thread}} if BEGINS[method] == "current" else {"conversationId": thread}
        return {"result": result}
    if method in PROMPTS:
        started: dict[str, Any] = {"turn": {"id": fresh, "items": [], "status": "inProgress", "error": None}}
        return {"result": started if "/" in method else {}}
    if method == "addConversationListener":
        return {"result": {"subscriptionId": fresh}}
    if method == "thread/unsubscribe":
        return {"result": {"status": "unsubscribed"}}
    if method in ("thread/inject_items", "removeConversationListener", "archiveConversation"):
        return {"result": {}}
    return None


def interrupted(dialect: Dialect, thread: str, turn: Message, asker: Any) -> list[Message]:
    """The end of a turn that `asker` has interrupted, in the order in which Codex tells it."""
    done = turn | {"status": "interrupted", "items": [], "error": None}
    idle = {"method": "thread/status/changed", "params": {"threadId": thread, "status": {"type": "idle"}}}
    completed = {"method": "turn/completed", "params": {"threadId": thread, "turn": done}}
    if dialect == "current":
        return [{"id": asker, "result": {}}, idle, completed]
    event = {"type": "turn_aborted", "turn_id": turn["id"], "reason": "interrupted"}
    aborted = {"id": turn["id"], "msg": event, "conversationId": thread}
    return [
        {"method": "codex/event/turn_aborted", "params": aborted},
        {"id": asker, "result": {"abortReason": "interrupted"}},
        idle,
        completed,
    ]


def failed(dialect: Dialect, thread: str, turn: Message, message: str) -> list[Message]:
    """The end of a turn that cannot go on."""
    current = CurrentVoice(thread, turn["id"]).failed(message, "other")
    return current if dialect == "current" else [*LegacyVoice(thread, turn["id"]).failed(message, "other"), current[-1]]
