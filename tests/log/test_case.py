"""Cases made of recorded requests: what was asked in any protocol, the recorded calls, and nothing secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.items import Image, Message
from bridge.errors import UsageError
from bridge.lab import Called, Sample, case_from_dict, load_suite, score
from bridge.lab.variant import SHIPPED
from bridge.log.case import build_case, case_id, case_yaml, suite_yaml
from bridge.log.read import RecordReader, log_files
from bridge.log.recording import Piece, Recording, read_recordings

Json = dict[str, Any]

WEATHER: Json = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": WEATHER}}]
ASKED: Json = {
    "model": "gpt-5.2",
    "messages": [{"role": "user", "content": "Bern?"}],
    "tools": CHAT_TOOLS,
}


def chat_answer(*calls: tuple[str, str], text: str = "") -> Json:
    made = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    message = {"role": "assistant", "content": text or None, "tool_calls": made}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def recorded(
    body: Any, answer: Json | None = None, path: str = "/v1/chat/completions", name: str = "req_AB.12", **end: Any
) -> Recording:
    return Recording(
        name,
        Path("log"),
        ts="2026-11-19T08:00:00Z",
        request={"path": path, "body": body},
        start={"model": "gpt-5.2"},
        end={"outcome": "completed", **end},
        client=[Piece(0.0, "client_json", answer)] if answer is not None else [],
    )


def test_a_request_becomes_a_case_that_the_recorded_answer_passes() -> None:
    case = build_case(recorded(ASKED, chat_answer(("weather", '{"city":"Bern"}'))))
    assert case == {
        "id": "req-ab-12",
        "category": "recorded",
        "messages": [{"role": "user", "content": "Bern?"}],
        "tools": [{"name": "weather", "description": "Now.", "parameters": WEATHER}],
        "expect": {"calls": [{"name": "weather", "arguments": {"city": "Bern"}}]},
        "notes": "Recorded to gpt-5.2 at 2026-11-19T08:00:00Z.",
    }
    read = case_from_dict(case)
    assert score(read, SHIPPED["native"], Sample(calls=(Called("weather", '{"city":"Bern"}'),))).passed
    assert not score(read, SHIPPED["native"], Sample(calls=(Called("weather", '{"city":"Basel"}'),))).passed


def test_the_history_and_the_instructions_of_each_protocol() -> None:
    """The same conversation in four protocols is the same case."""
    chat = {
        "model": "m",
        "messages": [
            {"role": "user", "content": "Bern?"},
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bern"}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "user", "content": "And Basel?"},
        ],
        "tools": CHAT_TOOLS,
    }
    responses = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "Bern?"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city":"Bern"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            {"role": "user", "content": "And Basel?"},
        ],
        "tools": [{"type": "function", "name": "weather", "description": "Now.", "parameters": WEATHER}],
    }
    messages = {
        "model": "m",
        "max_tokens": 10,
        "system": "Be brief.",
        "messages": [
            {"role": "user", "content": "Bern?"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "rain"},
                    {"type": "text", "text": "And Basel?"},
                ],
            },
        ],
        "tools": [{"name": "weather", "description": "Now.", "input_schema": WEATHER}],
    }
    found = [
        case_from_dict(build_case(recorded(body, chat_answer(), path)))
        for body, path in (
            (chat, "/v1/chat/completions"),
            (responses, "/v1/responses"),
            (messages, "/v1/messages"),
        )
    ]
    assert len({repr(case.items) for case in found}) == 1
    assert [case.instructions for case in found] == [None, "Be brief.", "Be brief."]
    assert len({repr([tool.parameters for tool in case.tools]) for case in found}) == 1
    assert all(case.expect.calls == () for case in found)


def test_a_request_of_cap_has_its_question_and_instructions() -> None:
    body = {"payload": {"query": "Hello", "meta": {"instructions": "Be brief."}}}
    case = build_case(recorded(body, path="/v1/assist"))
    assert (case["messages"], case["instructions"]) == ([{"role": "user", "content": "Hello"}], "Be brief.")


@pytest.mark.parametrize(
    ("calls", "changes", "expected", "note"),
    [
        ([("gone", "{}")], {}, "none", "The model called gone, which is not offered."),
        ([("weather", '{"town":"Bern"}')], {}, {"*": {"$anything": True}}, "do not fit its schema"),
        ([("weather", "not JSON")], {}, {"*": {"$anything": True}}, "do not fit its schema: not JSON"),
        ([("weather", '{"city":"Bern","x":1}')], {}, {"*": {"$anything": True}}, "do not fit its schema"),
        ([("weather", '{"city":"a"}')], {"tool_choice": "none"}, "none", "although tool_choice is none"),
        ([], {"tool_choice": "required"}, {"*": {"$anything": True}}, "tool_choice demands a call"),
        (
            [("weather", '{"city":"a"}'), ("weather", '{"city":"b"}')],
            {"parallel_tool_calls": False},
            {"city": "a"},
            "only one is allowed",
        ),
    ],
)
def test_what_no_suite_accepts_becomes_a_draft_with_a_note(
    calls: list[tuple[str, str]], changes: Json, expected: Any, note: str
) -> None:
    case = build_case(recorded(ASKED | changes, chat_answer(*calls)))
    found = case["expect"]["calls"]
    assert (found if expected == "none" else [call["arguments"] for call in found]) == (
        expected if expected == "none" else [expected]
    )
    assert note in case["notes"]
    case_from_dict(case)


def test_an_argument_that_looks_like_a_rule_accepts_anything() -> None:
    tools = [{"type": "function", "function": {"name": "query", "parameters": {"properties": {"where": {}}}}}]
    body = ASKED | {"tools": tools}
    case = build_case(recorded(body, chat_answer(("query", '{"where":[{"$any":[1]},{"$gt":2},{"a":3}]}'))))
    (call,) = case["expect"]["calls"]
    assert call["arguments"] == {"where": [{"$anything": True}, {"$anything": True}, {"a": 3}]}
    case_from_dict(case)


def test_no_secret_is_in_a_case() -> None:
    key = "sk-" + "proj-A1b2C3d4E5f6G7h8I9j0K1l2M3n4"
    body = {"model": "m", "messages": [{"role": "user", "content": f"Log in with {key}"}], "tools": CHAT_TOOLS}
    text = case_yaml(recorded(body, chat_answer(("weather", json.dumps({"city": key})))))
    assert key not in text
    assert "[redacted" in text


def test_a_failed_request_says_that_nothing_is_known() -> None:
    case = build_case(recorded(ASKED, outcome="failed", error={"code": "timeout", "message": "Too slow."}))
    assert case["expect"] == {"calls": "none"}
    assert "It ended as failed, so nothing is known about a right answer." in case["notes"]


@pytest.mark.parametrize(
    ("body", "path", "why"),
    [
        (None, "/v1/responses", "The body of the request is not in the log."),
        ({"input": "x"}, "/v1/embeddings", "Requests to /v1/embeddings do not ask a model."),
        ({"messages": []}, "/v1/chat/completions", "The request is not valid: "),
    ],
)
def test_what_cannot_become_a_case(body: Any, path: str, why: str) -> None:
    with pytest.raises(UsageError) as failed:
        build_case(recorded(body, path=path))
    assert failed.value.message.startswith(why)


def test_every_recorded_request_survives_the_file(tmp_path: Path) -> None:
    """Each case is the same after it was written as YAML and read again."""
    cases = []
    for log in sorted((ROOT / "fixtures/logs").glob("*.ndjson")):
        for recording in read_recordings(RecordReader(log_files(log))):
            try:
                case_from_dict(case := build_case(recording))
            except UsageError:
                continue
            cases.append(case)
    assert len(cases) > 300
    (tmp_path / "suite.yaml").write_text(suite_yaml(cases))
    read = load_suite(tmp_path / "suite.yaml").cases
    assert [case.fingerprint for case in read] == [case_from_dict(case).fingerprint for case in cases]
    assert len({case.id for case in read}) == len(cases)


TEXTS = st.text(max_size=60) | st.sampled_from(
    [
        "no",
        "12:30",
        "1e5",
        "007",
        "~",
        "null",
        "a: b",
        "- x",
        "# y",
        " z ",
        "&a",
        "*a",
        "<<",
        "\ttab\n",
        "x\n\n",
        "\r\n",
    ]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
NAMES = TEXTS.filter(lambda key: not key.startswith("$"))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@given(TEXTS.filter(str.strip), st.dictionaries(TEXTS.filter(lambda key: key != "*"), VALUES, max_size=4))
def test_any_text_and_value_survives_the_file(tmp_path_factory: pytest.TempPathFactory, said: str, sent: Json) -> None:
    arguments = json.dumps(sent)
    tools = [{"type": "function", "function": {"name": "do", "parameters": {"additionalProperties": True}}}]
    body = {"model": "m", "messages": [{"role": "user", "content": said}], "tools": tools}
    case = build_case(recorded(body, chat_answer(("do", arguments))))
    path = tmp_path_factory.mktemp("suite") / "suite.yaml"
    path.write_text(suite_yaml([case, case]), encoding="utf-8")
    one, two = load_suite(path).cases
    assert one.fingerprint == two.fingerprint == case_from_dict(case).fingerprint
    assert (one.id, two.id) == ("req-ab-12", "req-ab-12-2")


@given(st.text(max_size=200))
def test_an_id_is_one_that_a_suite_accepts(name: str) -> None:
    case = build_case(recorded(ASKED, chat_answer(), name=name))
    assert case_from_dict(case).id == case_id(name)


def test_an_image_stays_in_the_conversation() -> None:
    """A chat message of a case has one text, so this conversation is written as items."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    body = ASKED | {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, image]}]}
    case = build_case(recorded(body, chat_answer()))
    assert "messages" not in case
    (message,) = case_from_dict(case).items
    assert isinstance(message, Message)
    assert [part.url for part in message.parts if isinstance(part, Image)] == [image["image_url"]["url"]]  # type: ignore[index]
