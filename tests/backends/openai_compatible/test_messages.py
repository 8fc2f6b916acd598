"""What was said as chat messages: order, grouping, images."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from backends.openai_compatible.rig import CLOCK, MODEL, WEATHER, body_of, turn, user

from bridge.app.tool_loop import follow_up
from bridge.core.collect import collect
from bridge.core.events import TextDelta, ToolCall
from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Image, Item, Message, RawItem, Text
from bridge.errors import InvalidRequest
from bridge.protocols.chat.build import SEE_BELOW
from bridge.protocols.chat.presets import CUSTOM, PRESETS, Preset
from bridge.tools.payload import function_of

Json = dict[str, Any]

SEPARATE = replace(CUSTOM, one_system=False)
PICTURE = Image("data:image/png;base64,AAAA")


def messages(*items: Item, preset: Preset = SEPARATE, **more: Any) -> list[Json]:
    found: list[Json] = body_of(turn(*items, **more), preset)["messages"]
    return found


def assistant(text: str) -> Message:
    return Message("assistant", (Text(text),))


def call(call_id: str, name: str = "weather", arguments: str = "{}") -> FunctionCall:
    return FunctionCall(call_id, name, arguments)


def output(call_id: str, text: str = "fine") -> FunctionOutput:
    return FunctionOutput(call_id, (Text(text),))


def outline(*items: Item, **more: Any) -> list[str]:
    """Who said what, in short."""
    lines = []
    for message in messages(*items, **more):
        calls = "+".join(entry["id"] for entry in message.get("tool_calls", ()))
        lines.append(" ".join(str(part) for part in (message["role"], message["content"], calls) if part))
    return lines


def test_instructions_come_first_and_developers_are_system() -> None:
    items = (Message("developer", (Text("b"),)), user("hi"), Message("system", (Text("c"),)), user("x", "y"))
    assert messages(*items, instructions="a") == [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "c"},
        {"role": "user", "content": "x\ny"},
    ]
    assert messages(user("hi"), instructions="") == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("preset", [CUSTOM, PRESETS["vllm"], PRESETS["ollama"], PRESETS["lmstudio"]])
def test_where_templates_take_one_system_message_the_first_ones_are_joined(preset: Preset) -> None:
    items = (Message("developer", (Text("b"),)), user("hi"), Message("system", (Text("c"),)))
    assert messages(*items, instructions="a", preset=preset) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "c"},
    ]


def test_the_same_role_twice_stays_two_messages() -> None:
    assert outline(user("a"), user("b"), assistant("c"), assistant("d"), user("e")) == [
        "user a",
        "user b",
        "assistant c",
        "assistant d",
        "user e",
    ]


def test_the_calls_of_one_answer_are_one_message_and_their_outputs_follow_in_the_order_of_the_calls() -> None:
    items = (user("go"), assistant("I look."), call("a"), call("b"), call("c"), output("c", "C"), output("a", "A"))
    assert outline(*items, output("b", "B"), user("so?")) == [
        "user go",
        "assistant I look. a+b+c",
        "tool A",
        "tool B",
        "tool C",
        "user so?",
    ]
    sent = messages(call("a", "weather", '{"city":"Bern"}'), output("a"))
    assert sent == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "fine"},
    ]


def test_a_call_after_an_output_is_another_answer() -> None:
    """It may depend on the output; as one answer with the call before it, it would seem not to."""
    assert outline(call("a"), output("a", "A"), call("b"), output("b", "B")) == [
        "assistant a",
        "tool A",
        "assistant b",
        "tool B",
    ]


def test_reasoning_between_calls_does_not_part_them() -> None:
    reasoning = RawItem("reasoning", {"type": "reasoning", "encrypted_content": "xyz", "summary": []})
    search = RawItem("web_search_call", {"type": "web_search_call", "id": "ws"})
    assert outline(search, reasoning, call("a"), reasoning, call("b"), output("a"), output("b")) == [
        "assistant a+b",
        "tool fine",
        "tool fine",
    ]


def test_an_output_that_comes_late_still_follows_its_call() -> None:
    assert outline(call("a"), user("hm"), assistant("wait"), output("a", "A"), user("so?")) == [
        "assistant a",
        "tool A",
        "user hm",
        "assistant wait",
        "user so?",
    ]


def test_a_call_without_an_output_is_left_for_the_server_to_judge() -> None:
    assert outline(call("a"), call("b"), output("b", "B"), user("so?")) == ["assistant a+b", "tool B", "user so?"]


def test_an_id_that_comes_again_means_the_newest_call() -> None:
    """Some servers number the calls of each answer from zero."""
    again = (call("call_0"), output("call_0", "A"), call("call_0"), output("call_0", "B"))
    assert outline(*again) == ["assistant call_0", "tool A", "assistant call_0", "tool B"]
    assert outline(call("x"), user("no"), call("x"), output("x", "B")) == [
        "assistant x",
        "user no",
        "assistant x",
        "tool B",
    ]
    assert outline(call("x"), call("x"), output("x", "A"), output("x", "B")) == ["assistant x+x", "tool A", "tool B"]


def test_an_output_in_two_items_is_one_message() -> None:
    assert outline(call("a"), output("a", "A"), output("a", "more")) == ["assistant a", "tool A\nmore"]


@pytest.mark.parametrize("items", [(output("a"),), (output("a"), call("a"))], ids=["alone", "before its call"])
def test_an_output_without_its_call_is_refused(items: tuple[Item, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages(*items)
    assert caught.value.code == "missing_function_call"
    assert "'a'" in caught.value.message


def test_a_history_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="send a message"):
        messages(RawItem("reasoning", {"type": "reasoning", "encrypted_content": "xyz"}))


def test_a_follow_up_of_the_bridge_itself_is_a_right_history() -> None:
    asked = turn(tools=(WEATHER, CLOCK))
    result = collect(
        [
            TextDelta("m", ["I look."]),
            ToolCall("fc_1", "c1", "weather", '{"city":"Bern"}'),
            ToolCall("fc_2", "c2", "clock", "{}"),
        ]
    )
    sent = body_of(follow_up(asked, result, ["sunny", "noon"]), SEPARATE)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message["content"] for message in sent if message["role"] == "tool"] == ["sunny", "noon"]


def test_images_are_parts() -> None:
    said = Message(
        "user", (Text("what is"), Image("https://x/y.png", "low"), Text("this?"), Image("data:,", "original"))
    )
    assert messages(said)[0]["content"] == [
        {"type": "text", "text": "what is"},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        {"type": "text", "text": "this?"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]


def test_the_images_of_an_output_come_in_a_message_after_all_outputs() -> None:
    sent = messages(
        call("a"),
        call("b"),
        FunctionOutput("a", (PICTURE,)),
        FunctionOutput("b", (Text("half"), PICTURE, Text("done"))),
        user("so?"),
    )
    picture = {"type": "image_url", "image_url": {"url": PICTURE.url}}
    assert sent[1:] == [
        {"role": "tool", "tool_call_id": "a", "content": SEE_BELOW},
        {"role": "tool", "tool_call_id": "b", "content": "half\ndone"},
        {"role": "user", "content": [{"type": "text", "text": "From the output of a:"}, picture]},
        {"role": "user", "content": [{"type": "text", "text": "From the output of b:"}, picture]},
        {"role": "user", "content": "so?"},
    ]


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_an_image_that_another_role_shows_is_shown_by_the_user(role: Any) -> None:
    sent = messages(Message(role, (Text("look"), PICTURE)))
    picture = {"type": "image_url", "image_url": {"url": PICTURE.url}}
    spoken = "assistant" if role == "assistant" else "system"
    assert sent == [{"role": spoken, "content": "look"}, {"role": "user", "content": [picture]}]


def test_blank_arguments_are_no_arguments_and_a_custom_tools_text_is_its_input() -> None:
    custom = FunctionCall("b", "patch", 'say "hi"', custom=True)
    sent = messages(
        FunctionCall("a", "get", " ", namespace="crm"),
        custom,
        output("a"),
        FunctionOutput("b", (Text("ok"),), custom=True),
        tools=(FunctionTool("get", namespace="crm"), function_of({"name": "patch"}, "patch")),
    )
    assert [entry["function"] for entry in sent[0]["tool_calls"]] == [
        {"name": "crm__get", "arguments": "{}"},
        {"name": "patch", "arguments": '{"input":"say \\"hi\\""}'},
    ]


def test_a_long_id_is_cut_where_the_server_wants_it_shorter() -> None:
    one, two = "call_" + "x" * 60 + "1", "call_" + "x" * 60 + "2"
    sent = messages(call(one), call(two), output(two, "B"), output(one, "A"), preset=PRESETS["openai"])
    ids = [entry["id"] for entry in sent[0]["tool_calls"]]
    assert [len(each) for each in ids] == [40, 40]
    assert ids[0] != ids[1]
    assert [(message["tool_call_id"], message["content"]) for message in sent[1:]] == [(ids[0], "A"), (ids[1], "B")]
    assert messages(call(one), output(one), preset=CUSTOM)[0]["tool_calls"][0]["id"] == one


def test_nothing_of_this_knows_the_model() -> None:
    assert body_of(turn())["model"] == MODEL
