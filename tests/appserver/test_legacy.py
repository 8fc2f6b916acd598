"""The legacy dialect: seed 003's payloads to the byte, and what a real Codex 0.107 answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from appserver.recorded_turn import call_of, play_trace, recorded
from harness import ROOT

from bridge.appserver.connection import LegacyDecoder, encode_request
from bridge.appserver.dialect import OPT_OUT
from bridge.appserver.legacy import (
    LegacyTurn,
    build_new_conversation,
    build_send_user_message,
    build_send_user_turn,
    choose_sends,
    developer_instructions,
)
from bridge.appserver.turn import Call, ChildSettings, Routes
from bridge.core.collect import collect
from bridge.core.events import (
    Acted,
    Finished,
    ReasoningDelta,
    ReasoningDone,
    Restarted,
    TextDelta,
    TextDone,
    TurnEvent,
    Usage,
    UsageUpdate,
)
from bridge.core.items import FunctionTool, Image, Item, Message, OutputFormat, RawTool, Text, ToolChoice
from bridge.core.turn import Turn
from bridge.protocols.chat.request import FORM
from bridge.tools.instructions import build_instructions
from bridge.tools.payload import function_of

CONVERSATION = "019bfd08-57c5-71f0-b8ef-c44ff460ff21"
SETTINGS = ChildSettings()
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
TREE = FunctionTool("getFileTree", parameters=SCHEMA)
CHAT = Turn("gpt-5.2", "gpt-5.2-codev-l", (Message("user", (Text("...original prompt..."),)),), **FORM)
RESPONSES = Turn("gpt-5.2", "gpt-5.2-codev-l", CHAT.items)
TURNS = {"chat": CHAT, "responses": RESPONSES}


def example(name: str) -> Any:
    """An example of seed 003 (its schema comment replaced by a schema), keys in the document's order."""
    return orjson.loads((ROOT / f"fixtures/seed/{name}.json").read_bytes())


# The document's examples, byte for byte


def test_new_conversation_is_the_documents() -> None:
    """Seed 003 §1, key for key, byte for byte."""
    turn = replace(RESPONSES, instructions="Tool calling instructions: ...")
    assert orjson.dumps(build_new_conversation(turn, SETTINGS)) == orjson.dumps(example("new_conversation"))


def test_send_user_turn_is_the_documents() -> None:
    """Seed 003 §2, byte for byte, and behind it the developer instructions that tools bring with them."""
    turn = replace(CHAT, model="gpt-5.2-codev-l", effort="low", n=1, tools=(TREE,))
    expected = example("send_user_turn") | {"developerInstructions": build_instructions((TREE,), ToolChoice())}
    assert orjson.dumps(build_send_user_turn(turn, SETTINGS, CONVERSATION)) == orjson.dumps(expected)


def test_send_user_message_is_the_documents() -> None:
    """Seed 003 §3, key for key, byte for byte."""
    turn = replace(RESPONSES, effort="low", stream=True, max_output_tokens=65000, tools=(TREE,))
    built = build_send_user_message(turn, SETTINGS, CONVERSATION)
    assert orjson.dumps(built) == orjson.dumps(example("send_user_message"))


def test_the_envelope_is_the_documents() -> None:
    """Seed 003, "JSON-RPC envelope": jsonrpc, id, method, params."""
    params = build_send_user_message(RESPONSES, SETTINGS, CONVERSATION)
    line = encode_request(4, "sendUserMessage", params)
    assert line == b'{"jsonrpc":"2.0","id":4,"method":"sendUserMessage","params":' + orjson.dumps(params) + b"}"


# What is omitted, and what is null


def test_what_nothing_sets_is_null_or_omitted_as_the_document_has_it() -> None:
    """A bare request keeps the documented nulls and leaves the rest out, in the documented order."""
    assert list(build_new_conversation(CHAT, SETTINGS)) == [
        key for key in example("new_conversation") if key != "developerInstructions"
    ]
    omitted = {"effort", "choiceCount", "choice_count", "tools", "reasoning", "maxOutputTokens", "max_output_tokens"}
    turn = build_send_user_turn(CHAT, SETTINGS, CONVERSATION)
    assert list(turn) == [key for key in example("send_user_turn") if key not in omitted]
    assert turn["outputSchema"] is None
    message = build_send_user_message(CHAT, SETTINGS, CONVERSATION)
    assert list(message) == [key for key in example("send_user_message") if key not in omitted]
    assert [key for key, value in message.items() if value is None] == [
        "temperature",
        "topP",
        "top_p",
        "responseFormat",
        "response_format",
        "finalOutputJsonSchema",
        "final_output_json_schema",
    ]


def test_everything_set_keeps_the_documents_order() -> None:
    """With every value given the keys still stand in the documented order, doubled ones with one value."""
    raw = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    full = replace(
        CHAT,
        effort="high",
        n=3,
        tools=(TREE,),
        output_format=OutputFormat("json_schema", raw, SCHEMA),
        stream=True,
        include_usage=True,
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=9,
    )
    turn = build_send_user_turn(full, SETTINGS, CONVERSATION)
    message = build_send_user_message(full, SETTINGS, CONVERSATION)
    assert list(turn) == [*example("send_user_turn"), "developerInstructions"]
    assert list(message) == [key for key in example("send_user_message") if key != "reasoning"]
    assert turn["outputSchema"] == turn["output_schema"] == SCHEMA
    assert turn["choiceCount"] == turn["choice_count"] == 3
    assert message["includeUsage"] is message["include_usage"] is True
    assert message["topP"] == message["top_p"] == 0.25
    assert message["temperature"] == 0.5
    assert message["maxOutputTokens"] == message["max_output_tokens"] == 9
    assert message["responseFormat"] == message["response_format"] == raw
    assert message["finalOutputJsonSchema"] == message["final_output_json_schema"] == SCHEMA


def test_a_json_object_format_has_no_schema() -> None:
    """`json_object` fills responseFormat alone."""
    turn = replace(CHAT, output_format=OutputFormat("json_object", {"type": "json_object"}))
    message = build_send_user_message(turn, SETTINGS, CONVERSATION)
    assert message["responseFormat"] == {"type": "json_object"}
    assert message["finalOutputJsonSchema"] is None
    assert build_send_user_turn(turn, SETTINGS, CONVERSATION)["outputSchema"] is None


def test_the_effective_model_is_sent() -> None:
    """The alias is only echoed to the client (payloads §1)."""
    assert build_new_conversation(CHAT, SETTINGS)["model"] == "gpt-5.2"
    assert build_send_user_turn(CHAT, SETTINGS, CONVERSATION)["model"] == "gpt-5.2"


@pytest.mark.parametrize(
    ("endpoint", "alone", "on_turn", "on_message"),
    [
        ("chat", False, True, False),
        ("chat", True, True, False),
        ("responses", False, False, True),
        ("responses", True, True, True),
    ],
)
def test_the_effort_is_on_one_call(endpoint: Any, alone: bool, on_turn: bool, on_message: bool) -> None:
    """Chat has it on the turn, responses on the message; a turn that is sent alone carries it for both."""
    turn = replace(TURNS[endpoint], effort="low")
    built = build_send_user_turn(turn, SETTINGS, CONVERSATION, alone=alone)
    assert built.get("effort") == ("low" if on_turn else None)
    assert "reasoning" not in built
    message = build_send_user_message(turn, SETTINGS, CONVERSATION)
    assert message.get("reasoning") == ({"effort": "low"} if on_message else None)
    assert ("reasoning" in message) is on_message


def test_sampling_belongs_to_chat() -> None:
    """`temperature` and `top_p` fill their keys for chat only."""
    message = build_send_user_message(replace(RESPONSES, temperature=1.0, top_p=1.0), SETTINGS, CONVERSATION)
    assert (message["temperature"], message["topP"], message["top_p"]) == (None, None, None)
    message = build_send_user_message(replace(CHAT, temperature=0.0, top_p=0.0), SETTINGS, CONVERSATION)
    assert (message["temperature"], message["topP"], message["top_p"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("said", "sent"), [(True, True), (False, False), (None, False)])
def test_stream_is_always_sent(said: bool | None, sent: bool) -> None:
    """`stream` is always there; the configured default has been filled in before."""
    assert build_send_user_message(replace(CHAT, stream=said), SETTINGS, CONVERSATION)["stream"] is sent


def test_the_settings_of_the_operator_are_sent() -> None:
    """Directory, approval, sandbox and the patch tool come from the configuration alone."""
    settings = ChildSettings(
        workdir="/w", approval_policy="on-request", sandbox_mode="workspace-write", include_apply_patch_tool=True
    )
    start = build_new_conversation(CHAT, settings)
    assert (start["cwd"], start["approvalPolicy"], start["sandbox"]) == ("/w", "on-request", "workspace-write")
    assert start["includeApplyPatchTool"] is True
    turn = build_send_user_turn(CHAT, settings, CONVERSATION)
    assert (turn["cwd"], turn["approvalPolicy"]) == ("/w", "on-request")
    assert turn["sandboxPolicy"] == {"type": "workspace-write"}


def test_a_requested_summary_is_sent() -> None:
    """`summary` is required by Codex: the client's word, else `auto`."""
    assert build_send_user_turn(replace(CHAT, summary="concise"), SETTINGS, CONVERSATION)["summary"] == "concise"


# Tools


def test_functions_come_first_and_other_tools_verbatim() -> None:
    """Each function in the nested form with what it has; other types follow as they are."""
    search = RawTool("web_search", {"type": "web_search", "x": [1]})
    full = FunctionTool("f", "does f", SCHEMA, True)
    built = build_send_user_message(replace(CHAT, tools=(search, full, TREE)), SETTINGS, CONVERSATION)
    assert orjson.dumps(built["tools"]) == orjson.dumps(
        {
            "definitions": [
                {
                    "type": "function",
                    "function": {"name": "f", "description": "does f", "parameters": SCHEMA, "strict": True},
                },
                {"type": "function", "function": {"name": "getFileTree", "parameters": SCHEMA}},
                {"type": "web_search", "x": [1]},
            ]
        }
    )


def test_a_custom_tool_is_defined_as_the_client_defined_it() -> None:
    """The injected text offers it as a function of one text; the manifest has its own definition."""
    raw = {"type": "custom", "name": "patch", "format": {"type": "text"}}
    turn = replace(RESPONSES, tools=(function_of(raw, "patch"), FunctionTool("find", namespace="crm")))
    built = build_send_user_turn(turn, SETTINGS, CONVERSATION)
    custom, find = built["tools"]["definitions"]
    assert custom == raw
    assert find["function"]["name"] == "find"
    assert "Tool: patch\nParameters:\n- input (required, string)" in built["developerInstructions"]
    assert "Tool: crm.find" in built["developerInstructions"]


def test_one_call_at_a_time_is_requested() -> None:
    """In the injected text: there is no other place for it."""
    turn = replace(CHAT, tools=(TREE,), parallel=False)
    assert "at most one <tool_call>" in build_new_conversation(turn, SETTINGS)["developerInstructions"]


def test_the_manifest_can_be_omitted() -> None:
    """PROXY_RESPONSES_OMIT_TOOL_MANIFEST takes `tools` out of both calls; the injected text stays."""
    turn = replace(RESPONSES, tools=(TREE,))
    settings = ChildSettings(omit_tool_manifest=True)
    sent = build_send_user_turn(turn, settings, CONVERSATION)
    assert "tools" not in sent
    assert "tools" not in build_send_user_message(turn, settings, CONVERSATION)
    assert "getFileTree" in sent["developerInstructions"]
    assert "getFileTree" in build_new_conversation(turn, settings)["developerInstructions"]


# Instructions


def test_developer_instructions_are_the_last_key_of_the_turn() -> None:
    """The same text is in newConversation and, as the last key, in sendUserTurn."""
    turn = replace(CHAT, tools=(TREE,))
    sent = build_send_user_turn(turn, SETTINGS, CONVERSATION)
    assert list(sent)[-1] == "developerInstructions"
    assert sent["developerInstructions"] == build_new_conversation(turn, SETTINGS)["developerInstructions"]
    assert "developerInstructions" not in build_send_user_message(turn, SETTINGS, CONVERSATION)


def test_the_order_of_the_developer_text() -> None:
    """Injected text, `instructions`, then system and developer items in order, a blank line between."""
    items: tuple[Item, ...] = (
        Message("system", (Text("first"),)),
        *RESPONSES.items,
        Message("developer", (Text("second"),)),
    )
    turn = replace(RESPONSES, items=items, tools=(TREE,), instructions="mine")
    injected = build_instructions((TREE,), ToolChoice())
    assert developer_instructions(turn) == f"{injected}\n\nmine\n\nfirst\n\nsecond"
    assert developer_instructions(RESPONSES) is None


@pytest.mark.parametrize(
    ("endpoint", "ignore", "base", "developer"),
    [
        ("chat", None, None, None),
        ("chat", True, None, None),
        ("chat", False, "be kind", None),
        ("responses", None, None, "be kind"),
        ("responses", True, None, "be kind"),
        ("responses", False, None, "be kind"),
    ],
)
def test_where_the_system_prompt_goes(endpoint: Any, ignore: bool | None, base: str | None, developer: str) -> None:
    """Chat: `baseInstructions`, and only when it is not to be ignored; responses: always the developer text."""
    items = (Message("system", (Text("be kind"),)), *CHAT.items)
    turn = replace(TURNS[endpoint], items=items)
    built = build_new_conversation(turn, ChildSettings(ignore_system_prompt=ignore))
    assert built["baseInstructions"] == base
    assert built.get("developerInstructions") == developer
    assert build_send_user_message(turn, SETTINGS, CONVERSATION)["items"] == example("send_user_message")["items"]


def test_images_are_items_of_their_own() -> None:
    """An image is sent as a data URL between the texts."""
    picture = Image("data:image/png;base64,AA==")
    turn = replace(CHAT, items=(Message("user", (Text("look"), picture)),))
    assert build_send_user_message(turn, SETTINGS, CONVERSATION)["items"] == [
        {"type": "text", "data": {"text": "[user] look"}},
        {"type": "image", "data": {"image_url": "data:image/png;base64,AA=="}},
    ]


# Which calls are made


@pytest.mark.parametrize(
    ("wanted", "endpoint", "is_codex", "skip_turn", "sends"),
    [
        ("auto", "chat", False, False, "both"),
        ("auto", "chat", False, True, "both"),
        ("auto", "chat", True, False, "turn"),
        ("auto", "chat", True, True, "turn"),
        ("auto", "responses", False, False, "both"),
        ("auto", "responses", False, True, "message"),
        ("auto", "responses", True, False, "turn"),
        ("auto", "responses", True, True, "message"),
        ("both", "chat", True, False, "both"),
        ("both", "responses", True, False, "both"),
        ("turn", "chat", False, False, "turn"),
        ("turn", "responses", False, False, "turn"),
        ("message", "chat", True, False, "message"),
        ("message", "responses", False, False, "message"),
    ],
)
def test_which_of_the_two_sends(wanted: Any, endpoint: Any, is_codex: bool, skip_turn: bool, sends: str) -> None:
    """The document's flow, except that a real Codex gets one prompt (payloads, "Which of the two sends, really")."""
    turn = TURNS[endpoint]
    assert choose_sends(wanted, turn, is_codex=is_codex, skip_turn=skip_turn) == sends


@pytest.mark.parametrize(
    ("sends", "methods"),
    [
        ("both", ["sendUserTurn", "sendUserMessage"]),
        ("turn", ["sendUserTurn"]),
        ("message", ["sendUserMessage"]),
    ],
)
def test_the_flow_of_a_turn(sends: Any, methods: list[str]) -> None:
    """newConversation claims the key, the listener is added before the turn, and removed after it."""
    turn = LegacyTurn(replace(RESPONSES, effort="low"), SETTINGS, sends=sends)
    assert turn.interrupt() is None
    assert turn.end() == []
    flow = turn.begin()
    call = call_of(flow)
    assert call.method == "newConversation"
    assert call.claim is not None
    assert call.claim({"conversationId": "c"}) == "c"
    turn.key = "c"
    call = call_of(flow, {"conversationId": "c", "model": "gpt-5.2"})
    assert call.method == "addConversationListener"
    assert call.params == {"conversationId": "c", "experimentalRawEvents": False}
    call = call_of(flow, {"subscriptionId": "s"})
    calls = [call, *(step for step in flow if isinstance(step, Call))]
    assert [call.method for call in calls] == methods
    assert all(call.params["conversationId"] == "c" for call in calls)
    assert sum("effort" in call.params for call in calls) == (sends == "turn")
    assert all(call.prompts for call in calls)
    assert turn.interrupt() is None, "nothing has been asked yet: Codex would never answer"
    turn.prompted = True
    stop = turn.interrupt()
    assert stop is not None
    assert (stop.method, stop.params) == ("interruptConversation", {"conversationId": "c"})
    assert [(call.method, call.params) for call in turn.end()] == [
        ("removeConversationListener", {"subscriptionId": "s"})
    ]


# What a real Codex 0.107.0 says


def play(name: str, *, leave_out: Sequence[str] = (), each: bool = False) -> tuple[LegacyTurn, list[TurnEvent]]:
    turn = LegacyTurn(RESPONSES, SETTINGS, sends="message")
    return turn, play_trace(turn, f"legacy_0.107.0_{name}", (2, 3, 4), leave_out=leave_out, each=each)


USAGE = UsageUpdate(Usage(input=11, cached=3, output=7, reasoning=0))


def test_a_recorded_text_turn() -> None:
    """Every delta once, although Codex sends it three times."""
    turn, events = play("text")
    assert events == [
        TextDelta("msg_2", ["word0 ", "word1 ", "word2 "]),
        TextDone("msg_2"),
        USAGE,
        Finished("completed"),
    ]
    assert turn.ended


def test_a_recorded_reasoning_turn() -> None:
    """Summary and raw reasoning once each, then the text."""
    assert play("reasoning")[1] == [
        ReasoningDelta("rs_36", 0, ["**Title**\n\n", "why0 ", "why1 "]),
        ReasoningDelta("rs_36", 0, ["raw0 ", "raw1 "], raw=True),
        ReasoningDone("rs_36"),
        TextDelta("msg_37", ["After ", "thinking: ", "42"]),
        TextDone("msg_37"),
        USAGE,
        Finished("completed"),
    ]


def test_a_recorded_tool_call_arrives_as_its_text() -> None:
    """The tags come through piece by piece, whole."""
    _, events = play("toolcall")
    delta = events[0]
    assert isinstance(delta, TextDelta)
    assert len(delta.pieces) == 29
    assert "".join(delta.pieces) == (
        'Let me look. <tool_call>{"name": "webSearch", "arguments": '
        '"{\\"query\\": \\"x\\", \\"chatHistory\\": []}"}</tool_call>'
    )
    assert events[1:] == [TextDone(delta.item), USAGE, Finished("completed")]


@pytest.mark.parametrize(
    ("name", "status", "code"), [("error401", 401, "upstream_unauthorized"), ("error429", 429, "rate_limit_exceeded")]
)
def test_a_recorded_failure(name: str, status: int, code: str) -> None:
    """`task_complete` after an `error` is a failure, with the provider's status."""
    turn, (end,) = play(name)
    assert isinstance(end, Finished)
    assert end.outcome == "failed"
    assert end.error is not None
    assert (end.error.http_status, end.error.code) == (status, code)
    assert turn.ended


def test_a_recorded_interrupt() -> None:
    """`turn_aborted` ends the turn as cancelled, with what was said before it."""
    turn, events = play("interrupt")
    assert events == [TextDelta("msg_20", ["slow0 "]), Finished("cancelled")]
    assert turn.ended


@pytest.mark.parametrize("name", ["text", "reasoning", "toolcall", "error429", "interrupt"])
def test_opting_out_loses_nothing(name: str) -> None:
    """What we ask the child to leave out says nothing that we use."""
    assert play(name, leave_out=OPT_OUT["legacy"])[1][:-1] == play(name)[1][:-1]
    assert play(name, leave_out=OPT_OUT["legacy"])[0].ended


@pytest.mark.parametrize("name", ["text", "reasoning", "toolcall", "interrupt"])
def test_taking_after_every_message_gives_the_same(name: str) -> None:
    """The result does not depend on when the events are taken."""
    often, once = collect(play(name, each=True)[1]), collect(play(name)[1])
    assert often.text == once.text
    assert often.usage == once.usage
    assert often.end == once.end
    assert len(often.outputs) == len(once.outputs)


def test_the_decoder_reads_a_recorded_delta() -> None:
    """The form that names its item is read from the line; both repetitions are skipped, once it was seen."""
    decoder = LegacyDecoder()
    lines = [orjson.dumps(message) for message in recorded("legacy_0.107.0_text")]
    found, skipped = [], []
    for line in lines:
        if line.startswith(decoder.delta):
            found.append(decoder.read_delta(line))
        elif line.startswith(decoder.skip):
            skipped.append(orjson.loads(line)["method"])
    assert [delta for _, _, delta in found] == ["word0 ", "word1 ", "word2 "]
    assert {(key, item) for key, item, _ in found} == {("01a1e195-1658-7951-a343-ee1fddd4b61e", "msg_2")}
    assert skipped == ["item/agentMessage/delta", "codex/event/agent_message_delta"] * 3


def test_the_plain_delta_is_not_skipped_where_it_is_the_only_one() -> None:
    """A child without the better form is read by the plain one."""
    line = orjson.dumps(event("agent_message_delta", delta="x"))
    assert not line.startswith(LegacyDecoder().skip)


@pytest.mark.parametrize(
    "line",
    [
        b'{"method":"codex/event/agent_message_content_delta","params":{}}',
        b'{"method":"codex/event/agent_message_content_delta","params":{"conversationId":"c","msg":null}}',
        b'{"method":"codex/event/agent_message_content_delta","params":{"conversationId":"c","msg":{"delta":"x"}}}',
        b'{"method":"codex/event/agent_message_content_delta","params":{"broken',
        b'{"method":"codex/event/agent_message_content_delta","params":'
        b'{"conversationId":"c","msg":{"item_id":"i","delta":null}}}',
        b'{"method":"codex/event/agent_message_content_delta","params":'
        b'{"conversationId":"c","msg":{"item_id":["i"],"delta":"x"}}}',
        b'{"method":"codex/event/agent_message_content_delta","params":'
        b'{"conversationId":"c","msg":{"item_id":"i","delta":5}}}',
    ],
)
def test_a_delta_of_another_shape_is_refused(line: bytes) -> None:
    """`read_delta` raises, so that the line takes the slower path and stops no other turn."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        LegacyDecoder().read_delta(line)


# Notifications in other orders than the recorded ones


def event(kind: str, **members: Any) -> dict[str, Any]:
    return {
        "method": f"codex/event/{kind}",
        "params": {"id": "t", "conversationId": "c", "msg": {"type": kind, **members}},
    }


def hear(*messages: dict[str, Any]) -> list[TurnEvent]:
    """The events of a turn that gets these messages."""
    turn, routes = LegacyTurn(RESPONSES, SETTINGS, sends="turn"), Routes()
    routes.register("c", turn)
    for message in messages:
        routes.notify("c", message["method"], message["params"])
    return turn.take()


def completed(item: str, text: str) -> dict[str, Any]:
    return event(
        "item_completed", item={"type": "AgentMessage", "id": item, "content": [{"type": "Text", "text": text}]}
    )


def delta(item: str, text: str) -> dict[str, Any]:
    return event("agent_message_content_delta", item_id=item, delta=text)


def test_a_child_with_plain_deltas_alone() -> None:
    """Without item ids the messages are numbered; the completed message adds what was not streamed."""
    assert hear(
        event("agent_message_delta", delta="on"),
        event("agent_message", message="one"),
        event("task_complete", last_agent_message="one"),
    ) == [TextDelta("message-0", ["on", "e"]), TextDone("message-0"), Finished("completed")]


@pytest.mark.parametrize("streamed", [True, False])
def test_a_child_with_plain_messages_may_say_two(streamed: bool) -> None:
    """A turn may hold several messages (after a tool of Codex's own, or for a second prompt): none is lost."""
    messages = []
    for text in ("one", "two"):
        if streamed:
            messages.append(event("agent_message_delta", delta=text))
        messages.append(event("agent_message", message=text))
    events = hear(*messages, event("task_complete", last_agent_message="two"))
    assert collect(events).text == "onetwo"


def test_plain_deltas_after_reasoning_are_streamed() -> None:
    """Reasoning with an item id does not silence a child whose text comes in the plain form."""
    events = hear(
        event("reasoning_content_delta", item_id="rs", delta="hm", summary_index=0),
        event("agent_message_delta", delta="a"),
        event("agent_message_delta", delta="b"),
        event("agent_message", message="ab"),
        event("task_complete", last_agent_message="ab"),
    )
    pieces = [piece for each in events if isinstance(each, TextDelta) for piece in each.pieces]
    assert pieces == ["a", "b"]


def test_a_message_without_deltas() -> None:
    """A completed item that was not streamed is delivered whole, once."""
    assert hear(
        completed("m", "whole"),
        event("agent_message", message="whole"),
        event("task_complete", last_agent_message="whole"),
    ) == [TextDelta("m", ["whole"]), TextDone("m"), Finished("completed")]


def test_the_last_message_is_a_last_resort() -> None:
    """Without any other message, the answer is in `task_complete`."""
    events = hear(event("task_complete", last_agent_message="only here"))
    assert collect(events).text == "only here"
    assert events[-1] == Finished("completed")


def test_two_messages_with_ids() -> None:
    """Several items in one turn stay apart."""
    events = hear(delta("a", "1"), completed("a", "1"), delta("b", "2"), completed("b", "2"), event("task_complete"))
    assert events == [
        TextDelta("a", ["1"]),
        TextDone("a"),
        TextDelta("b", ["2"]),
        TextDone("b"),
        Finished("completed"),
    ]


@pytest.mark.parametrize("kind", ["exec_command_begin", "patch_apply_begin", "mcp_tool_call_begin"])
def test_actions_of_codex_itself_are_reported(kind: str) -> None:
    assert hear(event(kind, call_id="c")) == [Acted()]


def test_a_retry_voids_the_text_before_it() -> None:
    """`stream_error` restarts a turn that has spoken, and is silent before that."""
    events = hear(
        event("stream_error", message="Reconnecting... 1/2"),
        delta("a", "dead"),
        event("stream_error", message="Reconnecting... 2/2"),
        delta("b", "alive"),
        completed("b", "alive"),
        event("task_complete", last_agent_message="alive"),
    )
    assert events == [
        TextDelta("a", ["dead"]),
        Restarted("Reconnecting... 2/2"),
        TextDelta("b", ["alive"]),
        TextDone("b"),
        Finished("completed"),
    ]


def test_an_answer_that_was_cut_is_incomplete() -> None:
    """Codex calls it an error after the whole text; the turn ends as incomplete."""
    events = hear(
        completed("m", "text"),
        event("error", message="Incomplete response returned, reason: max_output_tokens", codex_error_info="other"),
        event("task_complete", last_agent_message=None),
    )
    assert events[-1] == Finished("incomplete", reason="max_output_tokens")


def test_the_total_usage_counts() -> None:
    """Several model calls in one turn add up; the conversation is this turn's alone."""
    total = {"input_tokens": 30, "cached_input_tokens": 4, "output_tokens": 9, "reasoning_output_tokens": 2}
    last = {"input_tokens": 20, "output_tokens": 5}
    events = hear(
        event("token_count", info=None),
        event("token_count", info={"total_token_usage": total, "last_token_usage": last}),
        event("token_count", info={"last_token_usage": last}),
    )
    assert events == [UsageUpdate(Usage(30, 4, 9, 2)), UsageUpdate(Usage(20, 0, 5, 0))]


@pytest.mark.parametrize(
    "message",
    [
        event("agent_message_content_delta"),
        event("agent_message_content_delta", item_id="a", delta=None),
        event("agent_message_content_delta", item_id="a", delta=["x"]),
        event("agent_message_content_delta", item_id=["a"], delta="x"),
        event("agent_message_delta", delta=5),
        event("reasoning_content_delta", item_id="r", delta=None),
        event("item_completed", item=None),
        event("item_completed", item={"type": "AgentMessage", "id": "a", "content": [{}]}),
        event("item_completed", item={"type": 5}),
        event("token_count", info={"total_token_usage": {"input_tokens": None, "output_tokens": 1}}),
        event("token_count", info=[]),
        {"method": "codex/event/x", "params": {"conversationId": "c"}},
        {"method": "codex/event/x", "params": {"conversationId": "c", "msg": "text"}},
        event("something_new", a=1),
        {"method": "thread/status/changed", "params": {}},
    ],
)
def test_a_misshapen_notification_leaves_no_trace(message: dict[str, Any]) -> None:
    """The child's mistake costs that notification alone: the turn's events are as if it had not come."""
    good = [delta("a", "x"), completed("a", "x"), event("task_complete", last_agent_message="x")]
    assert hear(good[0], message, *good[1:]) == [TextDelta("a", ["x"]), TextDone("a"), Finished("completed")]
