"""What the bridge does around an answer: several choices, stop sequences, how thoughts are shown, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import RunningBridge, read_sse, running_bridge, scripted_codex, turns
from real.rig import CHAT, LOOK, Rig, said
from server.answers import Json, ok, refusal
from server.conftest import LoggedBridge
from server.prompted import MODEL, EventLog, ask, ask_chat, prompted_codex, send_request, wait_for
from server.talk import talking

STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def client(prompted: LoggedBridge) -> Iterator[httpx2.Client]:
    """A client of the prompted bridge."""
    with prompted.bridge.client() as client:
        yield client


def chunks_of(client: httpx2.Client, body: Json) -> list[Json]:
    """The chunks of a stream, which must end with [DONE]."""
    response = client.post("/chat/completions", json=body | {"stream": True})
    assert response.status_code == 200, response.text
    assert response.text.endswith("data: [DONE]\n\n")
    assert response.text.count("data: [DONE]") == 1
    return list(read_sse(iter(response.text.splitlines())))


def content(chunks: list[Json], index: int = 0) -> str:
    """What one choice of a stream says."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def ends(chunks: list[Json]) -> dict[int, str]:
    """The finish_reason of every choice."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    found = [(choice["index"], choice["finish_reason"]) for choice in choices if choice["finish_reason"]]
    assert len(dict(found)) == len(found)
    return dict(found)


def told(client: httpx2.Client, body: Json, stream: bool) -> tuple[str, str, Json | None]:
    """Text, end and usage of a completion with one choice."""
    if stream:
        chunks = chunks_of(client, body | {"stream_options": {"include_usage": True}})
        return content(chunks), ends(chunks)[0], chunks[-1]["usage"]
    completion = ok(client.post("/chat/completions", json=body))
    (choice,) = completion["choices"]
    return choice["message"]["content"], choice["finish_reason"], completion["usage"]


# Several choices


@pytest.mark.parametrize("n", [2, 16])
def test_choices(rig: Rig, n: int) -> None:
    """Each has an index and an answer of its own; the usage is that of all."""
    completion = ok(rig.client.post("/chat/completions", json=CHAT.body(said({"do": "text", "pieces": ["hi"]}), n=n)))
    assert [choice["index"] for choice in completion["choices"]] == list(range(n))
    assert [choice["message"]["content"] for choice in completion["choices"]] == ["hi"] * n
    assert {choice["finish_reason"] for choice in completion["choices"]} == {"stop"}
    assert (completion["usage"]["prompt_tokens"], completion["usage"]["completion_tokens"]) == (11 * n, 7 * n)
    assert completion["usage"]["total_tokens"] == 18 * n
    assert len(rig.posts) == n


def test_choices_in_a_stream(rig: Rig) -> None:
    """Their chunks come as they are said, each with its index; one usage, one end, one id."""
    body = CHAT.body(said({"do": "text", "pieces": ["a", "b", "c"]}), n=3, stream_options={"include_usage": True})
    chunks = chunks_of(rig.client, body)
    assert len({chunk["id"] for chunk in chunks}) == 1
    for index in range(3):
        mine = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert [choice["delta"]["content"] for choice in mine[1:-1]] == ["a", "b", "c"]
    assert ends(chunks) == dict.fromkeys(range(3), "stop")
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert (chunks[-1]["choices"], chunks[-1]["usage"]["total_tokens"]) == ([], 54)


@STREAMED
def test_choices_with_calls(client: httpx2.Client, stream: bool) -> None:
    """Each choice calls for itself."""
    said_call = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"x\\"}"}</tool_call>'
    body = ask_chat({"text": said_call, "chunk": 7}, n=2, tools=[{"type": "function", "function": LOOK}])
    if stream:
        chunks = chunks_of(client, body)
        assert ends(chunks) == {0: "tool_calls", 1: "tool_calls"}
        deltas = [choice for chunk in chunks for choice in chunk["choices"] if "tool_calls" in choice["delta"]]
        ids = {each["id"] for choice in deltas for each in choice["delta"]["tool_calls"] if "id" in each}
    else:
        choices = ok(client.post("/chat/completions", json=body))["choices"]
        assert [choice["finish_reason"] for choice in choices] == ["tool_calls"] * 2
        ids = {call["id"] for choice in choices for call in choice["message"]["tool_calls"]}
    assert len(ids) == 2


@pytest.fixture
def uneven(tmp_path: Path) -> Iterator[RunningBridge]:
    """A bridge whose second turn says a word and fails, while all others go on for long."""
    script = turns(
        [{"text": "first"}, {"hang": True}],
        [{"text": "second"}, {"sleep": 2}, {"error": {"message": "boom", "info": "rateLimitExceeded"}}],
        [{"text": "third"}, {"hang": True}],
        [{"text": "after"}],
    )
    with running_bridge(
        tmp_path,
        f"--log-events={tmp_path / 'log'}",
        CODEX_BIN=str(scripted_codex(tmp_path, script)),
        PROXY_MODELS=MODEL,
    ) as bridge:
        yield bridge


@STREAMED
def test_one_choice_that_fails_fails_all(uneven: RunningBridge, tmp_path: Path, stream: bool) -> None:
    """As a status, or as the one error that ends the stream; the turns of the others are interrupted."""
    log = EventLog(tmp_path / "log")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": 3}
    with uneven.client() as client:
        if stream:
            chunks = chunks_of(client, body)
            assert sorted(content(chunks[:-1], index) for index in range(3)) == ["first", "second", "third"]
            assert (list(chunks[-1]), chunks[-1]["error"]["code"]) == (["error"], "rate_limit_exceeded")
            assert ends(chunks[:-1]) == {}
        else:
            assert refusal(client.post("/chat/completions", json=body), 429)[0] == "rate_limit_exceeded"
        request = wait_for(lambda: log.request_of("hi"), "the request")
        wait_for(lambda: log.calls(request).count("turn/interrupt") == 2, "two interrupts", 10)
        assert ok(client.post("/chat/completions", json=body | {"n": 1}))["choices"][0]["message"]["content"] == "after"


def test_a_client_that_leaves_its_choices(prompted: LoggedBridge) -> None:
    """All of them are interrupted."""
    body = ask_chat({"text": "one"}, {"hang": "left-choices"}, n=4, stream=True)
    with send_request(prompted.bridge, "/v1/chat/completions", body) as client:
        request = prompted.log.running("left-choices")
        assert client.recv(1)

        def running() -> int:
            return [reply["method"] for reply in prompted.log.of(request, "rpc_response")].count("turn/start")

        wait_for(lambda: running() == 4, "four turns")
    wait_for(lambda: prompted.log.calls(request).count("turn/interrupt") == 4, "four interrupts", 10)


def test_more_choices_than_turns(tmp_path: Path) -> None:
    """Where not all can run, none does: the request is refused, and leaves no turn behind."""
    with (
        running_bridge(
            tmp_path, CODEX_BIN=str(prompted_codex(tmp_path)), PROXY_MODELS=MODEL, PROXY_MAX_TURNS="2"
        ) as bridge,
        bridge.client() as client,
    ):
        for _ in range(3):
            answer = client.post("/chat/completions", json=ask_chat({"hang": True}, n=3))
            assert refusal(answer, 503)[0] == "overloaded"
        wait_for(
            lambda: client.post("/chat/completions", json=ask_chat({"text": "hi"}, n=2)).status_code == 200, "two turns"
        )


@pytest.mark.parametrize("n", [0, 17, -1, "2", 2.5, True])
def test_a_wrong_number_of_choices_is_refused(client: httpx2.Client, n: Any) -> None:
    """One to sixteen."""
    assert refusal(client.post("/chat/completions", json=ask_chat({"text": "hi"}, n=n)), 400)[1] == "n"


# Stop sequences

STOPS = {
    "in one piece": ("one STOP two", "STOP", 1000, "one "),
    "over many pieces": ("one STOP two", "STOP", 1, "one "),
    "a piece of it is none": ("one STO STOP two", "STOP", 3, "one STO "),
    "the first of several": ("a, b; c", [";", ","], 2, "a"),
    "one that begins like another": ("xaab", ["aac", "aab"], 1, "x"),
    "at the very beginning": ("STOP and more", ["STOP"], 2, ""),
    "never": ("one two", ["STOP", "TWO"], 2, "one two"),
    "almost, at the end": ("one ST", "STOP", 1, "one ST"),
    "a newline": ("one\ntwo", "\n", 5, "one"),
    "beyond ascii": ("Grüße 🌍 Welt", "🌍", 3, "Grüße "),
    "empty ones mean nothing": ("one two", ["", ""], 3, "one two"),
}


@STREAMED
@pytest.mark.parametrize(("text", "stop", "chunk", "left"), STOPS.values(), ids=STOPS)
def test_a_stop_sequence_ends_the_answer(
    client: httpx2.Client, text: str, stop: Any, chunk: int, left: str, stream: bool
) -> None:
    """Before it, and it is not shown; the rest of the text is as it was said."""
    said_text, end, _ = told(client, ask_chat({"text": text, "chunk": chunk}, stop=stop), stream)
    assert (said_text, end) == (left, "stop")


@STREAMED
def test_a_stop_sequence_stops_the_model(rig: Rig, stream: bool) -> None:
    """Nothing more is paid for; the usage is an estimate, and says so."""
    gone = len(rig.provider.gone)
    body = CHAT.body(said({"do": "slow", "n": 300, "seconds": 30}), stop=["word3"])
    said_text, end, usage = told(rig.client, body, stream)
    assert (said_text, end) == ("word0 word1 word2 ", "stop")
    rig.provider.wait_gone(gone + 1, timeout=10)
    assert usage is not None
    assert usage["estimated"] is True
    assert 1 <= usage["completion_tokens"] <= 20


def test_stop_sequences_leave_calls_alone(client: httpx2.Client) -> None:
    """They are about the text that is shown."""
    said_call = 'see: <tool_call>{"name":"look","arguments":"{\\"q\\":\\"STOP\\"}"}</tool_call>'
    tools = [{"type": "function", "function": LOOK}]
    body = ask_chat({"text": said_call, "chunk": 4}, stop=["STOP", "look"], tools=tools)
    (choice,) = ok(client.post("/chat/completions", json=body))["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"q":"STOP"}'


def test_stop_sequences_leave_thoughts_alone(client: httpx2.Client) -> None:
    """They are about the answer."""
    body = ask_chat({"reasoning": ["I STOP to think"]}, {"text": "one STOP two"}, stop="STOP")
    (choice,) = ok(client.post("/chat/completions", json=body))["choices"]
    assert choice["message"]["reasoning_content"] == "I STOP to think"
    assert choice["message"]["content"] == "one "


def test_every_choice_stops_by_itself(client: httpx2.Client) -> None:
    """Also together with `n`."""
    chunks = chunks_of(client, ask_chat({"text": "one STOP two", "chunk": 2}, stop="STOP", n=3))
    assert [content(chunks, index) for index in range(3)] == ["one "] * 3
    assert ends(chunks) == dict.fromkeys(range(3), "stop")


@pytest.mark.parametrize("stop", [5, {"a": 1}, [5], ["x"] * 17, [None]])
def test_a_wrong_stop_is_refused(client: httpx2.Client, stop: Any) -> None:
    """Texts, sixteen at most."""
    answer = client.post("/chat/completions", json=ask_chat({"text": "hi"}, stop=stop))
    assert str(refusal(answer, 400)[1]).startswith("stop")


# Thoughts


@pytest.fixture(scope="module")
def thinkers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, httpx2.Client]]:
    """Clients of bridges that show thoughts in each of the ways."""
    with ExitStack() as stack:
        clients = {}
        for display in ("content", "think", "hidden"):
            directory = tmp_path_factory.mktemp(display)
            bridge = stack.enter_context(
                running_bridge(
                    directory,
                    CODEX_BIN=str(prompted_codex(directory)),
                    PROXY_MODELS=MODEL,
                    PROXY_REASONING=display,
                )
            )
            clients[display] = stack.enter_context(bridge.client())
        yield clients


SHOWN = {
    "content": ("42", "I think\n\ntherefore"),
    "think": ("<think>\nI think\n\ntherefore\n</think>\n\n42", ""),
    "hidden": ("42", ""),
}


@STREAMED
@pytest.mark.parametrize("display", SHOWN)
def test_thoughts_are_shown_as_set(thinkers: dict[str, httpx2.Client], display: str, stream: bool) -> None:
    """PROXY_REASONING: beside the text, in it, or not at all; the same streamed and whole."""
    body = ask_chat({"reasoning": ["I think", "therefore"]}, {"text": "42"})
    if stream:
        chunks = chunks_of(thinkers[display], body)
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
        shown = content(chunks), "".join(delta.get("reasoning_content") or "" for delta in deltas)
    else:
        message = ok(thinkers[display].post("/chat/completions", json=body))["choices"][0]["message"]
        shown = message["content"], message.get("reasoning_content", "")
    assert shown == SHOWN[display]


@pytest.mark.parametrize("display", SHOWN)
def test_a_response_always_has_its_thoughts(thinkers: dict[str, httpx2.Client], display: str) -> None:
    """There they are an item of their own, which hides nothing else."""
    output = ok(thinkers[display].post("/responses", json=ask({"reasoning": ["I think"]}, {"text": "42"})))["output"]
    assert [item["type"] for item in output] == ["reasoning", "message"]


@STREAMED
@pytest.mark.parametrize("display", SHOWN)
def test_thoughts_before_a_call(thinkers: dict[str, httpx2.Client], display: str, stream: bool) -> None:
    """A tag that was opened is closed, also where no text follows."""
    said_call = '<tool_call>{"name":"look","arguments":"{}"}</tool_call>'
    body = ask_chat(
        {"reasoning": ["hm"]}, {"text": said_call}, tools=[{"type": "function", "function": {"name": "look"}}]
    )
    if stream:
        shown = content(chunks_of(thinkers[display], body))
    else:
        shown = ok(thinkers[display].post("/chat/completions", json=body))["choices"][0]["message"]["content"] or ""
    assert shown == ("<think>\nhm\n</think>\n\n" if display == "think" else "")


# What is refused


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that refuses what it would leave out."""
    with running_bridge(tmp_path_factory.mktemp("strict"), "--mock-only", PROXY_UNSUPPORTED="reject") as bridge:
        yield bridge


@STREAMED
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/responses", {"temperature": 0.5}, "temperature"),
        ("/responses", {"top_p": 0.5}, "top_p"),
        ("/responses", {"tools": [{"type": "file_search"}]}, "tools:file_search"),
        ("/responses", {"service_tier": "scale"}, "service_tier"),
        ("/chat/completions", {"seed": 1}, "seed"),
        ("/chat/completions", {"logprobs": True}, "logprobs"),
    ],
)
def test_what_cannot_be_done_is_refused(
    strict: RunningBridge, path: str, fields: Json, param: str, stream: bool
) -> None:
    """PROXY_UNSUPPORTED=reject: 400 names it, and how to have it ignored."""
    good = {"model": "mock-echo", "input" if path == "/responses" else "messages": [{"role": "user", "content": "hi"}]}
    with strict.client() as client:
        answer = client.post(path, json=good | fields | {"stream": stream})
        assert refusal(answer, 400) == ("unsupported_parameter", param)
        assert "PROXY_UNSUPPORTED" in answer.json()["error"]["message"]
        plain = client.post(path, json=good | {"temperature": None, "service_tier": "auto", "stream": stream})
        assert plain.status_code == 200
        assert "x-bridge-dropped" not in plain.headers


def test_what_cannot_be_done_is_refused_everywhere(strict: RunningBridge) -> None:
    """In the background and on a WebSocket too."""
    body = {"model": "mock-echo", "input": "hi", "temperature": 0.5}
    with strict.client() as client:
        assert refusal(client.post("/responses", json=body | {"background": True}), 400)[1] == "temperature"
    with talking(strict) as talk:
        assert talk.refused(body)["error"]["param"] == "temperature"
        assert json.dumps(talk.ask({"model": "mock-echo", "input": "hi"})["output"]).count("hi") == 1
