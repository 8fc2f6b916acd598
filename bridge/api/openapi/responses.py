"""/v1/responses and what is below it."""

from __future__ import annotations

from typing import get_args

from bridge.api.body import Effort
from bridge.api.openapi.errors import OF_A_BODY, OF_A_MODEL, OF_THE_GATE, refusals
from bridge.api.openapi.headers import TURN_HEADERS
from bridge.api.openapi.items import LIST_PARAMETERS
from bridge.api.openapi.requests import request_schema
from bridge.api.openapi.schemas import (
    BOOLEAN,
    COUNT,
    NULL,
    SECONDS_SINCE_1970,
    STRING,
    Json,
    any_of,
    closed,
    const,
    json_content,
    json_request,
    list_of,
    one_of_words,
    opened,
    or_null,
    parameter_refs,
    ref,
    response,
    sse_content,
)
from bridge.api.responses.request import ResponsesBody
from bridge.api.responses.response import NEVER_FILLED

TAG = "Responses"

_LEFT_OUT = "Used where the backend takes it; Codex does not, and then it is named in `x-bridge-dropped`."
INPUT = any_of(
    STRING,
    list_of(ref("InputItem")),
    NULL,
    description="A text, or a list of items. May be empty only where something is continued.",
)
CONVERSATION = any_of(
    STRING,
    opened({"id": STRING}),
    NULL,
    description="The conversation, by its id: its items come first, and what is said is added to it. Not together "
    "with `previous_response_id`.",
)
_TOLD: dict[str, Json] = {
    "model": {
        "description": "One of GET /v1/models. Case does not matter; the ending `-low` … `-xhigh` asks for an effort.",
        "examples": ["mock-echo"],
    },
    "input": INPUT,
    "instructions": {"description": "Told to the model before everything else. Not carried over to the next response."},
    "tools": any_of(list_of(ref("Tool")), NULL, description="What the model may call."),
    "tool_choice": any_of(ref("ToolChoice"), description="The choice among the tools."),
    "parallel_tool_calls": {"description": "`false`: only the first call of an answer is handed out."},
    "stream": {
        "description": "Whether to answer with a stream of events. When it is missing, the operator's setting "
        "(`PROXY_STREAM_DEFAULT`) decides."
    },
    "stream_options": {"description": "`include_usage` is for bodies of this form on the chat path."},
    "reasoning": {"description": "How much to think, and whether to tell of it."},
    "text": {"description": "The form and the length of the answer."},
    "temperature": {"description": _LEFT_OUT},
    "top_p": {"description": _LEFT_OUT},
    "max_output_tokens": {"description": _LEFT_OUT + " No limit when it is missing."},
    "metadata": {"description": "Repeated in the response."},
    "include": {"description": "`reasoning.encrypted_content` is used. Others are left out and named."},
    "store": {"description": "`false`: the response is not kept, and cannot be continued."},
    "background": {
        "description": "Answer at once with the response in progress; GET it until it has ended. Not with `stream`, "
        "and not with `store: false`."
    },
    "previous_response_id": {"description": "All that was said up to that response comes first."},
    "prompt": any_of(NULL, description="Refused: prompt templates are kept by OpenAI."),
}
_ECHOED = {
    name: {"description": "Repeated in the response where it is a text; it has no other effect."}
    for name in ("user", "safety_identifier", "prompt_cache_key")
}

_USAGE = {
    "input_tokens": COUNT,
    "input_tokens_details": closed({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
    "output_tokens": COUNT,
    "output_tokens_details": closed({"reasoning_tokens": COUNT}),
    "total_tokens": COUNT,
}
_TEXT_FORMAT = any_of(
    closed({"type": one_of_words("text", "json_object")}),
    closed(
        {
            "type": const("json_schema"),
            "name": STRING,
            "description": or_null(STRING),
            "schema": {"type": "object"},
            "strict": BOOLEAN,
        }
    ),
)
_PENALTY = {"type": "number", "minimum": -2, "maximum": 2}

SCHEMAS: dict[str, Json] = {
    "ResponsesRequest": request_schema(
        ResponsesBody,
        "The body of a response. Members that are not listed are not refused: they are left out, and named in "
        "`x-bridge-dropped`; an operator may have them refused (`PROXY_UNSUPPORTED=reject`).",
        _TOLD,
        {"conversation": CONVERSATION, **_ECHOED},
    ),
    "CompactRequest": opened(
        {"model": _TOLD["model"] | STRING | {"minLength": 1, "maxLength": 256}},
        {
            "input": INPUT,
            "instructions": or_null(STRING),
            "previous_response_id": or_null(STRING),
            "conversation": CONVERSATION,
        },
        "A conversation to be summarised. Other members are ignored.",
    ),
    "Usage": closed(
        _USAGE,
        {"estimated": {"const": True, "description": "There when the provider has not told its own count."}},
        "The tokens of an answer.",
    ),
    "Response": closed(
        {
            "id": {"type": "string", "pattern": "^resp_"},
            "object": const("response"),
            "created_at": SECONDS_SINCE_1970,
            "status": one_of_words("in_progress", "completed", "incomplete", "failed", "cancelled"),
            "completed_at": or_null(SECONDS_SINCE_1970),
            "error": or_null(ref("ResponseError")),
            "incomplete_details": or_null(closed({"reason": STRING})),
            "model": {**STRING, "description": "As the request wrote it."},
            "instructions": or_null(STRING),
            "tools": list_of(ref("EchoedTool")),
            "tool_choice": any_of(
                one_of_words("auto", "none", "required"),
                opened({"type": STRING}, description="The request's choice, flat."),
            ),
            "parallel_tool_calls": BOOLEAN,
            "reasoning": closed(
                {
                    "effort": or_null(one_of_words(*get_args(Effort))),
                    "summary": or_null(one_of_words("auto", "concise", "detailed")),
                }
            ),
            "text": closed({"format": _TEXT_FORMAT}, {"verbosity": one_of_words("low", "medium", "high")}),
            "temperature": {"type": "number", "minimum": 0, "maximum": 2},
            "top_p": {"type": "number", "minimum": 0, "maximum": 1},
            "presence_penalty": _PENALTY,
            "frequency_penalty": _PENALTY,
            "max_output_tokens": or_null({"type": "integer", "minimum": 1}),
            "max_tool_calls": NULL,
            "metadata": {"type": "object", "additionalProperties": STRING},
            "previous_response_id": or_null(STRING),
            "conversation": or_null(closed({"id": STRING})),
            "prompt": NULL,
            "prompt_cache_key": or_null(STRING),
            "safety_identifier": or_null(STRING),
            "service_tier": STRING,
            "store": {**BOOLEAN, "description": "Whether it is kept."},
            "background": BOOLEAN,
            "top_logprobs": const(0),
            "truncation": const("disabled"),
            "user": or_null(STRING),
            **dict.fromkeys(NEVER_FILLED, NULL),
            "output": list_of(ref("OutputItem")),
            "usage": or_null(ref("Usage")),
        },
        description="A response: what was asked, and what came of it. Every member is always there.",
    ),
    "ResponseError": closed(
        {"code": one_of_words("server_error", "rate_limit_exceeded", "invalid_prompt"), "message": STRING},
        {"bridge_code": {**STRING, "description": "The exact reason."}},
        "Why a response failed.",
    ),
    "EchoedTool": any_of(
        closed(
            {
                "type": const("function"),
                "name": ref("Name"),
                "description": or_null(STRING),
                "parameters": or_null({"type": "object"}),
                "strict": BOOLEAN,
            }
        ),
        opened({"type": {"type": "string", "not": const("function")}}),
        description="A tool of the request, in the Responses spelling.",
    ),
    "DeletedResponse": closed({"id": STRING, "object": const("response"), "deleted": const(True)}),
    "Compaction": closed(
        {
            "id": {"type": "string", "pattern": "^resp_"},
            "object": const("response.compaction"),
            "created_at": SECONDS_SINCE_1970,
            "output": list_of(
                any_of(
                    ref("Item"),
                    closed({"type": const("compaction"), "id": STRING, "encrypted_content": STRING}),
                ),
                minItems=1,
            ),
            "usage": ref("Usage"),
        },
        description="The user's messages and an opaque summary of the rest: the beginning of the next `input`.",
    ),
    "InputTokens": closed(
        {"object": const("response.input_tokens"), "input_tokens": COUNT, "estimated": const(True)},
    ),
}

_EITHER = any_of(
    ref("ResponsesRequest"),
    ref("ChatRequest"),
    description="A body with `messages` and without `input` is read as one of chat, whatever the path.",
)
_EXAMPLES = {
    "text": ("A text", {"model": "mock-echo", "input": "hello"}),
    "tools": (
        "A tool",
        {
            "model": "mock-tool-call",
            "input": [{"role": "user", "content": "weather in Bern?"}],
            "tools": [
                {
                    "type": "function",
                    "name": "weather",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
                }
            ],
        },
    ),
    "stream": ("A stream", {"model": "mock-text", "input": "hello", "stream": True}),
}
_EVENTS = (
    "Events `response.created`, `response.in_progress`, then for each item `response.output_item.added`, its parts and "
    "deltas, `response.output_item.done`, and exactly one of `response.completed`, `response.incomplete` and "
    "`response.failed`. The data of each is one line of JSON whose `type` is the event's name and whose "
    "`sequence_number` counts from 0. Silence is broken by comments."
)
_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id of a response of this key.",
    "schema": STRING,
}
_NOT_FOUND = (*OF_THE_GATE, 404, 503)


def _shown(description: str, schema: str) -> Json:
    return {"200": response(description, json_content(ref(schema)))}


PATHS: dict[str, Json] = {
    "/v1/responses": {
        "post": {
            "operationId": "createResponse",
            "tags": [TAG],
            "summary": "Ask a model",
            "description": "A response, streamed or not. Until the first piece of the answer, but for two seconds at "
            "most, the status is held back, so that a failure is an HTTP error; a later one is an event of the stream. "
            "A WebSocket at the same path takes `response.create` messages.",
            "parameters": parameter_refs(["provider-key"]),
            "requestBody": json_request(_EITHER, _EXAMPLES),
            "responses": {
                "200": response(
                    "The response; or its events, where a stream was asked for.",
                    {**json_content(ref("Response")), **sse_content(_EVENTS)},
                    TURN_HEADERS,
                ),
                **refusals((*OF_THE_GATE, 404, *OF_A_BODY, *OF_A_MODEL), numbered=True),
            },
        }
    },
    "/v1/responses/compact": {
        "post": {
            "operationId": "compactResponse",
            "tags": [TAG],
            "summary": "Summarise a conversation",
            "description": "The model writes a summary of what was said. The answer's `output` is sent as the "
            "beginning of the next `input`.",
            "parameters": parameter_refs(["provider-key"]),
            "requestBody": json_request(
                ref("CompactRequest"), {"text": ("A text", {"model": "mock-echo", "input": "remember 42"})}
            ),
            "responses": {
                "200": response("The summary.", json_content(ref("Compaction")), TURN_HEADERS),
                **refusals((*OF_THE_GATE, 404, *OF_A_BODY, *OF_A_MODEL)),
            },
        }
    },
    "/v1/responses/input_tokens": {
        "post": {
            "operationId": "countInputTokens",
            "tags": [TAG],
            "summary": "Estimate a request's tokens",
            "description": "No tokenizer is at hand: it is an estimate, four bytes a token.",
            "parameters": parameter_refs(["provider-key"]),
            "requestBody": json_request(_EITHER, {"text": _EXAMPLES["text"]}),
            "responses": {
                **_shown("The estimate.", "InputTokens"),
                **refusals((*OF_THE_GATE, 404, *OF_A_BODY, 503)),
            },
        }
    },
    "/v1/responses/{id}": {
        "get": {
            "operationId": "getResponse",
            "tags": [TAG],
            "summary": "A stored response",
            "description": "Also one that is being written, with what it has so far.",
            "parameters": [
                _ID,
                {
                    "name": "stream",
                    "in": "query",
                    "description": "A stored response is not streamed again: `true` is refused.",
                    "schema": {"type": "boolean", "default": False},
                },
            ],
            "responses": {**_shown("The response.", "Response"), **refusals(_NOT_FOUND)},
        },
        "delete": {
            "operationId": "deleteResponse",
            "tags": [TAG],
            "summary": "Delete a response",
            "description": "One that is being written is then not stored; in the background it is ended.",
            "parameters": [_ID],
            "responses": {**_shown("It is gone.", "DeletedResponse"), **refusals(_NOT_FOUND)},
        },
    },
    "/v1/responses/{id}/cancel": {
        "post": {
            "operationId": "cancelResponse",
            "tags": [TAG],
            "summary": "End a response that is being written",
            "description": "One that has ended is given back as it is. A body is not looked at.",
            "parameters": [_ID],
            "responses": {
                **_shown("The response, cancelled or ended.", "Response"),
                **refusals((*_NOT_FOUND, *OF_A_BODY)),
            },
        }
    },
    "/v1/responses/{id}/input_items": {
        "get": {
            "operationId": "listInputItems",
            "tags": [TAG],
            "summary": "What the model was given",
            "description": "All items that the response was an answer to, with those of the responses before it.",
            "parameters": [_ID, *LIST_PARAMETERS],
            "responses": {**_shown("The items.", "ItemList"), **refusals(_NOT_FOUND)},
        }
    },
}
