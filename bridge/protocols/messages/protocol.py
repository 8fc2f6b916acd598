"""Anthropic's Messages API as a client protocol.

What reads and writes it is imported when it is first needed: not every bridge has such clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bridge.core.backend import Abilities
from bridge.core.items import Item, WebSearchOptions
from bridge.core.turn import Turn
from bridge.errors import BridgeError, InvalidRequest
from bridge.protocols.client import (
    AnswerContext,
    ApiDescription,
    ApiSchemas,
    ClientProtocol,
    Encoder,
    ErrorForm,
    Json,
    ModelForm,
    Recorded,
    TokenCount,
    Variant,
)
from bridge.protocols.dropped import header_names

if TYPE_CHECKING:
    from bridge.protocols.upstream import UpstreamBuffer

# What a request asks for and does not get

_USED = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        "stop_sequences",
        "stream",
        # About the client and its purpose, or a wish that the provider's own cache fulfils: no effect on the answer.
        "metadata",
        "service_tier",
        "cache_control",
        "diagnostics",
        "anthropic_beta",
    }
)
_PARTS = {"thinking": ("type", "budget_tokens", "display"), "output_config": ("effort", "format")}
_SEARCH_MEMBERS = ("type", "name", "allowed_domains", "user_location", "cache_control", "allowed_callers", "strict")

BETA = "anthropic_beta"
"""The member that the header `anthropic-beta` becomes, as it is called where the API has it in the body."""
_BETAS = (
    "adaptive-thinking",
    "advanced-tool-use",
    "afk-mode",
    "cache-diagnosis",
    "claude-code",
    "effort",
    "extended-cache-ttl",
    "fine-grained-tool-streaming",
    "interleaved-thinking",
    "max-tokens",
    "mid-conversation-system",
    "oauth",
    "output-128k",
    "prompt-caching",
    "redact-thinking",
    "structured-outputs",
    "summarize-thinking",
    "token-counting",
    "token-efficient-tools",
    "tool-examples",
    "web-search",
)
"""The beginnings of beta features that work here, or need nothing to be done."""


def _asks(value: Any) -> bool:
    return value is not None and value is not False and value not in ([], {})


def _betas(data: Json) -> list[str]:
    given = data.get(BETA)
    values = given.split(",") if isinstance(given, str) else given if isinstance(given, list) else ()
    return [value.strip() for value in values if isinstance(value, str) and value.strip()]


def dropped_fields(data: Json, turn: Turn, takes: Abilities) -> list[str]:
    """The fields and tools of a request that are ignored."""
    from bridge.protocols.messages.tools import is_search, server_tools

    used = _USED
    if takes.sampling or takes.counts_tokens:
        used |= {"max_tokens"}
    if takes.sampling:
        used |= {"temperature", "top_p"}
    names = [name for name, value in data.items() if name not in used and _asks(value)]
    for member, known in _PARTS.items():
        option = data.get(member)
        unknown = option.items() if isinstance(option, dict) else ()
        names += [f"{member}.{name}" for name, value in unknown if name not in known and _asks(value)]
    tools = data.get("tools") or ()
    names += [f"tools:{kind}" for kind in server_tools(tools)]
    searches = [tool for tool in tools if isinstance(tool, dict) and is_search(tool)]
    names += [
        f"web_search.{name}"
        for tool in searches
        for name, value in tool.items()
        if name not in _SEARCH_MEMBERS and _asks(value)
    ]
    names += [f"anthropic-beta:{value}" for value in _betas(data) if not value.startswith(_BETAS)]
    return header_names(list(dict.fromkeys(names)))


# Models


def model_object(entry: Mapping[str, Any]) -> Json:
    """A model. `entry` is the model as OpenAI's clients see it."""
    created = datetime.fromtimestamp(entry["created"], UTC)
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry.get("name") or entry["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": entry.get("context_length"),
        "max_tokens": None,
    }


MAX_LISTED = 1000


def model_list(entries: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> Json:
    """A page of the models. Raises InvalidRequest for a position that is not in the list."""
    ids = [entry["id"] for entry in entries]
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_LISTED:
        raise InvalidRequest(f"'limit' must be a number from 1 to {MAX_LISTED}.", param="limit")
    start, end = 0, len(ids)
    for name in ("after_id", "before_id"):
        if (given := query.get(name)) is not None:
            if given not in ids:
                raise InvalidRequest(f"{name!r} is not the id of a model in this list.", param=name)
            start, end = (ids.index(given) + 1, end) if name == "after_id" else (start, ids.index(given))
    if "before_id" in query:
        shown = entries[max(start, end - int(limit)) : end]
        has_more = end - start > len(shown)
    else:
        shown = entries[start:end][: int(limit)]
        has_more = start + len(shown) < end
    data = [model_object(entry) for entry in shown]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"data": data, "has_more": has_more, "first_id": first, "last_id": last}


# Errors

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
OVERLOADED = 529
"""The API's own status for an overload. Its clients retry it with more patience than another status."""


UNSUPPORTED_THREAD = "thread_unsupported_request"
"""The API's own code for a request that cannot be part of a thread. Its clients look for it in the details."""


def _usual_status(error: BridgeError) -> int:
    # OpenAI's endpoints answer 400 for an unknown model. Anthropic's clients look for a 404.
    return 404 if error.code == "model_not_found" else error.http_status


def error_status(error: BridgeError) -> int:
    """The status of an error."""
    status = _usual_status(error)
    return OVERLOADED if status == 503 else status


def error_body(error: BridgeError) -> Json:
    """The error object; `code` and `param` are the bridge's own, as on its other endpoints."""
    status = _usual_status(error)
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    found: Json = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    if error.code == UNSUPPORTED_THREAD:
        found["details"] = {"error_code": UNSUPPORTED_THREAD, "unsupported": ["thread"]}
    return {"type": "error", "error": found}


# Recorded answers and requests


def _begins_answer(event: Mapping[str, Any]) -> bool:
    kind = event.get("type")
    if kind == "message":
        return event.get("role") == "assistant" and "stop_reason" in event
    return isinstance(kind, str) and kind.startswith(("message_", "content_block_"))


def _make_decoder() -> UpstreamBuffer:
    """A decoder of an answer to an unknown turn."""
    from bridge.protocols.messages.decoder import MessagesBuffer

    return MessagesBuffer(Turn("", "", (), web_search=WebSearchOptions()))


def _read_entry(value: Any, place: str) -> Iterator[Item]:
    from bridge.protocols.messages.request import read_message

    return read_message(value, place)


def _parse(data: Json, context: Iterable[Json]) -> Turn:
    from bridge.protocols.messages.request import parse_messages

    return parse_messages(data)


def _make_encoder(turn: Turn, data: Json, context: AnswerContext) -> Encoder:
    from bridge.protocols.messages.encoder import make_encoder

    return make_encoder(turn, data, context)


def _schemas() -> ApiSchemas:
    from bridge.protocols.messages.openapi import API

    return API


MESSAGES = ClientProtocol(
    "messages",
    "/v1/messages",
    parse=_parse,
    make_encoder=_make_encoder,
    dropped_fields=dropped_fields,
    api=ApiDescription(
        tag="Messages",
        about="Anthropic's Messages API.",
        description="Anthropic's Messages API: an answer to a conversation, streamed or not.",
        operation="createMessage",
        summary="Create a message",
        answer="AnthropicMessage",
        stream="Events `message_start` and `ping`, then for each block of content `content_block_start`, its deltas "
        "and `content_block_stop`, then `message_delta` with the stop reason and the usage, and `message_stop`; or "
        "`error` in place of the last two. The data of each is one line of JSON whose `type` is the name of the event. "
        "Comments keep the connection alive.",
        schemas=_schemas,
    ),
    errors=ErrorForm(error_body, error_status, "AnthropicError", "Anthropic's"),
    form="anthropic",
    mark=b"anthropic-version",
    request_id_header=b"request-id",
    client_headers=(b"anthropic-version", b"anthropic-beta", b"anthropic-dangerous-direct-browser-access"),
    hints=dict.fromkeys(
        ("/v1/v1/messages", "/messages"),
        "The base URL of Anthropic's clients must not end in /v1: POST /v1/messages.",
    ),
    header_members={b"anthropic-beta": BETA},
    own_models=("claude-",),
    token_count=TokenCount(
        (Variant("/v1/messages/count_tokens", "countMessageTokens"),),
        "Estimate the tokens of a message",
        "AnthropicTokens",
        lambda tokens: {"input_tokens": tokens},
    ),
    models=ModelForm(
        model_object,
        model_list,
        "AnthropicModel",
        "AnthropicModelList",
        note="With the header `anthropic-version` in Anthropic's format, with its `limit`, `after_id` and `before_id`.",
    ),
    recorded=Recorded(_begins_answer, _make_decoder, _read_entry),
)
