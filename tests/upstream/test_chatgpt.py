"""The scripted backend, through a plain HTTP client: what the tests of the direct client stand on."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from upstream.answers import Gate, Stream, html, refusal, usage_limit
from upstream.asking import SESSION, USER, ask, body, events_in, headers, kinds, talking
from upstream.chatgpt import DEFAULT_TEXT, ChatGPT, serving, serving_in_thread
from upstream.events import answer, text
from upstream.tokens import FORMS, SAID, assert_no_secrets

Json = dict[str, Any]


# Requests


async def test_a_right_request_is_answered_and_recorded() -> None:
    async with talking() as (chatgpt, client):
        response = await ask(chatgpt, client)
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        events = events_in(response.content)
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == DEFAULT_TEXT
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        (request,) = chatgpt.requests
        assert request.body == body() == json.loads(request.raw)
        assert request.headers["session_id"] == SESSION
        assert (request.status, request.left_at, chatgpt.faults) == (200, None, [])


async def test_the_api_takes_a_key_and_no_account() -> None:
    async with serving() as chatgpt, httpx2.AsyncClient(base_url=chatgpt.api_base_url, trust_env=False) as client:
        right = headers(chatgpt, authorization=f"Bearer {chatgpt.logins.key}", chatgpt_account_id="")
        response = await client.post("/responses", json=body(temperature=1), headers=right)
        assert (response.status_code, chatgpt.faults) == (200, [])
        response = await client.post("/responses", json=body(), headers=headers(chatgpt))
        assert response.status_code == 401
        response = await client.post("/responses", json=body(), headers=right | {"chatgpt-account-id": "a"})
        assert (response.status_code, chatgpt.faults) == (400, ["header chatgpt-account-id: wrong for this mode"])


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"originator": ""}, "header originator: 0 times"),
        ({"session_id": ""}, "header session_id: 0 times"),
        ({"session_id": "other"}, "body prompt_cache_key: not the session_id"),
        ({"user-agent": "python"}, "header user-agent: not codex_cli_rs/…"),
        ({"accept": "*/*"}, "header accept: not text/event-stream"),
        ({"chatgpt_account_id": ""}, "header chatgpt-account-id: wrong for this mode"),
        ({"chatgpt_account_id": "other"}, "header chatgpt-account-id: wrong for this mode"),
    ],
)
async def test_a_wrong_header_is_a_fault(more: dict[str, str], fault: str) -> None:
    async with talking() as (chatgpt, client):
        response = await client.post("/responses", json=body(), headers=headers(chatgpt, **more))
        assert response.status_code == 400
        assert fault in chatgpt.faults
        assert response.json()["error"]["message"] == chatgpt.faults[0]


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"stream": False}, "body stream: not true"),
        ({"store": True}, "body store: not false"),
        ({"previous_response_id": None}, "body previous_response_id: not supported"),
        ({"include": []}, "body include: no reasoning.encrypted_content"),
        ({"prompt_cache_key": "x"}, "body prompt_cache_key: not the session_id"),
        ({"instructions": None}, "body instructions: not a str"),
        ({"input": "hi"}, "body input: not a list"),
        ({"tool_choice": None}, "body tool_choice: missing"),
        ({"max_output_tokens": 5, "temperature": 1}, "body: unsupported max_output_tokens, temperature"),
    ],
)
async def test_a_wrong_body_is_a_fault(more: Json, fault: str) -> None:
    async with talking() as (chatgpt, client):
        chatgpt.will(Stream(answer(text("not yet"))))
        response = await client.post("/responses", json=body(**more), headers=headers(chatgpt))
        assert (response.status_code, chatgpt.faults) == (400, [fault])
        assert len(chatgpt.script) == 1


async def test_a_body_that_is_no_json_and_an_unknown_path_are_faults() -> None:
    async with talking() as (chatgpt, client):
        right = {**headers(chatgpt), "content-type": "application/json"}
        assert (await client.post("/responses", content=b"{", headers=right)).status_code == 400
        assert (await client.get("/models")).status_code == 404
        assert chatgpt.faults == ["body: not a JSON object", "no such path: GET /backend-api/codex/models"]


@pytest.mark.parametrize(
    ("kind", "words"), [("function_call", "function call"), ("custom_tool_call", "custom tool call")]
)
async def test_an_output_needs_its_call(kind: str, words: str) -> None:
    async with talking() as (chatgpt, client):
        output = {"type": f"{kind}_output", "call_id": "c", "output": "5"}
        response = await ask(chatgpt, client, USER, output)
        assert response.status_code == 400
        assert response.json()["error"]["message"] == f"No tool call found for {words} output with call_id c."
        response = await ask(chatgpt, client, USER, {"type": kind, "call_id": "c"}, output)
        assert "result: 5" in response.text


async def test_the_script_is_played_in_order() -> None:
    async with talking() as (chatgpt, client):
        chatgpt.will(
            refusal(429, "rate_limit_exceeded", retry_after="2"),
            usage_limit(60),
            html(502),
            lambda request: Stream(answer(text(request.headers["session_id"]))),
        )
        first, second, third, fourth = [await ask(chatgpt, client) for _ in range(4)]
        assert (first.status_code, first.headers["retry-after"]) == (429, "2")
        assert first.json()["error"]["code"] == "rate_limit_exceeded"
        assert (second.status_code, second.json()["error"]["type"]) == (429, "usage_limit_reached")
        assert (third.status_code, third.headers["content-type"]) == (502, "text/html; charset=utf-8")
        assert SESSION in fourth.text
        assert [request.status for request in chatgpt.requests] == [429, 429, 502, 200]
        assert {request.connection for request in chatgpt.requests} == {1}


# Tokens


def refreshing(token: str, **more: Any) -> Json:
    return {
        "client_id": "app_EMoamEEZ73f0CkXaXp7hrann",
        "grant_type": "refresh_token",
        "refresh_token": token,
        "scope": "openid profile email",
        **more,
    }


async def test_a_refresh_token_works_once() -> None:
    async with talking() as (chatgpt, client):
        old = chatgpt.logins.issue()
        new = (await client.post(chatgpt.token_url, json=refreshing(old["refresh_token"]))).json()
        assert chatgpt.logins.access == {new["access_token"]}
        again = await client.post(chatgpt.token_url, json=refreshing(old["refresh_token"]))
        assert (again.status_code, again.json()["error"]["code"]) == (401, "refresh_token_reused")
        assert chatgpt.logins.uses == {old["refresh_token"]: 2}
        old_headers = headers(chatgpt, authorization=f"Bearer {old['access_token']}")
        refused = await client.post("/responses", json=body(), headers=old_headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "token_expired")
        assert (await ask(chatgpt, client)).status_code == 200
        assert chatgpt.faults == []


@pytest.mark.parametrize(
    ("state", "code"), [("expired", "refresh_token_expired"), ("revoked", "refresh_token_invalidated")]
)
async def test_refusals_have_two_forms(state: Any, code: str) -> None:
    async with talking() as (chatgpt, client):
        token = chatgpt.logins.issue()["refresh_token"]
        chatgpt.logins.states[token] = state
        response = await client.post(chatgpt.token_url, json=refreshing(token))
        assert (response.status_code, response.json()["error"]["code"]) == (401, code)
        chatgpt.logins.oauth_form = True
        response = await client.post(chatgpt.token_url, json=refreshing(token))
        assert (response.status_code, response.json()["error"]) == (400, "invalid_grant")
        assert state in response.json()["error_description"]
        assert SAID in response.text


async def test_a_wrong_token_request_is_a_fault() -> None:
    async with talking() as (chatgpt, client):
        token = chatgpt.logins.issue()["refresh_token"]
        assert (await client.post(chatgpt.token_url, json=refreshing(token, scope="all"))).status_code == 400
        assert (await client.post(chatgpt.token_url, json={})).status_code == 400
        assert (await client.post(chatgpt.token_url, data=refreshing(token))).status_code == 400
        right = {"authorization": "Bearer x"}
        assert (await client.post(chatgpt.token_url, json=refreshing(token), headers=right)).status_code == 400
        assert len(chatgpt.faults) == 5
        assert chatgpt.logins.uses == {}


async def test_the_token_endpoint_can_be_held_and_scripted() -> None:
    async with talking() as (chatgpt, client), trio.open_nursery() as nursery:
        token = chatgpt.logins.issue()["refresh_token"]
        chatgpt.token_script.append(html(503))
        assert (await client.post(chatgpt.token_url, json=refreshing(token))).status_code == 503
        gate = chatgpt.token_gate = Gate()
        nursery.start_soon(lambda: client.post(chatgpt.token_url, json=refreshing(token)))
        await chatgpt.until(lambda: gate.held)
        assert chatgpt.logins.states[token] == "used"
        gate.open()


# Around processes


def test_it_serves_from_a_thread(tmp_path: Path) -> None:
    with serving_in_thread() as chatgpt:
        gate, begun = Gate(), threading.Event()
        chatgpt.will(Stream([answer(text("a"))[0], gate]))
        with httpx2.Client(base_url=chatgpt.environment(tmp_path)["PROXY_CODEX_BASE_URL"], trust_env=False) as client:
            with client.stream("POST", "/responses", json=body(), headers=headers(chatgpt)) as response:
                chatgpt.wait_for(lambda: gate.held)
                next(response.iter_raw())
                begun.set()
            chatgpt.wait_for(lambda: chatgpt.gone)
            chatgpt.will(Stream([answer(text("a"))[0], held := Gate(), *answer(text("a"))[1:]]))
            with client.stream("POST", "/responses", json=body(), headers=headers(chatgpt)) as response:
                chatgpt.wait_for(lambda: held.held)
                held.open()
                assert kinds(events_in(response.read()))[-1] == "completed"
        with pytest.raises(AssertionError, match="not within 0 s: <ChatGPT"):
            chatgpt.wait_for(lambda: len(chatgpt.requests) == 3, timeout=0)
    assert begun.is_set()
    assert not any(thread.name == "chatgpt" for thread in threading.enumerate())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_login_is_a_private_file_full_of_canaries(tmp_path: Path, form: Any) -> None:
    chatgpt = ChatGPT()
    path = chatgpt.home(tmp_path, form, extra={"kept": True}) / "auth.json"
    assert path.stat().st_mode & 0o777 == 0o600
    content = json.loads(path.read_text())
    assert content["extra"] == {"kept": True}
    secrets = [content["OPENAI_API_KEY"], *(content["tokens"] or {}).values()]
    for secret in secrets:
        if secret not in (None, chatgpt.logins.account):
            with pytest.raises(AssertionError):
                assert_no_secrets(secret)
