"""Between a backend that speaks text and the encoders: blocks become calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bridge.core.collect import collect
from bridge.core.events import (
    CallBegun,
    CallDelta,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    ToolCall,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.core.items import FunctionTool, Message, RawTool, Text, ToolChoice
from bridge.core.turn import Turn
from bridge.tools.payload import function_of
from bridge.tools.stage import ToolStage

SCHEMA = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"], "additionalProperties": False}
FIND = FunctionTool("find", parameters=SCHEMA)
STRICT = replace(FIND, name="strict", strict=True)
TURN = Turn("m", "m", (Message("user", (Text("hi"),)),), tools=(FIND, STRICT))
END = Finished("completed")


def block(name: str = "find", arguments: str = r'"{\"q\":1}"') -> str:
    return f'<tool_call>{{"name":"{name}","arguments":{arguments}}}</tool_call>'


def counter() -> Callable[[str], str]:
    """Ids that count up."""
    numbers = iter(range(1000))
    return lambda prefix: f"{prefix}_{next(numbers)}"


class Stage:
    """A stage with counted ids, and its records."""

    def __init__(self, turn: Turn = TURN) -> None:
        self.records: list[tuple[str, dict[str, Any]]] = []
        self._stage = ToolStage(turn, counter(), lambda kind, payload: self.records.append((kind, payload)))

    def feed(self, *events: TurnEvent) -> list[TurnEvent]:
        return self._stage.feed(list(events))


def test_a_block_becomes_a_call_between_its_texts() -> None:
    """The text before and after the block stays, in order, and the call has ids of its own."""
    stage = Stage()
    events = stage.feed(TextDelta("m", [f"see {block()}and"]), TextDone("m"), END)
    assert events == [
        TextDelta("m", ["see "]),
        CallBegun("fc_0", "call_1", "find"),
        CallDelta("fc_0", ['{"q":1}']),
        ToolCall("fc_0", "call_1", "find", '{"q":1}', (), block()),
        TextDelta("m", ["and"]),
        TextDone("m"),
        END,
    ]
    assert stage.records == [("tool_call", {"name": "find", "call_id": "call_1", "source": block()})]


def test_text_without_tags_keeps_its_pieces() -> None:
    """Far from a tag the boundaries of the deltas stay as they came."""
    assert Stage().feed(TextDelta("m", ["a", "b", "c"]), TextDone("m")) == [
        TextDelta("m", ["a", "b", "c"]),
        TextDone("m"),
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_the_cutting_does_not_matter(size: int) -> None:
    """Pieces of any size, in one event or in many, give the same text and calls."""
    text = f"one {block()} two {block('nope')} three {block()}"
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    for cut in ([TextDelta("m", pieces)], [TextDelta("m", [piece]) for piece in pieces]):
        result = collect(Stage().feed(*cut, TextDone("m"), END))
        assert result.text == f"one  two {block('nope')} three "
        assert [call.arguments for call in result.calls] == ['{"q":1}'] * 2
        assert len({call.call_id for call in result.calls} | {call.id for call in result.calls}) == 4


def test_what_is_held_back_comes_with_the_end_of_its_item() -> None:
    """A suffix that might have begun a tag is text once the message is over, and stands before its end."""
    stage = Stage()
    assert stage.feed(TextDelta("m", ["a <tool_"])) == [TextDelta("m", ["a "])]
    assert stage.feed(TextDone("m")) == [TextDelta("m", ["<tool_"]), TextDone("m")]


def test_what_is_held_back_comes_before_the_end_of_the_turn() -> None:
    """Without an end of the message, the end of the turn flushes it."""
    stage = Stage()
    stage.feed(TextDelta("m", ["<tool"]))
    assert stage.feed(END) == [TextDelta("m", ["<tool"]), END]


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_block_that_a_failure_cut_off_is_text(outcome: Any) -> None:
    """It may look whole; but the model did not end it, and nobody is to execute half of what it meant."""
    stage, unclosed = Stage(), block(arguments='{"q":1}').removesuffix("</tool_call>")
    assert stage.feed(TextDelta("m", [unclosed]), Finished(outcome)) == [
        TextDelta("m", [unclosed]),
        Finished(outcome),
    ]


@pytest.mark.parametrize("outcome", ["completed", "incomplete"])
def test_an_unclosed_block_is_not_lost(outcome: Any) -> None:
    """A whole payload without its closing tag is a repaired call; half a payload is text."""
    whole, half = Stage(), Stage()
    end = Finished(outcome)
    (*_, call, _) = whole.feed(TextDelta("m", [block().removesuffix("</tool_call>")]), end)
    assert isinstance(call, ToolCall)
    assert call.repairs == ("unclosed",)
    assert half.feed(TextDelta("m", ['<tool_call>{"name":']), end) == [TextDelta("m", ['<tool_call>{"name":']), end]


SETTLED = block()[: -len(r':1}"}</tool_call>')]


def test_a_call_streams_once_its_block_cannot_be_rejected() -> None:
    stage = Stage()
    assert stage.feed(TextDelta("m", ["see ", SETTLED])) == [
        TextDelta("m", ["see "]),
        CallBegun("fc_0", "call_1", "find"),
        CallDelta("fc_0", ['{"q"']),
    ]
    assert stage.feed(TextDelta("m", [":", "1}", '"}'])) == [CallDelta("fc_0", [":", "1}"])]
    assert stage.records == []
    (call,) = stage.feed(TextDelta("m", ["</tool_call>"]))
    assert call == ToolCall("fc_0", "call_1", "find", '{"q":1}', (), block())


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "incomplete"])
@pytest.mark.parametrize("rest", ["", r":1}</tool_call> and <tool_call>{\"q", r":\u12"])
def test_a_call_that_has_begun_and_is_cut_off_is_never_complete(outcome: Any, rest: str) -> None:
    stage, end = Stage(), Finished(outcome)
    begun = stage.feed(TextDelta("m", [SETTLED + rest]))
    assert [type(event) for event in begun] == [CallBegun, CallDelta]
    after = stage.feed(end)
    assert after[-1] == end
    assert not any(isinstance(event, ToolCall | CallBegun) for event in after)


def test_a_model_that_stops_within_its_arguments_has_made_a_call_that_nobody_can_read() -> None:
    stage = Stage()
    (*_, call, _) = stage.feed(TextDelta("m", [SETTLED]), TextDone("m"))
    assert isinstance(call, ToolCall)
    assert (call.arguments, call.repairs) == ('{"q"', ("damaged_json", "unclosed"))
    assert stage.records[-1] == ("tool_repair", {"name": "find", "repairs": ["damaged_json", "unclosed"]})


def test_what_comes_in_the_middle_of_a_call_waits_for_its_end() -> None:
    stage = Stage()
    thought, other = ReasoningDelta("r", 0, ["hm"]), TextDelta("n", ["text"])
    stage.feed(TextDelta("m", [SETTLED]))
    assert stage.feed(thought, other, TextDelta("n", [SETTLED])) == []
    rest = r':1}"}</tool_call>'
    assert [type(event) for event in stage.feed(TextDelta("m", [rest]), TextDelta("n", [rest]))] == [
        CallDelta,
        ToolCall,
        ReasoningDelta,
        TextDelta,
        CallBegun,
        CallDelta,
        ToolCall,
    ]


def test_a_second_call_at_once_does_not_begin_where_the_client_wants_one() -> None:
    stage = Stage(replace(TURN, parallel=False))
    events = stage.feed(TextDelta("m", [block(), SETTLED]))
    assert [type(event) for event in events] == [CallBegun, CallDelta, ToolCall]
    assert stage.feed(TextDelta("m", [r':2}"}</tool_call>'])) == []
    assert stage.records[-1][1]["reason"] == "not_parallel"


def test_the_text_of_a_custom_tool_comes_whole() -> None:
    patch = function_of({"type": "custom", "name": "patch"}, "patch")
    stage = Stage(replace(TURN, tools=(patch,)))
    text = block("patch", r'"{\"input\":\"*** Begin\"}"')
    assert stage.feed(TextDelta("m", [text[:-1]])) == []
    (call,) = stage.feed(TextDelta("m", [text[-1]]))
    assert isinstance(call, ToolCall)
    assert call.arguments == "*** Begin"


def test_every_message_has_a_parser_of_its_own() -> None:
    """Interleaved items do not end each other's blocks."""
    first, second = block()[:20], block()[20:]
    stage = Stage()
    events = stage.feed(TextDelta("a", [first]), TextDelta("b", ["text"]), TextDelta("a", [second]), TextDone("a"))
    assert events == [
        TextDelta("b", ["text"]),
        CallBegun("fc_0", "call_1", "find"),
        CallDelta("fc_0", ['{"q":1}']),
        ToolCall("fc_0", "call_1", "find", '{"q":1}', (), block()),
        TextDone("a"),
    ]


def test_a_restart_forgets_the_broken_stream() -> None:
    """Half a block of a dead item does not leak into the new one."""
    stage = Stage()
    events = stage.feed(
        TextDelta("dead", [block()[:30]]), Restarted("again"), TextDelta("alive", ["hello"]), TextDone("alive"), END
    )
    assert events == [Restarted("again"), TextDelta("alive", ["hello"]), TextDone("alive"), END]


def test_other_events_pass_through() -> None:
    """Reasoning is never parsed, and usage is not touched."""
    events: list[TurnEvent] = [
        ReasoningDelta("r", 0, [block()]),
        ReasoningDone("r"),
        UsageUpdate(Usage(1, 2, 3, 4)),
        END,
    ]
    assert Stage().feed(*events) == events


# Rejections


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (block("unknown"), "unknown_tool"),
        ("<tool_call>{broken</tool_call>", "bad_json"),
        (block("strict", r'"{\"q\":\"no\"}"'), "schema_mismatch"),
        (block("strict", r'"{\"q\":1,\"x\":2}"'), "schema_mismatch"),
        (block("strict", '"not json"'), "schema_mismatch"),
    ],
)
def test_a_rejected_block_is_text_and_recorded(text: str, reason: str) -> None:
    """Nothing of a rejected block is lost, and the record says why."""
    stage = Stage()
    result = collect(stage.feed(TextDelta("m", [text]), TextDone("m"), END))
    assert result.text == text
    assert result.calls == []
    assert [(kind, payload["reason"]) for kind, payload in stage.records] == [("tool_reject", reason)]


def test_a_strict_call_that_conforms_is_a_call() -> None:
    """Strict tools are checked, others are not."""
    events = Stage().feed(TextDelta("m", [block("strict") + block("find", '"whatever"')]), END)
    assert [call.name for call in collect(events).calls] == ["strict", "find"]


@pytest.mark.parametrize("parameters", [None, {"type": 5}, True])
def test_a_strict_tool_without_a_usable_schema_is_not_checked(parameters: Any) -> None:
    """What cannot be checked is passed on; the client knows its own tool."""
    turn = replace(TURN, tools=(FunctionTool("find", parameters=parameters, strict=True),))
    assert collect(Stage(turn).feed(TextDelta("m", [block()]), END)).calls[0].name == "find"


def test_repairs_are_recorded() -> None:
    """A mended call says what was mended, and a swallowed tag is noted."""
    stage = Stage()
    text = '<tool_call>[{"name":"find","arguments":{"q":1}}]</tool_call></tool_call>'
    (call, _) = stage.feed(TextDelta("m", [text]), END)
    assert isinstance(call, ToolCall)
    assert set(call.repairs) == {"array_unwrapped", "arguments_coerced"}
    kinds = [kind for kind, _ in stage.records]
    assert kinds == ["tool_call", "tool_repair", "tool_repair"]


# One call at a time


def test_without_parallel_calls_the_first_one_counts() -> None:
    """The others are left out and noted; a call that a restart voided was none."""
    stage = Stage(replace(TURN, parallel=False))
    result = collect(stage.feed(TextDelta("m", [block() + block("strict")]), TextDone("m"), END))
    assert [call.name for call in result.calls] == ["find"]
    assert result.text == ""
    assert stage.records[-1] == (
        "tool_reject",
        {"reason": "not_parallel", "name": "strict", "source": block("strict")},
    )
    stage = Stage(replace(TURN, parallel=False))
    events = stage.feed(TextDelta("m", [block()]), Restarted("again"), TextDelta("n", [block("strict")]), END)
    assert [call.name for call in collect(events).calls] == ["strict"]


# Namespaces and custom tools

CRM_FIND = FunctionTool("find", namespace="crm")
SHOP_FIND = FunctionTool("find", namespace="shop")
SHOP_BUY = FunctionTool("buy", namespace="shop")
PATCH = function_of({"name": "patch", "format": {"type": "text"}}, "patch")


@pytest.mark.parametrize(
    ("tools", "said", "called"),
    [
        ((CRM_FIND, SHOP_FIND), "crm.find", CRM_FIND),
        ((CRM_FIND, SHOP_FIND), "shop.find", SHOP_FIND),
        ((CRM_FIND, SHOP_FIND), "find", None),
        ((CRM_FIND, SHOP_BUY), "find", CRM_FIND),
        ((FIND, CRM_FIND), "find", FIND),
        ((FIND, CRM_FIND), "crm.find", CRM_FIND),
        ((CRM_FIND,), "shop.find", None),
    ],
)
def test_a_namespace_may_be_left_out_where_it_is_clear(
    tools: tuple[FunctionTool, ...], said: str, called: FunctionTool | None
) -> None:
    """The client gets the function's own name and its namespace."""
    result = collect(Stage(replace(TURN, tools=tools)).feed(TextDelta("m", [block(said)]), TextDone("m"), END))
    expected = [] if called is None else [(called.name, called.namespace)]
    assert [(call.name, call.namespace) for call in result.calls] == expected
    assert result.text == (block(said) if called is None else "")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(r'"{\"input\":\"a\\nb\"}"', "a\nb"), ('"just the text"', "just the text"), (r'"{\"other\":1}"', '{"other":1}')],
)
def test_a_custom_tool_gets_its_text(arguments: str, text: str) -> None:
    """Out of the arguments of the function that it is offered as."""
    events = Stage(replace(TURN, tools=(PATCH,))).feed(TextDelta("m", [block("patch", arguments)]), END)
    (call,) = collect(events).calls
    assert (call.name, call.arguments, call.custom) == ("patch", text, True)
    assert call.id.startswith("ctc_")


# The choice


@pytest.mark.parametrize("choice", [ToolChoice("required"), ToolChoice("named", "find")])
def test_an_unmet_choice_is_recorded(choice: ToolChoice) -> None:
    """A turn that had to call and did not ends as it is, and the record says so."""
    stage = Stage(replace(TURN, tool_choice=choice))
    assert stage.feed(TextDelta("m", ["no"]), TextDone("m"), END) == [TextDelta("m", ["no"]), TextDone("m"), END]
    ((kind, payload),) = stage.records
    assert (kind, payload["reason"]) == ("tool_reject", "choice_unmet")


@pytest.mark.parametrize(
    ("choice", "text", "end"),
    [
        (ToolChoice("auto"), "no", END),
        (ToolChoice("required"), block(), END),
        (ToolChoice("required"), "no", Finished("failed")),
        (ToolChoice("required"), "no", Finished("cancelled")),
    ],
)
def test_a_met_or_free_choice_is_not(choice: ToolChoice, text: str, end: Finished) -> None:
    """Only a completed turn without the demanded call is noted."""
    stage = Stage(replace(TURN, tool_choice=choice))
    stage.feed(TextDelta("m", [text]), end)
    assert all(payload.get("reason") != "choice_unmet" for _, payload in stage.records)


def test_a_call_before_a_restart_does_not_meet_the_choice() -> None:
    """What was voided does not count."""
    stage = Stage(replace(TURN, tool_choice=ToolChoice("required")))
    stage.feed(TextDelta("m", [block()]), Restarted("again"), TextDelta("n", ["no"]), END)
    assert stage.records[-1][1]["reason"] == "choice_unmet"


def test_other_tools_cannot_be_called_by_text() -> None:
    """Only the client's functions are callable, whatever else the request names."""
    turn = replace(TURN, tools=(FIND, RawTool("web_search", {"type": "web_search", "name": "web"})))
    assert collect(Stage(turn).feed(TextDelta("m", [block("web")]), END)).calls == []


def test_it_works_without_a_record() -> None:
    """Recording is optional."""
    events = ToolStage(TURN, counter()).feed([TextDelta("m", [block() + block("x")]), END])
    assert len(collect(events).calls) == 1
