"""What the model is shown: the client's conversation and instructions in the forms that Codex accepts. Pure.

A child of the current dialect gets the history item by item, and the rest in the parameters of thread/start and
turn/start. A child without `thread/inject_items`, and one of the legacy dialect, gets the conversation as one text
(payloads §2): every line is labelled, and images split the text. Reasoning items alone are left out of it: they are
encrypted for the provider and mean nothing as text.

`guard` escapes tags in what the client sent, so that the model is not shown a foreign well-formed tool call.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from bridge import exact_json
from bridge.appserver.turn import ChildSettings
from bridge.core.events import ToolCall
from bridge.core.images import document_refusal, inspect_image
from bridge.core.items import (
    Document,
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    Item,
    Message,
    Part,
    Text,
    ToolChoice,
)
from bridge.core.thoughts import own_items
from bridge.core.turn import CODEX_TIERS, Turn
from bridge.errors import InvalidRequest
from bridge.protocols.responses.build import build_item, join_output
from bridge.tools.instructions import build_instructions, can_enforce, format_text, join_developer_text
from bridge.tools.payload import arguments_of, arguments_or_none, neutralise, neutralise_parts, text_of
from bridge.tools.schema import compact_json


def flatten(items: Iterable[Item], *, guard_tags: bool) -> list[Part]:
    """Text and image parts of the whole conversation, never empty.

    System and developer messages are not in it: they belong to the instructions. With `guard_tags`, tags inside the
    texts are escaped, so that the model is not shown a foreign well-formed call.
    """
    parts: list[Part] = []
    lines: list[str] = []
    for item in items:
        for line in _lines_of(item, guard_tags):
            if isinstance(line, str):
                lines.append(line)
                continue
            if lines:
                parts.append(Text("\n".join(lines)))
                lines = []
            parts.append(line)
    if lines or not parts:
        parts.append(Text("\n".join(lines) or "[user]"))
    return parts


def _lines_of(item: Item, guard: bool) -> list[str | Image]:
    """The lines and images of one item."""
    if isinstance(item, Message):
        return _labelled(f"[{item.role}] ", item.parts, guard) if item.role in ("user", "assistant") else []
    if isinstance(item, FunctionCall):
        arguments = _guard(arguments_of(item.arguments) if item.custom else item.arguments, guard)
        return [f"[function_call call_id={item.call_id} name={item.full_name} arguments={arguments}]"]
    if isinstance(item, FunctionOutput):
        return _labelled(f"[function_call_output call_id={item.call_id} output=", item.parts, guard, close="]")
    if item.type == "reasoning":
        return []
    return [f"[{item.type} {_guard(compact_json(dict(item.data)), guard)}]"]


def _labelled(label: str, parts: Iterable[Part], guard: bool, close: str = "") -> list[str | Image]:
    """These parts after a label, on a line of its own where an image follows it."""
    lines: list[str | Image] = []
    for part in parts:
        if isinstance(part, Text):
            lines.append(label + _guard(part.text, guard))
        elif isinstance(part, Document):
            raise document_refusal(part, "Codex")
        else:
            lines += [label.rstrip(), part] if label else [part]
        label = ""
    if label:
        lines.append(label if close else label.rstrip())
    last = lines[-1]
    if close and isinstance(last, str):
        lines[-1] = last + close
    elif close:
        lines.append(close)
    return lines


def system_texts(items: Iterable[Item], *, guard_tags: bool) -> list[str]:
    """The texts of system and developer messages, in order."""
    return [
        _guard(item.text, guard_tags)
        for item in items
        if isinstance(item, Message) and item.role in ("system", "developer") and item.text
    ]


def tool_text(turn: Turn) -> str:
    """The injected text that offers the client's tools; empty without any."""
    if turn.tool_text is not None:
        return turn.tool_text
    return build_instructions(turn.functions, turn.tool_choice, parallel=turn.parallel)


def client_instructions(turn: Turn, *, guard_tags: bool) -> str | None:
    """The client's `instructions`, guarded like every other text of its."""
    return None if turn.instructions is None else _guard(turn.instructions, guard_tags)


def _guard(text: str, guard_tags: bool) -> str:
    return neutralise(text) if guard_tags else text


# The current dialect


def build_thread_start(
    turn: Turn, settings: ChildSettings, *, history_as_text: bool, native: NativeTools | None = None, raw: bool = False
) -> dict[str, Any]:
    """Parameters of thread/start. Sandbox, approval and directory are the operator's, never the client's."""
    guard = turn.parses_tool_calls and native is None
    keep_system = history_as_text and not settings.drops_system_prompt(turn, "current")
    texts = system_texts(turn.items, guard_tags=guard) if keep_system else []
    tools = tool_text(turn) if native is None else native.choice_text(turn.tool_choice)
    params: dict[str, Any] = {
        "model": turn.model,
        "cwd": settings.workdir,
        # Codex 0.143 removed `on-failure`. The bridge declines every approval, so `on-request` means the same.
        "approvalPolicy": "on-request" if settings.approval_policy == "on-failure" else settings.approval_policy,
        "sandbox": settings.sandbox_mode,
        "ephemeral": True,
        "developerInstructions": join_developer_text(
            tools, client_instructions(turn, guard_tags=guard), *texts, format_text(turn)
        ),
    }
    if turn.provider is not None:
        params["modelProvider"] = turn.provider
    if not settings.native_tools:
        params["baseInstructions"] = ""
    if turn.service_tier in CODEX_TIERS:
        params["serviceTier"] = turn.service_tier
    if native is not None and (specs := native.specs()):
        params["dynamicTools"] = specs
    if raw:
        params["experimentalRawEvents"] = True
    if config := _config(turn, settings):
        params["config"] = config
    return params


def _config(turn: Turn, settings: ChildSettings) -> dict[str, Any]:
    """Settings of this thread alone. What the client may choose among, the operator has allowed."""
    config: dict[str, Any] = {}
    search = turn.web_search
    if search is not None and settings.web_search != "off":
        config["web_search"] = "cached" if "cached" in (search.mode, settings.web_search) else "live"
        asked = {
            "allowed_domains": list(search.allowed_domains),
            "context_size": search.context_size,
            "location": dict(search.location),
        }
        if options := {name: value for name, value in asked.items() if value}:
            # A path, not a nested table: that would replace the whole of `tools`, and what is switched off there.
            config["tools.web_search"] = options
    if turn.verbosity is not None:
        config["model_verbosity"] = turn.verbosity
    return config


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
        # `ultra` is `max` with subagents of Codex's own, which are off; left to Codex it would become less than `max`.
        params["effort"] = "max" if turn.effort == "ultra" else turn.effort
    params["summary"] = turn.summary or "auto"
    if turn.output_format is not None and can_enforce(turn.output_format):
        params["outputSchema"] = turn.output_format.schema
    return params


def build_items(turn: Turn, settings: ChildSettings, native: NativeTools | None = None) -> list[dict[str, Any]]:
    """The history as Responses items, in the forms that `thread/inject_items` keeps.

    Codex drops `system` messages (so they become `developer`), replaces low-detail images by a text, and refuses
    the whole list for one remote image. Other providers' thoughts are left out.
    """
    guard = turn.parses_tool_calls and native is None
    keep_system = not settings.drops_system_prompt(turn, "current")
    return [
        build_item(_codex_item(item, guard, native))
        for item in own_items(turn)
        if keep_system or not (isinstance(item, Message) and item.role in ("system", "developer"))
    ]


def split_input(items: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(what to inject, the turn's input) for a child that refuses empty input.

    A text of the user's at the end is the input: it reaches the model as if it had been injected. Anything else would
    not (Codex puts tags around images, and has no tool outputs in an input), so it is injected and followed by an empty
    text, which adds an empty message.
    """
    last = items[-1]
    if last.get("role") == "user" and last["content"] and all(part["type"] == "input_text" for part in last["content"]):
        return items[:-1], [{"type": "text", "text": part["text"]} for part in last["content"]]
    return items, [{"type": "text", "text": ""}]


def _codex_item(item: Item, guard: bool, native: NativeTools | None) -> Item:
    """An item in a form that Codex keeps, with escaped tags where `guard` is set."""
    if isinstance(item, Message):
        return Message("developer" if item.role == "system" else item.role, _parts(item.parts, guard))
    if isinstance(item, FunctionCall) and native is not None:
        arguments = arguments_of(item.arguments) if item.custom else item.arguments
        return FunctionCall(item.call_id, native.name_of(item.full_name), arguments)
    if isinstance(item, FunctionCall):
        namespace = None if item.namespace is None else wire_name(item.namespace)
        arguments = _guard(item.arguments, guard)
        return replace(item, name=wire_name(item.name), namespace=namespace, arguments=arguments)
    if isinstance(item, FunctionOutput):
        joined = join_output(item)
        # A custom tool is offered natively as a function; its earlier calls are then calls of that function.
        return replace(joined, parts=_parts(joined.parts, guard), custom=item.custom and native is None)
    # In JSON a tag looks the same as in the text.
    return replace(item, data=exact_json.loads(neutralise(compact_json(item.data)))) if guard else item


def _parts(parts: Sequence[Part], guard: bool) -> tuple[Part, ...]:
    texts = [part.text for part in parts if isinstance(part, Text)]
    guarded = iter(neutralise_parts(texts) if guard else texts)
    return tuple(Text(next(guarded)) if isinstance(part, Text) else _image(part) for part in parts)


def _image(image: Image | Document) -> Image:
    if isinstance(image, Document):
        raise document_refusal(image, "Codex")
    if image.url[:5].lower() != "data:":
        raise InvalidRequest(
            "Codex does not accept remote images. Send the image as a data URL (data:image/png;base64,…).",
            code="unsupported_image_url",
        )
    inspect_image(image.url)
    # For `low` Codex would send a sentence instead of the image. Some versions refuse `auto`, which is the default.
    return replace(image, detail=image.detail if image.detail in ("high", "original") else None)


def build_tool_result(output: FunctionOutput) -> dict[str, Any]:
    """The answer to `item/tool/call`. Codex turns a single text into a string, the form that injected outputs have."""
    items: list[dict[str, Any]] = [{"type": "inputText", "text": output.text}]
    if not all(isinstance(part, Text) for part in output.parts):
        items = [
            {"type": "inputText", "text": part.text}
            if isinstance(part, Text)
            else {"type": "inputImage", "imageUrl": _image(part).url}
            for part in output.parts
        ]
    return {"contentItems": items, "success": True}


# Native tools: the client's functions as Codex's `dynamicTools` (Codex 0.145 and later), the provider's own function
# calling instead of text. Codex asks for the output of a call with `item/tool/call`. The client has its answer when the
# provider's response is complete, and sends the outputs with its next request; until then Codex waits.

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
