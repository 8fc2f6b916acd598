"""What a request asks for that the bridge or the backend does not support.

One policy for all of it: it is ignored and named in a response header (`drop`), or the request is refused (`reject`).
Nothing is ignored silently: unknown fields are named, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from bridge.core.backend import NOTHING_MORE, Abilities
from bridge.core.items import RawTool
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.reading import ENCRYPTED, shape_of
from bridge.protocols.tooling import SEARCH_FILTERS, SEARCH_MEMBERS, SEARCHES

HEADER = b"x-bridge-dropped"
Policy = Literal["drop", "reject"]

MAX_NAMES = 32
_ODD = re.compile(r"[^!-+\--~]")
"""Not allowed in a list of names in a header: anything except visible ASCII, and the comma."""

_BOTH = frozenset(
    {
        "model",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "previous_response_id",
        "conversation",
        # About the client and its purpose: not passed on, but without effect on the answer.
        "metadata",
        "client_metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "service_tier",
    }
)
_USED: dict[str, frozenset[str]] = {
    "responses": _BOTH | {"input", "instructions", "reasoning", "text", "include"},
    "chat": _BOTH
    | {
        "messages",
        "functions",
        "function_call",
        "reasoning_effort",
        "response_format",
        "verbosity",
        "web_search_options",
        "n",
        "stop",
    },
}
"""The fields that are read from a body of each shape."""

_LIMITS: dict[str, frozenset[str]] = {
    "responses": frozenset({"max_output_tokens"}),
    "chat": frozenset({"max_tokens", "max_completion_tokens"}),
}
_SAMPLING = frozenset({"temperature", "top_p"})

_KEPT: dict[str, frozenset[str]] = {"responses": frozenset({"store", "background"}), "chat": frozenset()}
"""The fields that each path supports for bodies of both shapes: a chat completion is never stored."""

_USUAL: dict[str, tuple[Any, ...]] = {
    "truncation": ("disabled",),
    "modalities": (["text"],),
    "n": (1,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
}
"""Values that ask for the default."""

_SPEAKERS = ("system", "developer", "user", "assistant")
_KNOWN_INCLUDES = (ENCRYPTED, "web_search_call.action.sources", "web_search_call.results")


def dropped_fields(data: dict[str, Any], turn: Turn, path: str, takes: Abilities = NOTHING_MORE) -> list[str]:
    """The fields and tools of a request that are ignored, because a turn, its path or a backend that `takes` this does
    not support them.
    """
    shape = shape_of(data, path)
    used = _USED[shape] | _KEPT[path]
    if takes.sampling or takes.counts_tokens:
        used |= _LIMITS[shape]
    if takes.sampling:
        used |= _SAMPLING
    if path == "responses":
        used -= {"n"}
    if data.get("tools"):
        used -= {"functions", "function_call"}
    names = [name for name, value in data.items() if name not in used and _asks(name, value)]
    names += [f"{member}.{name}" for member, known in _PARTS.items() for name in _unknown(data.get(member), known)]
    names += _message_names(data)
    include = data.get("include")
    names += [
        f"include:{value}"
        for value in (include if isinstance(include, list) else ())
        if isinstance(value, str) and value not in _KNOWN_INCLUDES
    ]
    others = (tool for tool in turn.tools if isinstance(tool, RawTool) and not tool.type.startswith(SEARCHES))
    names += (
        [] if takes.hosted_tools else [*sorted({f"tools:{tool.type}" for tool in others}), *_search_names(data, turn)]
    )
    return header_names(names)


def header_names(names: Sequence[str]) -> list[str]:
    """Names in a form that a header can carry; only the first of very many."""
    return [_ODD.sub("?", name[:59]) or "?" for name in names[:MAX_NAMES]]


_PARTS = {"reasoning": ("effort", "summary", "generate_summary"), "text": ("format", "verbosity")}
"""The members of each option that are read."""


def _unknown(option: Any, known: tuple[str, ...]) -> list[str]:
    members = option if isinstance(option, dict) else {}
    return [name for name, value in members.items() if name not in known and _asks(name, value)]


def _search_names(data: dict[str, Any], turn: Turn) -> list[str]:
    """The options of a web search that are not read."""
    asked = [tool.data for tool in turn.tools if isinstance(tool, RawTool) and tool.type.startswith(SEARCHES)]
    options = data.get("web_search_options")
    asked += [options] if isinstance(options, dict) else []
    names = [f"web_search.{name}" for each in asked for name in _unknown(each, SEARCH_MEMBERS)]
    names += [f"web_search.filters.{name}" for each in asked for name in _unknown(each.get("filters"), SEARCH_FILTERS)]
    return list(dict.fromkeys(names))


def _message_names(data: dict[str, Any]) -> list[str]:
    """The `name` of a speaker has no effect; that of a function's output has."""
    for member in ("messages", "input"):
        entries = data.get(member)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("role") in _SPEAKERS and entry.get("name"):
                return [f"{member}.name"]
    return []


def apply_policy(policy: Policy, dropped: Iterable[str]) -> None:
    """Raise InvalidRequest for dropped fields if the policy is to reject."""
    names = list(dropped)
    if policy == "reject" and names:
        raise InvalidRequest(
            f"Not supported here: {', '.join(names)}. Leave it out, or set PROXY_UNSUPPORTED=drop to have it ignored.",
            param=names[0],
            code="unsupported_parameter",
        )


def _asks(name: str, value: Any) -> bool:
    """Whether a field asks for anything other than the default."""
    return value is not None and value is not False and value not in ([], {}) and value not in _USUAL.get(name, ())
