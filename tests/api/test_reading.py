"""Reading a client's JSON: limits, and the pieces that both formats share."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from bridge.api.reading import (
    MAX_DEPTH,
    MAX_TOOLS,
    check_depth,
    check_outputs,
    parse_json,
    read_format,
    read_parts,
    read_tool_choice,
    read_tools,
)
from bridge.errors import InvalidRequest
from bridge.turn.items import (
    FunctionCall,
    FunctionOutput,
    FunctionTool,
    Image,
    OutputFormat,
    RawTool,
    Text,
    ToolChoice,
)


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """An object whose deepest container lies `depth` levels down."""
    return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


# JSON


def test_a_json_object_is_read() -> None:
    """Any object, with any unknown members; of two equal keys the last wins."""
    assert parse_json('{"a":[1,null,"é\u2028"],"b":{}}'.encode()) == {"a": [1, None, "é\u2028"], "b": {}}
    assert parse_json(b'{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" \r\n\t",
        b"null",
        b"true",
        b"5",
        b'"text"',
        b"[]",
        b'[{"model":"m"}]',
        b"{",
        b'{"a":1',
        b"{'a':1}",
        b'{"a":1,}',
        b"{}x",
        b"{}{}",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b"\xef\xbb\xbf{}",
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\\ud800"}',
        b'{"\\udfff":1}',
        '{"a":1}'.encode("utf-16"),
        b"\x1f\x8b\x08",
        b"a=b&c=d",
        b'{"a":"\x00"}',
        b'{"a":"\n"}',
    ],
)
def test_anything_else_is_a_clean_400(body: bytes) -> None:
    """Whatever is no JSON object is the client's mistake, said in words."""
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    assert (caught.value.http_status, caught.value.code) == (400, "invalid_json")
    orjson.dumps(caught.value.body())


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
@pytest.mark.parametrize("depth", [MAX_DEPTH * 2, 500, 1000, 10_000, 100_000])
def test_deep_nesting_is_refused_before_anything_recursive(opening: bytes, closing: bytes, depth: int) -> None:
    """Far too deep is refused, never a crash."""
    with pytest.raises(InvalidRequest) as caught:
        parse_json(nested(depth, opening, closing))
    assert caught.value.http_status == 400


def test_the_limit_of_nesting_is_exact() -> None:
    """The limit itself is fine, one more is not."""
    assert parse_json(nested(MAX_DEPTH))
    with pytest.raises(InvalidRequest) as caught:
        parse_json(nested(MAX_DEPTH + 1))
    assert caught.value.code == "nesting_too_deep"


def test_width_is_no_depth() -> None:
    """Many members and long strings are fine, and cost linear time."""
    wide = {str(number): [{}, [number]] for number in range(50_000)}
    assert parse_json(orjson.dumps(wide)) == wide
    assert len(parse_json(b'{"a":"' + b"x" * 10_000_000 + b'"}')["a"]) == 10_000_000
    check_depth([[]] * 100_000)


# Content


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ()),
        ("", (Text(""),)),
        ("text", (Text("text"),)),
        ([], ()),
        ([{"type": "text", "text": "a"}], (Text("a"),)),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], (Text("a"), Text("b"))),
        ([{"type": "refusal", "refusal": "no"}], (Text("no"),)),
        ([{"type": "image_url", "image_url": {"url": "data:x", "detail": "high"}}], (Image("data:x", "high"),)),
        ([{"type": "image_url", "image_url": {"url": "data:x"}}], (Image("data:x"),)),
        ([{"type": "input_image", "image_url": "data:x", "detail": "low"}], (Image("data:x", "low"),)),
        ([{"type": "input_image", "image_url": "data:x", "detail": 5}], (Image("data:x"),)),
    ],
)
def test_content_in_either_spelling(content: Any, parts: Any) -> None:
    """Strings, nothing, and parts of both formats."""
    assert read_parts(content, "place") == parts


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (5, "c"),
        ({"type": "text", "text": "x"}, "c"),
        (["x"], "c[0]"),
        ([{"type": "text", "text": "x"}, {"type": "text"}], "c[1].text"),
        ([{"type": "text", "text": None}], "c[0].text"),
        ([{"type": "refusal"}], "c[0].refusal"),
        ([{"type": "image_url"}], "c[0].image_url"),
        ([{"type": "image_url", "image_url": {}}], "c[0].image_url"),
        ([{"type": "input_image", "file_id": "f"}], "c[0].image_url"),
        ([{"type": "input_file", "file_id": "f"}], "c[0].type"),
        ([{"type": "input_audio"}], "c[0].type"),
        ([{}], "c[0].type"),
        ([{"type": []}], "c[0].type"),
    ],
)
def test_content_of_another_shape_names_its_place(content: Any, param: str) -> None:
    """`param` points at what is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        read_parts(content, "c")
    assert caught.value.param == param


# Tools


def test_functions_in_both_spellings_and_other_tools_verbatim() -> None:
    """Nested (chat), flat (responses), without a type, and types that are not ours."""
    search = {"type": "web_search", "filters": {"a": 1}}
    tools = [
        {"type": "function", "function": {"name": "nested", "description": "d", "parameters": {"type": "object"}}},
        {"type": "function", "name": "flat", "parameters": {}, "strict": True},
        {"function": {"name": "bare"}},
        {"name": "barest", "parameters": True, "strict": False},
        search,
    ]
    assert read_tools(tools) == (
        FunctionTool("nested", "d", {"type": "object"}),
        FunctionTool("flat", None, {}, True),
        FunctionTool("bare"),
        FunctionTool("barest", None, True, False),
        RawTool("web_search", search),
    )
    assert read_tools(None) == read_tools([]) == ()


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (5, "tools[0]"),
        ("find", "tools[0]"),
        ([], "tools[0]"),
        ({}, "tools[0].name"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "function", "name": None}, "tools[0].name"),
        ({"type": "function", "name": ""}, "tools[0].name"),
        ({"type": "function", "name": "a b"}, "tools[0].name"),
        ({"type": "function", "name": "ä"}, "tools[0].name"),
        ({"type": "function", "name": "a\n"}, "tools[0].name"),
        ({"type": "function", "name": "x" * 300}, "tools[0].name"),
        ({"type": "function", "function": {}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "a", "description": 5}}, "tools[0].function.description"),
        ({"type": "function", "name": "a", "parameters": "x"}, "tools[0].parameters"),
        ({"type": "function", "name": "a", "parameters": []}, "tools[0].parameters"),
        ({"type": "function", "name": "a", "strict": "yes"}, "tools[0].strict"),
        ({"type": 5}, "tools[0].type"),
        ({"type": None, "name": "a"}, "tools[0].type"),
    ],
)
def test_a_tool_of_another_shape_names_its_place(tool: Any, param: str) -> None:
    """`param` points at what is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        read_tools([tool])
    assert caught.value.param == param


def test_names_are_unique() -> None:
    """Two functions of one name could not be told apart."""
    with pytest.raises(InvalidRequest) as caught:
        read_tools([{"name": "a"}, {"type": "function", "function": {"name": "a"}}])
    assert caught.value.param == "tools[1]"


def test_the_number_of_tools_is_limited() -> None:
    """The limit itself is fine, one more is not."""
    tools = [{"type": "function", "name": f"t{number}"} for number in range(MAX_TOOLS + 1)]
    assert len(read_tools(tools[:-1])) == MAX_TOOLS
    with pytest.raises(InvalidRequest) as caught:
        read_tools(tools)
    assert caught.value.param == "tools"


TOOLS = (FunctionTool("find"), RawTool("web_search", {}))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "find"}, ToolChoice("named", "find")),
        ({"type": "function", "function": {"name": "find"}}, ToolChoice("named", "find")),
    ],
)
def test_tool_choice_in_all_its_forms(choice: Any, expected: ToolChoice) -> None:
    """A word, or a function's name in either spelling."""
    assert read_tool_choice(choice, TOOLS) == expected


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        5,
        True,
        [],
        ["auto"],
        {},
        {"type": "web_search"},
        {"type": "allowed_tools"},
        {"type": "function"},
        {"type": "function", "name": 5},
        {"type": "function", "name": "absent"},
        {"type": "function", "name": "web_search"},
        {"type": "function", "function": {"name": "Find"}},
    ],
)
def test_any_other_tool_choice_is_refused(choice: Any) -> None:
    """A choice that cannot be honoured is not ignored."""
    with pytest.raises(InvalidRequest) as caught:
        read_tool_choice(choice, TOOLS)
    assert (caught.value.param or "").startswith("tool_choice")


# Formats


def test_output_formats_in_both_spellings() -> None:
    """The schema is found nested (chat) and flat (responses); the client's own object is kept."""
    schema = {"type": "object"}
    nested_format = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    flat_format = {"type": "json_schema", "name": "n", "schema": schema}
    assert read_format(nested_format, "f") == OutputFormat("json_schema", nested_format, schema)
    assert read_format(flat_format, "f") == OutputFormat("json_schema", flat_format, schema)
    assert read_format({"type": "json_object"}, "f") == OutputFormat("json_object", {"type": "json_object"})
    for plain in (None, {}, {"type": "text"}):
        assert read_format(plain, "f") is None


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"type": "xml"}, "f.type"),
        ({"type": []}, "f.type"),
        ({"type": "json_schema"}, "f.schema"),
        ({"type": "json_schema", "schema": "x"}, "f.schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "f.schema"),
    ],
)
def test_another_format_names_its_place(data: Any, param: str) -> None:
    """`param` points at what is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        read_format(data, "f")
    assert caught.value.param == param


def test_an_output_needs_its_call_before_it() -> None:
    """Codex would drop an orphan without a word, so it is refused."""
    call, output = FunctionCall("c", "f", "{}"), FunctionOutput("c", ())
    check_outputs([call, output], "input")
    check_outputs([call, FunctionCall("d", "f", "{}"), FunctionOutput("d", ()), output], "input")
    for orphan in ([output], [output, call], [call, FunctionOutput("other", ())]):
        with pytest.raises(InvalidRequest) as caught:
            check_outputs(orphan, "input")
        assert caught.value.param == "input"
