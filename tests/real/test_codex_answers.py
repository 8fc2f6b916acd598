"""A real Codex behind the bridge: what a client gets for what the model says."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from real.provider import USAGE
from real.rig import CHAT, LEGACY, LOOK, RESPONSES, Api, Rig, UseRig, said

ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def block(name: str, arguments: str) -> str:
    """A call as the model writes it."""
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


def test_text(any_codex: Rig, api: Api, stream: bool) -> None:
    """The model's text arrives whole, with its usage, and the end is a good one."""
    answer = any_codex.ask(
        api,
        {"do": "text", "pieces": ["Grüße, ", "<b>", " 世界 ", "🌍\n"]},
        stream=stream,
        **({"stream_options": {"include_usage": True}} if stream and api is CHAT else {}),
    )
    assert answer.text == "Grüße, <b> 世界 🌍\n"
    assert (answer.status, answer.end, answer.error, answer.calls) == (200, api.done, {}, ())
    assert answer.usage == tuple(USAGE.values())


def test_text_that_comes_without_deltas(codex: Rig, api: Api, stream: bool) -> None:
    """A message that the provider sends only as a finished item is not lost."""
    answer = codex.ask(api, {"do": "no_deltas", "pieces": ["all at once"]}, stream=stream)
    assert (answer.text, answer.end) == ("all at once", api.done)


def test_deltas_are_passed_on_as_they_come(codex: Rig) -> None:
    """The pieces of a stream keep their boundaries."""
    pieces = ["One", " two", " ", "three"]
    events = codex.bridge.events("responses", RESPONSES.body(said({"do": "text", "pieces": pieces})))
    assert [event["delta"] for event in events if event["type"] == "response.output_text.delta"] == pieces


def test_a_tool_call_in_three_character_deltas(any_codex: Rig, api: Api, stream: bool) -> None:
    """A call is recognised however its tags are cut, its arguments stay byte for byte, and no tag is shown."""
    arguments = '{"q":"a </tool_call> b",  "n": 1.50}'
    action = {"do": "text", "pieces": [block("look", arguments)], "chunk": 3}
    answer = any_codex.ask(api, action, stream=stream, tools=[LOOK])
    assert answer.calls == (("look", arguments),)
    assert (answer.text, answer.end, answer.error) == ("", api.called, {})


def test_arguments_arrive_while_the_model_still_writes_them(any_codex: Rig) -> None:
    """The first delta of a call in text comes before the provider has ended its answer; together they are the call."""
    arguments = json.dumps({"q": "word " * 40})
    action = {"do": "text", "pieces": [block("look", arguments)], "chunk": 20, "delay": 0.1}
    body = RESPONSES.body(said(action), tools=[LOOK]) | {"stream": True}
    idle = any_codex.provider.active
    deltas: list[str] = []
    with any_codex.client.stream("POST", "responses", json=body) as response:
        for line in response.iter_lines():
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
            if event.get("type") == "response.function_call_arguments.delta":
                assert deltas or any_codex.provider.active == idle + 1
                deltas.append(event["delta"])
    assert len(deltas) > 5
    assert "".join(deltas) == arguments


def test_several_calls_with_prose_between(codex: Rig, api: Api, stream: bool) -> None:
    """Several calls in one answer arrive in order, each with an id of its own; the prose around them stays text."""
    first, second, third = block("look", '{"q":"a"}'), block("add", '{"a":1}'), block("look", "{}")
    text = f"First {first} then {second}{third} done."
    answer = codex.ask(api, {"do": "text", "pieces": [text], "chunk": 3}, stream=stream, tools=[LOOK, ADD])
    assert answer.calls == (("look", '{"q":"a"}'), ("add", '{"a":1}'), ("look", "{}"))
    assert len(set(answer.call_ids)) == 3
    assert answer.text.split() == ["First", "then", "done."]
    assert answer.end == api.called


def test_calls_and_prose_keep_their_order(codex: Rig, stream: bool) -> None:
    """In a response's output, messages and calls stand in the order in which the model said them."""
    text = f"First {block('look', '{}')} then {block('add', '{}')}"
    answer = codex.ask(RESPONSES, {"do": "text", "pieces": [text], "chunk": 3}, stream=stream, tools=[LOOK, ADD])
    kinds = [item.get("name") or item["content"][0]["text"].strip() for item in answer.raw["output"]]
    assert [kind for kind in kinds if kind] == ["First", "look", "then", "add"]


@pytest.mark.parametrize("tools", [[LOOK], None], ids=["unknown name", "no tools"])
def test_a_block_that_is_no_call_stays_text(codex: Rig, api: Api, tools: list[dict[str, Any]] | None) -> None:
    """A block that names no offered tool is delivered as the text it is."""
    text = f"so: {block('forget', '{}')} ok"
    answer = codex.ask(api, {"do": "text", "pieces": [text], "chunk": 3}, stream=True, tools=tools)
    assert (answer.text, answer.calls, answer.end) == (text, (), api.done)


def test_the_whole_tool_loop(any_codex: Rig) -> None:
    """A client's loop: the call, its output sent back under the id it came with, the final text."""
    body = CHAT.body(said({"do": "text", "pieces": [block("add", '{"a":1}')]}), tools=[ADD])
    first = any_codex.send(CHAT, body)
    assert first.calls == (("add", '{"a":1}'),)
    output = "sum " + said({"do": "text", "pieces": ["it is 3"]})
    body["messages"] += [
        first.raw["choices"][0]["message"],
        {"role": "tool", "tool_call_id": first.call_ids[0], "content": output},
    ]
    second = any_codex.send(CHAT, body)
    assert (second.text, second.end) == ("it is 3", "stop")
    assert first.call_ids[0] in json.dumps(any_codex.posts[-1].body["input"])


def test_reasoning_on_responses(codex: Rig, stream: bool) -> None:
    """Reasoning is an item of its own before the message, with its summary parts and its raw text."""
    action = {"do": "reasoning", "summary": ["one ", "two"], "raw": "in full", "chunk": 2, "pieces": ["42"]}
    answer = codex.ask(RESPONSES, action, stream=stream)
    thought, message = answer.raw["output"]
    assert thought["type"] == "reasoning"
    assert thought["summary"] == [{"type": "summary_text", "text": "one "}, {"type": "summary_text", "text": "two"}]
    assert thought["content"] == [{"type": "reasoning_text", "text": "in full"}]
    assert message["content"][0]["text"] == "42"


def test_reasoning_on_chat(codex: Rig, stream: bool) -> None:
    """Reasoning is `reasoning_content` beside the content: the summary's paragraphs, or the raw text alone."""
    action = {"do": "reasoning", "summary": ["one", "two"], "raw": "in full", "chunk": 2, "pieces": ["42"]}
    answer = codex.ask(CHAT, action, stream=stream)
    assert (answer.reasoning, answer.text, answer.end) == ("one\n\ntwo", "42", "stop")
    answer = codex.ask(CHAT, action | {"summary": []}, stream=stream)
    assert (answer.reasoning, answer.text, answer.end) == ("in full", "42", "stop")


def test_one_model_call_per_request(any_codex: Rig) -> None:
    """Every request costs exactly one model call, whatever the endpoint, tools and streaming."""
    for api in (RESPONSES, CHAT):
        for stream in (False, True):
            for tools in (None, [LOOK]):
                assert any_codex.ask(api, {"do": "text"}, stream=stream, tools=tools).end == api.done
    any_codex.provider.wait_idle()
    assert len(any_codex.posts) == 8


@pytest.mark.parametrize("settings", [{}, {"PROXY_RESPONSES_SKIP_TURN": "true"}], ids=["turn", "skip turn"])
def test_one_model_call_with_and_without_skip_turn(use: UseRig, api: Api, settings: dict[str, str]) -> None:
    """Legacy: PROXY_RESPONSES_SKIP_TURN changes the method, not the number of model calls, nor doubles the prompt."""
    rig = use(LEGACY, **settings)
    for stream in (False, True):
        # Slow enough for a second prompt to fall into the first one's answer.
        action = {"do": "text", "pieces": ["only ", "once"], "delay": 0.1}
        answer = rig.ask(api, "my prompt: " + said(action), stream=stream)
        assert (answer.text, answer.end) == ("only once", api.done)
        assert json.dumps(rig.posts[-1].body["input"]).count("my prompt") == 1
    assert len(rig.posts) == 2


def test_fifty_turns_at_once(codex: Rig) -> None:
    """Fifty turns run at the same time in one child, and each client gets its own answer alone."""

    def ask(number: int) -> tuple[str, str]:
        text = f"<{number}> " + f"answer {number} " * 20
        action = {"do": "text", "pieces": [text], "chunk": 10, "delay": 0.01}
        api = (RESPONSES, CHAT)[number % 2]
        return codex.ask(api, action, stream=number % 4 < 2).text, text

    codex.provider.crowd = codex.since + 50
    with ThreadPoolExecutor(50) as pool:
        for got, expected in pool.map(ask, range(50)):
            assert got == expected
    assert len(codex.posts) == 50
