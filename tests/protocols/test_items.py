"""What was said so far, in either spelling and in any mixture."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import FunctionCall, FunctionOutput, Image, Item, Message, RawItem, Text
from bridge.errors import InvalidRequest
from bridge.protocols.items import (
    INTRODUCTION,
    MAX_ITEMS,
    PASSED_ON,
    compaction_item,
    read_call_id,
    read_items,
    read_name,
    read_parts,
)

FLAT_CALL = {"type": "function_call", "call_id": "c", "name": "find", "arguments": '{"q": 1}'}
FLAT_OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "found"}
NESTED_CALL = {"id": "c", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
NESTED_OUTPUT = {"role": "tool", "tool_call_id": "c", "content": "found"}
OLD_CALL = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}}
CALL = FunctionCall("c", "find", '{"q": 1}')
OUTPUT = FunctionOutput("c", (Text("found"),))


def read(*values: Any, before: tuple[Item, ...] = ()) -> tuple[Item, ...]:
    return read_items(values, "input", before)


def refused(*values: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        read(*values)
    assert caught.value.http_status == 400
    return caught.value


SAID = {"role": "user", "content": "hi"}
TOO_MANY: dict[str, tuple[list[Any], str]] = {
    "messages": ([SAID] * (MAX_ITEMS + 1), "input"),
    "items that are left out": ([{"type": "reasoning"}] * (MAX_ITEMS + 1), "input"),
    "parts": ([{"role": "user", "content": ["x"] * (MAX_ITEMS + 1)}], "input[0].content"),
    "parts of several": ([{"role": "user", "content": ["x"] * 1000}] * (MAX_ITEMS // 1000 + 1), "input"),
    "parts of outputs": ([FLAT_CALL, *[{**FLAT_OUTPUT, "output": ["x"] * 1000}] * (MAX_ITEMS // 1000)], "input"),
    "calls": ([{"role": "assistant", "tool_calls": [NESTED_CALL] * (MAX_ITEMS + 1)}], "input[0].tool_calls"),
}


@pytest.mark.parametrize("kind", TOO_MANY)
def test_more_than_can_be_read_in_time_is_refused(kind: str) -> None:
    """However it is spread; and what was before counts."""
    values, param = TOO_MANY[kind]
    error = refused(*values)
    assert (error.code, error.param) == ("too_many_items", param)
    assert len(read(*[SAID] * MAX_ITEMS)) == MAX_ITEMS
    with pytest.raises(InvalidRequest, match="Leave out the oldest"):
        read(SAID, SAID, before=read(*[SAID] * (MAX_ITEMS - 1)))


# Parts


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (None, ()),
        ("", (Text(""),)),
        ("text", (Text("text"),)),
        ([], ()),
        (["a", "b"], (Text("a"), Text("b"))),
        ([{"type": "text", "text": "a"}], (Text("a"),)),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], (Text("a"), Text("b"))),
        ([{"type": "summary_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}], (Text("a"), Text("b"))),
        ([{"type": "refusal", "refusal": "no"}], (Text("no"),)),
        ([{"type": "image_url", "image_url": {"url": "data:x", "detail": "high"}}], (Image("data:x", "high"),)),
        ([{"type": "image_url", "image_url": {"url": "data:x"}}], (Image("data:x"),)),
        ([{"type": "image_url", "image_url": "data:x"}], (Image("data:x"),)),
        ([{"type": "input_image", "image_url": "data:x", "detail": "low"}], (Image("data:x", "low"),)),
        ([{"type": "input_image", "image_url": {"url": "data:x"}}], (Image("data:x"),)),
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
        (True, "c"),
        ({"type": "text", "text": "x"}, "c"),
        ([5], "c[0]"),
        ([None], "c[0]"),
        ([["x"]], "c[0]"),
        ([{"type": "text", "text": "x"}, {"type": "text"}], "c[1].text"),
        ([{"type": "text", "text": None}], "c[0].text"),
        ([{"type": "refusal"}], "c[0].refusal"),
        ([{"type": "image_url"}], "c[0].image_url"),
        ([{"type": "image_url", "image_url": {}}], "c[0].image_url"),
        ([{"type": "image_url", "image_url": {"url": 5}}], "c[0].image_url"),
        ([{"type": "input_image", "file_id": "f"}], "c[0].image_url"),
        ([{"type": "input_file", "file_id": "f"}], "c[0].type"),
        ([{"type": "input_audio"}], "c[0].type"),
        ([{}], "c[0].type"),
        ([{"type": []}], "c[0].type"),
        ([{"type": {}}], "c[0].type"),
    ],
)
def test_content_of_another_shape_names_its_place(content: Any, param: str) -> None:
    """`param` points at what is wrong."""
    with pytest.raises(InvalidRequest) as caught:
        read_parts(content, "c")
    assert caught.value.param == param


# Messages


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("kind", [{}, {"type": "message"}, {"type": "message", "id": "msg_1", "status": "completed"}])
def test_a_message_with_or_without_its_type(role: Any, kind: dict[str, str]) -> None:
    """A role says that it is a message; ids and states are the client's own affair."""
    assert read({**kind, "role": role, "content": "x"}) == (Message(role, (Text("x"),)),)


def test_what_an_assistant_said() -> None:
    """Its text or its refusal, then its calls; one that said nothing is nothing."""
    said = {"role": "assistant", "content": "let me", "tool_calls": [NESTED_CALL]}
    assert read(said) == (Message("assistant", (Text("let me"),)), CALL)
    assert read({"role": "assistant", "content": None, "refusal": "no"}) == (Message("assistant", (Text("no"),)),)
    part = {"type": "refusal", "refusal": "no"}
    assert read({"type": "message", "role": "assistant", "content": [part]}) == (Message("assistant", (Text("no"),)),)
    assert read({"role": "assistant", "content": None, "tool_calls": None, "function_call": None}) == ()
    assert read({"role": "assistant", "content": []}) == ()


@pytest.mark.parametrize("call", [FLAT_CALL, {"role": "assistant", "tool_calls": [NESTED_CALL]}])
@pytest.mark.parametrize("output", [FLAT_OUTPUT, NESTED_OUTPUT])
def test_calls_and_outputs_of_both_spellings_go_together(call: Any, output: Any) -> None:
    """A call of one format may have its output in the other."""
    assert read(call, output) == (CALL, OUTPUT)


@pytest.mark.parametrize("content", [None, "", [], "x", [{"type": "input_text", "text": "x"}]])
def test_an_output_may_be_empty(content: Any) -> None:
    """A function that gives nothing back has given its answer."""
    (_, nested) = read({"role": "assistant", "tool_calls": [NESTED_CALL]}, NESTED_OUTPUT | {"content": content})
    (_, flat) = read(FLAT_CALL, FLAT_OUTPUT | {"output": content})
    assert nested == flat == FunctionOutput("c", read_parts(content, "c"))


def test_an_output_may_hold_images() -> None:
    """What a tool has seen."""
    picture = {"type": "input_image", "image_url": "data:x", "detail": "low"}
    assert read(FLAT_CALL, FLAT_OUTPUT | {"output": [picture]})[1] == FunctionOutput("c", (Image("data:x", "low"),))


# From before there were tools


def test_an_old_call_and_its_result_go_together() -> None:
    """They have no ids, so they get some: a result belongs to the last call of its name."""
    result = {"role": "function", "name": "find", "content": "found"}
    other = {"role": "assistant", "content": "and", "function_call": {"name": "open", "arguments": ""}}
    items = read({"role": "user", "content": "x"}, OLD_CALL, result, other, OLD_CALL, result | {"content": "again"})
    calls = [item for item in items if isinstance(item, FunctionCall)]
    outputs = [item for item in items if isinstance(item, FunctionOutput)]
    assert [(call.name, call.arguments) for call in calls] == [("find", "{}"), ("open", ""), ("find", "{}")]
    assert len({call.call_id for call in calls}) == 3
    assert [(output.call_id, output.text) for output in outputs] == [
        (calls[0].call_id, "found"),
        (calls[2].call_id, "again"),
    ]


def test_an_old_call_keeps_clear_of_what_was_before() -> None:
    """The ids of calls that a conversation continues are not given out again."""
    first = read(OLD_CALL)
    items = read(OLD_CALL, OLD_CALL, before=first)
    assert len({item.call_id for item in items if isinstance(item, FunctionCall)}) == 3


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "function", "name": "find", "content": "x"}], "input[0]"),
        ([OLD_CALL, {"role": "function", "name": "open", "content": "x"}], "input[1]"),
        ([OLD_CALL, {"role": "function", "content": "x"}], "input[1].name"),
        ([OLD_CALL | {"function_call": "find"}], "input[0].function_call"),
        ([OLD_CALL | {"function_call": {"arguments": ""}}], "input[0].function_call.name"),
        ([OLD_CALL | {"function_call": {"name": "", "arguments": ""}}], "input[0].function_call.name"),
        ([OLD_CALL | {"function_call": {"name": "a", "arguments": {}}}], "input[0].function_call.arguments"),
    ],
)
def test_an_old_call_of_another_shape_names_its_place(messages: list[Any], param: str) -> None:
    """`param` points at what is wrong."""
    assert refused(*messages).param == param


# Items


def test_items_without_a_type_are_recognised() -> None:
    """By their call id: with an output they are one, without they are a call."""
    call = {name: value for name, value in FLAT_CALL.items() if name != "type"}
    output = {name: value for name, value in FLAT_OUTPUT.items() if name != "type"}
    assert read(call, output) == (CALL, OUTPUT)
    assert read(call, output | {"output": None}) == (CALL, FunctionOutput("c", ()))


def test_custom_calls_in_both_spellings() -> None:
    """Their input is a text; a `tool` message answers in the kind of its call."""
    flat = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "+x"}
    nested = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "+x"}}
    expected = (FunctionCall("c", "patch", "+x", custom=True), FunctionOutput("c", (Text("ok"),), custom=True))
    assert read(flat, {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}) == expected
    assert read({"role": "assistant", "tool_calls": [nested]}, NESTED_OUTPUT | {"content": "ok"}) == expected
    assert read(flat, NESTED_OUTPUT | {"content": "ok"}) == expected
    assert read({"role": "assistant", "tool_calls": [NESTED_CALL]}, NESTED_OUTPUT)[1] == OUTPUT


def test_a_call_keeps_its_namespace() -> None:
    """The full name is what the model was offered."""
    (call,) = read(FLAT_CALL | {"namespace": "files"})
    assert call == FunctionCall("c", "find", '{"q": 1}', "files")
    assert call.full_name == "files.find"
    (custom,) = read({"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "", "namespace": "files"})
    assert custom == FunctionCall("c", "p", "", "files", custom=True)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("get weather", "get_weather"),
        ("<tool_call>", "_tool_call_"),
        ("a/b\n", "a_b_"),
        ("é", "_"),
        ("x" * 300, "x" * 128),
    ],
)
def test_a_call_that_was_made_elsewhere_keeps_what_it_can_of_its_name(name: str, kept: str) -> None:
    """It cannot be made again, and its name cannot look like more than a name; in every spelling."""
    nested = {"id": "c", "type": "function", "function": {"name": name, "arguments": ""}}
    old = {"role": "assistant", "function_call": {"name": name, "arguments": ""}}
    for call in (FLAT_CALL | {"name": name}, {"role": "assistant", "tool_calls": [nested]}, old):
        (read_call,) = read(call)
        assert isinstance(read_call, FunctionCall)
        assert read_call.name == kept
    result = {"role": "function", "name": name, "content": "found"}
    assert len(read(old, result)) == 2


def test_reasoning_is_kept_where_it_means_something() -> None:
    """Encrypted it goes back to its provider, without its state; a mere summary is dropped."""
    encrypted = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    assert read(encrypted | {"status": "completed"}) == (RawItem("reasoning", encrypted),)
    assert read({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]}) == ()
    assert read(encrypted | {"encrypted_content": None}) == ()


@pytest.mark.parametrize("kind", sorted(PASSED_ON))
def test_items_of_the_providers_own_go_back_verbatim(kind: str) -> None:
    """Only the provider knows what they mean."""
    item = {"type": kind, "id": "x", "status": "completed", "anything": {"a": [1]}}
    assert read(item) == (RawItem(kind, item),)


def test_a_compaction_is_what_it_stands_for() -> None:
    """A summary of ours becomes a message that tells it."""
    assert read(compaction_item("cmp_1", "all done")) == (Message("user", (Text(f"{INTRODUCTION}all done"),)),)


@pytest.mark.parametrize("content", [None, 5, "", "gAAAAABforeign", "cbc1.", "cbc1.!!!!"])
def test_a_compaction_of_somebody_else_is_refused(content: Any) -> None:
    """Left out, the conversation would be another one."""
    assert refused({"type": "compaction", "id": "cmp_1", "encrypted_content": content}).param == "input[0]"


def test_offered_tools_are_no_part_of_the_conversation() -> None:
    """They are read elsewhere."""
    tools = [{"type": "function", "name": "find"}]
    assert read({"type": "additional_tools", "role": "developer", "tools": tools}) == ()


def test_a_reference_that_was_not_resolved_says_so() -> None:
    """By the code that tells a client to send the item itself."""
    error = refused({"role": "user", "content": "x"}, {"type": "item_reference", "id": "msg_1"})
    assert (error.param, error.code) == ("input[1]", "item_not_found")
    assert "'msg_1'" in error.message


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (5, "input[0]"),
        (None, "input[0]"),
        ("hi", "input[0]"),
        ([], "input[0]"),
        ({}, "input[0].type"),
        ({"id": "x"}, "input[0].type"),
        ({"content": "x"}, "input[0].type"),
        ({"type": None}, "input[0].type"),
        ({"type": 5}, "input[0].type"),
        ({"type": []}, "input[0].type"),
        ({"type": {"a": 1}, "role": "user", "content": "x"}, "input[0].type"),
        ({"type": "computer_call", "call_id": "c"}, "input[0].type"),
        ({"type": "mcp_call"}, "input[0].type"),
        ({"role": "robot", "content": "x"}, "input[0].role"),
        ({"role": [], "content": "x"}, "input[0].role"),
        ({"role": None, "content": "x"}, "input[0].role"),
        ({"type": "message", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"role": "system", "content": []}, "input[0].content"),
        ({"role": "user", "content": 5}, "input[0].content"),
        ({"role": "assistant", "content": 5}, "input[0].content"),
        ({"role": "assistant", "refusal": 5}, "input[0].refusal"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, "input[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "input[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "input[0].tool_calls[0].function"),
        ({"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]}, "input[0].tool_calls[0].custom"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "n"}}]},
            "input[0].tool_calls[0].custom.input",
        ),
        ({"role": "tool", "content": "x"}, "input[0].tool_call_id"),
        ({"role": "tool", "tool_call_id": "c", "content": "orphan"}, "input"),
        (FLAT_CALL | {"call_id": None}, "input[0].call_id"),
        (FLAT_CALL | {"call_id": "a b"}, "input[0].call_id"),
        (FLAT_CALL | {"name": None}, "input[0].name"),
        (FLAT_CALL | {"name": ""}, "input[0].name"),
        (FLAT_CALL | {"name": 5}, "input[0].name"),
        (FLAT_CALL | {"arguments": {}}, "input[0].arguments"),
        (FLAT_CALL | {"namespace": 5}, "input[0].namespace"),
        ({"type": "custom_tool_call", "call_id": "c", "name": "n", "arguments": "x"}, "input[0].input"),
        ({"call_id": "c", "name": "f"}, "input[0].arguments"),
        (FLAT_OUTPUT | {"call_id": 5}, "input[0].call_id"),
        (FLAT_OUTPUT | {"output": 5}, "input[0].output"),
        (FLAT_OUTPUT, "input"),
    ],
)
def test_an_item_of_another_shape_names_its_place(item: Any, param: str) -> None:
    """`param` points at what is wrong; unknown items are refused, never dropped in silence."""
    assert refused(item).param == param


def test_an_output_needs_its_call_before_it() -> None:
    """Codex would drop an orphan without a word, so it is refused; the call may be part of what is continued."""
    other = FLAT_CALL | {"call_id": "d"}
    assert len(read(FLAT_CALL, other, FLAT_OUTPUT | {"call_id": "d"}, FLAT_OUTPUT)) == 4
    assert read(FLAT_OUTPUT, before=(CALL,)) == (CALL, OUTPUT)
    for orphan in ([FLAT_OUTPUT], [FLAT_OUTPUT, FLAT_CALL], [FLAT_CALL, FLAT_OUTPUT | {"call_id": "other"}]):
        error = refused(*orphan)
        assert error.param == "input"
        assert "call_id" in error.message


@pytest.mark.parametrize("value", ["call_1", "toolu_01/+=", "a|b:c.d@e#f~g$h", "x" * 256])
def test_an_id_of_a_call(value: str) -> None:
    """Whatever other providers use."""
    assert read_call_id(value, "p") == value


@pytest.mark.parametrize("value", ["", "a b", "a\n", "<x>", '"', "é", "x" * 257, 5, None])
def test_an_id_cannot_look_like_more_than_an_id(value: Any) -> None:
    """It is written into prompts."""
    with pytest.raises(InvalidRequest):
        read_call_id(value, "p")


@pytest.mark.parametrize("value", ["find", "mcp__a__b", "a.b:c-d_e", "x" * 128])
def test_a_functions_name(value: str) -> None:
    """Whatever other providers use."""
    assert read_name(value, "p") == value


@pytest.mark.parametrize("value", ["", "a b", "a\n", "<x>", "a/b", "é", "x" * 129, 5, None])
def test_a_name_cannot_look_like_more_than_a_name(value: Any) -> None:
    """It is written into prompts."""
    with pytest.raises(InvalidRequest):
        read_name(value, "p")


# Anything at all

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)
KINDS = ["message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"]
KINDS += ["reasoning", "compaction", "item_reference", "additional_tools", *sorted(PASSED_ON)]
PART = {"type": "input_text", "text": "x"}
members: dict[str, Any] = {
    "type": st.sampled_from(KINDS) | anything,
    "role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"]) | anything,
    "content": st.sampled_from(["x", [PART]]) | st.lists(anything | st.just(PART), max_size=2) | anything,
    "call_id": st.just("c") | anything,
    "tool_call_id": st.just("c") | anything,
    "id": st.just("c") | anything,
    "name": st.just("find") | anything,
    "namespace": anything,
    "arguments": st.just("{}") | anything,
    "input": anything,
    "output": anything,
    "summary": anything,
    "encrypted_content": st.just(compaction_item("c", "s")["encrypted_content"]) | anything,
    "tool_calls": st.lists(st.just(NESTED_CALL) | anything, max_size=2) | anything,
    "function_call": st.just(OLD_CALL["function_call"]) | anything,
    "refusal": anything,
    "tools": anything,
}
wild_items = anything | st.lists(st.sampled_from(sorted(members)), unique=True, max_size=6).flatmap(
    lambda names: st.fixed_dictionaries({name: members[name] for name in names})
)


@given(st.lists(wild_items, max_size=3))
def test_anything_is_read_or_refused(values: list[Any]) -> None:
    """No shape of an item is a mistake of ours, and a refusal says where the fault is."""
    fault: InvalidRequest | None = None
    try:
        assert read(FLAT_CALL, *values)[0] == CALL
    except InvalidRequest as error:
        fault = error
    assert fault is None or re.match(r"input(\[\d+\]|$)", fault.param or "")
