"""Schemas of what a client may send. Unknown members are accepted.

The members of a body come from the pydantic model that reads it, so the description states what is really checked. This
file adds what the model cannot say: descriptions, and the schemas of members that other code reads.
"""

from __future__ import annotations

from typing import Any

from bridge.protocols.chat.request import MAX_STOPS, ChatBody
from bridge.protocols.items import PASSED_ON, TOOLS_ITEM
from bridge.protocols.openapi import (
    BOOLEAN,
    METADATA,
    NAME,
    NULL,
    OBJECT,
    STRING,
    Json,
    any_of,
    body_schema,
    const,
    enum,
    list_of,
    opened,
    opt,
    or_null,
    ref,
)
from bridge.protocols.responses.request import ResponsesBody
from bridge.protocols.tooling import MAX_TOOLS

MAX_ITEMS = 20
"""Items that one request may add to a conversation, as in OpenAI's API."""

# Items: messages, calls and outputs, in the format of either protocol and in any mixture

_CALL_ID: Json = {**NAME, "maxLength": 256, "pattern": "^[A-Za-z0-9_.:|/+=@#~$-]+$"}
_CONTENT = any_of(STRING, list_of(ref("ContentPart")), NULL)
_FUNCTION_CALL = {"name": NAME, "arguments": STRING}
_IS_MESSAGE = opt(any_of(const("message"), NULL))
_NAMESPACE = opt(or_null(ref("Name")))

_ITEMS: dict[str, Json] = {
    "ContentPart": any_of(
        STRING,
        opened("Text.", type=enum("text", "input_text", "output_text", "summary_text", "reasoning_text"), text=STRING),
        opened("A refusal, read as text.", type="refusal", refusal=STRING),
        opened(
            "An image as a data URL. Codex does not fetch images and refuses other URLs.",
            type=enum("image_url", "input_image"),
            image_url=any_of(STRING, opened(url=STRING, detail=opt({}))),
            detail=opt({"description": "`high` or `original`; anything else means `auto`."}),
        ),
        opened("A document or another file. Codex reads texts and images alone.", type=enum("input_file", "file")),
        description="A part of a message's content. Audio, and files by id, are refused.",
    ),
    "InputMessage": any_of(
        opened(
            "A message to the model.",
            role=enum("system", "developer", "user"),
            content=any_of(STRING, list_of(ref("ContentPart"), minItems=1)),
            type=_IS_MESSAGE,
        ),
        opened(
            "Earlier text and calls of the model.",
            role="assistant",
            type=_IS_MESSAGE,
            content=opt(_CONTENT),
            refusal=opt(_CONTENT),
            tool_calls=opt(or_null(list_of(ref("PastToolCall")))),
            function_call=opt(or_null(opened(**_FUNCTION_CALL))),
        ),
        opened(
            "The output of a tool for an earlier call.",
            role="tool",
            tool_call_id=_CALL_ID,
            type=_IS_MESSAGE,
            content=opt(_CONTENT),
        ),
        opened(
            "The output for an earlier `function_call`, which has no id.",
            role="function",
            name=NAME,
            type=_IS_MESSAGE,
            content=opt(_CONTENT),
        ),
        description="A message. Chat's roles are also accepted in the `input` of a response.",
    ),
    "PastToolCall": any_of(
        opened(id=_CALL_ID, function=opened(**_FUNCTION_CALL), type=opt(STRING)),
        opened(id=_CALL_ID, type="custom", custom=opened(name=NAME, input=STRING)),
        description="An earlier call of the model, in the chat format.",
    ),
    "InputItem": any_of(
        ref("InputMessage"),
        opened(
            "An earlier call of the model.",
            call_id=_CALL_ID,
            **_FUNCTION_CALL,
            type=opt("function_call"),
            namespace=_NAMESPACE,
        ),
        opened(
            "An earlier call of a custom tool.",
            type="custom_tool_call",
            call_id=_CALL_ID,
            name=NAME,
            input=STRING,
            namespace=_NAMESPACE,
        ),
        opened(
            "The output of a tool. It follows its call.",
            call_id=_CALL_ID,
            output=_CONTENT,
            type=opt(enum("function_call_output", "custom_tool_call_output")),
        ),
        opened(
            "Reasoning from an earlier answer. It is ignored without `encrypted_content`.",
            type="reasoning",
            encrypted_content=opt({}),
            summary=opt({}),
            content=opt({}),
        ),
        opened(
            "The summary of a conversation, made by POST /v1/responses/compact of this bridge.",
            type="compaction",
            encrypted_content=STRING,
        ),
        opened("Replaced by the stored item with this id.", type="item_reference", id=STRING),
        opened(
            "Tools that are offered from within the conversation.",
            type=enum(TOOLS_ITEM),
            tools=opt({"description": "Offered like those in `tools`, if this is a list."}),
        ),
        opened("Passed to the model unchanged.", type=enum(*PASSED_ON)),
        description="An item of a conversation. Items of other types are refused (`unsupported_item`); unlisted "
        "members are ignored.",
    ),
    "Name": {
        **NAME,
        "maxLength": 128,
        "pattern": "^[A-Za-z0-9_.:-]+$",
        "description": "The name of a function or of a namespace.",
    },
}

# Tools, the choice among them, and the format of the answer

_FUNCTION = {
    "description": opt(or_null(STRING)),
    "parameters": opt(any_of(OBJECT, BOOLEAN, NULL, description="A JSON Schema of the arguments.")),
    "strict": opt(or_null(BOOLEAN)),
}
_MODE = opt(enum("auto", "required"))
_CALLABLE = enum("function", "custom")
_SCHEMA_OPTIONS = {"name": opt({}), "strict": opt({})}

_TOOLS: dict[str, Json] = {
    "Tool": any_of(
        opened("A function, in the Responses format.", name=ref("Name"), type=opt("function"), **_FUNCTION),
        opened("A function, in the chat format.", function=opened(name=ref("Name"), **_FUNCTION), type=opt("function")),
        opened(
            "A tool whose input is one text; its members may also be in `custom`. The model sees the grammar, but "
            "it is not enforced.",
            type="custom",
            name=opt(ref("Name")),
            description=opt({}),
            format=opt({}),
            custom=opt(opened(name=ref("Name"))),
        ),
        opened(
            "Functions that are offered as `namespace.name`.",
            type="namespace",
            name=ref("Name"),
            tools=opt(or_null(list_of(OBJECT))),
        ),
        opened(
            "`web_search…` is used as far as `PROXY_WEB_SEARCH` allows. Others are dropped and named in "
            "`x-bridge-dropped`, unless the backend supports them.",
            type={"type": "string", "not": {"enum": ["function", "custom", "namespace"]}},
        ),
        description=f"A tool. Names must be distinct; at most {MAX_TOOLS} tools are accepted.",
    ),
    "ToolChoice": any_of(
        enum("auto", "none", "required"),
        opened(type=_CALLABLE, name=STRING),
        opened(type=_CALLABLE, function=opened(name=STRING)),
        opened(type=_CALLABLE, custom=opened(name=STRING)),
        opened(type="allowed_tools", tools=list_of({}), mode=_MODE),
        opened(type="allowed_tools", allowed_tools=opened(tools=list_of({}), mode=_MODE)),
        opened(type={"type": "string", "pattern": "^web_search"}),
        NULL,
        description="Whether the model may, must or must not call tools, or which ones. The model is instructed which "
        "tool to call, but this is not enforced.",
    ),
    "OutputFormat": any_of(
        opened("Plain text.", type=opt(any_of(const("text"), NULL))),
        opened("Any JSON object, requested from the model in words.", type="json_object"),
        opened(
            "JSON that matches the schema, in the Responses format. The provider enforces it with `strict` if the "
            "schema is suitable; otherwise the model is asked in words.",
            type="json_schema",
            schema=OBJECT,
            **_SCHEMA_OPTIONS,
        ),
        opened(
            "The same in the chat format.", type="json_schema", json_schema=opened(schema=OBJECT, **_SCHEMA_OPTIONS)
        ),
        NULL,
        description="The format of the answer. The bridge does not check what the model writes.",
    ),
}

# Bodies

_IF_SUPPORTED = "Used if the backend supports it. Codex does not: it is then dropped and named in `x-bridge-dropped`."
_MODEL: Json = {
    "description": "One of GET /v1/models. Case is ignored; a suffix `-low` … `-xhigh` sets the reasoning effort.",
    "examples": ["mock-echo"],
}
_COMMON: dict[str, Json | str] = {
    "model": _MODEL,
    "tools": any_of(list_of(ref("Tool")), NULL, description="The tools that the model may call."),
    "tool_choice": any_of(ref("ToolChoice"), description="The choice among the tools."),
    "parallel_tool_calls": "`false`: only the first call of an answer is returned.",
    "stream": "Whether to stream the answer. The default is the setting `PROXY_STREAM_DEFAULT`.",
    "temperature": _IF_SUPPORTED,
    "top_p": _IF_SUPPORTED,
}
_CHAT: dict[str, Json | str] = {
    **_COMMON,
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": ref("InputItem"),
        "description": "The conversation so far. Items of the Responses protocol are accepted among the messages.",
    },
    "functions": any_of(
        list_of(opened(name=ref("Name"), description=opt(or_null(STRING)))),
        NULL,
        description="The older form of `tools`, used when `tools` is missing. The answer then has at most one "
        "`function_call`.",
    ),
    "function_call": any_of(
        enum("auto", "none", "required"), opened(name=STRING), NULL, description="The choice among `functions`."
    ),
    "stream_options": "`include_usage`: the last chunk has the usage.",
    "reasoning_effort": "The reasoning effort. Takes precedence over the suffix of the model's name.",
    "response_format": any_of(ref("OutputFormat"), description="The format of the answer."),
    "verbosity": "How long the answer should be.",
    "web_search_options": "Allows web searches, as far as `PROXY_WEB_SEARCH` allows them.",
    "max_tokens": _IF_SUPPORTED + " No limit when it is missing.",
    "max_completion_tokens": "The newer name of `max_tokens`, which it overrides.",
    "n": "The number of answers. Each is a turn of its own.",
    "stop": any_of(
        STRING,
        list_of(STRING, maxItems=MAX_STOPS),
        NULL,
        description="The answer ends before the first occurrence of one of these texts.",
    ),
}
_INPUT = any_of(
    STRING,
    list_of(ref("InputItem")),
    NULL,
    description="Text, or a list of items. It may be empty only when something is continued.",
)
_CONVERSATION = any_of(
    STRING,
    opened(id=STRING),
    NULL,
    description="The id of a conversation: its items precede the input, and the answer is added to it. Cannot be "
    "combined with `previous_response_id`.",
)
_RESPONSES: dict[str, Json | str] = {
    **_COMMON,
    "input": _INPUT,
    "instructions": "Precedes everything else. Not carried over to the next response.",
    "stream_options": "`include_usage` is for bodies of this form on the chat path.",
    "reasoning": "The reasoning effort, and whether to return a summary.",
    "text": "The format and the length of the answer.",
    "max_output_tokens": _IF_SUPPORTED + " No limit when it is missing.",
    "metadata": "Repeated in the response.",
    "include": "`reasoning.encrypted_content` is supported. Others are dropped and named.",
    "store": "`false`: the response is not stored and cannot be continued.",
    "background": (
        "Answer immediately with the response in progress; GET it until it has ended. Cannot be "
        "combined with `stream` or `store: false`."
    ),
    "previous_response_id": "The conversation up to that response precedes the input.",
    "prompt": any_of(NULL, description="Refused: prompt templates are stored by OpenAI."),
}
_ECHOED = {"description": "Repeated in the response if it is a string; it has no other effect."}
_UNLISTED = "Unlisted members are dropped and named in `x-bridge-dropped`, or refused with `PROXY_UNSUPPORTED=reject`."


_NEW_ITEMS = list_of(ref("InputItem"), maxItems=MAX_ITEMS)
SCHEMAS: dict[str, Json] = {
    **_ITEMS,
    **_TOOLS,
    "ChatRequest": body_schema(f"The body of a chat completion. {_UNLISTED}", ChatBody, _CHAT),
    "ResponsesRequest": body_schema(
        f"The body of a response. {_UNLISTED}",
        ResponsesBody,
        _RESPONSES,
        conversation=_CONVERSATION,
        **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key"), _ECHOED),
    ),
    "CompactRequest": opened(
        "A conversation to summarize. Other members are ignored.",
        model=_MODEL | STRING | {"minLength": 1, "maxLength": 256},
        input=opt(_INPUT),
        instructions=opt(or_null(STRING)),
        previous_response_id=opt(or_null(STRING)),
        conversation=opt(_CONVERSATION),
    ),
    "NewConversation": opened(
        "The first items of a conversation, and its metadata. Other members are ignored.",
        items=opt(or_null(_NEW_ITEMS)),
        metadata=opt(or_null(METADATA)),
    ),
    "ConversationUpdate": opened(
        "Replaces the metadata; without it, the metadata is removed. Other members are ignored.",
        metadata=opt(or_null(METADATA)),
    ),
    "NewItems": opened("Items to append. Other members are ignored.", items={**_NEW_ITEMS, "minItems": 1}),
}

_MESSAGES = [{"role": "user", "content": "weather in Bern?"}]
_WEATHER = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
_TOOLS_IN_CHAT = [{"type": "function", "function": _WEATHER}]
_ASSIST = {
    "request_id": "550e8400-e29b-41d4-a716-446655440000",
    "context": {"session_id": "session-1", "user": {"id": "user-1", "name": "Ada"}},
    "payload": {"query": "hello", "meta": {"model": "mock-echo"}},
}
BODIES: dict[str, tuple[Json, dict[str, Any]]] = {
    "responses": (
        any_of(
            ref("ResponsesRequest"),
            ref("ChatRequest"),
            description="A body with `messages` and without `input` is read as a chat request, whatever the path.",
        ),
        {
            "Text": {"model": "mock-echo", "input": "hello"},
            "Tool": {"model": "mock-tool-call", "input": _MESSAGES, "tools": [{"type": "function", **_WEATHER}]},
            "Stream": {"model": "mock-text", "input": "hello", "stream": True},
        },
    ),
    "chat": (
        any_of(
            ref("ChatRequest"),
            ref("ResponsesRequest"),
            description="A body with `input` and without `messages` is read as a Responses request.",
        ),
        {
            "Text": {"model": "mock-echo", "messages": [{"role": "user", "content": "hello"}]},
            "Tool": {"model": "mock-tool-call", "messages": _MESSAGES, "tools": _TOOLS_IN_CHAT},
            "Stream": {"model": "mock-text", "stream": True, "messages": [{"role": "user", "content": "hello"}]},
        },
    ),
    "CompactRequest": (ref("CompactRequest"), {"Text": {"model": "mock-echo", "input": "remember 42"}}),
    "NewConversation": (
        ref("NewConversation"),
        {"With items": {"metadata": {"topic": "demo"}, "items": [{"role": "user", "content": "hi"}]}},
    ),
    "ConversationUpdate": (ref("ConversationUpdate"), {"Metadata": {"metadata": {"topic": "demo"}}}),
    "NewItems": (ref("NewItems"), {"Message": {"items": [{"role": "user", "content": "hi"}]}}),
    "ServiceRequest": (ref("ServiceRequest"), {"Query": _ASSIST}),
}
"""Bodies by the name that routes use: the schema, and examples by their summaries."""
OPTIONAL_BODIES = frozenset({"NewConversation"})
