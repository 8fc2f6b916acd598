"""`exec`: its options become a Turn, and TurnEvents the lines of `exec --json`, wire protocol v0 (docs/exec-wire.md).

The lines are a subset of the Responses API's events, with the members that an orchestrator needs. After the items comes
one `response.completed` or one `error`, and nothing more. A call that is cut off is never done, so that it is not run.
An option with an error raises UsageError, which names the flag and the file.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

import orjson
from orjson import dumps

from bridge import exact_json
from bridge.core.events import Finished, Restarted, TurnEvent, Usage
from bridge.core.items import FunctionTool, Item, Message, OutputFormat, RawItem, RawTool, Text, Tool, ToolChoice
from bridge.errors import BridgeError, InvalidRequest, UpstreamError, UsageError
from bridge.protocols.client import Json, NewId
from bridge.protocols.items import read_items, read_name
from bridge.protocols.reading import Effort, check_depth
from bridge.protocols.responses.item_encoder import TEXT_DELTA, DeltaFrame, ItemEncoder, OpenCall
from bridge.protocols.sse import incomplete_message, interrupted, restart_error

# Options

EFFORTS: tuple[str, ...] = get_args(Effort)
WEB_SEARCH = RawTool("web_search", {"type": "web_search", "external_web_access": True})

_TOOL = re.compile(r"(?P<name>[^=]+?):(?P<form>json|inline)=(?P<value>.*)", re.DOTALL)
_SESSION = re.compile(r"[!-~]{1,256}")


def split_tool(spec: str) -> tuple[str, str, str]:
    """`name:json=PATH` or `name:inline={…}`: the name, which form, and the rest."""
    found = _TOOL.fullmatch(spec)
    if found is None or not found["value"]:
        raise UsageError(f"--tool {spec[:80]}: write NAME:json=PATH or NAME:inline={{…}}.")
    try:
        name = read_name(found["name"], "name")
    except InvalidRequest:
        raise UsageError(
            f"--tool {found['name'][:80]}: a function's name has 1 to 128 letters, digits or any of _ . : -"
        ) from None
    return name, found["form"], found["value"]


def read_json(text: bytes, what: str) -> Any:
    """JSON in an option or a file; `what` names it in messages. Some editors begin a file with a byte-order mark."""
    text = text.removeprefix(codecs.BOM_UTF8)
    if not text.strip():
        raise UsageError(f"{what} is empty; it must hold JSON.")
    try:
        data = exact_json.loads(text)
        check_depth([data])
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{what} is not valid JSON: {error}") from None
    except InvalidRequest:
        raise UsageError(f"{what} is nested too deep.") from None
    return data


def read_schema(text: bytes, what: str) -> dict[str, Any]:
    """A JSON Schema, which must be an object."""
    schema = read_json(text, what)
    if not isinstance(schema, dict):
        raise UsageError(f"{what} must hold a JSON Schema, which is an object.")
    return schema


def make_tools(schemas: Iterable[tuple[str, Mapping[str, Any]]], web_search: bool) -> tuple[Tool, ...]:
    """The tools of a run; parameters as they are, never strict."""
    tools: dict[str, Tool] = {}
    for name, schema in schemas:
        if name in tools:
            raise UsageError(f"--tool {name}: there are two tools of this name.")
        tools[name] = FunctionTool(name, None, schema, strict=False)
    return (*tools.values(), WEB_SEARCH) if web_search else tuple(tools.values())


def read_choice(text: str | None, tools: Sequence[Tool]) -> ToolChoice:
    """`auto`, `required` or `function:NAME`."""
    names = [tool.name for tool in tools if isinstance(tool, FunctionTool)]
    if text is None or text == "auto":
        return ToolChoice()
    if text == "required":
        if not tools:
            raise UsageError("--tool-choice required: no tool is declared. Add one with --tool.")
        return ToolChoice("required")
    kind, _, name = text.partition(":")
    if kind != "function" or not name:
        raise UsageError(f"--tool-choice {text[:80]}: write auto, required or function:NAME.")
    if name not in names:
        known = f"--tool declares {', '.join(names)}" if names else "no --tool declares any"
        raise UsageError(f"--tool-choice {text[:80]}: unknown function; {known}.")
    return ToolChoice("named", name)


def read_outputs(pairs: Sequence[str]) -> dict[str, str]:
    """`name=value` of each --tool-output."""
    outputs: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--tool-output {pair[:80]}: write NAME=VALUE.")
        if name in outputs:
            raise UsageError(f"--tool-output {name}: it is given twice.")
        outputs[name] = value
    return outputs


def read_instructions(instructions: str | None, system: str | None, append: str | None) -> str | None:
    """The system prompt: --instructions and --system are one setting; what is appended follows after a blank line."""
    if instructions is not None and system is not None and instructions != system:
        raise UsageError("--instructions and --system are the same setting; give one of them.")
    base = instructions if instructions is not None else system
    return "\n\n".join(text for text in (base, append) if text) or None


def read_prompt(text: str, what: str) -> tuple[Item, ...]:
    """The prompt as a message of the user; `what` names it in error messages."""
    if not text.strip():
        raise UsageError(f"{what} is empty. Write a prompt, or use --input-json.")
    return (Message("user", (Text(text),)),)


def read_input_items(text: bytes, what: str, *, verbatim: bool) -> tuple[Item, ...]:
    """--input-json: an array of Responses items.

    `verbatim` for a backend that speaks the Responses API: each goes out exactly as it came in. For others they are
    read, as the API reads them.
    """
    data = read_json(text, what)
    if not isinstance(data, list) or not data:
        raise UsageError(f"{what} must hold a non-empty array of Responses input items.")
    if not all(isinstance(entry, dict) for entry in data):
        raise UsageError(f"{what}: every input item is a JSON object.")
    if verbatim:
        return tuple(RawItem(str(entry.get("type", "message")), entry) for entry in data)
    items = read_items(data, "input")
    if not items:
        raise UsageError(f"{what} has no item that can be answered.")
    return items


def read_session(text: str | None) -> str | None:
    """--session-id, which is sent in a header."""
    if text is not None and not _SESSION.fullmatch(text):
        raise UsageError("--session-id has 1 to 256 visible ASCII characters, without spaces.")
    return text


def read_effort(text: str | None) -> str | None:
    """--effort."""
    if text is not None and text not in EFFORTS:
        raise UsageError(f"--effort {text[:40]}: choose one of {', '.join(EFFORTS)}.")
    return text


def make_format(schema: Mapping[str, Any] | None) -> OutputFormat | None:
    """--output-schema: the answer is JSON of this schema."""
    if schema is None:
        return None
    raw = {"type": "json_schema", "name": "output", "strict": True, "schema": schema}
    return OutputFormat("json_schema", raw, schema, strict=True)


# Lines

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
            self._fail(UpstreamError(incomplete_message(reason), code=reason))
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
