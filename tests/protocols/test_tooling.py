"""The tools that a request offers, the choice among them, and the form of the answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import FunctionTool, OutputFormat, RawTool, Tool, ToolChoice
from bridge.errors import InvalidRequest
from bridge.protocols.tooling import (
    MAX_TOOLS,
    read_format,
    read_old_function_call,
    read_old_functions,
    read_tool_choice,
    read_tools,
)

FIND = {"type": "function", "name": "find"}
PATCH = {"type": "custom", "name": "patch", "description": "Patches."}
FILES = {"type": "namespace", "name": "files", "description": "Files.", "tools": [FIND, PATCH]}


def refused(*tools: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read_tools(tools)
    assert caught.value.http_status == 400
    return caught.value


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
    assert read_tools([]) == ()


@pytest.mark.parametrize("tool", [PATCH, {"type": "custom", "custom": PATCH}])
def test_a_custom_tool_is_a_function_of_one_text(tool: dict[str, Any]) -> None:
    """In both spellings; its own definition is kept beside the schema that stands for it."""
    (read,) = read_tools([tool])
    assert isinstance(read, FunctionTool)
    assert (read.name, read.description, read.custom, read.raw) == ("patch", "Patches.", True, PATCH)
    assert isinstance(read.parameters, dict)
    assert read.parameters["required"] == ["input"]
    assert read.parameters["properties"]["input"]["type"] == "string"


@pytest.mark.parametrize(
    ("members", "described"),
    [
        ({}, None),
        ({"description": ""}, None),
        ({"description": "d"}, "d"),
        ({"description": "d", "format": {"type": "text"}}, "d"),
        (
            {"description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}},
            "d\n\nThe input must match this lark grammar:\nstart: /a+/",
        ),
        (
            {"format": {"type": "grammar", "syntax": "regex", "definition": "a+"}},
            "The input must match this regex grammar:\na+",
        ),
        (
            {"format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "a+"}}},
            "The input must match this regex grammar:\na+",
        ),
    ],
)
def test_a_grammar_is_told_in_words(members: dict[str, Any], described: str | None) -> None:
    """Flat (responses) or nested (chat): nothing here can hold a model to it."""
    (read,) = read_tools([{"type": "custom", "name": "c", **members}])
    assert isinstance(read, FunctionTool)
    assert read.description == described


def test_a_namespace_gives_its_functions_their_full_names() -> None:
    """Functions and custom tools of a namespace may have the names of others."""
    tools = read_tools([FILES, FIND, {"type": "namespace", "name": "empty", "tools": []}])
    assert [tool.full_name for tool in tools if isinstance(tool, FunctionTool)] == ["files.find", "files.patch", "find"]
    assert [tool.namespace for tool in tools if isinstance(tool, FunctionTool)] == ["files", "files", None]
    assert [tool.custom for tool in tools if isinstance(tool, FunctionTool)] == [False, True, False]


def test_a_namespace_in_a_namespace_is_no_tool_of_ours() -> None:
    """There is but one level; what lies deeper is kept as it is, to be named as dropped."""
    assert read_tools([{"type": "namespace", "name": "outer", "tools": [FILES]}]) == (RawTool("namespace", FILES),)


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
        ({"type": "custom"}, "tools[0].name"),
        ({"type": "custom", "name": "a b"}, "tools[0].name"),
        ({"type": "custom", "custom": {}}, "tools[0].custom.name"),
        ({"type": "namespace", "tools": []}, "tools[0].name"),
        ({"type": "namespace", "name": "n", "tools": [5]}, "tools[0].tools[0]"),
        ({"type": "namespace", "name": "n", "tools": [FIND, {"type": "function"}]}, "tools[0].tools[1].name"),
        ({"type": "namespace", "name": "n", "tools": {"a": FIND}}, "tools[0].tools"),
        ({"type": "namespace", "name": "n", "tools": 5}, "tools[0].tools"),
        ({"type": 5}, "tools[0].type"),
        ({"type": []}, "tools[0].type"),
        ({"type": None, "name": "a"}, "tools[0].type"),
    ],
)
def test_a_tool_of_another_shape_names_its_place(tool: Any, param: str) -> None:
    """`param` points at what is wrong."""
    assert refused(tool).param == param


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": "a"}, {"type": "function", "function": {"name": "a"}}],
        [{"name": "patch"}, PATCH],
        [FILES, FILES],
        [{"type": "function", "name": "files.find"}, FILES],
    ],
)
def test_names_are_unique(tools: list[Any]) -> None:
    """Two tools of one full name could not be told apart."""
    error = refused(*tools)
    assert error.param == "tools"
    assert "Two tools have the name" in error.message


def test_the_number_of_tools_is_limited() -> None:
    """The limit itself is fine, one more is not; those in a namespace count."""
    tools = [{"type": "function", "name": f"t{number}"} for number in range(MAX_TOOLS + 1)]
    assert len(read_tools(tools[:-1])) == MAX_TOOLS
    assert refused(*tools).param == "tools"
    assert refused(*tools[:-1], FILES).param == "tools"
    assert refused({"type": "namespace", "name": "n", "tools": tools}).param == "tools"
    empty = [{"type": "namespace", "name": f"n{number}", "tools": []} for number in range(MAX_TOOLS + 1)]
    assert refused(*empty).param == "tools"


def test_too_many_tools_are_not_read() -> None:
    """Where there are far too many, what stands behind the last one that may be is not looked at."""
    many = [{"type": "function", "name": f"t{number}"} for number in range(MAX_TOOLS)]
    spaces = [{"type": "namespace", "name": f"n{number}", "tools": many} for number in range(MAX_TOOLS - 1)]
    assert "Too many tools" in refused(*spaces, {"type": 5}).message


# The choice

TOOLS: tuple[Tool, ...] = read_tools([FIND, PATCH, FILES | {"tools": [{"name": "open"}]}, {"type": "web_search"}])
FIND_TOOL, PATCH_TOOL, OPEN_TOOL, SEARCH_TOOL = TOOLS


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "find"}, ToolChoice("named", "find")),
        ({"type": "function", "function": {"name": "find"}}, ToolChoice("named", "find")),
        ({"type": "custom", "name": "patch"}, ToolChoice("named", "patch")),
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice("named", "patch")),
        ({"type": "function", "name": "open"}, ToolChoice("named", "files.open")),
        ({"type": "function", "name": "files.open"}, ToolChoice("named", "files.open")),
        ({"type": "web_search"}, ToolChoice("auto")),
        ({"type": "web_search_preview"}, ToolChoice("auto")),
        ({"type": "web_search_preview_2025_03_11"}, ToolChoice("auto")),
    ],
)
def test_tool_choice_in_all_its_forms(choice: Any, expected: ToolChoice) -> None:
    """A word, a tool's name in either spelling, or a search, which nobody can be made to do."""
    assert read_tool_choice(choice, TOOLS) == (expected, TOOLS)


def test_a_name_without_a_namespace_is_first_of_all_itself() -> None:
    """A function of a namespace is meant only where no other has that very name."""
    tools = read_tools([FILES, FIND])
    assert read_tool_choice({"type": "function", "name": "find"}, tools)[0] == ToolChoice("named", "find")
    assert read_tool_choice({"type": "function", "name": "files.find"}, tools)[0] == ToolChoice("named", "files.find")


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize(
    ("allowed", "left"),
    [
        ([{"type": "function", "name": "find"}], (FIND_TOOL,)),
        ([{"type": "function", "function": {"name": "find"}}], (FIND_TOOL,)),
        ([{"type": "custom", "custom": {"name": "patch"}}], (PATCH_TOOL,)),
        ([{"type": "custom", "name": "patch"}, {"type": "function", "name": "find"}], (FIND_TOOL, PATCH_TOOL)),
        ([{"type": "function", "name": "open"}, {"type": "web_search"}], (OPEN_TOOL, SEARCH_TOOL)),
    ],
)
def test_allowed_tools_leave_the_others_out(mode: Any, nested: bool, allowed: list[Any], left: Any) -> None:
    """In both spellings, in the order of the tools."""
    data = {"mode": mode, "tools": allowed}
    choice = {"type": "allowed_tools", **({"allowed_tools": data} if nested else data)}
    assert read_tool_choice(choice, TOOLS) == (ToolChoice(mode), left)


def test_allowed_tools_are_auto_unless_they_say_otherwise() -> None:
    """The mode may be left out."""
    choice = {"type": "allowed_tools", "tools": [FIND]}
    assert read_tool_choice(choice, TOOLS) == (ToolChoice("auto"), (FIND_TOOL,))


@pytest.mark.parametrize(
    "choice",
    [
        "any",
        5,
        True,
        [],
        ["auto"],
        {},
        {"type": []},
        {"type": "file_search"},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "mode": "none", "tools": []},
        {"type": "allowed_tools", "mode": [], "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": {"a": 1}},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "absent"}]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]},
        {"type": "function"},
        {"type": "function", "name": 5},
        {"type": "function", "name": "absent"},
        {"type": "function", "name": "web_search"},
        {"type": "function", "function": {"name": "Find"}},
        {"type": "custom", "name": "absent"},
    ],
)
def test_any_other_tool_choice_is_refused(choice: Any) -> None:
    """A choice that cannot be honoured is not ignored."""
    with pytest.raises(InvalidRequest) as caught:
        read_tool_choice(choice, TOOLS)
    assert (caught.value.param or "").startswith("tool_choice")


@pytest.mark.parametrize("entry", [{"type": []}, {"type": {}}, 5, "find", None])
def test_an_allowed_tool_of_another_shape_is_a_clean_answer(entry: Any) -> None:
    """It names no tool."""
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [FIND, entry]}
    assert read_tool_choice(choice, TOOLS) == (ToolChoice("auto"), (FIND_TOOL,))


# From before there were tools


def test_old_functions_are_functions() -> None:
    """The same members, without anything around them."""
    functions = [{"name": "find", "description": "d", "parameters": {"type": "object"}}, {"name": "open"}]
    assert read_old_functions(functions) == (FunctionTool("find", "d", {"type": "object"}), FunctionTool("open"))


@pytest.mark.parametrize(
    ("entry", "param"),
    [
        (5, "functions[1]"),
        (None, "functions[1]"),
        ({}, "functions[1].name"),
        ({"name": "a b"}, "functions[1].name"),
        ({"name": "a", "parameters": "x"}, "functions[1].parameters"),
        ({"name": "find"}, "functions"),
    ],
)
def test_an_old_function_of_another_shape_names_its_place(entry: Any, param: str) -> None:
    """The place is in the field that the client sent."""
    with pytest.raises(InvalidRequest) as caught:
        read_old_functions([{"name": "find"}, entry])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ({"name": "find"}, ToolChoice("named", "find")),
    ],
)
def test_the_old_choice(choice: Any, expected: ToolChoice) -> None:
    """A word, or a name and nothing else."""
    assert read_old_function_call(choice, TOOLS) == expected


@pytest.mark.parametrize("choice", ["any", 5, [], {}, {"name": "absent"}, {"name": 5}])
def test_any_other_old_choice_is_refused(choice: Any) -> None:
    """A choice that cannot be honoured is not ignored."""
    with pytest.raises(InvalidRequest) as caught:
        read_old_function_call(choice, TOOLS)
    assert (caught.value.param or "").startswith("function_call")


# Formats


def test_output_formats_in_both_spellings() -> None:
    """The schema is found nested (chat) and flat (responses); the client's own object is kept."""
    schema = {"type": "object"}
    nested = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    flat = {"type": "json_schema", "name": "n", "schema": schema}
    assert read_format(nested, "f") == OutputFormat("json_schema", nested, schema)
    assert read_format(flat, "f") == OutputFormat("json_schema", flat, schema)
    assert read_format({"type": "json_object"}, "f") == OutputFormat("json_object", {"type": "json_object"})
    for plain in (None, {}, {"type": "text"}, {"type": None}):
        assert read_format(plain, "f") is None


@pytest.mark.parametrize(("strict", "is_strict"), [(True, True), (False, False), (None, False), ("yes", False)])
def test_a_strict_schema_in_both_spellings(strict: Any, is_strict: bool) -> None:
    """Only what says so is strict."""
    inner = {"name": "n", "schema": {}, "strict": strict}
    for data in ({"type": "json_schema", **inner}, {"type": "json_schema", "json_schema": inner}):
        read = read_format(data, "f")
        assert read is not None
        assert read.strict is is_strict


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


# Anything at all

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
kinds = st.sampled_from(["function", "custom", "namespace", "web_search", "allowed_tools"])
wild_objects = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | anything,
        "name": st.sampled_from(["find", "patch", "files.open"]) | anything,
        "description": anything,
        "parameters": anything,
        "strict": anything,
        "format": anything,
        "function": st.just({"name": "find"}) | anything,
        "custom": st.just({"name": "patch"}) | anything,
        "mode": st.sampled_from(["auto", "required"]) | anything,
        "tools": st.lists(st.just(FIND) | anything | st.fixed_dictionaries({"type": anything}), max_size=2) | anything,
        "allowed_tools": st.just({"mode": "auto", "tools": []}) | anything,
    },
)


@given(st.lists(anything | wild_objects, max_size=3))
def test_any_tools_are_read_or_refused(tools: list[Any]) -> None:
    """No shape of a tool is a mistake of ours."""
    for read in (read_tools, read_old_functions):
        with suppress(InvalidRequest):
            assert all(isinstance(tool, FunctionTool | RawTool) for tool in read(tools))


@given(anything | wild_objects)
def test_any_choice_is_read_or_refused(choice: Any) -> None:
    """No shape of a choice is a mistake of ours."""
    with suppress(InvalidRequest):
        _, left = read_tool_choice(choice, TOOLS)
        assert set(map(id, left)) <= set(map(id, TOOLS))
    with suppress(InvalidRequest):
        assert isinstance(read_old_function_call(choice, TOOLS), ToolChoice)
