"""Items become messages: roles take turns, calls have their results right after them, nothing is lost."""

from __future__ import annotations

import re
from typing import Any

import pytest
from backends.anthropic.rig import ADD, PIXEL, called, gave, messages, reasoning, said, turn

from bridge.core.items import FunctionOutput, Image, Item, Message, RawItem, Text
from bridge.errors import InvalidRequest
from bridge.protocols.messages.build import build_body
from bridge.protocols.messages.history import BEGIN, GO_ON, NO_OUTPUT
from bridge.protocols.messages.models import pack_thought

Json = dict[str, Any]
MODEL = "claude-sonnet-4-5"


def text(words: str) -> Json:
    return {"type": "text", "text": words}


def use(call_id: str, given: Json | None = None, name: str = "add") -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given or {}}


def result(call_id: str, content: Any = "5") -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def thought(words: str = "hm") -> Json:
    return {"type": "thinking", "thinking": words, "signature": "c2ln"}


def packed(block: Json, model: str = MODEL) -> RawItem:
    return reasoning(pack_thought(model, block))


HI = said("user", "hi")


def test_adjacent_messages_of_one_role_are_one() -> None:
    items: list[Item] = [
        said("user", "a", "b"),
        said("user", "c"),
        said("assistant", "d"),
        said("assistant", "e"),
        said("user", "f"),
    ]
    assert messages(*items) == [
        ("user", [text("a"), text("b"), text("c")]),
        ("assistant", [text("d"), text("e")]),
        ("user", [text("f")]),
    ]


def test_blank_texts_are_left_out() -> None:
    assert messages(said("user", "", " \n"), said("assistant", ""), said("user", "a", " ")) == [("user", [text("a")])]


def test_who_has_said_nothing_is_asked_to_go_on() -> None:
    assert messages(said("user", " ")) == [("user", [text(GO_ON)])]
    assert messages(said("system", "be kind")) == [("user", [text(GO_ON)])]


def test_a_history_may_begin_and_end_with_an_answer() -> None:
    assert messages(said("assistant", "hello")) == [
        ("user", [text(BEGIN)]),
        ("assistant", [text("hello")]),
        ("user", [text(GO_ON)]),
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_later_system_message_is_the_users_and_says_so(role: Any) -> None:
    assert messages(HI, said(role, "be brief", "and kind"), said("user", "go")) == [
        ("user", [text("hi"), text("<system-message>\nbe brief\nand kind\n</system-message>"), text("go")])
    ]


def test_a_system_message_with_an_image_has_no_place_in_the_system_prompt() -> None:
    message = Message("system", (Text("like this"), Image(PIXEL)))
    assert [block["type"] for block in messages(message)[0][1]] == ["text", "text", "image", "text"]


# Calls


CALLS = (called("a", '{"a": 2}'), called("b", '{"a": 3}'))
GROUPED = [
    ("user", [text("hi")]),
    ("assistant", [use("a", {"a": 2}), use("b", {"a": 3})]),
    ("user", [result("a", "2"), result("b", "3")]),
]


@pytest.mark.parametrize("outputs", [(gave("a", "2"), gave("b", "3")), (gave("b", "3"), gave("a", "2"))])
def test_the_calls_of_one_answer_are_one_message_and_their_results_another(outputs: Any) -> None:
    assert messages(HI, *CALLS, *outputs, tools=(ADD,)) == GROUPED


def test_calls_one_after_the_other_stay_so() -> None:
    assert messages(HI, CALLS[0], gave("a", "2"), CALLS[1], gave("b", "3"), tools=(ADD,)) == [
        GROUPED[0],
        ("assistant", [use("a", {"a": 2})]),
        ("user", [result("a", "2")]),
        ("assistant", [use("b", {"a": 3})]),
        ("user", [result("b", "3")]),
    ]


def test_the_id_of_a_call_tells_that_it_belongs_to_the_one_before() -> None:
    items: list[Item] = [
        called("a"),
        gave("a", "2"),
        called("b--2"),
        gave("b--2", "3"),
        called("c--3"),
        gave("c--3", "4"),
    ]
    assert messages(HI, *items, tools=(ADD,)) == [
        ("user", [text("hi")]),
        ("assistant", [use("a"), use("b--2"), use("c--3")]),
        ("user", [result("a", "2"), result("b--2", "3"), result("c--3", "4")]),
    ]


def test_then_so_does_what_was_said_between() -> None:
    items: list[Item] = [
        called("a"),
        gave("a", "2"),
        packed(thought()),
        said("assistant", "well"),
        called("b--2"),
        gave("b--2", "3"),
    ]
    built = messages(HI, *items, tools=(ADD,), effort="low")
    assert built[1:] == [
        ("assistant", [thought(), text("well"), use("a"), use("b--2")]),
        ("user", [result("a", "2"), result("b--2", "3")]),
    ]


def test_but_not_when_the_user_has_spoken_or_there_is_none_before() -> None:
    built = messages(
        HI, called("a"), gave("a", "2"), said("user", "so?"), called("b--2"), gave("b--2", "3"), tools=(ADD,)
    )
    assert [use("b--2")] in [blocks for _, blocks in built]
    assert messages(said("assistant", "x"), called("b--2"), tools=(ADD,))[1] == ("assistant", [text("x"), use("b--2")])
    assert messages(called("b--2"), tools=(ADD,))[1] == ("assistant", [use("b--2")])


def test_what_was_said_before_a_call_stands_before_it() -> None:
    assert messages(HI, said("assistant", "let me see"), called("a"), gave("a", "5"), tools=(ADD,))[1] == (
        "assistant",
        [text("let me see"), use("a")],
    )
    assert messages(HI, called("a"), said("assistant", "let me see"), gave("a", "5"), tools=(ADD,))[1] == (
        "assistant",
        [text("let me see"), use("a")],
    )


def test_a_result_follows_its_call_wherever_it_stands() -> None:
    items: list[Item] = [
        called("a"),
        said("user", "hurry"),
        gave("a", "5"),
        said("assistant", "5"),
        said("user", "thanks"),
    ]
    assert messages(HI, *items, tools=(ADD,)) == [
        ("user", [text("hi")]),
        ("assistant", [use("a")]),
        ("user", [result("a"), text("hurry")]),
        ("assistant", [text("5")]),
        ("user", [text("thanks")]),
    ]


@pytest.mark.parametrize("rest", [(), (said("user", "never mind"),), (called("b"), gave("b", "1"))])
def test_a_call_without_an_output_gets_one_that_says_so(rest: Any) -> None:
    built = messages(HI, called("a"), *rest, tools=(ADD,))
    missing = {**result("a", NO_OUTPUT), "is_error": True}
    assert missing in built[2][1]


def test_an_output_without_its_call_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="No tool call found"):
        build_body(turn(HI, gave("a", "5")))


def test_several_outputs_of_one_call_are_one_result() -> None:
    assert messages(HI, called("a"), gave("a", "1"), gave("a", "2"), tools=(ADD,))[2] == ("user", [result("a", "1\n2")])


def test_an_id_may_be_used_again() -> None:
    items: list[Item] = [
        called("a", '{"a":1}'),
        gave("a", "1"),
        said("user", "again"),
        called("a", '{"a":2}'),
        gave("a", "2"),
    ]
    built = messages(HI, *items, tools=(ADD,))
    assert built[1] == ("assistant", [use("a", {"a": 1})])
    assert built[2] == ("user", [result("a", "1"), text("again")])
    assert built[3:] == [("assistant", [use("a_2", {"a": 2})]), ("user", [result("a_2", "2")])]


@pytest.mark.parametrize("call_id", ["call 1", "call:1", "…", "a.b", " "])
def test_an_id_that_is_not_legal_gets_one_that_is(call_id: str) -> None:
    def ids(*items: Any) -> tuple[str, str]:
        built = messages(HI, *items, tools=(ADD,))
        return built[1][1][0]["id"], built[2][1][0]["tool_use_id"]

    first, second = ids(called(call_id), gave(call_id, "5"))
    assert first == second != call_id
    assert re.fullmatch("[a-zA-Z0-9_-]+", first)
    assert ids(called(call_id), gave(call_id, "5"), said("user", "?")) == (first, second)


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"a": [1, "é"]}', {"a": [1, "é"]}),
        ("", {}),
        (" \n", {}),
        ("[1]", {"input": "[1]"}),
        ("5", {"input": "5"}),
        ('{"a":', {"input": '{"a":'}),
        ("[" * 300 + "]" * 300, {"input": "[" * 300 + "]" * 300}),
    ],
)
def test_arguments_are_an_object(arguments: str, given: Json) -> None:
    assert messages(HI, called("a", arguments), gave("a", "5"), tools=(ADD,))[1][1][0]["input"] == given


def test_a_custom_tools_text_is_its_input() -> None:
    built = messages(HI, called("a", '{"a": 1}', custom=True), gave("a", "5", custom=True), tools=(ADD,))
    assert built[1][1][0]["input"] == {"input": '{"a": 1}'}


def test_an_output_may_have_images() -> None:
    output = FunctionOutput("a", (Text("see"), Image(PIXEL), Text(" ")))
    content = messages(HI, called("a"), output, tools=(ADD,))[2][1][0]["content"]
    assert [block["type"] for block in content] == ["text", "image"]


def test_an_empty_output_is_one() -> None:
    assert messages(HI, called("a"), gave("a", ""), tools=(ADD,))[2][1] == [result("a", "")]


# Images


def image(url: str) -> Json:
    block: Json = messages(Message("user", (Image(url),)))[0][1][0]
    assert block["type"] == "image"
    source: Json = block["source"]
    return source


@pytest.mark.parametrize(
    ("url", "kind", "data"),
    [
        (PIXEL, "image/png", "iVBORw0KGgo="),
        ("data:image/jpg;base64,/9j/", "image/jpeg", "/9j/"),
        ("DATA:Image/WEBP;charset=x;BASE64,AA AA\n", "image/webp", "AAAA"),
    ],
)
def test_an_image_in_a_data_url(url: str, kind: str, data: str) -> None:
    assert image(url) == {"type": "base64", "media_type": kind, "data": data}


def test_an_image_elsewhere() -> None:
    assert image("https://example.com/a.png") == {"type": "url", "url": "https://example.com/a.png"}


@pytest.mark.parametrize(
    "url", ["http://example.com/a.png", "file:///etc/passwd", "data:image/svg+xml;base64,AA", "data:image/png,AA", ""]
)
def test_any_other_image_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        build_body(turn(Message("user", (Image(url),))))


def test_an_assistants_image_is_only_mentioned() -> None:
    assert messages(HI, Message("assistant", (Image(PIXEL),)))[1] == ("assistant", [text("[image]")])


# Thoughts


def test_thoughts_go_back_before_what_followed_them() -> None:
    items: list[Item] = [packed(thought("one")), said("assistant", "let me"), packed(thought("two")), *CALLS]
    built = messages(HI, *items, gave("a", "2"), gave("b", "3"), tools=(ADD,), effort="low")
    assert built[1] == (
        "assistant",
        [thought("one"), text("let me"), thought("two"), use("a", {"a": 2}), use("b", {"a": 3})],
    )


def test_what_nobody_may_read_goes_back_too() -> None:
    hidden = {"type": "redacted_thinking", "data": "aGlkZGVu"}
    assert messages(HI, packed(hidden), called("a"), gave("a", "5"), tools=(ADD,), effort="low")[1][1][0] == hidden


@pytest.mark.parametrize(
    "item",
    [
        reasoning("ZW5jcnlwdGVk"),
        reasoning(None),
        reasoning("anthropic.thinking.1:"),
        reasoning("anthropic.thinking.1:[]"),
        reasoning('anthropic.thinking.1:{"model":"claude-sonnet-4-5","block":{"type":"thinking","thinking":5}}'),
        reasoning('anthropic.thinking.1:{"model":"claude-sonnet-4-5","block":{"type":["x"]}}'),
        packed(thought(), model="claude-haiku-4-5"),
        RawItem("web_search_call", {"type": "web_search_call", "id": "ws_1"}),
    ],
    ids=range(8),
)
def test_what_is_not_this_models_is_left_out(item: RawItem) -> None:
    assert messages(HI, item, said("assistant", "5"), said("user", "?"), effort="low")[1] == ("assistant", [text("5")])


@pytest.mark.parametrize("rest", [(), (said("assistant", " "),), (said("user", "?"),)])
def test_no_message_ends_with_thoughts(rest: Any) -> None:
    built = messages(HI, packed(thought()), *rest, effort="low")
    assert [role for role, _ in built] == ["user"]


def test_thoughts_begin_another_step() -> None:
    step = (packed(thought("two")), called("b"), gave("b", "3"))
    built = messages(HI, packed(thought("one")), called("a"), gave("a", "2"), *step, tools=(ADD,), effort="low")
    assert [role for role, _ in built] == ["user", "assistant", "user", "assistant", "user"]
    assert built[3][1] == [thought("two"), use("b")]


def test_without_thinking_thoughts_stay_at_home() -> None:
    built = messages(HI, packed(thought()), called("a"), gave("a", "5"), tools=(ADD,))
    assert built[1] == ("assistant", [use("a")])


def test_a_long_history_takes_no_longer_than_its_length() -> None:
    """Thousands of texts in one message, of calls, and of outputs, all with one id."""
    items: list[Item] = [HI, *[said("assistant", "a")] * 20_000, *[called("a")] * 20_000, *[gave("a", "5")] * 20_000]
    body = build_body(turn(*items, tools=(ADD,)))
    assert [len(message["content"]) for message in body["messages"]] == [1, 40_000, 20_000]
