"""`exec --backend codex`: the user's login, without a Codex; what is asked, and what comes back."""

from __future__ import annotations

import json
import os
import select
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cli.direct import ADD, HI, SCHEMA, Direct, directly
from protocols.wire.lines import calls_of, items_of, text_of, usage_of
from upstream.answers import Gate, Stream
from upstream.chatgpt import DEFAULT_TEXT
from upstream.checks import API_PATH, CHATGPT_PATH
from upstream.events import MODEL, answer, call, completed, custom_call, reasoning, search, text
from upstream.tls_proxy import tls_proxy
from upstream.tokens import ACCOUNT, CHATGPT_FORMS, FORMS, assert_no_secrets

USED = {"input_tokens": 1, "output_tokens": 1}
COMPLETED = [{"type": "response.completed", "response": {"id": "resp_1", "usage": USED}}]
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}


@pytest.fixture
def direct(tmp_path: Path) -> Iterator[Direct]:
    with directly(tmp_path) as ready:
        yield ready


# An answer


def test_a_text(tmp_path: Path) -> None:
    """In a process that nobody has warmed up."""
    with directly(tmp_path) as direct:
        ran = direct.run(*HI)
        assert (ran.code, ran.stdout, ran.stderr) == (0, f"{DEFAULT_TEXT}\n".encode(), "")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["codex-home"]


def test_its_events(direct: Direct) -> None:
    direct.chatgpt.will(Stream(answer(text("Hel", "lo ", "wörld"), end=completed(input=100, cached=64))))
    events = direct.run(*HI, "--json").succeeded()
    assert text_of(events) == "Hello wörld"
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_item.done",
        "completed",
    ]
    assert usage_of(events) == (100, 7, 64)
    assert events[0]["response"]["model"] == MODEL


@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_a_stream_that_begins_with_a_byte_order_mark(direct: Direct, chunk: int | None) -> None:
    """The mark is no part of the first event, which here is the only one with the text."""
    said = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "hello"}
    direct.chatgpt.will(Stream([b"\xef\xbb\xbf", said, *COMPLETED], names=False, chunk=chunk))
    assert direct.run(*HI, "--json").text == "hello"


def test_text_that_stands_in_content_part_added_alone(direct: Direct) -> None:
    """As in seed 000's own example; deltas add to it, and what repeats the whole item adds nothing."""
    item = {"id": "msg_1", "type": "message", "role": "assistant"}
    part = {"type": "response.content_part.added", "item_id": "msg_1", "part": {"type": "output_text", "text": "hello"}}
    more = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": " you"}
    whole = {**item, "content": [{"type": "output_text", "text": "hello you"}]}
    added, done = ({"type": f"response.output_item.{kind}", "item": item} for kind in ("added", "done"))
    direct.chatgpt.will(Stream([part, *COMPLETED]))
    assert text_of(direct.run(*HI, "--json").succeeded()) == "hello"
    direct.chatgpt.will(Stream([added, part, more, done | {"item": whole}, *COMPLETED]))
    assert text_of(direct.run(*HI, "--json").succeeded()) == "hello you"
    anonymous = {name: value for name, value in part.items() if name != "item_id"}
    direct.chatgpt.will(Stream([anonymous, *COMPLETED]))
    ran = direct.run(*HI)
    assert (ran.code, ran.stdout) == (0, b"hello\n")


def test_the_request(direct: Direct) -> None:
    """Every member of seed 001, from its flag."""
    schema = direct.file("schema.json", SCHEMA)
    answer_schema = direct.file("answer.json", {"type": "object"})
    log = direct.directory / "requests.jsonl"
    log.write_text("from an earlier run\n")
    direct.run(
        *("--prompt", "hi", "--model", "gpt-5.9-codex", "--system", "be brief", "--append-system-prompt", "and kind"),
        *("--tool", f"add:json={schema}", "--tool-choice", "function:add", "--web-search", "--effort", "high"),
        *("--session-id", "conversation-1", "--output-schema", answer_schema, "--log-requests", log, "--json"),
    ).succeeded()
    (request,) = direct.chatgpt.requests
    assert request.body == {
        "model": "gpt-5.9-codex",
        "instructions": "be brief\n\nand kind",
        "input": [HELLO],
        "tools": [
            {"type": "function", "name": "add", "strict": False, "parameters": SCHEMA},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": {"type": "function", "name": "add"},
        "parallel_tool_calls": False,
        "reasoning": {"effort": "high", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "conversation-1",
        "text": {
            "verbosity": "medium",
            "format": {"type": "json_schema", "name": "output", "strict": True, "schema": {"type": "object"}},
        },
    }
    assert request.headers["session_id"] == "conversation-1"
    assert log.read_bytes() == request.raw + b"\n"


def test_a_session_of_its_own(direct: Direct) -> None:
    """A UUID, another one for each run."""
    direct.run(*HI)
    direct.run(*HI)
    sessions = [request.headers["session_id"] for request in direct.chatgpt.requests]
    assert len({str(uuid.UUID(session)) for session in sessions}) == 2
    assert [body["prompt_cache_key"] for body in direct.bodies] == sessions


def test_a_name_may_imply_an_effort(direct: Direct) -> None:
    events = direct.run(*HI, "--model", "gpt-5.2-codex-high", "--json").succeeded()
    assert (direct.bodies[0]["model"], direct.bodies[0]["reasoning"]["effort"]) == ("gpt-5.2", "high")
    assert events[0]["response"]["model"] == "gpt-5.2-codex-high"


def test_thoughts_and_a_search_pass_through(direct: Direct) -> None:
    direct.chatgpt.will(Stream(answer(reasoning("hm", raw="raw", encrypted="AAAA"), search("weather"), text("sunny"))))
    events = direct.run(*HI, "--web-search", "--json").succeeded()
    thought, searched, message = items_of(events)
    assert thought["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert thought["content"] == [{"type": "reasoning_text", "text": "raw"}]
    assert thought["encrypted_content"].endswith(":AAAA")
    assert searched["action"] == {"type": "search", "query": "weather"}
    assert message["content"][0]["text"] == "sunny"
    states = [event["type"].rpartition(".")[2] for event in events if "web_search_call." in event["type"]]
    assert states == ["in_progress", "searching", "completed"]
    assert direct.bodies[0]["tools"] == [{"type": "web_search", "external_web_access": True}]


def test_a_call(direct: Direct) -> None:
    direct.chatgpt.will(*[Stream(answer(call("add", '{"a":', '2,"b":3}', call_id="call_x")))] * 2)
    events = direct.run(*HI, *ADD, "--json").succeeded()
    assert calls_of(events) == [("add", '{"a":2,"b":3}')]
    assert items_of(events)[0]["call_id"] == "call_x"
    ran = direct.run(*HI, *ADD)
    assert (ran.code, ran.stdout) == (0, b"")
    assert ran.stderr.startswith("note: the model calls add;")


# Tool loops


def test_a_loop_sends_the_whole_history(direct: Direct) -> None:
    """Thoughts are given back, each output follows its call; session, cache key and tools stay the same."""
    direct.chatgpt.will(
        Stream(answer(reasoning("hm", encrypted="AAAA"), text("let me see"), call("add", '{"a":2}'), tag="one")),
        Stream(answer(call("add", '{"a":3}'), call("mul", "{}"), tag="two", end=completed(cached=5))),
    )
    log = direct.directory / "requests.jsonl"
    arguments = ("--auto-tools", "--tool-output", "add=$args", "--log-requests", log, "--json")
    ran = direct.run(*HI, *ADD, *arguments)
    events = ran.succeeded(silent=False)
    assert "mul was called, but no --tool-output is given" in ran.stderr
    assert calls_of(events) == [("add", '{"a":2}'), ("add", '{"a":3}'), ("mul", "{}")]
    assert text_of(events) == "let me seeresult: err: there is no output for mul"
    assert usage_of(events) == (33, 21, 11)
    first, second, third = direct.bodies
    said = [
        {
            "type": "reasoning",
            "id": "rs_one_0",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "encrypted_content": "AAAA",
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
        {"type": "function_call", "name": "add", "arguments": '{"a":2}', "call_id": "call_one_2"},
        {"type": "function_call_output", "call_id": "call_one_2", "output": '{"a":2}'},
    ]
    assert second["input"] == [HELLO, *said]
    assert third["input"] == [
        HELLO,
        *said,
        {"type": "function_call", "name": "add", "arguments": '{"a":3}', "call_id": "call_two_0"},
        {"type": "function_call_output", "call_id": "call_two_0", "output": '{"a":3}'},
        {"type": "function_call", "name": "mul", "arguments": "{}", "call_id": "call_two_1"},
        {"type": "function_call_output", "call_id": "call_two_1", "output": "err: there is no output for mul"},
    ]
    assert first | {"input": 0} == second | {"input": 0} == third | {"input": 0}
    assert len({request.headers["session_id"] for request in direct.chatgpt.requests}) == 1
    assert log.read_bytes() == b"".join(request.raw + b"\n" for request in direct.chatgpt.requests)


def test_a_loop_has_an_end(direct: Direct) -> None:
    direct.chatgpt.will(*[Stream(answer(call("add", "{}")))] * 3)
    arguments = ("--auto-tools", "--tool-output", "add=5", "--max-steps", "2", "--json")
    direct.run(*HI, *ADD, *arguments).failed("max_steps_exceeded")
    assert len(direct.bodies) == 2


def test_a_loop_that_fails_later_is_a_failure(direct: Direct) -> None:
    broken = answer(text("and so"))[:5]
    direct.chatgpt.will(Stream(answer(call("add", "{}"))), Stream(broken))
    ran = direct.run(*HI, *ADD, "--auto-tools", "--tool-output", "add=5", "--json")
    ran.failed("stream_truncated")
    assert (calls_of(ran.events), ran.text) == ([("add", "{}")], "and so")


# A conversation by hand


def test_parallel_calls_answered_in_mixed_order(direct: Direct) -> None:
    """What came out of one run goes into the next; the backend finds each output by its call_id."""
    items = [
        call("add", '{"a":1}', call_id="c1"),
        call("mul", '{"a":2}', call_id="c2"),
        call("add", "{}", call_id="c3"),
    ]
    direct.chatgpt.will(Stream(answer(reasoning("hm"), *items)))
    said = items_of(direct.run(*HI, *ADD, "--json").succeeded())
    outputs = [{"type": "function_call_output", "call_id": name, "output": f"of {name}"} for name in ("c3", "c1", "c2")]
    conversation = [HELLO, *said, *outputs]
    ran = direct.run("--input-json", direct.file("conversation.json", conversation), "--prompt", "ignored", "--json")
    assert text_of(ran.succeeded()) == "result: of c3; of c1; of c2"
    (thought,) = [item for item in conversation if item["type"] == "reasoning"]
    # The provider gets its thought as it made it, without the mark of whose it is.
    thought["encrypted_content"] = thought["encrypted_content"].partition(":")[2]
    assert direct.bodies[1]["input"] == conversation


def test_a_call_that_is_missing_is_told_before_anything_is_sent(direct: Direct) -> None:
    output = {"type": "function_call_output", "call_id": "call_x", "output": "5"}
    ran = direct.run("--input-json", "-", "--json", stdin=json.dumps([HELLO, output]).encode())
    assert "call_x" in ran.failed("missing_function_call")
    assert len(ran.events) == 1
    ran = direct.run("--input-json", "-", stdin=json.dumps([output]).encode())
    assert (ran.code, ran.stdout) == (1, b"")
    assert ran.stderr.startswith("error: No tool call found for the output with call_id 'call_x'.")
    assert direct.chatgpt.requests == []


def test_items_are_passed_exactly(direct: Direct) -> None:
    """Images, thoughts, other types and members that nobody knows."""
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "no type"},
        {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "https://x/y.png"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "AAAA"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "\u2028", "odd": [None, 1.5]},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}]},
        {"type": "surprise", "nested": {"ü": {}}},
    ]
    direct.run("--input-json", "-", "--json", stdin=json.dumps(items).encode()).succeeded()
    assert direct.bodies[0]["input"] == items
    assert [list(item) for item in direct.bodies[0]["input"]] == [list(item) for item in items]


def test_a_custom_call_comes_back(direct: Direct) -> None:
    direct.chatgpt.will(Stream(answer(custom_call("patch", "*** Begin", "\n"), tag="t")))
    (item,) = items_of(direct.run(*HI, "--json").succeeded())
    assert item == {
        "id": "ctc_t_0",
        "type": "custom_tool_call",
        "call_id": "call_t_0",
        "name": "patch",
        "input": "*** Begin\n",
    }


# Logins


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_login(tmp_path: Path, form: Any) -> None:
    with directly(tmp_path, form) as direct:
        before = direct.auth.read_bytes()
        assert direct.run(*HI).stdout == f"{DEFAULT_TEXT}\n".encode()
        (request,) = direct.chatgpt.requests
        chatgpt = form in CHATGPT_FORMS
        assert request.path == (CHATGPT_PATH if chatgpt else API_PATH)
        assert request.headers.get("chatgpt-account-id") == (ACCOUNT if chatgpt else None)
        assert direct.auth.read_bytes() == before


def test_a_key_for_one_run(direct: Direct) -> None:
    """It needs no login, goes to the API, and is nowhere afterwards."""
    direct.auth.unlink()
    key = direct.chatgpt.logins.key
    ran = direct.run(*HI, "--provider-key", key, "--json")
    ran.succeeded()
    (request,) = direct.chatgpt.requests
    assert (request.path, request.headers["authorization"]) == (API_PATH, f"Bearer {key}")
    assert_no_secrets(ran)
    assert list(direct.home.iterdir()) == []


def test_codex_home_may_be_a_flag(direct: Direct) -> None:
    elsewhere = direct.home.rename(direct.directory / "elsewhere")
    assert direct.run(*HI).code == 1
    assert direct.run(*HI, "--codex-home", elsewhere).code == 0


@pytest.mark.parametrize(
    ("form", "variable", "far"),
    [
        ("chatgpt", "PROXY_CODEX_TOKEN_URL", "https://auth.example.com/oauth/token"),
        ("chatgpt", "PROXY_CODEX_BASE_URL", "https://chatgpt.example.com/backend-api/codex"),
        ("apikey", "PROXY_CODEX_API_BASE_URL", "https://api.example.com/v1"),
    ],
)
def test_each_address_has_a_proxy_of_its_own_or_none(tmp_path: Path, form: Any, variable: str, far: str) -> None:
    """One is far away and is reached by HTTPS_PROXY; the others are on this machine, where no proxy leads."""
    host = str(urlsplit(far).hostname)
    with directly(tmp_path, form) as direct, tls_proxy(tmp_path, {host: direct.chatgpt.url}) as proxy:
        if form == "chatgpt":
            direct.chatgpt.logins.expire_access()
        variables: dict[str, Any] = {**proxy.environment, "HTTP_PROXY": proxy.url, variable: far}
        ran = direct.run(*HI, **variables)
        assert (ran.code, ran.stdout) == (0, f"{DEFAULT_TEXT}\n".encode()), ran
        assert len(direct.chatgpt.token_requests) == (1 if form == "chatgpt" else 0)
    assert set(proxy.connected) == {f"{host}:443"}


# What was sent and what came


def test_the_trace_is_the_raw_events(direct: Direct) -> None:
    """In place of the text; with --json beside the events, on stderr."""
    story = answer(reasoning("hm"), text("a", "é\u2028"))
    direct.chatgpt.will(*[Stream([{"type": "codex.surprise"}, *story], chunk=17)] * 2)
    ran = direct.run(*HI, "--trace")
    assert (ran.code, ran.stderr) == (0, "")
    assert [json.loads(line) for line in ran.stdout.split(b"\n")[:-1]] == [{"type": "codex.surprise"}, *story]
    ran = direct.run(*HI, "--trace", "--json")
    assert text_of(ran.succeeded(silent=False)) == "aé\u2028"
    assert [json.loads(line) for line in ran.stderr.split("\n")[:-1]] == [{"type": "codex.surprise"}, *story]


def test_the_trace_is_shown_as_it_comes(tmp_path: Path) -> None:
    """It is looked at when nothing else is to be seen."""
    gate = Gate()
    with directly(tmp_path) as direct:
        direct.chatgpt.will(Stream([answer()[0], gate]))
        with direct.command.start(*HI, "--trace") as process:
            direct.chatgpt.wait_for(lambda: gate.held)
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 20)[0]


def test_a_long_trace_is_whole_and_in_order(tmp_path: Path) -> None:
    """Also for a reader that takes it in small bites."""
    story = answer(text("x"), end=completed(output=False))
    flood = [{"type": "codex.surprise", "number": number, "padding": "y" * (number % 2000)} for number in range(6000)]
    told = [event for index, each in enumerate(flood) for event in ((each, story[4]) if index % 3 == 0 else (each,))]
    with directly(tmp_path) as direct:
        direct.chatgpt.will(Stream([*story[:4], *told, story[-1]], chunk=5000))
        with direct.command.start(*HI, "--trace") as process:
            assert process.stdout is not None
            taken = bytearray()
            while piece := os.read(process.stdout.fileno(), 3000):
                taken += piece
        events = [json.loads(line) for line in taken.split(b"\n")[:-1]]
        assert [event["number"] for event in events if "number" in event] == list(range(6000))


def test_responses_are_logged_as_stdout_would_have_them(direct: Direct) -> None:
    log = direct.directory / "responses.jsonl"
    direct.chatgpt.will(Stream(answer(text("a"))), Stream(answer(text("b"))[:5]))
    first = direct.run(*HI, "--json", "--log-responses", log)
    second = direct.run(*HI, "--json", "--log-responses", log)
    second.failed("stream_truncated")
    assert log.read_bytes() == first.stdout + second.stdout
    assert log.stat().st_mode & 0o777 == 0o600
