"""Everything comes to an end, and says which: pains 5, 6, 7, 8 and 12."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness import RunningBridge, read_sse, running_bridge, scripted_codex, turns
from pains.conftest import log_of
from real.provider import Json
from real.rig import CHAT, CURRENT, RESPONSES, Api, Rig, said, start_rig
from server.prompted import MODEL, ask, ask_chat, open_response, prompted_codex, wait_for

Ask = Callable[..., Json]
BOTH = pytest.mark.parametrize(
    ("path", "body"), [("/v1/responses", ask), ("/v1/chat/completions", ask_chat)], ids=["responses", "chat"]
)
SLOW = {"do": "slow", "n": 600, "seconds": 60}
"""Ten words a second, for longer than any test waits."""


def end_of(events: list[Json]) -> Json:
    """The last event of a stream: its only end."""
    ends = [event for event in events if is_end(event)]
    assert ends == events[-1:]
    return ends[0]


def is_end(event: Json) -> bool:
    """Whether an event ends a stream of either protocol."""
    if "choices" in event:
        return any(choice["finish_reason"] for choice in event["choices"])
    return "error" in event or event.get("type") in ("response.completed", "response.incomplete", "response.failed")


def failure_of(end: Json) -> str:
    """The bridge's own code in the end of a failed stream."""
    error = end["response"]["error"] if "response" in end else end["error"]
    return str(error.get("bridge_code") or error["code"])


# 5. Hangs without an end

LIMITS = {
    "PROXY_IDLE_TIMEOUT": "2.5",
    "PROXY_TURN_TIMEOUT": "5",
}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge with short limits, whose child does what the message says."""
    directory = tmp_path_factory.mktemp("impatient")
    program = str(prompted_codex(directory))
    with running_bridge(directory, CODEX_BIN=program, PROXY_MODELS=MODEL, **LIMITS) as bridge:
        assert bridge.post("/responses", ask({"text": "ready"})).status_code == 200
        yield bridge


@contextmanager
def soon() -> Iterator[None]:
    """What is done in this block ends soon after the limits, which are minutes by default."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < 30


def test_pain_05_a_model_that_does_not_begin(tmp_path: Path) -> None:
    """Silence before the first word ends as a timeout that says so, on both endpoints, streamed or not."""
    # Much sooner than a stream begins without a word: after that the status would be out.
    settings = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "PROXY_FIRST_EVENT_TIMEOUT": "0.5"}
    silence = {"hang": True}
    requests = [("/responses", ask(silence, stream=streamed)) for streamed in (False, True)]
    requests += [("/chat/completions", ask_chat(silence, stream=streamed)) for streamed in (False, True)]
    with running_bridge(tmp_path, **settings) as bridge, soon(), ThreadPoolExecutor(4) as pool:
        for response in pool.map(lambda request: bridge.post(*request), requests):
            assert response.status_code == 504
            assert response.json()["error"]["code"] == "backend_timeout"
            assert "did not begin" in response.json()["error"]["message"]


@BOTH
def test_pain_05_a_turn_that_never_completes(impatient: RunningBridge, path: str, body: Ask) -> None:
    """A lost end of the turn, after the words, is the end of the stream, too."""
    with soon():
        events = impatient.events(path[3:], body({"text": "one"}, {"hang": True}))
    assert failure_of(end_of(events)) == "backend_timeout"


def test_pain_05_a_turn_that_goes_on_and_on(impatient: RunningBridge) -> None:
    """However lively it is, a turn has a longest time."""
    with soon():
        events = impatient.events("/responses", ask({"text": "la "}, {"sleep": 0.1}, repeat=100))
    assert failure_of(end_of(events)) == "backend_timeout"
    assert "longer than 5 s" in end_of(events)["response"]["error"]["message"]


def test_pain_05_a_child_that_lives_but_has_no_voice(impatient: RunningBridge) -> None:
    """The end of its output is the end of its turns, although the process is there; another one takes its place."""
    with soon():
        events = impatient.events("/responses", ask({"text": "one"}, {"close_stdout": True}, {"hang": True}))
    assert failure_of(end_of(events)) == "backend_crashed"
    assert impatient.post("/responses", ask({"text": "again"})).status_code == 200


def test_pain_05_a_call_that_is_never_answered(tmp_path: Path) -> None:
    """The client is told which call it was."""
    program = str(scripted_codex(tmp_path, turns([{"text": "hi"}], mute=["turn/start"])))
    with running_bridge(tmp_path, CODEX_BIN=program, PROXY_MODELS="m", PROXY_RPC_TIMEOUT="5") as bridge, soon():
        response = bridge.post("/responses", {"model": "m", "input": "hi"})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "backend_timeout")
    assert "turn/start" in response.json()["error"]["message"]


def test_pain_05_a_child_that_never_says_hello(tmp_path: Path) -> None:
    """A request does not wait for a child that cannot be spoken to, and the state is there to be read."""
    program = str(scripted_codex(tmp_path, turns([{"text": "hi"}], mute=["initialize"])))
    with (
        running_bridge(tmp_path, CODEX_BIN=program, PROXY_MODELS="m", PROXY_RPC_TIMEOUT="0.5") as bridge,
        bridge.client() as client,
    ):
        with soon():
            response = client.post("/responses", json={"model": "m", "input": "hi"})
        assert response.status_code == 503
        assert response.json()["error"]["code"] in ("handshake_pending", "handshake_failed")
        assert client.get(f"{bridge.root}/readyz").status_code == 503


def test_pain_05_a_provider_that_never_answers(tmp_path: Path) -> None:
    """A real Codex waits for its provider for minutes; the client does not, and the model is stopped."""
    with start_rig(tmp_path, CURRENT, PROXY_FIRST_EVENT_TIMEOUT="4") as rig:
        answer = rig.ask(CHAT, {"do": "hang"})
        assert (answer.status, answer.error["code"]) == (504, "backend_timeout")
        assert rig.provider.wait_gone(1) == [0]


# 6. Questions that nobody answers

QUESTIONS = [
    "item/commandExecution/requestApproval",
    "item/fileChange/requestApproval",
    "item/permissions/requestApproval",
    "item/tool/requestUserInput",
    "item/tool/call",
    "mcpServer/elicitation/request",
    "execCommandApproval",
    "applyPatchApproval",
    "account/chatgptAuthTokens/refresh",
    "something/nobody/has/heard/of",
]


def test_pain_06_every_question_is_answered_with_no(prompted: RunningBridge) -> None:
    """Whatever the child asks, it gets a reply at once, and none of them says yes; the turn goes on."""
    asked = [{"request": {"method": method, "params": {"threadId": "t", "command": "rm"}}} for method in QUESTIONS]
    response = prompted.post("/responses", ask(*asked, {"text": "went on"}))
    assert response.json()["output"][0]["content"][0]["text"] == "went on"
    log = log_of(prompted)

    def replies() -> Json:
        return {each["method"]: each["payload"] for each in log.records() if each["kind"] == "server_reply"}

    wait_for(lambda: list(replies()) == QUESTIONS, "all replies")
    said_yes = [reply for reply in replies().values() if re.search(r"accept|approved|\byes\b", json.dumps(reply))]
    assert said_yes == []


def test_pain_06_a_real_codex_asks_and_is_refused(tmp_path: Path) -> None:
    """With its own tools on and a policy that asks: the command does not run, the file is not made, the turn ends."""
    settings: dict[str, Any] = {
        "PROXY_NATIVE_TOOLS": "true",
        "PROXY_APPROVAL_POLICY": "untrusted",
        "PROXY_SANDBOX_MODE": "workspace-write",
    }
    patch = "apply_patch <<'END'\n*** Begin Patch\n*** Add File: new.txt\n+moin\n*** End Patch\nEND\n"
    with start_rig(tmp_path, CURRENT, **settings) as rig:
        for command in ("touch made.txt", patch):
            call = {"name": "exec_command", "arguments": json.dumps({"cmd": command})}
            answer = rig.ask(RESPONSES, {"do": "calls", "calls": [call]})
            assert answer.end == "completed"
            assert "rejected" in answer.text
        assert list((tmp_path / "work").iterdir()) == []


# 7. Connections that are cut because nothing is said


def test_pain_07_silence_before_the_first_word(prompted: RunningBridge) -> None:
    """While the model thinks, a comment comes now and then: no middlebox takes the connection for dead."""

    def watch(path: str, body: Ask) -> float:
        connection, response = open_response(prompted, path, body({"hang": True}, stream=True))
        with closing(connection):
            assert response.status == 200
            started = time.monotonic()
            comments = 0
            while comments < 4:
                comments += response.readline() == b": keepalive\n"
            return time.monotonic() - started

    with ThreadPoolExecutor(2) as pool:
        for seconds in pool.map(watch, ["/v1/responses", "/v1/chat/completions"], [ask, ask_chat]):
            assert seconds < 20


@BOTH
def test_pain_07_silence_between_words(prompted: RunningBridge, path: str, body: Ask) -> None:
    """The same in the middle; and no reader of events notices."""
    steps = [{"text": "a"}, {"sleep": 2}, {"text": "b"}]
    connection, response = open_response(prompted, path, body(*steps, stream=True))
    with closing(connection):
        text = response.read().decode()
    assert text.count("\n: keepalive\n\n") >= 2
    assert not failure_in(list(read_sse(iter(text.splitlines()))))


def failure_in(events: list[Json]) -> bool:
    """Whether a stream failed."""
    return "error" in events[-1] or events[-1].get("type") == "response.failed"


# 8. Streams without a last event


@BOTH
@pytest.mark.parametrize(
    ("last", "fails"),
    [({"text": "."}, False), ({"error": {"message": "boom"}}, True), ({"interrupted": True}, True)],
    ids=["completed", "failed", "interrupted"],
)
def test_pain_08_a_stream_has_one_end(prompted: RunningBridge, path: str, body: Ask, last: Json, fails: bool) -> None:
    """However a turn ends, its stream says so once, and says nothing more."""
    connection, response = open_response(prompted, path, body({"text": "one"}, last, stream=True))
    with closing(connection):
        text = response.read().decode()
    events = list(read_sse(iter(text.splitlines())))
    end_of(events)
    assert failure_in(events) == fails
    assert text.endswith("data: [DONE]\n\n") == (body is ask_chat)


@pytest.mark.parametrize("action", [{"do": "drop", "n": 3}, {"do": "incomplete"}], ids=["dropped", "cut"])
def test_pain_08_an_upstream_that_breaks_off(codex: Rig, api: Api, action: Json) -> None:
    """A real Codex whose provider breaks off, or cuts the answer: one end, too."""
    end = end_of(codex.bridge.events(f"/{api.path}", api.body(said(action | {"delay": 0.02}))))
    expected = "response.failed" if action["do"] == "drop" else "response.incomplete"
    assert end.get("type", expected) == expected


def test_pain_08_a_child_that_is_killed(prompted: RunningBridge) -> None:
    """When the child dies, each of its streams gets its last event, and the next request another child."""
    opened = [
        open_response(prompted, path, body({"text": "one"}, {"hang": True}, stream=True))
        for path, body in [("/v1/responses", ask), ("/v1/chat/completions", ask_chat)] * 2
    ]
    assert prompted.post("/responses", ask({"signal": 9})).json()["error"]["code"] == "backend_crashed"
    for connection, response in opened:
        with closing(connection):
            events = list(read_sse(iter(response.read().decode().splitlines())))
        assert failure_of(end_of(events)) == "backend_crashed"
    assert prompted.post("/responses", ask({"text": "again"})).status_code == 200


# 12. A model that goes on after the user pressed stop


@pytest.mark.parametrize("action", [SLOW, {"do": "hang"}], ids=["speaking", "thinking"])
def test_pain_12_whoever_leaves_stops_the_model(codex: Rig, api: Api, stream: bool, action: Json) -> None:
    """The provider sees its client gone as soon as ours is, streamed or not, before the first word or after."""
    left = len(codex.provider.gone)
    with codex.calling(api, action, stream=stream) as connection:
        if stream and action is SLOW:
            assert connection.getresponse().readline()
    assert codex.provider.wait_gone(left + 1)[left:] == [codex.since]


def test_pain_12_a_cancelled_response_stops_the_model(codex: Rig) -> None:
    """The same for one that runs in the background and is cancelled by its id."""
    left = len(codex.provider.gone)
    response = codex.client.post("responses", json=RESPONSES.body(said(SLOW), background=True)).json()
    codex.provider.wait_requests(codex.since + 1)
    cancelled = codex.client.post(f"responses/{response['id']}/cancel").json()
    assert cancelled["status"] == "cancelled"
    assert codex.provider.wait_gone(left + 1)[left:] == [codex.since]


def test_pain_12_a_place_is_free_again(tmp_path: Path) -> None:
    """A turn whose client has left does not count against the limit of turns."""
    program = str(prompted_codex(tmp_path))
    with running_bridge(
        tmp_path, CODEX_BIN=program, PROXY_MODELS=MODEL, PROXY_MAX_TURNS="1", PROXY_MAX_QUEUE="0"
    ) as bridge:
        connection, _ = open_response(bridge, "/v1/responses", ask({"text": "one"}, {"hang": True}, stream=True))
        with closing(connection):
            assert bridge.post("/responses", ask({"text": "two"})).json()["error"]["code"] == "overloaded"
        wait_for(lambda: bridge.post("/responses", ask({"text": "two"})).status_code == 200, "a free place")
