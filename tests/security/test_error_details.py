"""What an error tells a client: code, a short message, the id of the request. Places, traces and secrets are the log's.

And headers: nothing that a client, a child or a provider says becomes one, or begins another line of one.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from fault.providers import KINDS, marked
from fault.rig import FORMS, Rig, rigged
from harness import KEY, RunningBridge, running_bridge, scripted_codex, turns
from hypothesis import given
from hypothesis import strategies as st
from protocols.cap.samples import request_body
from server.prompted import MODEL, ask, ask_chat, prompted_codex, raw_request, request_headers, wait_for

from bridge.redact import harmless

SECRET = "sk-canary0123456789abcdefghij"
PLACE = "/home/somebody/.codex/config.toml"
SAID = f"no luck with {PLACE}, /tmp/x-1/y.sock nor ~/.ssh/id: {SECRET}"

MESSAGES: dict[str, dict[str, Any]] = {
    "error": {"error": {"message": SAID}},
    "bad_request": {"error": {"message": SAID, "info": "badRequest"}},
    "unauthorized": {"error": {"message": SAID, "info": "unauthorized"}},
    "rate_limit": {"error": {"message": SAID, "info": "rateLimitExceeded"}},
    "connection": {"error": {"message": SAID, "info": {"httpConnectionFailed": {"httpStatusCode": 502}}}},
    "upstream": {"error": {"message": json.dumps({"error": {"message": SAID, "code": "x"}}), "info": "other"}},
    "exit": {"exit": 3},
}


def assert_short(told: str, *places: Path) -> None:
    """Nothing of this machine, nothing of the program, no secret."""
    for word in ("Traceback", 'File "', "bridge/", "site-packages", SECRET, "canary", "/home/", "/tmp/", "~/", KEY):
        assert word not in told, told
    for place in (*places, socket.gethostname()):
        assert str(place) not in told, told
    assert len(told) < 8000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("details")


@pytest.fixture(scope="module")
def bridge(home: Path) -> Iterator[RunningBridge]:
    codex = str(prompted_codex(home))
    with running_bridge(home, CODEX_BIN=codex, PROXY_MODELS=MODEL, PROXY_KEEPALIVE="0.2") as ready:
        yield ready


@pytest.mark.parametrize("step", MESSAGES.values(), ids=MESSAGES)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_child_says_of_a_failure_names_no_place(
    bridge: RunningBridge, home: Path, step: dict[str, Any], stream: bool
) -> None:
    """In every protocol, streamed and not; what it died of is in the log."""
    steps = [{"stderr": SAID}, *([{"text": "begin"}] if stream else []), step]
    asked = request_body(query=json.dumps(steps), meta={"model": MODEL})
    bodies = [
        ("/responses", ask(*steps, stream=stream)),
        ("/chat/completions", ask_chat(*steps, stream=stream)),
        ("/assist", {**asked, "request_id": str(uuid4())}),
    ]
    with bridge.client() as client:
        for path, body in bodies[:1] if "exit" in step else bodies:  # after five deaths it would be given up
            answer = client.post(path, json=body, headers={"accept": "text/event-stream" if stream else "*/*"})
            assert_short(answer.text[answer.text.find("error") :], home)
            assert_short(str(answer.headers), home)
    assert SECRET not in bridge.stderr.read_text()


@pytest.mark.parametrize("how", ["says", "missing", "refuses"])
def test_a_child_that_does_not_start_names_no_place(tmp_path: Path, how: str) -> None:
    """Neither its own words nor the system's."""
    if how == "says":
        program = scripted_codex(tmp_path, turns([], startup=[{"stderr": SAID}, {"exit": 1}]))
    else:
        program = tmp_path / "codex"
        program.write_text("#!/no/such/interpreter\n" if how == "missing" else "not a program")
        program.chmod(0o755)
    with running_bridge(tmp_path, CODEX_BIN=str(program), PROXY_MODELS=MODEL) as bridge, bridge.client() as client:

        def refused() -> httpx2.Response | None:
            answer = client.post("/responses", json=ask({"text": "hi"}))
            return answer if answer.status_code >= 500 and "starting" not in answer.text else None

        answer = wait_for(refused, "a refusal")
        assert_short(answer.text, tmp_path)
        for probe in ("/healthz", "/readyz", "/health"):
            assert_short(client.get(bridge.root + probe).text, tmp_path)


BAD = {
    "no_json": b"{",
    "deep": b"[" * 5000,
    "array": b"[]",
    "bytes": b"\xff\xfe",
    "types": json.dumps({"model": 1, "input": {"a": PLACE}}).encode(),
    "tools": json.dumps({"model": "mock-echo", "input": "x", "tools": [{"type": "function"}]}).encode(),
    "surrogate": b'{"model":"\\ud800","input":"x"}',
    "unknown_model": json.dumps({"model": "x" * 100_000, "input": "x"}).encode(),
    "numbers": b'{"model":"m","input":"x","temperature":1e999}',
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/assist", "/responses/compact", "/conversations"])
def test_a_wrong_body_is_told_shortly(mock_bridge: RunningBridge, home: Path, path: str, body: bytes) -> None:
    """Neither the words of a library nor the whole of what was sent."""
    with mock_bridge.client() as client:
        answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code < 500
    assert_short(answer.text, home)
    for word in ("pydantic", "orjson", "KeyError", "TypeError", "ValueError", "<class", "0x7f"):
        assert word not in answer.text


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("provider-details")) as ready:
        yield ready


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("play", ["echo-refusal", "401", "403", "html", "html-502", "truncated"])
def test_a_provider_that_fails_is_not_named_by_its_place(rig: Rig, kind: str, play: str) -> None:
    """Where it is, is the operator's business, and so is the key."""
    for endpoint, stream in FORMS:
        outcome = rig.ask(f"to-{kind}", marked(play, f"details.{play}"), endpoint=endpoint, stream=stream)
        assert "127.0.0.1" not in outcome.raw
        assert "Traceback" not in outcome.raw
        assert str(rig.directory) not in outcome.raw
        assert "canary" not in outcome.raw.lower()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (f"cannot read {PLACE}: denied", "cannot read [path]: denied"),
        ("'/tmp/a b' is gone", "'[path] b' is gone"),
        ("~/.codex is not there", "[path] is not there"),
        ("POST /v1/responses failed", "POST /v1/responses failed"),
        ("see https://example.org/home/x and http://h/tmp/y", "see https://example.org/home/x and http://h/tmp/y"),
        ("either/or and 1/2", "either/or and 1/2"),
    ],
)
def test_places_are_taken_out_and_the_rest_stays(said: str, told: str) -> None:
    assert harmless(said) == told


# Headers

OWN = {"date", "content-type", "content-length", "transfer-encoding", "connection", "cache-control", "allow", "vary"}
OWN |= {
    "x-request-id",
    "x-bridge-request-id",
    "x-bridge-dropped",
    "x-accel-buffering",
    "retry-after",
    "www-authenticate",
}
OWN |= {"x-conversation-id", "x-conversation"}
BREAKS = {
    "crlf": "\r\nX-Injected: yes",
    "lf": "\nX-Injected: yes",
    "cr": "\rX-Injected: yes",
    "nul": "\0X-Injected: yes",
    "line_separator": "\u2028X-Injected: yes",
    "next_line": "\x85X-Injected: yes",
    "encoded": "%0d%0aX-Injected: yes",
    "escaped": "\\r\\nX-Injected: yes",
    "long": "x" * 20_000,
    "not_ascii": "é\ud7ff\U0001f600",
}


def injected(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Bodies with a text in each place whose words may come back in a header."""
    said: dict[str, Any] = {"model": MODEL, "input": json.dumps([{"text": "hi"}])}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": said["input"]}]}
    return [
        ("/responses", {**said, f"x{text}": 1}),
        ("/responses", {**said, "tools": [{"type": f"x{text}"}]}),
        ("/responses", {**said, "include": [f"x{text}"]}),
        ("/responses", {**said, "metadata": {f"x{text}": text[:100]}, "user": text, "prompt_cache_key": text}),
        ("/responses", {**said, "model": f"x{text}"}),
        ("/responses", {**said, "previous_response_id": f"x{text}"}),
        ("/chat/completions", {**chat, f"x{text}": 1, "modalities": [text]}),
        ("/assist", request_body(query=said["input"], meta={"model": MODEL, f"x{text}": text})),
        ("/assist", {**request_body(query="x"), "request_id": f"x{text}"}),
        ("/assist", request_body(query=said["input"], meta={"model": MODEL}, context={"session_id": text or "x"})),
    ]


def head_of(bridge: RunningBridge, data: bytes) -> dict[str, str]:
    """The head of the answer, line by line as it came."""
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall(data)
        received = b""
        while chunk := client.recv(65536):
            received += chunk
    lines = received.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    return dict(line.decode("ascii").lower().split(": ", 1) for line in lines)


@pytest.mark.parametrize("text", BREAKS.values(), ids=BREAKS)
def test_nothing_in_a_body_breaks_into_the_headers(bridge: RunningBridge, text: str) -> None:
    """Every header is one of ours, in ASCII, and none came from outside."""
    for path, body in injected(text):
        data = raw_request("POST", f"/v1{path}", json.dumps(body).encode(), request_headers(Connection="close"))
        head = head_of(bridge, data)
        assert set(head) <= OWN, head
        assert not any(character < " " for value in head.values() for character in value)
        assert all(len(value) < 5000 for value in head.values())


@pytest.mark.parametrize(
    "name", ["X-Request-Id", "X-Client-Request-Id", "Idempotency-Key", "OpenAI-Organization", "Accept"]
)
def test_nothing_in_a_header_breaks_into_the_headers(bridge: RunningBridge, name: str) -> None:
    """What cannot stand in a header is refused as no HTTP; anything else is not repeated as more than a word."""
    body = json.dumps(ask({"text": "hi"})).encode()
    for value in ("a b\tc", "x" * 8000, "\xe9\xff", "<script>", "%0d%0aX-Injected: yes", '"\\', "a;b=c,d"):
        data = raw_request("POST", "/v1/responses", body, request_headers(Connection="close", **{name: value}))
        head = head_of(bridge, data)
        assert set(head) <= OWN, head
        assert "injected: yes" not in str(head)


@given(st.binary(max_size=40))
def test_what_a_provider_says_is_text_whatever_it_is(said: bytes) -> None:
    """No error of ours is made of bytes that cannot be sent on."""
    told = harmless(said.decode("utf-8", "replace"))
    json.dumps(told)
    told.encode()
