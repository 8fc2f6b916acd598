"""What the bridge writes of a conversation: the items of an answer, and those that it keeps."""

from __future__ import annotations

from bridge.api.openapi.schemas import STRING, Json, any_of, closed, const, list_of, one_of_words, opened, ref

_ID: Json = {"type": "string", "minLength": 1}
_STATUS = one_of_words("in_progress", "completed", "incomplete")

_OUTPUT_TEXT = closed(
    {
        "type": const("output_text"),
        "text": STRING,
        "annotations": list_of({}, maxItems=0),
        "logprobs": list_of({}, maxItems=0),
    }
)
_INPUT_TEXT = closed({"type": const("input_text"), "text": STRING})
_INPUT_IMAGE = closed({"type": const("input_image"), "image_url": STRING, "detail": STRING})


def _call(kind: str, member: str) -> Json:
    return closed(
        {
            "id": _ID,
            "type": const(kind),
            "status": _STATUS,
            "call_id": _ID,
            "name": _ID,
            member: STRING,
        },
        {"namespace": STRING},
    )


def _output(kind: str) -> Json:
    output = any_of(STRING, list_of(any_of(_INPUT_TEXT, _INPUT_IMAGE)))
    return closed(
        {"id": _ID, "type": const(kind), "status": const("completed"), "call_id": _ID, "output": output},
    )


SCHEMAS: dict[str, Json] = {
    "OutputItem": any_of(
        ref("OutputMessage"),
        ref("FunctionCall"),
        ref("CustomToolCall"),
        ref("ReasoningItem"),
        ref("WebSearchCall"),
        description="One thing that the model said, thought or asked for.",
    ),
    "OutputMessage": closed(
        {
            "id": _ID,
            "type": const("message"),
            "status": _STATUS,
            "role": const("assistant"),
            "content": list_of(_OUTPUT_TEXT),
        },
        description="A text of the model's.",
    ),
    "FunctionCall": {**_call("function_call", "arguments"), "description": "A call for the client to execute."},
    "CustomToolCall": {**_call("custom_tool_call", "input"), "description": "A call of a custom tool."},
    "ReasoningItem": closed(
        {
            "id": _ID,
            "type": const("reasoning"),
            "summary": list_of(closed({"type": const("summary_text"), "text": STRING})),
            "status": _STATUS,
        },
        {
            "content": list_of(closed({"type": const("reasoning_text"), "text": STRING})),
            "encrypted_content": STRING,
        },
        "What the model thought. `encrypted_content` is there when `include` asks for it.",
    ),
    "WebSearchCall": closed(
        {"id": _ID, "type": const("web_search_call"), "status": _STATUS, "action": {"type": "object"}},
        description="A search that the provider made.",
    ),
    "Item": any_of(
        ref("OutputItem"),
        closed(
            {
                "id": _ID,
                "type": const("message"),
                "role": one_of_words("system", "developer", "user", "assistant"),
                "status": const("completed"),
                "content": list_of(any_of(_OUTPUT_TEXT, _INPUT_TEXT, _INPUT_IMAGE)),
            },
            description="A message.",
        ),
        _output("function_call_output"),
        _output("custom_tool_call_output"),
        opened(
            {
                "id": _ID,
                "type": {
                    "type": "string",
                    "not": {
                        "enum": [
                            "message",
                            "function_call",
                            "custom_tool_call",
                            "function_call_output",
                            "custom_tool_call_output",
                        ]
                    },
                },
            },
            description="An item that is kept as the client sent it.",
        ),
        description="An item of a conversation, as it is kept.",
    ),
    "ItemList": closed(
        {
            "object": const("list"),
            "data": list_of(ref("Item")),
            "first_id": any_of(_ID, {"type": "null"}),
            "last_id": any_of(_ID, {"type": "null"}),
            "has_more": {"type": "boolean"},
        },
        description="A part of a list of items.",
    ),
}

LIST_PARAMETERS: list[Json] = [
    {
        "name": "limit",
        "in": "query",
        "description": "How many items to give.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    },
    {
        "name": "order",
        "in": "query",
        "description": "`desc`: the newest first.",
        "schema": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    },
    {
        "name": "after",
        "in": "query",
        "description": "The id of an item of this list: only what comes after it.",
        "schema": STRING,
    },
    {
        "name": "before",
        "in": "query",
        "description": "The id of an item of this list: only what comes before it.",
        "schema": STRING,
    },
]
