"""Google's Gemini API as a client protocol.

What reads and writes it is imported when it is first needed: not every bridge has such clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic.alias_generators import to_camel

from bridge.core.backend import Abilities
from bridge.core.items import Item
from bridge.core.turn import Turn
from bridge.errors import BridgeError, InvalidRequest
from bridge.protocols.client import (
    SSE,
    AnswerContext,
    ApiDescription,
    ApiSchemas,
    ClientProtocol,
    Encoder,
    ErrorForm,
    Json,
    ModelForm,
    Recorded,
    StreamForm,
    TokenCount,
    Variant,
)
from bridge.protocols.dropped import header_names

if TYPE_CHECKING:
    from bridge.protocols.upstream import UpstreamBuffer

BASE, STABLE = "/v1beta/models", "/v1/models"
_MODEL = "/{model:path}"
_WHOLE, _STREAMED = {"stream": False}, {"stream": True}

# What a request asks for and does not get

_USED = frozenset(
    {
        "model",
        "stream",
        "alt",
        "contents",
        "systemInstruction",
        "tools",
        "toolConfig",
        "generationConfig",
        # About the client and its purpose: no effect on the answer.
        "labels",
    }
)
_CONFIG = frozenset(
    {
        "candidateCount",
        "stopSequences",
        "responseMimeType",
        "responseSchema",
        "responseJsonSchema",
        "_responseJsonSchema",
        "thinkingConfig",
    }
)


def dropped_fields(data: Json, turn: Turn, takes: Abilities) -> list[str]:
    """The fields and tools of a request that are ignored."""
    from bridge.protocols.gemini.tools import member, server_tools

    used = set(_CONFIG)
    if takes.sampling or takes.counts_tokens:
        used.add("maxOutputTokens")
    if takes.sampling:
        used |= {"temperature", "topP"}
    config = member(data, "generationConfig")
    names = _unused(data, _USED)
    names += _unused(config if isinstance(config, dict) else {}, used)
    names += [f"tools:{name}" for name in server_tools(data.get("tools"))]
    return header_names(list(dict.fromkeys(names)))


def _unused(data: Mapping[str, Any], used: Iterable[str]) -> list[str]:
    asked = {name if name.startswith("_") else to_camel(name): value for name, value in data.items()}
    return [name for name, value in asked.items() if name not in used and value not in (None, False, [], {})]


# Models


def model_object(entry: Mapping[str, Any]) -> Json:
    """A model. `entry` is the model as OpenAI's clients see it."""
    found = {
        "name": f"models/{entry['id']}",
        "version": "001",
        "displayName": entry.get("name") or entry["id"],
        "supportedGenerationMethods": ["generateContent", "countTokens"],
    }
    limit = entry.get("context_length")
    return found if limit is None else {**found, "inputTokenLimit": limit}


MAX_LISTED = 1000


def model_list(entries: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> Json:
    """A page of the models. Raises InvalidRequest for a token that is not from the page before."""
    size, token = query.get("pageSize", "50"), query.get("pageToken", "0")
    if not size.isdecimal() or not int(size[:9]) >= 1:
        raise InvalidRequest("'pageSize' must be a positive number.", param="pageSize")
    if not token.isdecimal() or int(token[:9]) > len(entries):
        raise InvalidRequest("'pageToken' must be the nextPageToken of the page before.", param="pageToken")
    start = int(token[:9])
    end = start + min(int(size[:9]), MAX_LISTED)
    found: Json = {"models": [model_object(entry) for entry in entries[start:end]]}
    return found | {"nextPageToken": str(end)} if end < len(entries) else found


# Errors

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_status(error: BridgeError) -> int:
    """The status of an error."""
    # OpenAI's endpoints answer 400 for an unknown model. Google's clients look for a 404.
    return 404 if error.code == "model_not_found" else error.http_status


def error_body(error: BridgeError) -> Json:
    """The error object. Its details have the bridge's own code and the member that is wrong."""
    status = error_status(error)
    name = _STATUSES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    info: Json = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": error.code,
        "domain": "turnbridge",
    }
    if error.param:
        info["metadata"] = {"param": error.param}
    details: list[Json] = [info]
    if error.retry_after is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{error.retry_after:g}s"})
    return {"error": {"code": status, "message": error.message, "status": name, "details": details}}


# Recorded answers and requests


def _begins_answer(event: Mapping[str, Any]) -> bool:
    return isinstance(event.get("candidates"), list) or "usageMetadata" in event


def _make_decoder() -> UpstreamBuffer:
    from bridge.protocols.gemini.decoder import GeminiBuffer

    return GeminiBuffer()


def _read_entry(value: Any, place: str) -> Iterator[Item]:
    from bridge.protocols.gemini.request import read_content

    return read_content(value, place)


def _parse(data: Json, context: Iterable[Json]) -> Turn:
    from bridge.protocols.gemini.request import parse_gemini

    nested = data.get("generateContentRequest")
    if isinstance(nested, dict) and "contents" not in data:  # as countTokens accepts it
        data = {**nested, **data}
    return parse_gemini(data)


def _make_encoder(turn: Turn, data: Json, context: AnswerContext) -> Encoder:
    from bridge.protocols.gemini.encoder import make_encoder

    return make_encoder(turn, data, context)


def _schemas() -> ApiSchemas:
    from bridge.protocols.gemini.openapi import API

    return API


_ARRAY = StreamForm(b"application/json; charset=utf-8", b"\n")


def _stream_form(data: Json) -> StreamForm:
    return SSE if data.get("alt") == "sse" else _ARRAY


GEMINI = ClientProtocol(
    "gemini",
    f"{BASE}{_MODEL}:generateContent",
    parse=_parse,
    make_encoder=_make_encoder,
    dropped_fields=dropped_fields,
    api=ApiDescription(
        tag="Gemini",
        about="Google's Gemini API.",
        description="The Gemini API: an answer to a conversation. The path says whether it is streamed, and `alt=sse` "
        "whether a stream consists of server-sent events or is a JSON array.",
        operation="generateContent",
        summary="Generate content",
        answer="GeminiResponse",
        stream="With `alt=sse` the data of each event is a GenerateContentResponse with the new parts. Without it, "
        "each is an element of a JSON array. The last has the reason of the end and the usage, or is an error.",
        schemas=_schemas,
    ),
    errors=ErrorForm(error_body, error_status, "GeminiError", "Google's"),
    form="gemini",
    mark=b"x-goog-api-key",
    members=_WHOLE,
    query_members=("alt",),
    variants=(
        Variant(f"{BASE}{_MODEL}:streamGenerateContent", "streamGenerateContent", _STREAMED, "GeminiChunks"),
        # The newest SDKs use the stable version of the API, others the beta.
        Variant(f"{STABLE}{_MODEL}:generateContent", "generateContentV1", _WHOLE),
        Variant(f"{STABLE}{_MODEL}:streamGenerateContent", "streamGenerateContentV1", _STREAMED, "GeminiChunks"),
    ),
    base="/v1beta",
    client_headers=(b"x-goog-api-key", b"x-goog-api-client", b"x-server-timeout"),
    key_header=b"x-goog-api-key",
    key_parameter="key",
    stream_form=_stream_form,
    own_models=("gemini-",),
    token_count=TokenCount(
        (
            Variant(f"{BASE}{_MODEL}:countTokens", "countContentTokens"),
            Variant(f"{STABLE}{_MODEL}:countTokens", "countContentTokensV1"),
        ),
        "Estimate the tokens of a request",
        "GeminiTokens",
        lambda tokens: {"totalTokens": tokens},
    ),
    models=ModelForm(model_object, model_list, "GeminiModel", "GeminiModels", BASE),
    recorded=Recorded(_begins_answer, _make_decoder, _read_entry),
)
