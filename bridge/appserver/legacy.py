"""The legacy dialect: newConversation, sendUserTurn, sendUserMessage (seed 003; Codex up to 0.107).

The three builders give the documented payloads key for key, in the documented order. Around them the server needs a
listener before the turn and its removal after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from bridge.appserver.failures import COMPACTED, finished_from_error
from bridge.appserver.prompt import client_instructions, flatten, system_texts, tool_text
from bridge.appserver.turn import Call, ChildSettings, Flow, RunningTurn, usage_from
from bridge.core.events import Acted, Usage, UsageUpdate
from bridge.core.items import FunctionTool, Text
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.tools.instructions import join_developer_text

EFFORTS = (None, "none", "minimal", "low", "medium", "high", "xhigh")
Sends = Literal["both", "turn", "message"]


class LegacyTurn(RunningTurn):
    """One turn in the legacy dialect. `sends` says which of the two sending calls are made.

    `used` is what the conversation has used before: nothing here, but a replayed transcript may hold several turns.
    Clients do not get the web searches of this dialect; a log reader does (`with_searches`).
    """

    def __init__(
        self,
        turn: Turn,
        settings: ChildSettings,
        *,
        sends: Sends,
        used: Usage | None = None,
        with_searches: bool = False,
    ) -> None:
        super().__init__()
        self._with_searches = with_searches
        self._used = used or Usage()
        self._turn = turn
        self._settings = settings
        self._sends = sends
        self._subscription: str | None = None
        self._rollout: str | None = None
        self._named = False
        """Messages come with their ids; a child that leaves them out is read by its plain events instead."""
        self._plain_item = 0

    def begin(self) -> Flow:
        if self._turn.effort not in EFFORTS:
            fault = f"This version of Codex does not support reasoning effort {self._turn.effort!r}."
            raise InvalidRequest(fault, param="reasoning_effort")
        result = yield Call(
            "newConversation",
            build_new_conversation(self._turn, self._settings),
            claim=lambda result: str(result["conversationId"]),
        )
        conversation = result["conversationId"]
        self._rollout = result.get("rolloutPath")
        result = yield Call("addConversationListener", {"conversationId": conversation, "experimentalRawEvents": False})
        self._subscription = result.get("subscriptionId")
        if self._sends != "message":
            alone = self._sends == "turn"
            # To the document's child the two calls are one prompt, and it may answer neither before it has both.
            yield Call(
                "sendUserTurn", build_send_user_turn(self._turn, self._settings, conversation, alone=alone), waits=alone
            )
        if self._sends != "turn":
            params = build_send_user_message(self._turn, self._settings, conversation)
            yield Call("sendUserMessage", params)

    @property
    def ends_with_usage(self) -> bool:
        # Two calls are two prompts to a real Codex.
        return self._sends != "both" and not self._settings.native_tools

    def interrupt(self) -> Call | None:
        # On a conversation without a turn Codex never answers it.
        return Call("interruptConversation", {"conversationId": self.key}) if self.key and self.prompted else None

    def end(self) -> list[Call]:
        calls = []
        if self._subscription is not None:
            calls.append(Call("removeConversationListener", {"subscriptionId": self._subscription}))
        if self.key is not None and self._rollout is not None:
            # Else Codex keeps threads and files of every conversation open, until it can open no more.
            calls.append(Call("archiveConversation", {"conversationId": self.key, "rolloutPath": self._rollout}))
        return calls

    def receive(self, method: str, params: dict[str, Any]) -> None:
        if method.startswith("codex/event"):
            message = params["msg"]
            read = _EVENTS.get(message["type"])
            if read is not None:
                read(self, message)

    def _open_run(self, item: str, delta: str) -> None:
        self._named = self._named or item != self._plain_id()
        super()._open_run(item, delta)

    def _plain_id(self) -> str:
        return f"message-{self._plain_item}"

    def _delta(self, message: dict[str, Any], item: str | None = None) -> None:
        if not isinstance(message["delta"], str):
            raise TypeError(message["delta"])
        self.text(message["item_id"] if item is None else item, message["delta"])

    def _plain_delta(self, message: dict[str, Any]) -> None:
        if not self._named:
            self._delta(message, self._plain_id())

    def _plain_message(self, message: dict[str, Any]) -> None:
        if not self._named:
            self.text_done(self._plain_id(), message["message"])
            self._plain_item += 1

    def _item_completed(self, message: dict[str, Any]) -> None:
        item = message["item"]
        kind = item["type"].lower()
        if kind == "agentmessage":
            self._named = True
            self.text_done(item["id"], "".join(part["text"] for part in item["content"]))
        elif kind == "reasoning":
            self.reasoning_done(item["id"], item.get("summary_text") or [], item.get("raw_content") or [])
        elif kind == "websearch" and self._with_searches:
            self.searched(item["id"], {"query": item.get("query")})

    def _summary(self, message: dict[str, Any]) -> None:
        self.reasoning(message["item_id"], message.get("summary_index", 0), message["delta"], raw=False)

    def _thought(self, message: dict[str, Any]) -> None:
        self.reasoning(message["item_id"], message.get("content_index", 0), message["delta"], raw=True)

    def _token_count(self, message: dict[str, Any]) -> None:
        info = message.get("info")
        if info is None:
            return
        # A conversation counts from its beginning.
        self.usage(UsageUpdate(read_counts(info.get("total_token_usage") or info["last_token_usage"]) - self._used))

    def _error(self, message: dict[str, Any]) -> None:
        self.fail_later(finished_from_error(str(message.get("message")), message.get("codex_error_info")))

    def _compacted(self, message: dict[str, Any]) -> None:
        if not self._settings.native_tools:
            self.fail(COMPACTED)

    def _task_complete(self, message: dict[str, Any]) -> None:
        """The end, of a failed turn too: an `error` came before it then."""
        last = message.get("last_agent_message")
        if not self._said and isinstance(last, str) and last:
            self.text_done("message-last", last)
        self.complete()


_EVENTS: dict[str, Callable[[LegacyTurn, dict[str, Any]], None]] = {
    "agent_message_content_delta": LegacyTurn._delta,
    "agent_message_delta": LegacyTurn._plain_delta,
    "agent_message": LegacyTurn._plain_message,
    "item_completed": LegacyTurn._item_completed,
    "reasoning_content_delta": LegacyTurn._summary,
    "reasoning_raw_content_delta": LegacyTurn._thought,
    "exec_command_begin": lambda turn, _: turn.add(Acted()),
    "patch_apply_begin": lambda turn, _: turn.add(Acted()),
    "mcp_tool_call_begin": lambda turn, _: turn.add(Acted()),
    "token_count": LegacyTurn._token_count,
    "stream_error": lambda turn, message: turn.restart(str(message.get("message"))),
    "error": LegacyTurn._error,
    "context_compacted": LegacyTurn._compacted,
    "turn_aborted": lambda turn, _: turn.cancelled(),
    "task_complete": LegacyTurn._task_complete,
}
"""Every event that a turn reads."""


def read_counts(counts: dict[str, Any]) -> Usage:
    """Usage as Codex counts it for a conversation. Raises KeyError or TypeError for anything else."""
    return usage_from(
        counts["input_tokens"],
        counts.get("cached_input_tokens", 0),
        counts["output_tokens"],
        counts.get("reasoning_output_tokens", 0),
    )


def choose_sends(
    wanted: Literal["auto", "both", "turn", "message"], turn: Turn, *, is_codex: bool, skip_turn: bool
) -> Sends:
    """Which sending calls a request makes (payloads §1, "Which of the two sends, really").

    The document sends both, and for responses the message alone when `skip_turn` is set. A real Codex takes the second
    call for a second prompt, so it gets one.
    """
    if wanted in ("turn", "message"):
        return wanted
    if turn.legacy_form == "responses" and skip_turn:
        return "message"
    return "turn" if wanted == "auto" and is_codex else "both"


def lost_fields(turn: Turn, sends: Sends, *, is_codex: bool) -> list[str]:
    """The fields of a turn that these calls do not bring to the model.

    A real Codex reads nothing of `sendUserMessage` but its items.
    """
    chat, has_turn, has_message = turn.legacy_form == "chat", sends != "message", sends != "turn" and not is_codex
    has_effort = (has_turn and (chat or sends == "turn")) or (has_message and not chat)
    wanted = turn.output_format
    names = []
    if wanted is not None and (wanted.schema is None or not (has_turn or has_message)):
        names.append("text.format")
    if turn.effort is not None and not has_effort:
        names.append("reasoning.effort")
    if turn.summary is not None and not has_turn:
        names.append("reasoning.summary")
    return names


def build_new_conversation(turn: Turn, settings: ChildSettings) -> dict[str, Any]:
    """Parameters of newConversation (seed 003 §1)."""
    params: dict[str, Any] = {
        "model": turn.model,
        "cwd": settings.workdir,
        "approvalPolicy": settings.approval_policy,
        "sandbox": settings.sandbox_mode,
    }
    if turn.provider is not None:
        params["modelProvider"] = turn.provider
    developer = developer_instructions(turn)
    if developer is not None:
        params["developerInstructions"] = developer
    return params | {
        "baseInstructions": _base_instructions(turn, settings),
        "compactPrompt": None,
        "config": None,
        "includeApplyPatchTool": settings.include_apply_patch_tool,
    }


def build_send_user_turn(
    turn: Turn, settings: ChildSettings, conversation_id: str, *, alone: bool = False
) -> dict[str, Any]:
    """Parameters of sendUserTurn (seed 003 §2).

    The effort stands here for chat only, because responses carry it in the message; when the turn is sent `alone` no
    message follows, and it stands here for both.
    """
    params: dict[str, Any] = {
        "conversationId": conversation_id,
        "items": _items(turn),
        "cwd": settings.workdir,
        "approvalPolicy": settings.approval_policy,
        "sandboxPolicy": {"type": settings.sandbox_mode},
        "model": turn.model,
        "summary": turn.summary or "auto",
    }
    if turn.effort is not None and (turn.legacy_form == "chat" or alone):
        params["effort"] = turn.effort
    if turn.n is not None:
        params |= {"choiceCount": turn.n, "choice_count": turn.n}
    params |= _tools(turn, settings)
    schema = turn.output_format.schema if turn.output_format else None
    params |= {"outputSchema": schema, "output_schema": schema}
    developer = developer_instructions(turn)
    if developer is not None:
        params["developerInstructions"] = developer
    return params


def build_send_user_message(turn: Turn, settings: ChildSettings, conversation_id: str) -> dict[str, Any]:
    """Parameters of sendUserMessage (seed 003 §3)."""
    chat = turn.legacy_form == "chat"
    temperature = turn.temperature if chat else None
    top_p = turn.top_p if chat else None
    params: dict[str, Any] = {
        "conversationId": conversation_id,
        "items": _items(turn),
        "includeUsage": turn.include_usage,
        "include_usage": turn.include_usage,
        "stream": bool(turn.stream),
        "temperature": temperature,
        "topP": top_p,
        "top_p": top_p,
    }
    if turn.max_output_tokens is not None:
        params |= {"maxOutputTokens": turn.max_output_tokens, "max_output_tokens": turn.max_output_tokens}
    params |= _tools(turn, settings)
    raw = dict(turn.output_format.raw) if turn.output_format else None
    schema = turn.output_format.schema if turn.output_format else None
    params |= {"responseFormat": raw, "response_format": raw}
    if turn.effort is not None and not chat:
        params["reasoning"] = {"effort": turn.effort}
    return params | {"finalOutputJsonSchema": schema, "final_output_json_schema": schema}


def developer_instructions(turn: Turn) -> str | None:
    """The injected text, then `instructions`, then (responses only) the system and developer items."""
    guard = turn.parses_tool_calls
    texts = system_texts(turn.items, guard_tags=guard) if not turn.system_messages_are_prompt else []
    return join_developer_text(tool_text(turn), client_instructions(turn, guard_tags=guard), *texts)


def _base_instructions(turn: Turn, settings: ChildSettings) -> str | None:
    if not turn.system_messages_are_prompt or settings.drops_system_prompt(turn, "legacy"):
        return None
    return join_developer_text(*system_texts(turn.items, guard_tags=turn.parses_tool_calls))


def _items(turn: Turn) -> list[dict[str, Any]]:
    return [
        {"type": "text", "data": {"text": part.text}}
        if isinstance(part, Text)
        else {"type": "image", "data": {"image_url": part.url}}
        for part in flatten(turn.items, guard_tags=turn.parses_tool_calls)
    ]


def _tools(turn: Turn, settings: ChildSettings) -> dict[str, Any]:
    if not turn.tools or settings.omit_tool_manifest:
        return {}
    functions = [_definition(tool) for tool in turn.functions]
    others = [dict(tool.data) for tool in turn.tools if not isinstance(tool, FunctionTool)]
    return {"tools": {"definitions": functions + others}}


def _definition(tool: FunctionTool) -> dict[str, Any]:
    if tool.raw is not None:
        return {"type": "custom", **tool.raw}
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = {} if tool.parameters is None else tool.parameters
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}
