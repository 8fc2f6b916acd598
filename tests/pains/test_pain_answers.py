"""Answers that are there, whole, once, and nothing else: pains 1, 2, 3 and 16."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import RunningBridge
from real.provider import Json
from real.rig import CHAT, LOOK, RESPONSES, Answer, Api, Rig, said
from server.prompted import LOOK as FLAT_LOOK
from server.prompted import ask, ask_chat

EITHER_MODE = pytest.mark.parametrize("codex", ["native", "text"], indirect=True)
"""How the tools are offered to the model."""
IN_TEXT = pytest.mark.parametrize("codex", ["text"], indirect=True)

CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}}}


def call(name: str, **arguments: Any) -> Json:
    """A call for the scripted model to make."""
    return {"name": name, "arguments": json.dumps(arguments)}


def code_of(answer: Answer) -> str:
    """The bridge's own code of a failure."""
    return str(answer.error.get("bridge_code") or answer.error["code"])


# 1. A success with nothing in it


def test_pain_01_an_empty_turn_is_an_error(codex: Rig, api: Api, stream: bool) -> None:
    """A model that says nothing is a failed request with a reason, even though the tokens were paid for."""
    answer = codex.ask(api, {"do": "empty"}, stream=stream)
    assert (answer.status, answer.error["code"]) == (502, "empty_response")
    assert answer.error["message"]


def test_pain_01_thoughts_alone_are_no_answer(codex: Rig, api: Api, stream: bool) -> None:
    """The same when it thought before it said nothing."""
    answer = codex.ask(api, {"do": "reasoning", "pieces": []}, stream=stream)
    assert code_of(answer) == "empty_response"
    assert (answer.text, answer.calls) == ("", ())
    assert answer.end in (None, "failed")


def test_pain_01_a_failure_is_no_empty_answer(codex: Rig, api: Api, stream: bool) -> None:
    """The provider's `response.failed` is the client's failure, with its message."""
    answer = codex.ask(api, {"do": "failed", "code": "server_error", "message": "out of tea"}, stream=stream)
    assert answer.status == 502
    assert "out of tea" in answer.error["message"]


def test_pain_01_an_answer_that_came_without_deltas_is_shown(codex: Rig, api: Api, stream: bool) -> None:
    """A message that the provider sends only in the end is there, in the stream too."""
    answer = codex.ask(api, {"do": "no_deltas", "pieces": ["all at once"]}, stream=stream)
    assert (answer.text, answer.end) == ("all at once", api.done)


def test_pain_01_an_empty_turn_in_a_stream_that_has_begun(prompted: RunningBridge) -> None:
    """After a long silence the status is out already: then the stream ends as a failure."""
    with ThreadPoolExecutor(2) as pool:
        response = pool.submit(prompted.events, "/responses", ask({"sleep": 4}))
        completion = pool.submit(prompted.events, "/chat/completions", ask_chat({"sleep": 4}))
        last = response.result()[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["error"]["bridge_code"] == "empty_response"
    assert completion.result()[-1]["error"]["code"] == "empty_response"


# 2. Tool calls that evaporate

TALK_AND_CALL = {
    "do": "calls",
    "pieces": ["I will look twice. "],
    "calls": [call("look", q="tea"), call("look", q="milk")],
    "chunk": 5,
}


@EITHER_MODE
def test_pain_02_one_finish_reason_and_it_is_the_last_word(codex: Rig) -> None:
    """A chat stream says once why it ends: for calls, after all of them, and in a chunk without any."""
    chunks = codex.bridge.events("/chat/completions", CHAT.body(said(TALK_AND_CALL), tools=[LOOK]))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert choices[-1]["finish_reason"] == "tool_calls"
    assert not choices[-1]["delta"].get("tool_calls")


@EITHER_MODE
def test_pain_02_text_and_calls_both_survive(codex: Rig, api: Api, stream: bool) -> None:
    """An answer with a text and two calls has them all, in either protocol."""
    answer = codex.ask(api, TALK_AND_CALL, stream=stream, tools=[LOOK])
    assert answer.text.strip() == "I will look twice."
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [
        ("look", {"q": "tea"}),
        ("look", {"q": "milk"}),
    ]
    assert len(set(answer.call_ids)) == 2
    assert answer.end == api.called


@EITHER_MODE
def test_pain_02_a_call_alone(codex: Rig) -> None:
    """In a chat answer that only calls, the content is null and not an empty text."""
    answer = codex.ask(CHAT, {"do": "calls", "calls": [call("look", q="tea")]}, tools=[LOOK])
    message = answer.raw["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


# 3. Arguments that break on their way

ODD = {"q": 'quote " \\ </tool_call> {} \n 世界 🌍', "deep": [{"a": [None, 1.5, True]}] * 3, "long": "tea " * 5000}


@EITHER_MODE
def test_pain_03_arguments_arrive_as_the_model_wrote_them(codex: Rig, api: Api, stream: bool) -> None:
    """Twenty kilobytes of odd characters in small pieces are the same bytes at the other end."""
    written = json.dumps(ODD, ensure_ascii=False, indent=1)
    action = {"do": "calls", "calls": [{"name": "look", "arguments": written}], "chunk": 997}
    assert codex.ask(api, action, stream=stream, tools=[LOOK]).calls == (("look", written),)


@EITHER_MODE
def test_pain_03_no_placeholder_comes_first(codex: Rig) -> None:
    """What a client puts together from the pieces of a chat stream is the call, without a `{}` before it."""
    action = {"do": "calls", "calls": [call("look", q="tea"), {"name": "clock", "arguments": "{}"}], "chunk": 2}
    body = CHAT.body(said(action), tools=[LOOK, CLOCK])
    pieces: dict[int, list[str]] = {}
    for chunk in codex.bridge.events("/chat/completions", body):
        for delta in chunk["choices"][0]["delta"].get("tool_calls", ()):
            pieces.setdefault(delta["index"], []).append(delta["function"]["arguments"])
    assert json.loads("".join(pieces[0])) == {"q": "tea"}
    assert "".join(pieces[1]) == "{}"


@pytest.mark.parametrize("path", ["/responses", "/chat/completions"])
def test_pain_03_half_a_call_is_no_call(prompted: RunningBridge, path: str) -> None:
    """A stream that breaks within a call ends as a failure; nobody is told to run the half of it."""
    steps: list[dict[str, Any]] = [
        {"text": 'so: <tool_call>{"name":"look","arguments":"{\\"q\\":'},
        {"error": {"message": "boom"}},
    ]
    body = (
        ask(*steps, tools=[FLAT_LOOK])
        if path == "/responses"
        else ask_chat(*steps, tools=[{"type": "function", "function": LOOK}])
    )
    events = prompted.events(path, body)
    last = events[-1]
    if path == "/responses":
        # The call was announced, and is never done.
        (begun,) = [event["item"] for event in events if event["type"] == "response.output_item.added"][1:]
        assert (begun["type"], begun["status"]) == ("function_call", "in_progress")
        ends = [event["item"]["status"] for event in events if event["type"] == "response.output_item.done"][1:]
        assert ends in ([], ["incomplete"])
        assert "response.function_call_arguments.done" not in [event["type"] for event in events]
    else:
        reasons = [choice.get("finish_reason") for event in events for choice in event.get("choices", ())]
        assert "tool_calls" not in reasons
    assert "boom" in (last["error"] if "error" in last else last["response"]["error"])["message"]


# 16. Tags that leak into prose


@IN_TEXT
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_pain_16_no_piece_of_a_tag_is_shown(codex: Rig, size: int) -> None:
    """However the model's text is cut, no event of the stream shows a tag or a part of one."""
    action = {"do": "calls", "pieces": ["Here: "], "calls": [call("look", q="a"), call("look", q="b")], "chunk": size}
    for api in (RESPONSES, CHAT):
        answer = codex.ask(api, action, stream=True, tools=[LOOK])
        assert answer.text.strip() == "Here:"
        assert [name for name, _ in answer.calls] == ["look", "look"]


SLIPS = {
    "no closing tag": '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"a\\"}"}',
    "arguments as an object": '<tool_call>{"name":"look","arguments":{"q":"a"}}</tool_call>',
    "a list": '<tool_call>[{"name":"look","arguments":"{\\"q\\":\\"a\\"}"}]</tool_call>',
    "one brace too many": '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"a\\"}"}}</tool_call>',
    "white space": '<tool_call>\n{"name": "look", "arguments": "{\\"q\\":\\"a\\"}"}\n</tool_call>',
}


@IN_TEXT
@pytest.mark.parametrize("written", SLIPS.values(), ids=SLIPS)
def test_pain_16_a_call_with_a_slip_is_still_a_call(codex: Rig, written: str) -> None:
    """What models get wrong about the form costs neither the call nor clean prose."""
    answer = codex.ask(CHAT, {"do": "text", "pieces": ["Now ", written], "chunk": 4}, stream=True, tools=[LOOK])
    assert answer.text.strip() == "Now"
    assert [(name, json.loads(arguments)) for name, arguments in answer.calls] == [("look", {"q": "a"})]


@IN_TEXT
def test_pain_16_two_calls_with_one_closing_tag(codex: Rig) -> None:
    """The commonest slip where several calls are made: the next one begins where the tag should have been closed."""
    first = SLIPS["no closing tag"]
    second = first.replace("a\\", "b\\")
    action = {"do": "text", "pieces": [f"{first}\n{second}</tool_call>"], "chunk": 4}
    answer = codex.ask(CHAT, action, stream=True, tools=[LOOK])
    assert [json.loads(arguments)["q"] for _, arguments in answer.calls] == ["a", "b"]
    assert answer.text.strip() == ""


@EITHER_MODE
def test_pain_16_thoughts_are_beside_the_answer(codex: Rig, api: Api, stream: bool) -> None:
    """Reasoning is not mixed into the text, with or without `<think>`."""
    answer = codex.ask(api, {"do": "reasoning", "summary": ["hmm"], "pieces": ["42"]}, stream=stream)
    assert (answer.reasoning, answer.text) == ("hmm", "42")


def test_pain_16_native_tools_need_no_tags(codex: Rig) -> None:
    """With native tools the model is told nothing of tags, so it cannot show any."""
    codex.ask(CHAT, "what is tea?", tools=[LOOK])
    assert "tool_call>" not in json.dumps(codex.posts[0].body)
