"""/v1/chat/completions."""

from __future__ import annotations

from bridge.api.chat.request import MAX_STOPS, ChatBody
from bridge.api.openapi.errors import OF_A_BODY, OF_A_MODEL, OF_THE_GATE, refusals
from bridge.api.openapi.headers import TURN_HEADERS
from bridge.api.openapi.requests import request_schema
from bridge.api.openapi.schemas import (
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

_LEFT_OUT = "Used where the backend takes it; Codex does not, and then it is named in `x-bridge-dropped`."
_TOLD: dict[str, Json] = {
    "model": {
        "description": "One of GET /v1/models. Case does not matter; the ending `-low` … `-xhigh` asks for an effort.",
        "examples": ["mock-echo"],
    },
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": ref("InputItem"),
        "description": "What was said so far. Items of the Responses protocol may stand among the messages.",
    },
    "tools": any_of(list_of(ref("Tool")), NULL, description="What the model may call."),
    "tool_choice": any_of(ref("ToolChoice"), description="The choice among the tools."),
    "functions": any_of(
        list_of(opened({"name": ref("Name")}, {"description": or_null(STRING)})),
        NULL,
        description="Tools, from before there were other kinds. Used where `tools` is missing; the answer then has "
        "`function_call`, one at most.",
    ),
    "function_call": any_of(
        one_of_words("auto", "none", "required"),
        opened({"name": STRING}),
        NULL,
        description="The choice among `functions`.",
    ),
    "parallel_tool_calls": {"description": "`false`: only the first call of an answer is handed out."},
    "stream": {
        "description": "Whether to answer with a stream of chunks. When it is missing, the operator's setting "
        "(`PROXY_STREAM_DEFAULT`) decides."
    },
    "stream_options": {"description": "`include_usage`: a last chunk with the usage."},
    "reasoning_effort": {"description": "How much to think. Wins over the ending of the model's name."},
    "response_format": any_of(ref("OutputFormat"), description="The form of the answer."),
    "verbosity": {"description": "How long the answer is to be."},
    "web_search_options": {"description": "The web may be searched, as far as `PROXY_WEB_SEARCH` allows."},
    "temperature": {"description": _LEFT_OUT},
    "top_p": {"description": _LEFT_OUT},
    "max_tokens": {"description": _LEFT_OUT + " No limit when it is missing."},
    "max_completion_tokens": {"description": "The newer name of `max_tokens`; it wins."},
    "n": {"description": "How many answers to give. Each is a turn of its own."},
    "stop": any_of(
        STRING,
        list_of(STRING, maxItems=MAX_STOPS),
        NULL,
        description="The answer ends before the first of these texts.",
    ),
}

_TOOL_CALL = any_of(
    closed(
        {
            "id": STRING,
            "type": const("function"),
            "function": closed({"name": STRING, "arguments": STRING}),
        }
    ),
    closed({"id": STRING, "type": const("custom"), "custom": closed({"name": STRING, "input": STRING})}),
)

SCHEMAS: dict[str, Json] = {
    "ChatRequest": request_schema(
        ChatBody,
        "The body of a chat completion. Members that are not listed are not refused: they are left out, and named in "
        "`x-bridge-dropped` where they would matter; an operator may have them refused (`PROXY_UNSUPPORTED=reject`).",
        _TOLD,
    ),
    "ChatUsage": closed(
        {
            "prompt_tokens": COUNT,
            "completion_tokens": COUNT,
            "total_tokens": COUNT,
            "prompt_tokens_details": closed({"cached_tokens": COUNT, "audio_tokens": const(0)}),
            "completion_tokens_details": closed(
                {
                    "reasoning_tokens": COUNT,
                    "audio_tokens": const(0),
                    "accepted_prediction_tokens": const(0),
                    "rejected_prediction_tokens": const(0),
                }
            ),
        },
        {"estimated": {"const": True, "description": "There when the provider has not told its own count."}},
        "The tokens of an answer; with several choices, their sum.",
    ),
    "ChatCompletion": closed(
        {
            "id": {"type": "string", "pattern": "^chatcmpl-"},
            "object": const("chat.completion"),
            "created": SECONDS_SINCE_1970,
            "model": {**STRING, "description": "As the request wrote it."},
            "choices": list_of(
                closed(
                    {
                        "index": COUNT,
                        "message": ref("ChatAnswer"),
                        "logprobs": NULL,
                        "finish_reason": one_of_words(
                            "stop", "tool_calls", "function_call", "length", "content_filter"
                        ),
                    }
                ),
                minItems=1,
            ),
            "usage": ref("ChatUsage"),
            "service_tier": NULL,
            "system_fingerprint": NULL,
        },
        description="A chat completion. It is not stored.",
    ),
    "ChatAnswer": closed(
        {
            "role": const("assistant"),
            "content": {**or_null(STRING), "description": "null where there are only calls."},
            "refusal": NULL,
            "annotations": list_of({}, maxItems=0),
        },
        {
            "reasoning_content": {**STRING, "description": "What the model thought (`PROXY_REASONING=content`)."},
            "tool_calls": list_of(_TOOL_CALL, minItems=1),
            "function_call": closed({"name": STRING, "arguments": STRING}),
        },
        "What the model said and called.",
    ),
}

_EXAMPLES = {
    "text": ("A text", {"model": "mock-echo", "messages": [{"role": "user", "content": "hello"}]}),
    "tools": (
        "A tool",
        {
            "model": "mock-tool-call",
            "messages": [{"role": "user", "content": "weather in Bern?"}],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "weather",
                        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                    },
                }
            ],
        },
    ),
    "stream": (
        "A stream",
        {"model": "mock-text", "stream": True, "messages": [{"role": "user", "content": "hello"}]},
    ),
}

PATHS: dict[str, Json] = {
    "/v1/chat/completions": {
        "post": {
            "operationId": "createChatCompletion",
            "tags": ["Chat"],
            "summary": "Ask a model, in chat's protocol",
            "description": "A completion, streamed or not. Until the first piece of the answer, but for two seconds at "
            "most, the status is held back, so that a failure is an HTTP error; a later one is in the stream.",
            "parameters": parameter_refs(["provider-key"]),
            "requestBody": json_request(
                any_of(
                    ref("ChatRequest"),
                    ref("ResponsesRequest"),
                    description="A body with `input` and without `messages` is read as one of responses.",
                ),
                _EXAMPLES,
            ),
            "responses": {
                "200": response(
                    "The completion; or its chunks, where a stream was asked for.",
                    {
                        **json_content(ref("ChatCompletion")),
                        **sse_content(
                            "The data of each event is a `chat.completion.chunk`: the role, then "
                            "pieces of content, reasoning and calls, one `finish_reason`, the usage where it was "
                            "asked for, or an error. The last is `[DONE]`."
                        ),
                    },
                    TURN_HEADERS,
                ),
                **refusals((*OF_THE_GATE, 404, *OF_A_BODY, *OF_A_MODEL), numbered=True),
            },
        }
    },
}
