"""An answer, put together again: from streams as they are, and from what there is of broken ones."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from harness import ROOT

from bridge.log.content import Answer, AnswerReader, sent_values

GOLDEN = ROOT / "fixtures/golden"
BOTH = sorted(
    {path.stem for path in (GOLDEN / "chat").iterdir()} & {path.stem for path in (GOLDEN / "responses").iterdir()}
)


def collected(*pieces: str | Mapping[str, object]) -> Answer:
    """What was sent, as an answer."""
    reader = AnswerReader()
    for piece in pieces:
        for value in sent_values("client_sse" if isinstance(piece, str) else "client_json", piece):
            reader.take(value)
    return reader.answer()


def told(answer: Answer) -> tuple[str, str, list[tuple[str, str, str]]]:
    (choice,) = answer.choices
    calls = [(call.name, call.text, call.call_id) for call in choice.calls]
    return choice.joined("text"), choice.joined("reasoning"), calls


@pytest.mark.parametrize("case", BOTH)
def test_both_protocols_tell_the_same_answer(case: str) -> None:
    chat = collected((GOLDEN / f"chat/{case}.sse").read_text())
    responses = collected((GOLDEN / f"responses/{case}.sse").read_text())
    assert told(chat)[0] == told(responses)[0]
    assert told(chat)[2] == told(responses)[2]
    assert (chat.error is None) == (responses.error is None) or case == "cancelled"


def test_a_text_and_its_calls() -> None:
    text, _, calls = told(collected((GOLDEN / "responses/two_calls.sse").read_text()))
    assert [(name, json.loads(arguments)) for name, arguments, _ in calls] == CALLS
    assert all(call_id for *_, call_id in calls)
    assert text == ""


CALLS = [
    (item["name"], json.loads(item["arguments"]))
    for line in (GOLDEN / "responses/two_calls.sse").read_text().split("\n")
    if line.startswith("data: ") and '"response.completed"' in line
    for item in json.loads(line.removeprefix("data: "))["response"]["output"]
    if item["type"] == "function_call"
]


@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("case", ["text_and_call", "reasoning", "two_calls"])
def test_however_a_stream_is_cut_short_what_came_is_there(protocol: str, case: str) -> None:
    """The client left after the n-th event: texts and arguments are beginnings of the whole ones."""
    events = (GOLDEN / f"{protocol}/{case}.sse").read_text().split("\n\n")
    text, reasoning, calls = told(collected("\n\n".join(events)))
    for count in range(len(events)):
        answer = collected(*(event + "\n\n" for event in events[:count]))
        if not answer.choices:
            continue
        part, thought, begun = told(answer)
        assert text.startswith(part)
        assert reasoning.startswith(thought)
        assert all(whole[1].startswith(cut[1]) for whole, cut in zip(calls, begun, strict=False))


def test_several_choices() -> None:
    answer = collected((GOLDEN / "chat/choices.sse").read_text())
    assert [choice.finish_reason for choice in answer.choices] == ["tool_calls", "stop"]
    assert answer.choices[1].joined("text") == "One more"
    assert answer.choices[0].calls[0].text == '{"q": "é\\n"}'


def test_bodies_that_are_not_streamed() -> None:
    chat = {
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "message": {"content": "hi", "tool_calls": None}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1},
    }
    assert told(collected(chat)) == ("hi", "", [])
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
    answer = collected({"id": "resp_1", "object": "response", "status": "completed", "output": [message]})
    assert told(answer) == ("hi", "", [])
    assert (answer.response_id, answer.choices[0].finish_reason) == ("resp_1", "completed")


@pytest.mark.parametrize(
    "nonsense",
    [
        "data: {",
        "data: [1]",
        'data: {"choices":[1,{"delta":7},{"index":"x","delta":{"tool_calls":[{"function":3}]}}]}',
        'data: {"type":"response.output_text.delta","delta":{"a":1}}',
        'data: {"type":"response.output_item.done","item":{"id":"x","content":[{"type":"output_text"},4]}}',
        'data: {"type":"response.completed","response":{"output":[{"type":"function_call"}],"status":4}}',
        'data: {"type":"response.completed","response":{"output":[{"type":7},{"type":"reasoning","summary":"s"}]}}',
        'data: {"choices":[{"delta":{"content":"\\ud800"}}]}',
        'data: {"error":{"message":["no","text"]}}',
    ],
)
def test_nothing_that_was_sent_is_too_odd(nonsense: str) -> None:
    collected(nonsense + "\n\n", nonsense.replace("data: ", "data:") + "\n\n")
