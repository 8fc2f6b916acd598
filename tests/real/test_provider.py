"""The scripted provider, through a plain HTTP client: without Codex, what the tests with Codex stand on."""

import json
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
from real.provider import DEFAULT_TEXT, Provider, codex_home, script


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as provider:
        yield provider


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


@contextmanager
def post(provider: Provider, *items: dict[str, Any], path: str = "/v1/responses") -> Iterator[HTTPResponse]:
    """An open answer; leaving the block hangs up."""
    connection = HTTPConnection(urlsplit(provider.base_url).netloc, timeout=30)
    connection.request("POST", path, json.dumps({"model": "m", "input": items}), {"X-Test": "1"})
    response = connection.getresponse()
    try:
        yield response
    finally:
        response.close()
        connection.close()


def next_event(response: HTTPResponse) -> dict[str, Any]:
    name, data, blank = response.readline(), response.readline(), response.readline()
    event: dict[str, Any] = json.loads(data.removeprefix(b"data: "))
    assert name.decode() == f"event: {event['type']}\n"
    assert blank == b"\n"
    return event


def ask(provider: Provider, action: dict[str, Any]) -> list[dict[str, Any]]:
    """All events of the answer to one scripted user message."""
    with post(provider, user("[user] " + script(action))) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream"
        return [json.loads(line[6:]) for line in response.read().splitlines() if line.startswith(b"data: ")]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def deltas(events: list[dict[str, Any]], kind: str = "output_text") -> list[str]:
    return [event["delta"] for event in events if event["type"] == f"response.{kind}.delta"]


def error_of(response: HTTPResponse) -> dict[str, Any]:
    error: dict[str, Any] = json.load(response)["error"]
    return error


def test_text_is_streamed_in_the_order_of_the_responses_api(provider: Provider) -> None:
    events = ask(provider, {"do": "text", "pieces": ["a", "b"]})
    assert kinds(events) == [
        "created",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(9))
    final = events[-1]["response"]
    assert final["output"][0]["content"][0]["text"] == "ab"
    assert final["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }


def test_text_can_be_cut_anew_and_usage_overridden(provider: Provider) -> None:
    events = ask(provider, {"do": "text", "pieces": ["abc", "de"], "chunk": 2, "usage": {"output": 9}})
    assert deltas(events) == ["ab", "cd", "e"]
    assert events[-1]["response"]["usage"]["total_tokens"] == 20


def test_text_may_hold_the_mark_itself(provider: Provider) -> None:
    assert deltas(ask(provider, {"do": "text", "pieces": ["@@{}@@ é"]})) == ["@@{}@@ é"]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], DEFAULT_TEXT),
        ([user("no script")], DEFAULT_TEXT),
        ([user("@@{}@@" + script({"do": "text", "pieces": ["last mark"]}))], "last mark"),
        (
            [
                user(script({"do": "empty"})),
                user("[user] " + script({"do": "text", "pieces": ["last message"]})),
            ],
            "last message",
        ),
        ([user(script({"do": "text", "pieces": ["earlier message"]})), user("no script")], "earlier message"),
        (
            [
                user(script({"do": "empty"})),
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": script({"do": "text", "pieces": ["tool"]}),
                },
            ],
            "tool",
        ),
        (
            [
                user(script({"do": "text", "pieces": ["user"]})),
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": script({"do": "empty"})}],
                },
            ],
            "user",
        ),
    ],
)
def test_the_latest_script_counts(provider: Provider, items: list[dict[str, Any]], expected: str) -> None:
    with post(provider, *items) as response:
        assert f'"delta": "{expected}"' in response.read().decode()


def test_reasoning_comes_before_the_text(provider: Provider) -> None:
    events = ask(provider, {"do": "reasoning", "summary": ["one", "two"], "raw": "raw", "pieces": ["42"]})
    assert deltas(events, "reasoning_summary_text") == ["one", "two"]
    assert [e["summary_index"] for e in events if e["type"].endswith("summary_part.added")] == [0, 1]
    assert deltas(events, "reasoning_text") == ["raw"]
    thought, message = events[-1]["response"]["output"]
    assert [part["text"] for part in thought["summary"]] == ["one", "two"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "raw"}]
    assert message["content"][0]["text"] == "42"


def test_http_error_has_the_openai_envelope(provider: Provider) -> None:
    action = {
        "do": "error",
        "status": 429,
        "code": "rate_limit_exceeded",
        "message": "slow",
        "retry_after": 2,
    }
    with post(provider, user(script(action))) as response:
        assert response.status == 429
        assert response.headers["retry-after"] == "2"
        assert error_of(response) == {
            "message": "slow",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }


def test_trouble_can_be_limited_to_the_first_requests_with_the_same_script(provider: Provider) -> None:
    failing = {"do": "error", "status": 503, "times": 2}
    for _ in range(2):
        with post(provider, user(script(failing))) as response:
            assert response.status == 503
    assert deltas(ask(provider, failing)) == ["recovered"]
    dropping = {"do": "drop", "n": 2, "times": 1}
    first = ask(provider, dropping)
    assert kinds(first)[-1] == "output_text.delta"
    assert deltas(first) == ["word0 ", "word1 "]
    assert deltas(ask(provider, dropping)) == ["recovered"]
    assert provider.gone == []


def test_failed(provider: Provider) -> None:
    events = ask(provider, {"do": "failed", "code": "context_length_exceeded"})
    assert kinds(events) == ["created", "failed"]
    assert events[-1]["response"]["error"]["code"] == "context_length_exceeded"


def test_incomplete(provider: Provider) -> None:
    events = ask(provider, {"do": "incomplete", "reason": "content_filter", "pieces": ["cut"]})
    assert deltas(events) == ["cut"]
    assert kinds(events)[-1] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}
    assert events[-1]["response"]["usage"]["total_tokens"] == 18


def test_message_without_deltas_and_no_message_at_all(provider: Provider) -> None:
    events = ask(provider, {"do": "no_deltas", "pieces": ["whole"]})
    assert kinds(events) == ["created", "output_item.done", "completed"]
    assert events[1]["item"]["content"][0]["text"] == "whole"
    events = ask(provider, {"do": "empty"})
    assert kinds(events) == ["created", "completed"]
    assert events[-1]["response"]["output"] == []


def test_slow_takes_its_time(provider: Provider) -> None:
    before = monotonic()
    assert len(deltas(ask(provider, {"do": "slow", "n": 4, "seconds": 0.2}))) == 4
    assert monotonic() - before >= 0.2


@pytest.mark.parametrize("action", [{"do": "hang"}, {"do": "slow", "seconds": 600}], ids=["hang", "slow"])
def test_a_client_that_hangs_up_is_noticed_at_once(provider: Provider, action: dict[str, Any]) -> None:
    ask(provider, {"do": "text"})
    with post(provider, user(script(action))) as response:
        assert next_event(response)["type"] == "response.created"
        assert provider.active == 1
        assert provider.gone == []
        before = monotonic()
    assert provider.wait_gone(1) == [1]
    assert monotonic() - before < 30
    assert provider.active == 0


def test_fifty_streams_at_once(provider: Provider) -> None:
    with ExitStack() as streams:
        for _ in range(50):
            response = streams.enter_context(post(provider, user(script({"do": "hang"}))))
            assert next_event(response)["response"]["id"] == f"resp_{len(provider.requests) - 1}"
        assert provider.active == 50
        assert deltas(ask(provider, {"do": "text", "pieces": ["not in the way"]})) == ["not in the way"]
    assert sorted(provider.wait_gone(50)) == list(range(50))
    assert provider.active == 0


def test_requests_are_recorded_in_order(provider: Provider) -> None:
    ask(provider, {"do": "empty"})
    with post(provider, path="/v1/elsewhere") as response:
        assert response.status == 404
    first, second = provider.wait_requests(2, timeout=10)
    assert first.body == {"model": "m", "input": [user('[user] @@{"do": "empty"}@@')]}
    assert first.headers["x-test"] == "1"
    assert (first.path, second.path) == ("/v1/responses", "/v1/elsewhere")


def test_waiting_in_vain_says_what_there_is(provider: Provider) -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: <Provider requests=0 active=0 gone=\[\]>"):
        provider.wait_requests(1, timeout=0.01)


def test_a_wrong_script_is_refused_where_it_is_written_and_where_it_is_read(provider: Provider) -> None:
    for action in ({"do": "dance"}, {}, {"do": "hang", "delay": 1}, {"do": "text", "usage": {"tokens": 1}}):
        with pytest.raises(ValueError):
            script(action)
        with post(provider, user(f"@@{json.dumps(action)}@@")) as response:
            assert response.status == 400
            assert error_of(response)["message"].startswith("bad script: ")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/models?client_version=1", {}, 200),
        ("/v1/responses", {"Connection": "Upgrade", "Upgrade": "websocket"}, 426),
        ("/v1/responses", {}, 404),
    ],
)
def test_get(provider: Provider, path: str, headers: dict[str, str], status: int) -> None:
    connection = HTTPConnection(urlsplit(provider.base_url).netloc, timeout=30)
    connection.request("GET", path, headers=headers)
    with connection.getresponse() as response:
        assert response.status == status
        body = json.load(response)
    connection.close()
    assert (body == {"object": "list", "data": [], "models": []}) == (status == 200)
    assert provider.requests == []


def test_leaving_cuts_what_still_streams_and_blames_no_client() -> None:
    with Provider() as provider:
        silent = HTTPConnection(urlsplit(provider.base_url).netloc, timeout=30)
        silent.connect()
        stream = post(provider, user(script({"do": "hang"})))
        response = stream.__enter__()
        next_event(response)
        before = monotonic()
    assert monotonic() - before < 30
    assert response.read() == b""
    stream.__exit__(None, None, None)
    silent.close()
    assert provider.active == 0
    assert provider.gone == []


def test_codex_home_leads_codex_to_the_provider(tmp_path: Path, provider: Provider) -> None:
    extra = 'web_search = "disabled"\n[analytics]\nenabled = false'
    home = codex_home(tmp_path / "new" / "home", provider, model="m", retries=2, extra=extra)
    assert home == tmp_path / "new" / "home"
    assert tomllib.loads((home / "config.toml").read_text()) == {
        "model": "m",
        "model_provider": "scripted",
        "web_search": "disabled",
        "analytics": {"enabled": False},
        "features": {"plugins": False},
        "model_providers": {
            "scripted": {
                "name": "scripted",
                "base_url": provider.base_url,
                "wire_api": "responses",
                "request_max_retries": 2,
                "stream_max_retries": 2,
            }
        },
    }
