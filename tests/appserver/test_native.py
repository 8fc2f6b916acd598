"""The client's functions under names that are Codex's to offer, and the way back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.appserver.prompt import CODEX_TOOLS, MAX_NAME, NativeTools, wire_name
from bridge.core.events import ToolCall
from bridge.core.items import FunctionTool, ToolChoice
from bridge.tools.payload import arguments_of, function_of

ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,64}")
FIND = FunctionTool("find", "Finds", {"type": "object", "properties": {"q": {"type": "string"}}})
PATCH = function_of({"type": "custom", "name": "patch", "description": "Edits"}, "patch")


def called(name: str, arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    """A call as Codex shows the provider's own item."""
    item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": name, "arguments": arguments}
    return item | more


# Names


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (FIND, "find"),
        (FunctionTool("a.b:c"), "a_b_c"),
        (FunctionTool("x-y_Z9"), "x-y_Z9"),
        (FunctionTool("x" * 128), "x" * 64),
        (FunctionTool("find", namespace="crm"), "crm__find"),
        (FunctionTool("find.all", namespace="crm:v2"), "crm_v2__find__all"),
        (FunctionTool("exec_command"), "client_exec_command"),
        (FunctionTool("shell"), "client_shell"),
        (FunctionTool("apply_patch"), "client_apply_patch"),
        (FunctionTool("web_search"), "client_web_search"),
        (FunctionTool("update_plan"), "client_update_plan"),
        (FunctionTool("update.plan"), "client_update_plan"),
        (FunctionTool("shell", namespace="unix"), "unix__shell"),
        (FunctionTool("mcp"), "client_mcp"),
        (FunctionTool("mcp__files__read"), "client_mcp__files__read"),
        (FunctionTool("mcp__" + "x" * 80), "client_mcp__" + "x" * 52),
        (FunctionTool("files", namespace="mcp"), "client_mcp__files"),
        (FunctionTool("mcp_files"), "mcp_files"),
    ],
)
def test_a_function_keeps_its_name_where_it_may(tool: FunctionTool, name: str) -> None:
    """Else it gets one that the Responses API allows and that Codex does not take for its own."""
    tools = NativeTools([tool])
    assert [spec["name"] for spec in tools.specs()] == [name]
    assert tools.name_of(tool.full_name) == name


def test_equal_names_are_numbered() -> None:
    """In the client's order, whatever made them the same."""
    given = ["shell", "client_shell", "a.b", "a:b", "a_b", "x" * 70, "x" * 71]
    tools = NativeTools(map(FunctionTool, given))
    names = ["client_shell", "client_shell_2", "a_b", "a_b_2", "a_b_3", "x" * 64, "x" * 60 + "_2"]
    assert [spec["name"] for spec in tools.specs()] == names
    assert [tools.name_of(name) for name in given] == names


@pytest.mark.parametrize(("name", "shown"), [("gone", "gone"), ("old.tool", "old_tool"), ("y" * 99, "y" * 64)])
def test_a_function_of_old_that_is_not_offered_any_more_has_a_name_too(name: str, shown: str) -> None:
    """The history may hold its calls."""
    assert NativeTools([FIND]).name_of(name) == wire_name(name) == shown


client_names = st.from_regex(r"[A-Za-z0-9_.:-]{1,128}", fullmatch=True) | st.sampled_from(
    [*CODEX_TOOLS, *(f"client_{name}" for name in CODEX_TOOLS), "mcp__a__b", "client_mcp__a__b", "a.b", "a:b", "a_b"]
)
functions = st.lists(
    st.builds(FunctionTool, client_names, namespace=st.none() | client_names),
    unique_by=lambda tool: tool.full_name,
    max_size=20,
)


@given(functions)
@example([FunctionTool("x" * size) for size in range(64, 129)])
@example([FunctionTool(f"mcp__{'x' * size}") for size in range(50, 124)])
def test_every_name_is_allowed_unique_and_leads_back(tools: list[FunctionTool]) -> None:
    """Whatever the client calls its functions, each call comes back to the one that was called, and to no other."""
    native = NativeTools(tools)
    names = [spec["name"] for spec in native.specs()]
    assert len(set(names)) == len(tools)
    for tool, name in zip(tools, names, strict=True):
        assert ALLOWED.fullmatch(name)
        assert name not in CODEX_TOOLS
        assert not name.startswith("mcp__")
        assert native.name_of(tool.full_name) == name
        call = native.call_of(called(name))
        assert call is not None
        assert (call.name, call.namespace) == (tool.name, tool.namespace)


@given(st.text(min_size=1, max_size=200))
def test_any_text_becomes_a_name(text: str) -> None:
    """Once made, it stays."""
    name = wire_name(text)
    assert ALLOWED.fullmatch(name)
    assert len(name) == min(len(text), MAX_NAME)
    assert wire_name(name) == name


# What is offered


@pytest.mark.parametrize(
    ("parameters", "schema"),
    [
        (FIND.parameters, FIND.parameters),
        ({}, {}),
        (None, {"type": "object", "properties": {}}),
        (True, {"type": "object", "properties": {}}),
        (False, {"type": "object", "properties": {}}),
    ],
)
def test_a_schema_is_offered_as_it_is(parameters: Any, schema: Any) -> None:
    """A function without one takes nothing."""
    (spec,) = NativeTools([FunctionTool("find", "Finds", parameters)]).specs()
    assert spec == {"type": "function", "name": "find", "description": "Finds", "inputSchema": schema}


def test_a_description_is_always_there() -> None:
    """Codex wants one."""
    (spec,) = NativeTools([FunctionTool("find")]).specs()
    assert spec["description"] == ""


def test_a_custom_tool_is_offered_as_a_function_of_one_text() -> None:
    """With all that is known of it in its description."""
    (spec,) = NativeTools([PATCH]).specs()
    assert (spec["name"], spec["description"], spec["inputSchema"]) == ("patch", "Edits", PATCH.parameters)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (ToolChoice(), ""),
        (ToolChoice("none"), ""),
        (ToolChoice("required"), "You must call at least one of the functions."),
        (ToolChoice("named", "find"), "You must call the function find."),
        (ToolChoice("named", "shell"), "You must call the function client_shell."),
        (ToolChoice("named", "crm.find"), "You must call the function crm__find."),
    ],
)
def test_a_choice_uses_the_name_that_the_model_sees(choice: ToolChoice, text: str) -> None:
    """Codex leaves every choice to the model."""
    tools = NativeTools([FIND, FunctionTool("shell"), FunctionTool("find", namespace="crm")])
    assert tools.choice_text(choice) == text


# What comes back


@pytest.mark.parametrize("arguments", ["{}", '{"b": 1,\n "a" : "\\u00e9"}', "{broken", '{"q":"' + "x" * 20_000 + '"}'])
def test_arguments_come_back_byte_for_byte(arguments: str) -> None:
    """Whether they are JSON or not."""
    call = NativeTools([FIND]).call_of(called("find", arguments))
    assert call == ToolCall("fc_1", "call_1", "find", arguments)


@pytest.mark.parametrize("arguments", ["", " ", "\n"])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    """A client would fail to parse anything else."""
    call = NativeTools([FIND]).call_of(called("find", arguments))
    assert call is not None
    assert call.arguments == "{}"


def test_a_call_without_an_id_of_its_own_gets_one() -> None:
    """It is made of the call's."""
    call = NativeTools([FIND]).call_of(called("find", id=None))
    assert call is not None
    assert (call.id, call.call_id) == ("fc_call_1", "call_1")


@pytest.mark.parametrize(
    ("arguments", "text"), [(arguments_of("a\n*** b"), "a\n*** b"), ("the text itself", "the text itself")]
)
def test_a_custom_tool_gets_its_text(arguments: str, text: str) -> None:
    """And is marked as one."""
    call = NativeTools([PATCH]).call_of(called("patch", arguments))
    assert call is not None
    assert (call.id, call.name, call.arguments, call.custom) == ("ctc_call_1", "patch", text, True)


@pytest.mark.parametrize("name", ["shell", "exec_command", "Find", "crm__find", ""])
def test_other_names_are_none_of_the_clients(name: str) -> None:
    """A call of Codex's own tools, or of one that was not offered, is left to Codex."""
    assert NativeTools([FIND, FunctionTool("shell")]).call_of(called(name)) is None


@pytest.mark.parametrize(
    "item", [called("find", None), called("find", {}), called("find", call_id=5), {"name": "find"}]
)
def test_a_misshapen_call_is_refused(item: dict[str, Any]) -> None:
    """So that it is not passed on by half."""
    with pytest.raises((KeyError, TypeError)):
        NativeTools([FIND]).call_of(item)
