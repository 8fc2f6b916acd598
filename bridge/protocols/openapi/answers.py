"""Schemas of what the bridge answers. An object has exactly the listed members."""

from __future__ import annotations

from typing import get_args

from bridge.protocols.openapi import (
    BOOLEAN,
    COUNT,
    METADATA,
    NAME,
    NULL,
    OBJECT,
    STRING,
    TIMESTAMP,
    Json,
    any_of,
    closed,
    const,
    enum,
    list_of,
    opened,
    opt,
    or_null,
    ref,
    text,
)
from bridge.protocols.reading import Effort
from bridge.protocols.responses.encoder import NEVER_FILLED

_NUMBER = or_null({"type": "number"})
_DAY: Json = {"type": "string", "format": "date"}
_COUNTED = ("requests", "failed", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "total_tokens")
_COUNTS = dict.fromkeys(_COUNTED, COUNT)
_COST = {**_NUMBER, "description": "At today's prices; null if the model has none."}
_WINDOW = or_null(
    closed(used_percent=_NUMBER, window_minutes=_NUMBER, resets_at=_NUMBER, resets_in_seconds=or_null(COUNT))
)
_CODEX_WINDOW = or_null(
    closed(used_percent=COUNT, limit_window_seconds=COUNT, reset_after_seconds=COUNT, reset_at=COUNT)
)

_PAGES: dict[str, Json] = {
    "Error": closed(
        "An error in OpenAI's format.",
        error=closed(
            message=text("What went wrong, and how to fix it."),
            type=text("invalid_request_error, server_error, rate_limit_error, …"),
            param={**or_null(STRING), "description": "The member of the request that is at fault."},
            code=text("The exact reason, for programs."),
        ),
    ),
    "Model": closed(
        "A model. The members after `owned_by` are present when they are known.",
        id=STRING,
        object="model",
        created=TIMESTAMP,
        owned_by="turnbridge",
        name=opt(text("The display name.")),
        description=opt(STRING),
        context_length=opt({**COUNT, "description": "Tokens of the context window."}),
        max_model_len=opt({**COUNT, "description": "The same, under the name that vLLM clients read."}),
        reasoning_efforts=opt(list_of(STRING)),
        default_reasoning_effort=opt(STRING),
        architecture=opt(closed(input_modalities=list_of(STRING), output_modalities=list_of(STRING))),
    ),
    "ModelList": closed("The models.", object="list", data=list_of(ref("Model"))),
    "UsageReport": closed(
        "The usage of a key.",
        object="list",
        since=_DAY,
        currency=or_null(text("Of the costs; null if the operator has set no prices.")),
        data=list_of(
            closed(day=_DAY, key=text("A label of the key, never the key itself."), model=STRING, **_COUNTS, cost=_COST)
        ),
        total=closed(**_COUNTS, cost=_COST),
    ),
    "RateLimits": closed(
        "The account's quota, as far as Codex reports it.",
        object="rate_limits",
        known={**BOOLEAN, "description": "Whether Codex reported anything."},
        plan=or_null(STRING),
        reached=or_null(STRING),
        primary=_WINDOW,
        secondary=_WINDOW,
        credits=or_null(OBJECT),
    ),
    "CodexUsage": closed(
        "The account's quota in the form of Codex's own backend. `plan_type` is `guest` if the plan is not known.",
        plan_type=STRING,
        rate_limit=or_null(
            closed(allowed=BOOLEAN, limit_reached=BOOLEAN, primary_window=_CODEX_WINDOW, secondary_window=_CODEX_WINDOW)
        ),
        credits=or_null(closed(has_credits=BOOLEAN, unlimited=BOOLEAN, balance=or_null(STRING))),
    ),
    "Health": closed("The program runs.", status=enum("ok", "degraded"), reason=STRING),
    "Alive": closed("The program runs.", status="ok", service="turnbridge"),
    "Ready": closed(
        "Whether turns are accepted; `reason` is the state.", status=enum("ready", "not_ready"), reason=STRING
    ),
    "OpenApi": opened("An OpenAPI document.", openapi="3.1.0", info=OBJECT, paths=OBJECT),
    "Cancellation": closed("The answer is being ended.", request_id=STRING, status=opt(STRING)),
}

_STATUS = enum("in_progress", "completed", "incomplete")
_NO_ENTRIES = list_of({}, maxItems=0)
_OUTPUT_TEXT = closed(type="output_text", text=STRING, annotations=_NO_ENTRIES, logprobs=_NO_ENTRIES)
_INPUT_TEXT = closed(type="input_text", text=STRING)
_INPUT_IMAGE = closed(type="input_image", image_url=STRING, detail=STRING)
_CALLS = ["function_call", "custom_tool_call", "function_call_output", "custom_tool_call_output"]


def _call(kind: str, member: str, description: str) -> Json:
    required = {"id": NAME, "type": const(kind), "status": _STATUS, "call_id": NAME, "name": NAME, member: STRING}
    return closed(description, **required, namespace=opt(STRING))


def _output(kind: str) -> Json:
    output = any_of(STRING, list_of(any_of(_INPUT_TEXT, _INPUT_IMAGE)))
    return closed(id=NAME, type=const(kind), status="completed", call_id=NAME, output=output)


_ITEMS: dict[str, Json] = {
    "OutputItem": any_of(
        *map(ref, ("OutputMessage", "FunctionCall", "CustomToolCall", "ReasoningItem", "WebSearchCall")),
        description="An item that the model produced.",
    ),
    "OutputMessage": closed(
        "Text that the model wrote.",
        id=NAME,
        type="message",
        status=_STATUS,
        role="assistant",
        content=list_of(_OUTPUT_TEXT),
    ),
    "FunctionCall": _call("function_call", "arguments", "A call for the client to run."),
    "CustomToolCall": _call("custom_tool_call", "input", "A call of a custom tool."),
    "ReasoningItem": closed(
        "The model's reasoning. `encrypted_content` is present when `include` asks for it.",
        id=NAME,
        type="reasoning",
        summary=list_of(closed(type="summary_text", text=STRING)),
        status=_STATUS,
        content=opt(list_of(closed(type="reasoning_text", text=STRING))),
        encrypted_content=opt(STRING),
    ),
    "WebSearchCall": closed(
        "A search that the provider made.", id=NAME, type="web_search_call", status=_STATUS, action=OBJECT
    ),
    "Item": any_of(
        ref("OutputItem"),
        closed(
            "A message.",
            id=NAME,
            type="message",
            role=enum("system", "developer", "user", "assistant"),
            status="completed",
            content=list_of(any_of(_OUTPUT_TEXT, _INPUT_TEXT, _INPUT_IMAGE)),
        ),
        _output("function_call_output"),
        _output("custom_tool_call_output"),
        opened(
            "An item that is stored as the client sent it.",
            id=NAME,
            type={"type": "string", "not": {"enum": ["message", *_CALLS]}},
        ),
        description="A stored item of a conversation.",
    ),
    "ItemList": closed(
        "A page of a list of items.",
        object="list",
        data=list_of(ref("Item")),
        first_id=or_null(NAME),
        last_id=or_null(NAME),
        has_more=BOOLEAN,
    ),
    "Conversation": closed(
        "A conversation.",
        id={"type": "string", "pattern": "^conv_"},
        object="conversation",
        created_at=TIMESTAMP,
        metadata=METADATA,
    ),
    "DeletedConversation": closed(
        "The conversation is deleted.", id=STRING, object="conversation.deleted", deleted=const(True)
    ),
}

_RESPONSE_ID: Json = {"type": "string", "pattern": "^resp_"}
_PENALTY: Json = {"type": "number", "minimum": -2, "maximum": 2}
_ECHOED_MODEL: Json = text("As spelled in the request.")
_ESTIMATED = opt({"const": True, "description": "Present when the provider did not report a count."})
_TEXT_FORMAT = any_of(
    closed(type=enum("text", "json_object")),
    closed(type="json_schema", name=STRING, description=or_null(STRING), schema=OBJECT, strict=BOOLEAN),
)

_RESPONSES: dict[str, Json] = {
    "Usage": closed(
        "The tokens of an answer.",
        input_tokens=COUNT,
        input_tokens_details=closed(cached_tokens=COUNT, cache_write_tokens=COUNT),
        output_tokens=COUNT,
        output_tokens_details=closed(reasoning_tokens=COUNT),
        total_tokens=COUNT,
        estimated=_ESTIMATED,
    ),
    "Response": closed(
        "A response: what was requested, and the result. Every member is always present.",
        id=_RESPONSE_ID,
        object="response",
        created_at=TIMESTAMP,
        status=enum("in_progress", "completed", "incomplete", "failed", "cancelled"),
        completed_at=or_null(TIMESTAMP),
        error=or_null(ref("ResponseError")),
        incomplete_details=or_null(closed(reason=STRING)),
        model=_ECHOED_MODEL,
        instructions=or_null(STRING),
        tools=list_of(ref("EchoedTool")),
        tool_choice=any_of(enum("auto", "none", "required"), opened("The request's choice, flattened.", type=STRING)),
        parallel_tool_calls=BOOLEAN,
        reasoning=closed(effort=or_null(enum(*get_args(Effort))), summary=or_null(enum("auto", "concise", "detailed"))),
        text=closed(format=_TEXT_FORMAT, verbosity=opt(enum("low", "medium", "high"))),
        temperature={"type": "number", "minimum": 0, "maximum": 2},
        top_p={"type": "number", "minimum": 0, "maximum": 1},
        presence_penalty=_PENALTY,
        frequency_penalty=_PENALTY,
        max_output_tokens=or_null({"type": "integer", "minimum": 1}),
        max_tool_calls=NULL,
        metadata=METADATA,
        previous_response_id=or_null(STRING),
        conversation=or_null(closed(id=STRING)),
        prompt=NULL,
        prompt_cache_key=or_null(STRING),
        safety_identifier=or_null(STRING),
        service_tier=STRING,
        store={**BOOLEAN, "description": "Whether the response is stored."},
        background=BOOLEAN,
        top_logprobs=const(0),
        truncation="disabled",
        user=or_null(STRING),
        **dict.fromkeys(NEVER_FILLED, NULL),
        output=list_of(ref("OutputItem")),
        usage=or_null(ref("Usage")),
    ),
    "ResponseError": closed(
        "Why a response failed.",
        code=enum("server_error", "rate_limit_exceeded", "invalid_prompt"),
        message=STRING,
        bridge_code=opt(text("The exact reason.")),
    ),
    "EchoedTool": any_of(
        closed(
            type="function", name=ref("Name"), description=or_null(STRING), parameters=or_null(OBJECT), strict=BOOLEAN
        ),
        opened(type={"type": "string", "not": const("function")}),
        description="A tool of the request, in the Responses format.",
    ),
    "DeletedResponse": closed("The response is deleted.", id=STRING, object="response", deleted=const(True)),
    "Compaction": closed(
        "The user's messages and an opaque summary of the rest: the start of the next `input`.",
        id=_RESPONSE_ID,
        object="response.compaction",
        created_at=TIMESTAMP,
        output=list_of(any_of(ref("Item"), closed(type="compaction", id=STRING, encrypted_content=STRING)), minItems=1),
        usage=ref("Usage"),
    ),
    "InputTokens": closed("The estimate.", object="response.input_tokens", input_tokens=COUNT, estimated=const(True)),
}

_FUNCTION_CALL = closed(name=STRING, arguments=STRING)
_CUSTOM_CALL = closed(name=STRING, input=STRING)
_CHAT: dict[str, Json] = {
    "ChatUsage": closed(
        "The tokens of an answer; with several choices, their sum.",
        prompt_tokens=COUNT,
        completion_tokens=COUNT,
        total_tokens=COUNT,
        prompt_tokens_details=closed(cached_tokens=COUNT, audio_tokens=const(0)),
        completion_tokens_details=closed(
            reasoning_tokens=COUNT,
            audio_tokens=const(0),
            accepted_prediction_tokens=const(0),
            rejected_prediction_tokens=const(0),
        ),
        estimated=_ESTIMATED,
    ),
    "ChatCompletion": closed(
        "A chat completion. It is not stored.",
        id={"type": "string", "pattern": "^chatcmpl-"},
        object="chat.completion",
        created=TIMESTAMP,
        model=_ECHOED_MODEL,
        choices=list_of(
            closed(
                index=COUNT,
                message=ref("ChatAnswer"),
                logprobs=NULL,
                finish_reason=enum("stop", "tool_calls", "function_call", "length", "content_filter"),
            ),
            minItems=1,
        ),
        usage=ref("ChatUsage"),
        service_tier=NULL,
        system_fingerprint=NULL,
    ),
    "ChatAnswer": closed(
        "The model's text and calls.",
        role="assistant",
        content={**or_null(STRING), "description": "null when there are only calls."},
        refusal=NULL,
        annotations=_NO_ENTRIES,
        reasoning_content=opt(text("The model's reasoning (`PROXY_REASONING=content`).")),
        tool_calls=opt(
            list_of(
                any_of(
                    closed(id=STRING, type="function", function=_FUNCTION_CALL),
                    closed(id=STRING, type="custom", custom=_CUSTOM_CALL),
                ),
                minItems=1,
            )
        ),
        function_call=opt(_FUNCTION_CALL),
    ),
}

SCHEMAS: dict[str, Json] = {**_PAGES, **_ITEMS, **_RESPONSES, **_CHAT}
