"""Requests of the child: approvals and questions, which are declined, and calls of the client's functions.

Native tools are the client's functions as Codex's `dynamicTools` (Codex 0.145 and later): the provider's own function
calling instead of text. Codex asks for the output of a call with `item/tool/call`. The client has its answer when the
provider's response is complete, and sends the outputs with its next request; until then Codex waits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from bridge.appserver.dialect import TOOL_CALL
from bridge.appserver.turn import RunningTurn
from bridge.core.events import ToolCall
from bridge.core.items import FunctionTool, ToolChoice
from bridge.tools.payload import arguments_or_none, text_of

PARKED = 15.0
"""How many seconds a request for an output waits for the end of the answer that contains the call."""

_BAD = re.compile(r"[^A-Za-z0-9_-]")
MAX_NAME = 64

CODEX_TOOLS = frozenset({
    "apply_patch", "close_agent", "create_goal", "exec", "exec_command", "get_goal", "image_gen", "image_generation",
    "list_mcp_resource_templates", "list_mcp_resources", "local_shell", "mcp", "multi_tool_use", "read_mcp_resource",
    "request_permissions", "request_user_input", "resume_agent", "send_input", "send_message", "shell",
    "shell_command", "sleep", "spawn_agent", "tool_search", "tool_suggest", "update_goal", "update_plan",
    "view_image", "wait", "wait_agent", "web_search", "write_stdin",
})  # fmt: skip
"""Names of Codex's own tools. It silently drops a client's function of such a name, or runs its own instead."""

MCP = "mcp__"
"""How the names of Codex's own MCP tools begin; it refuses such names from clients."""

_ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
_CHOICES = {"required": "You must call at least one of the functions.", "named": "You must call the function {name}."}


def wire_name(name: str) -> str:
    """A name as the Responses API allows it in calls."""
    return _BAD.sub("_", name)[:MAX_NAME]


class NativeTools:
    """The functions of one turn under names that are Codex's to offer, and the way back."""

    def __init__(self, functions: Iterable[FunctionTool]) -> None:
        self._functions: dict[str, FunctionTool] = {}
        self._names: dict[str, str] = {}
        for tool in functions:
            name = self._free_name(tool)
            self._functions[name] = tool
            self._names[tool.full_name] = name

    def specs(self) -> list[dict[str, Any]]:
        """The value of `dynamicTools`."""
        return [
            {
                "type": "function",
                "name": name,
                "description": tool.description or "",
                "inputSchema": tool.parameters if isinstance(tool.parameters, dict) else _ANY_OBJECT,
            }
            for name, tool in self._functions.items()
        ]

    def name_of(self, full_name: str) -> str:
        """What a function of the client's is called here, in the history too."""
        return self._names.get(full_name) or wire_name(full_name)

    def call_of(self, item: dict[str, Any]) -> ToolCall | None:
        """The call in a raw `function_call` item; None if its name is not that of a client's function."""
        tool = self._functions.get(item["name"])
        if tool is None:
            return None
        call_id, arguments = item["call_id"], item["arguments"]
        if not isinstance(call_id, str) or not isinstance(arguments, str):
            raise TypeError(item)
        return ToolCall(
            f"ctc_{call_id}" if tool.custom else str(item.get("id") or f"fc_{call_id}"),
            call_id,
            tool.name,
            text_of(arguments) if tool.custom else arguments_or_none(arguments),
            namespace=tool.namespace,
            custom=tool.custom,
        )

    def choice_text(self, choice: ToolChoice) -> str:
        """The developer text for a choice, since Codex always leaves it to the model; empty for `auto`."""
        return _CHOICES.get(choice.mode, "").replace("{name}", self.name_of(choice.name or ""))

    def _free_name(self, tool: FunctionTool) -> str:
        name = wire_name(tool.full_name.replace(".", "__") if tool.namespace else tool.name)
        if name in CODEX_TOOLS or name.startswith(MCP):
            name = f"client_{name}"[:MAX_NAME]
        taken, number = name, 2
        while taken in self._functions:
            taken = f"{name[: MAX_NAME - 4]}_{number}"
            number += 1
        return taken


# What we answer when the child asks. A request without a reply stalls its turn for ever, so every one gets a reply:
# approvals are declined, questions to the user stay empty, everything unknown is an error (which Codex treats as a
# refusal and continues).

ANSWERS: dict[str, dict[str, Any]] = {
    # the current dialect
    "item/commandExecution/requestApproval": {"decision": "decline"},
    "item/fileChange/requestApproval": {"decision": "decline"},
    "item/tool/requestUserInput": {"answers": {}},
    "mcpServer/elicitation/request": {"action": "decline"},
    TOOL_CALL: {"contentItems": [{"type": "inputText", "text": "this tool is not available"}], "success": False},
    # the legacy dialect
    "execCommandApproval": {"decision": "denied"},
    "applyPatchApproval": {"decision": "denied"},
}
"""What is answered, by method."""

REFUSALS = {"item/permissions/requestApproval": "permissions are not granted through the bridge"}
"""Methods that are answered with an error, and why."""


def answer_tool_call(line: bytes, output_of: Callable[[str], dict[str, Any] | None]) -> bytes | None:
    """The reply to `item/tool/call`, where the output of that call is known."""
    message = orjson.loads(line)
    call_id = message["params"].get("callId")
    result = output_of(call_id) if isinstance(call_id, str) else None
    return None if result is None else orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})


def answer_request(line: bytes) -> bytes:
    """The reply line (without newline) to one request of the child's.

    jsonrpcserver's synchronous dispatch does the work, with a validator that lets everything pass: the default one
    insists on a `jsonrpc` member, which Codex leaves out. (Its asynchronous dispatch needs asyncio.) It brings five
    megabytes along, so it is loaded when a child first asks.
    """
    from jsonrpcserver import Error, Success, dispatch_to_serializable

    answers = {method: Success(result) for method, result in ANSWERS.items()}
    answers |= {method: Error(code=-32000, message=why) for method, why in REFUSALS.items()}
    methods = {method: partial(_answer, answer) for method, answer in answers.items()}
    reply = dispatch_to_serializable(line, methods=methods, deserializer=orjson.loads, validator=lambda _: None)
    return orjson.dumps(reply)


def _answer(answer: Any, /, *_: Any, **__: Any) -> Any:
    return answer


@dataclass(slots=True, eq=False)
class _Open:
    """An open request for an output."""

    key: str
    line: bytes
    running: RunningTurn | None
    until: float


class OpenToolCalls:
    """The child's open requests for outputs. `reply` sends the answer to one: (request, answer, thread)."""

    def __init__(self, reply: Callable[[bytes, bytes, str], None]) -> None:
        self._reply = reply
        self._open: list[_Open] = []

    def add(self, key: str, line: bytes) -> None:
        """Leave a request open until the conversation continues."""
        self._open.append(_Open(key, line, None, math.inf))

    def park(self, key: str, line: bytes, running: RunningTurn, now: float) -> float:
        """Leave a request open while the answer that contains the call is not complete; when it is to be declined."""
        self._open.append(_Open(key, line, running, now + PARKED))
        return now + PARKED

    def answer(self, key: str, output_of: Callable[[str], dict[str, Any] | None]) -> None:
        """Answer the requests of a thread whose outputs are known; Codex asks for one after the other."""
        for each in [each for each in self._open if each.key == key]:
            if (reply := answer_tool_call(each.line, output_of)) is not None:
                self._open.remove(each)
                self._reply(each.line, reply, key)

    def forget(self, key: str) -> None:
        self._open = [each for each in self._open if each.key != key]

    def answer_late(self, now: float, waiting: Container[RunningTurn | None]) -> float:
        """Decline what has been open for too long, for turns that still have a consumer; the next deadline.

        If the stream breaks after a call, Codex reports that only once the call is answered.
        """
        for each in [each for each in self._open if each.until <= now]:
            each.until = math.inf
            if each.running is not None and each.running in waiting:
                self._open.remove(each)
                each.running.give_up_thread()
                self._reply(each.line, answer_request(each.line), each.key)
        return min((each.until for each in self._open), default=math.inf)
