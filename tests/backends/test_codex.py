"""Codex's own endpoint with the user's login: who goes where with what; and the edge cases that seed 001 observed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from backends.upstream.rig import SESSION, rigged, turn
from upstream.answers import Stream, refusal
from upstream.chatgpt import DEFAULT_TEXT
from upstream.checks import API_PATH, CHATGPT_PATH
from upstream.events import answer, call, reasoning, text
from upstream.tokens import ACCOUNT, CHATGPT_FORMS, KEY_FORMS, assert_no_secrets, jwt

from bridge import __version__
from bridge.app.tool_loop import follow_up
from bridge.core.items import FunctionCall, FunctionOutput, FunctionTool, Message, Text, ToolChoice
from bridge.errors import LOG_IN, InvalidRequest
from bridge.upstream.codex import CODEX_VERSION, NotLoggedIn

HELLO = Message("user", (Text("hi"),))
ADD = FunctionTool("add", "Add two numbers", {"type": "object", "properties": {"a": {"type": "number"}}})


def output(call_id: str, said: str) -> FunctionOutput:
    return FunctionOutput(call_id, (Text(said),))


# Who goes where


@pytest.mark.parametrize("form", CHATGPT_FORMS)
async def test_a_chatgpt_login_goes_to_chatgpt_with_its_account(tmp_path: Path, form: Any) -> None:
    async with rigged(tmp_path, form) as rig:
        assert (await rig.answered()).text == DEFAULT_TEXT
        (request,) = rig.chatgpt.requests
        assert request.path == CHATGPT_PATH
        assert request.headers["authorization"] == f"Bearer {next(iter(rig.chatgpt.logins.access))}"
        assert request.headers["chatgpt-account-id"] == ACCOUNT
        assert request.headers["originator"] == "codex_cli_rs"
        assert request.headers["user-agent"] == f"codex_cli_rs/{CODEX_VERSION} (turnbridge/{__version__})"
        assert request.headers["session_id"] == request.body["prompt_cache_key"] == SESSION
        assert request.headers["accept"] == "text/event-stream"
        assert request.raw == rig.sent[0]


@pytest.mark.parametrize("form", KEY_FORMS)
async def test_a_key_goes_to_the_api_without_an_account(tmp_path: Path, form: Any) -> None:
    async with rigged(tmp_path, form) as rig:
        assert (await rig.answered()).text == DEFAULT_TEXT
        (request,) = rig.chatgpt.requests
        assert request.path == API_PATH
        assert request.headers["authorization"] == f"Bearer {rig.chatgpt.logins.key}"
        assert "chatgpt-account-id" not in request.headers


@pytest.mark.parametrize("form", ["chatgpt", "apikey"])
async def test_a_key_of_the_request_wins_and_stays_with_it(tmp_path: Path, form: Any) -> None:
    async with rigged(tmp_path, form) as rig:
        rig.chatgpt.logins.keys.add("own-canary-key")
        before = rig.auth.read_bytes()
        await rig.answered(turn(provider_key="own-canary-key"))
        await rig.answered()
        first, second = rig.chatgpt.requests
        assert (first.path, first.headers["authorization"]) == (API_PATH, "Bearer own-canary-key")
        assert "own-canary-key" not in second.headers["authorization"]
        assert rig.auth.read_bytes() == before


async def test_a_key_of_the_request_needs_no_login(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.auth.unlink()
        assert (await rig.answered(turn(provider_key=rig.chatgpt.logins.key))).text == DEFAULT_TEXT


async def test_a_key_of_the_request_that_is_refused_is_told(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        failure, _ = await rig.failed(turn(provider_key="wrong-canary-key"))
        assert (failure.code, failure.http_status) == ("codex_not_logged_in", 401)
        assert "key of this request" in failure.message
        assert rig.statuses == [401]
        assert rig.chatgpt.token_requests == []


@pytest.mark.parametrize("content", [None, b"", b"{", b"{}", b'{"auth_mode":"chatgpt","OPENAI_API_KEY":"canary"}'])
async def test_no_login_is_told_before_anything_is_sent(tmp_path: Path, content: bytes | None) -> None:
    async with rigged(tmp_path) as rig:
        rig.auth.unlink()
        if content is not None:
            rig.auth.write_bytes(content)
        with pytest.raises(NotLoggedIn) as caught:
            await rig.start()
        assert caught.value.message.endswith(LOG_IN)
        assert_no_secrets(caught.value)
        assert rig.chatgpt.requests == []
        assert rig.sent == []


async def test_the_login_is_read_anew_for_each_turn(tmp_path: Path) -> None:
    """Whoever logs in again while the bridge runs need not restart it."""
    async with rigged(tmp_path) as rig:
        await rig.answered()
        rig.chatgpt.home(tmp_path, "apikey")
        await rig.answered()
        assert [request.path for request in rig.chatgpt.requests] == [CHATGPT_PATH, API_PATH]


async def test_an_account_that_only_the_token_knows_is_sent(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        data = json.loads(rig.auth.read_bytes())
        del data["tokens"]["account_id"]
        data["tokens"]["id_token"] = jwt("x", ACCOUNT)
        rig.auth.write_text(json.dumps(data))
        await rig.answered()


async def test_a_session_that_nobody_named_is_made(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.answered(turn(session=None))
        await rig.answered(turn(session="mine"))
        assert [request.headers["session_id"] for request in rig.chatgpt.requests] == [SESSION, "mine"]
        assert [request.body["prompt_cache_key"] for request in rig.chatgpt.requests] == [SESSION, "mine"]


async def test_a_conversation_goes_on_with_its_calls_and_its_thoughts(tmp_path: Path) -> None:
    """The whole history, each output after its call, what is encrypted given back; the same session."""
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(
            Stream(answer(reasoning("hm", encrypted="AAAA"), text("let me see"), call("add", '{"a":2}'), tag="t"))
        )
        asked = turn(tools=(ADD,), tool_choice=ToolChoice("required"))
        result = await rig.answered(asked)
        await rig.answered(follow_up(asked, result, ["5"]))
        first, second = (request.body for request in rig.chatgpt.requests)
        assert second["input"] == [
            *first["input"],
            {
                "type": "reasoning",
                "id": "rs_t_0",
                "summary": [{"type": "summary_text", "text": "hm"}],
                "encrypted_content": "AAAA",
            },
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
            {"type": "function_call", "name": "add", "arguments": '{"a":2}', "call_id": "call_t_2"},
            {"type": "function_call_output", "call_id": "call_t_2", "output": "5"},
        ]
        assert (first["tool_choice"], second["tool_choice"]) == ("required", "auto")
        changed = {name for name in first if first[name] != second[name]}
        assert changed == {"input", "tool_choice"}


async def test_nothing_that_shows_holds_a_secret(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        stream = await rig.start(turn(provider_key=rig.chatgpt.logins.key))
        assert_no_secrets(stream, rig.backend, rig.upstream, turn(provider_key="canary"))
        stream.close()


# The edge cases that seed 001 observed


async def test_edge_case_1_invalid_tool_schema_is_passed_on_and_ignored(tmp_path: Path) -> None:
    odd = FunctionTool("odd", parameters={"type": "nonsense", "properties": 7, "required": "all"})
    async with rigged(tmp_path) as rig:
        assert (await rig.answered(turn(tools=(odd, ADD)))).text == DEFAULT_TEXT
        assert rig.statuses == [200]
        sent = rig.chatgpt.requests[0].body["tools"]
        assert sent[0]["parameters"] == {"type": "nonsense", "properties": 7, "required": "all"}
        assert sent[1]["name"] == "add"


@pytest.mark.parametrize("arguments", ["{not json", "", "null", '{"a":'])
async def test_edge_case_2_invalid_arguments_json_is_passed_on_and_answered(tmp_path: Path, arguments: str) -> None:
    async with rigged(tmp_path) as rig:
        items = (HELLO, FunctionCall("c", "add", arguments), output("c", "err: bad arguments"))
        assert (await rig.answered(turn(*items, tools=(ADD,)))).text == "result: err: bad arguments"
        assert rig.chatgpt.requests[0].body["input"][1]["arguments"] == arguments
        rig.chatgpt.will(Stream(answer(call("add", arguments))))
        assert [each.arguments for each in (await rig.answered(turn(tools=(ADD,)))).calls] == [arguments]


async def test_edge_case_3_missing_function_call_in_a_follow_up_is_refused(tmp_path: Path) -> None:
    """Here already: 400, and nothing is sent."""
    async with rigged(tmp_path) as rig:
        with pytest.raises(InvalidRequest) as caught:
            await rig.start(turn(HELLO, output("call_1", "5")))
        assert (caught.value.code, caught.value.http_status) == ("missing_function_call", 400)
        assert "call_1" in caught.value.message
        assert rig.chatgpt.requests == []
        assert rig.sent == []


async def test_edge_case_3_a_refusal_of_the_backend_itself_is_passed_on(tmp_path: Path) -> None:
    said = "No tool call found for function call output with call_id c."
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(refusal(400, None, said))
        failure, _ = await rig.failed()
        assert (failure.http_status, failure.message) == (400, said)
        assert rig.statuses == [400]


async def test_edge_case_4_no_tools_but_asked_to_call_is_answered_in_words(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(Stream(answer(text("I can't call add: I have no such tool."))))
        result = await rig.answered(turn(Message("user", (Text("Call add with 2 and 3."),))))
        assert (result.text, result.calls) == ("I can't call add: I have no such tool.", [])
        assert rig.chatgpt.requests[0].body["tools"] == []
        assert rig.chatgpt.requests[0].body["tool_choice"] == "auto"


async def test_edge_case_5_large_tool_output_arrives_whole(tmp_path: Path) -> None:
    large = "0123456789" * 2000
    async with rigged(tmp_path) as rig:
        items = (HELLO, FunctionCall("c", "add", "{}"), output("c", large))
        assert (await rig.answered(turn(*items, tools=(ADD,)))).text == f"result: {large}"
        assert rig.chatgpt.requests[0].body["input"][-1]["output"] == large


async def test_edge_case_6_parallel_calls_with_outputs_in_mixed_order(tmp_path: Path) -> None:
    """Each output belongs to the call that its call_id names."""
    async with rigged(tmp_path) as rig:
        items = [
            call("add", '{"a":1}', call_id="c1"),
            call("mul", '{"a":2}', call_id="c2"),
            call("add", "{}", call_id="c3"),
        ]
        rig.chatgpt.will(Stream(answer(*items, interleaved=True)))
        asked = turn(tools=(ADD,), parallel=True)
        calls = sorted((await rig.answered(asked)).calls, key=lambda each: each.call_id)
        assert [(each.call_id, each.name, each.arguments) for each in calls] == [
            ("c1", "add", '{"a":1}'),
            ("c2", "mul", '{"a":2}'),
            ("c3", "add", "{}"),
        ]
        history = [FunctionCall(each.call_id, each.name, each.arguments) for each in calls]
        mixed = [output("c3", "third"), output("c1", "first"), output("c2", "second")]
        assert (await rig.answered(turn(HELLO, *history, *mixed))).text == "result: third; first; second"
        sent = rig.chatgpt.requests[1].body["input"]
        assert {item["call_id"]: item["output"] for item in sent[4:]} == {"c1": "first", "c2": "second", "c3": "third"}
        assert [item["call_id"] for item in sent[1:4]] == ["c1", "c2", "c3"]
