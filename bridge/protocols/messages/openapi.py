"""Schemas of the Messages API: what a client may send, and what the bridge answers."""

from __future__ import annotations

from bridge.protocols.client import ApiSchemas
from bridge.protocols.messages.request import MAX_STOPS, SKIPPED, MessagesBody
from bridge.protocols.openapi import (
    BOOLEAN,
    COUNT,
    NAME,
    NULL,
    OBJECT,
    STRING,
    Json,
    any_of,
    body_schema,
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
from bridge.protocols.tooling import MAX_TOOLS

_CALL_ID: Json = {**NAME, "maxLength": 256, "pattern": "^[A-Za-z0-9_.:|/+=@#~$-]+$"}
_FUNCTION_NAME: Json = {**NAME, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:-]+$"}
_TEXT = opened(type="text", text=STRING)

# Requests

_PART = any_of(
    _TEXT,
    opened(
        "An image. Codex does not fetch images and refuses URLs.",
        type="image",
        source=any_of(
            opened(type="base64", media_type=STRING, data=STRING),
            opened(type="url", url=STRING),
        ),
    ),
    opened(
        "A document of text and images, or a PDF, which Codex does not read.",
        type="document",
        source=any_of(
            opened(type="text", data=STRING),
            opened(type="base64", media_type=STRING, data=STRING),
            opened(type="url", url=STRING),
            opened(type="content", content=any_of(STRING, list_of(OBJECT))),
        ),
    ),
    opened(type="search_result", title=STRING, source=STRING, content=list_of(_TEXT)),
    opened(type="tool_reference", tool_name=STRING),
)
_SENT: dict[str, Json] = {
    "AnthropicPart": {**_PART, "description": "Text, an image, or something that is read as these."},
    "AnthropicInput": any_of(
        opened(
            role=enum("user", "system"),
            content=any_of(
                NAME,
                list_of(
                    any_of(
                        ref("AnthropicPart"),
                        opened(
                            "The output of a tool. It follows its call.",
                            type="tool_result",
                            tool_use_id=_CALL_ID,
                            content=opt(any_of(STRING, list_of(ref("AnthropicPart")), NULL)),
                            is_error=opt(BOOLEAN),
                        ),
                    ),
                    minItems=1,
                ),
            ),
        ),
        opened(
            role="assistant",
            content=any_of(
                STRING,
                list_of(
                    any_of(
                        ref("AnthropicPart"),
                        opened(type="thinking", thinking=STRING, signature=opt(or_null(STRING))),
                        opened(type="redacted_thinking", data=STRING),
                        opened(type="tool_use", id=_CALL_ID, name=_FUNCTION_NAME, input=OBJECT),
                        opened("Ignored.", type=enum(*SKIPPED)),
                    )
                ),
            ),
        ),
        description="A message. Thinking goes back only to the provider that signed it.",
    ),
    "AnthropicTool": any_of(
        opened(
            type=opt(any_of(const("custom"), NULL)),
            name=_FUNCTION_NAME,
            description=opt(or_null(STRING)),
            input_schema=OBJECT,
        ),
        opened(
            "A tool with a version. The client runs `bash_…`, `text_editor_…` and `memory_…`, the provider "
            "`web_search_…` as far as `PROXY_WEB_SEARCH` allows. Others would run on Anthropic's servers: they are "
            "dropped and named.",
            type={"type": "string", "not": const("custom")},
            name=_FUNCTION_NAME,
        ),
        description=f"A tool. Names must be distinct; at most {MAX_TOOLS} tools are accepted.",
    ),
}
_MEMBERS: dict[str, Json | str] = {
    "model": "One of GET /v1/models. A name `claude-…` that no backend serves means the default model.",
    "messages": {
        "type": "array",
        "items": ref("AnthropicInput"),
        "minItems": 1,
        "description": "The conversation so far.",
    },
    "system": any_of(STRING, list_of(_TEXT), NULL, description="The system prompt."),
    "max_tokens": "The answer ends at this number of tokens. No limit when it is missing.",
    "tools": any_of(list_of(ref("AnthropicTool")), NULL, description="The tools that the model may call."),
    "tool_choice": any_of(
        opened(type=enum("auto", "any", "none"), disable_parallel_tool_use=opt(BOOLEAN)),
        opened(type="tool", name=STRING, disable_parallel_tool_use=opt(BOOLEAN)),
        NULL,
        description="The choice among the tools.",
    ),
    "thinking": "Whether the answer has blocks of thinking. A budget becomes the nearest effort.",
    "output_config": "The effort, and the format of the answer.",
    "stop_sequences": f"At most {MAX_STOPS} texts that end the answer.",
    "stream": "Whether to stream the answer.",
}


_BODY = body_schema(
    "The body of a message. Unlisted members are dropped and named in `x-bridge-dropped`.", MessagesBody, _MEMBERS
)

# Answers

_ERROR = closed(
    "An error in Anthropic's format.",
    type="error",
    error=closed(
        type=text("invalid_request_error, authentication_error, rate_limit_error, overloaded_error, …"),
        message=text("What went wrong, and how to fix it."),
        param={**or_null(STRING), "description": "The member of the request that is at fault."},
        code=text("The exact reason, for programs."),
        details=opt(OBJECT),
    ),
)
_MODEL = closed(
    "A model, for clients that send `anthropic-version`.",
    type="model",
    id=NAME,
    display_name=NAME,
    created_at={"type": "string", "format": "date-time"},
    lifecycle="active",
    max_input_tokens=or_null(COUNT),
    max_tokens=NULL,
)
_RESULT = closed(type="web_search_result", url=STRING, title=STRING, encrypted_content=STRING)
_ANSWERED: dict[str, Json] = {
    "AnthropicError": _ERROR,
    "AnthropicModel": _MODEL,
    "AnthropicModelList": closed(
        "The models, for clients that send `anthropic-version`.",
        data=list_of(ref("AnthropicModel")),
        has_more=BOOLEAN,
        first_id=or_null(NAME),
        last_id=or_null(NAME),
    ),
    "AnthropicTokens": closed("The estimate.", input_tokens=COUNT),
    "AnthropicMessage": closed(
        "A message.",
        id={"type": "string", "pattern": "^msg_"},
        type="message",
        role="assistant",
        model=text("As spelled in the request."),
        content=list_of(
            any_of(
                closed(type="text", text=NAME),
                closed(type="thinking", thinking=STRING, signature=STRING),
                closed(type="redacted_thinking", data=STRING),
                closed(type="tool_use", id=STRING, name=STRING, input=OBJECT),
                closed(type="server_tool_use", id=STRING, name="web_search", input=OBJECT),
                closed(type="web_search_tool_result", tool_use_id=STRING, content=list_of(_RESULT)),
            )
        ),
        stop_reason=enum("end_turn", "tool_use", "max_tokens", "stop_sequence", "refusal"),
        stop_sequence=or_null(STRING),
        usage=closed(
            input_tokens=COUNT,
            cache_creation_input_tokens=COUNT,
            cache_read_input_tokens=COUNT,
            output_tokens=COUNT,
            output_tokens_details=closed(thinking_tokens=COUNT),
            server_tool_use=opt(closed(web_search_requests=COUNT, web_fetch_requests=COUNT)),
            estimated=opt(const(True)),
        ),
    ),
}

_TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
_HELLO = {"model": "mock-echo", "max_tokens": 1000, "messages": [{"role": "user", "content": "hello"}]}
API = ApiSchemas(
    ref("AnthropicRequest"),
    {
        "Text": _HELLO,
        "Tool": {**_HELLO, "model": "mock-tool-call", "tools": [_TOOL]},
        "Stream": {**_HELLO, "model": "mock-text", "stream": True},
    },
    {**_SENT, "AnthropicRequest": _BODY, **_ANSWERED},
)
