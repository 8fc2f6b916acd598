"""What a request asks for that the bridge or the backend does not support.

One policy for all of it: it is ignored and named in a response header (`drop`), or the request is refused (`reject`).
Nothing is ignored silently: unknown fields are named, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from bridge.core.backend import NOTHING_MORE, Abilities
from bridge.core.items import RawTool
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.protocols.reading import ENCRYPTED, body_model
from bridge.protocols.tooling import SEARCH_FILTERS, SEARCH_MEMBERS, search_tools

HEADER = b"x-bridge-dropped"
Policy = Literal["drop", "reject"]

MAX_NAMES = 32
_ODD = re.compile(r"[^!-+\--~]")
"""Not allowed in a list of names in a header: anything except visible ASCII, and the comma."""

_NOT_IN_MODELS = frozenset(
    {
        # Read by other code than the models of the bodies.
        "previous_response_id",
        "conversation",
        "store",
        "background",
        # About the client and its purpose: not passed on, but without effect on the answer.
        "metadata",
        "client_metadata",
        "user",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
    }
)
"""Fields that are supported, besides those in the model of the body."""
_LIMITS = frozenset({"max_output_tokens", "max_tokens", "max_completion_tokens"})
_SAMPLING = frozenset({"temperature", "top_p"})
_ONLY_ON = {"responses": frozenset({"store", "background"}), "chat": frozenset({"n"})}
"""Fields of one path for bodies of both shapes: a chat completion is never stored, and a response is one answer."""

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
    unused = _ONLY_ON["chat" if path == "responses" else "responses"]
    if not takes.sampling:
        unused |= _SAMPLING if takes.counts_tokens else _SAMPLING | _LIMITS
    if data.get("tools"):
        unused |= {"functions", "function_call"}
    used = (body_model(data, path).model_fields.keys() | _NOT_IN_MODELS) - unused
    names = [name for name, value in data.items() if name not in used and _asks(name, value)]
    names += [f"{member}.{name}" for member, known in _PARTS.items() for name in _unknown(data.get(member), known)]
    names += _message_names(data)
    include = data.get("include")
    names += [
        f"include:{value}"
        for value in (include if isinstance(include, list) else ())
        if isinstance(value, str) and value not in _KNOWN_INCLUDES
    ]
    if not takes.hosted_tools:
        searches = search_tools(turn.tools)
        others = {tool.type for tool in turn.tools if isinstance(tool, RawTool) and tool not in searches}
        names += [f"tools:{kind}" for kind in sorted(others)]
        names += _search_names([*(tool.data for tool in searches), data.get("web_search_options")])
    return header_names(names)


def header_names(names: Sequence[str]) -> list[str]:
    """Names in a form that a header can carry; only the first of very many."""
    return [_ODD.sub("?", name[:59]) or "?" for name in names[:MAX_NAMES]]


_PARTS = {"reasoning": ("effort", "summary", "generate_summary"), "text": ("format", "verbosity")}
"""The members of each option that are read."""


def _unknown(option: Any, known: tuple[str, ...]) -> list[str]:
    members = option.items() if isinstance(option, Mapping) else ()
    return [name for name, value in members if name not in known and _asks(name, value)]


def _search_names(options: Iterable[Any]) -> list[str]:
    """The options of web searches that are not read."""
    searches = [each for each in options if isinstance(each, Mapping)]
    names = [f"web_search.{name}" for each in searches for name in _unknown(each, SEARCH_MEMBERS)]
    names += [
        f"web_search.filters.{name}" for each in searches for name in _unknown(each.get("filters"), SEARCH_FILTERS)
    ]
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
