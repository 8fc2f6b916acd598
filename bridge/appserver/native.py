"""Native tools: the client's functions as Codex's `dynamicTools` (Codex 0.145 and later).

The provider's own function calling is used instead of text. Codex would wait for the results of the calls; we collect
the calls until its provider has finished, give them to the client, and interrupt the turn. The next request brings
the whole history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bridge.tools.freeform import arguments_or_none, text_of
from bridge.turn.events import ToolCall
from bridge.turn.items import FunctionTool, ToolChoice

FIRST_VERSION = (0, 145)
"""The first Codex that tells when a response of the provider's is complete."""

_BAD = re.compile(r"[^A-Za-z0-9_-]")
MAX_NAME = 64

CODEX_TOOLS = frozenset(
    {
        "apply_patch",
        "close_agent",
        "create_goal",
        "exec",
        "exec_command",
        "get_goal",
        "image_gen",
        "image_generation",
        "list_mcp_resource_templates",
        "list_mcp_resources",
        "local_shell",
        "mcp",
        "multi_tool_use",
        "read_mcp_resource",
        "request_permissions",
        "request_user_input",
        "resume_agent",
        "send_input",
        "send_message",
        "shell",
        "shell_command",
        "sleep",
        "spawn_agent",
        "tool_search",
        "tool_suggest",
        "update_goal",
        "update_plan",
        "view_image",
        "wait",
        "wait_agent",
        "web_search",
        "write_stdin",
    }
)
"""Names of Codex's own tools. It drops a client's function of such a name without a word, or runs its own instead."""

MCP = "mcp__"
"""How the names of Codex's own MCP tools begin; it refuses them from anybody else."""

_CHOICES = {
    "required": "You must call at least one of the functions.",
    "named": "You must call the function {name}.",
}


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
                "inputSchema": tool.parameters
                if isinstance(tool.parameters, dict)
                else {"type": "object", "properties": {}},
            }
            for name, tool in self._functions.items()
        ]

    def name_of(self, full_name: str) -> str:
        """What a function of the client's is called here, in the history too."""
        return self._names.get(full_name) or wire_name(full_name)

    def call_of(self, item: dict[str, Any]) -> ToolCall | None:
        """The call in a raw `function_call` item; None when it is none of the client's functions."""
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
