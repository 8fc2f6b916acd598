"""The tools that a request may offer, the choice among them, and the form of the answer."""

from __future__ import annotations

from bridge.api.openapi.schemas import (
    ANY_OBJECT,
    BOOLEAN,
    STRING,
    Json,
    any_of,
    const,
    list_of,
    one_of_words,
    opened,
    or_null,
    ref,
)
from bridge.api.tooling import MAX_TOOLS

_FUNCTION: Json = {
    "description": or_null(STRING),
    "parameters": {
        **any_of(ANY_OBJECT, BOOLEAN, {"type": "null"}),
        "description": "A JSON Schema of the arguments.",
    },
    "strict": or_null(BOOLEAN),
}
_NAMED = opened({"name": ref("Name")})

SCHEMAS: dict[str, Json] = {
    "Tool": any_of(
        opened(
            {"name": ref("Name")},
            {"type": const("function"), **_FUNCTION},
            "A function, in the Responses spelling.",
        ),
        opened(
            {"function": opened({"name": ref("Name")}, _FUNCTION)},
            {"type": const("function")},
            "A function, in chat's spelling.",
        ),
        opened(
            {"type": const("custom")},
            {"name": ref("Name"), "description": {}, "format": {}, "custom": _NAMED},
            "A tool that takes one text; its members may stand in `custom`. Its grammar is told to the model, not "
            "enforced.",
        ),
        opened(
            {"type": const("namespace"), "name": ref("Name")},
            {"tools": or_null(list_of(ANY_OBJECT))},
            "Functions that are offered as `namespace.name`.",
        ),
        opened(
            {"type": {"type": "string", "not": {"enum": ["function", "custom", "namespace"]}}},
            description="`web_search…` is used as far as `PROXY_WEB_SEARCH` allows. Others are left out, and named in "
            "`x-bridge-dropped`, unless the backend takes them.",
        ),
        description=f"A tool. Names must differ; there are at most {MAX_TOOLS}.",
    ),
    "ToolChoice": any_of(
        one_of_words("auto", "none", "required"),
        opened({"type": one_of_words("function", "custom"), "name": STRING}),
        opened({"type": one_of_words("function", "custom"), "function": opened({"name": STRING})}),
        opened({"type": one_of_words("function", "custom"), "custom": opened({"name": STRING})}),
        opened({"type": const("allowed_tools"), "tools": list_of({})}, {"mode": one_of_words("auto", "required")}),
        opened(
            {
                "type": const("allowed_tools"),
                "allowed_tools": opened({"tools": list_of({})}, {"mode": one_of_words("auto", "required")}),
            }
        ),
        opened({"type": {"type": "string", "pattern": "^web_search"}}),
        {"type": "null"},
        description="Whether the model may, must or must not call tools, or which. What must be called is told to the "
        "model, not enforced.",
    ),
    "OutputFormat": any_of(
        opened({}, {"type": any_of(const("text"), {"type": "null"})}, "Plain text."),
        opened({"type": const("json_object")}, description="Any JSON object; the model is asked in words."),
        opened(
            {"type": const("json_schema"), "schema": ANY_OBJECT},
            {"name": {}, "strict": {}},
            "Such JSON, in the Responses spelling. With `strict`, and where the schema suits strict mode, the provider "
            "enforces it; else the model is asked in words.",
        ),
        opened(
            {
                "type": const("json_schema"),
                "json_schema": opened({"schema": ANY_OBJECT}, {"name": {}, "strict": {}}),
            },
            description="The same in chat's spelling.",
        ),
        {"type": "null"},
        description="The form of the answer. The bridge does not check what the model writes.",
    ),
}
