"""What one client or one message may do to all others: pains 9, 10 and 11."""

from __future__ import annotations

import json
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from harness import RunningBridge, read_sse, running_bridge, scripted_codex, turns
from real.provider import Json
from server.prompted import ask, open_response, resident_mib, send_request

FIRST_THREAD = "00000000-0000-4000-8000-000000000001"
"""The stand-in counts its threads."""


def text_of(response: Json) -> str:
    """The text of a response object."""
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def ask_quickly(bridge: RunningBridge, times: int) -> float:
    """The longest of so many requests, one after the other, in seconds."""
    longest = 0.0
    with bridge.client() as client:
        for number in range(times):
            started = time.monotonic()
            response = client.post("responses", json=ask({"text": f"answer {number}"}))
            longest = max(longest, time.monotonic() - started)
            assert text_of(response.json()) == f"answer {number}"
    return longest


# 9. A slow consumer that blocks everyone


def test_pain_09_a_client_that_does_not_read_delays_nobody(prompted: RunningBridge) -> None:
    """While 20 MB wait for a client that reads nothing, others are answered, and a running stream goes on."""
    flood = ask({"text": "x" * 100_000, "chunk": 10_000}, repeat=200, stream=True)
    steady = ask({"text": "tick "}, {"sleep": 0.05}, repeat=20, stream=True)
    with send_request(prompted, "/v1/responses", flood, buffer=4096):
        connection, response = open_response(prompted, "/v1/responses", steady)
        with closing(connection):
            assert ask_quickly(prompted, 20) < 10
            events = list(read_sse(iter(response.read().decode().splitlines())))
    assert text_of(events[-1]["response"]) == "tick " * 20


def test_pain_09_a_client_that_leaves_a_long_answer_delays_nobody(prompted: RunningBridge) -> None:
    """The same in the moment in which somebody hangs up in the middle of megabytes."""
    flood = ask({"text": "x" * 100_000, "chunk": 1000}, repeat=40, stream=True)
    for _ in range(3):
        with send_request(prompted, "/v1/responses", flood) as client:
            assert client.recv(1)
        assert ask_quickly(prompted, 3) < 10


# 10. Memory that grows with one huge line


def huge_line(size: int) -> Json:
    """A step that says one line of this size in the first thread: something that Codex did, not what the model said."""
    item = {"type": "commandExecution", "id": "c", "aggregatedOutput": "x" * size}
    params = {"threadId": FIRST_THREAD, "turnId": "t", "item": item}
    return {"garbage": json.dumps({"method": "item/completed", "params": params})}


def test_pain_10_lines_of_20_megabytes(tmp_path: Path) -> None:
    """A turn goes on after such a line, an answer in such a line is whole, and the memory for it is given back."""
    text = "0123456789" * 2_000_000
    steps = [{"text": "be"}, huge_line(20_000_000), {"text": "fore"}], [{"no_delta": text}], [{"text": "small"}]
    settings = {"CODEX_BIN": str(scripted_codex(tmp_path, turns(*steps))), "PROXY_MODELS": "m", "PROXY_STORE": "off"}
    with running_bridge(tmp_path, **settings) as bridge:
        memory = []
        for expected in ("before", text, "small"):
            assert text_of(bridge.post("/responses", {"model": "m", "input": "hi"}).json()) == expected
            memory.append(resident_mib(bridge.process.pid, "VmHWM"))
        assert memory[0] < 250
        assert memory[1] < 500
        assert resident_mib(bridge.process.pid) < 200


def test_pain_10_a_line_beyond_all_measure(tmp_path: Path) -> None:
    """A line above the limit is thrown away while it comes, and costs its own turn alone."""
    script = turns([{"text": "one"}, huge_line(50_000_000), {"hang": True}], [{"text": "two"}])
    with running_bridge(tmp_path, CODEX_BIN=str(scripted_codex(tmp_path, script)), PROXY_MODELS="m") as bridge:
        first = bridge.post("/responses", {"model": "m", "input": "hi"})
        assert (first.status_code, first.json()["error"]["code"]) == (502, "message_too_large")
        assert text_of(bridge.post("/responses", {"model": "m", "input": "hi"}).json()) == "two"
        assert resident_mib(bridge.process.pid, "VmHWM") < 250


# 11. Lines that are no messages

NOISE = [
    "ready.",
    "\x1b[33mwarning:\x1b[0m update available",
    "{",
    "[]",
    "null",
    '{"id": 999, "result": {}}',
    '{"method": "item/agentMessage/delta", "params": {"threadId": "nobody", "delta": "a\nraw\nnewline"}}',
    '{"method": "turn/completed", "params": {"threadId": "nobody"}}',
    "\udcff\udcfe not UTF-8",
]


@pytest.mark.parametrize(("dialect", "split"), [("current", 1), ("legacy", 0)], ids=["bytewise", "legacy"])
def test_pain_11_noise_on_the_childs_output(tmp_path: Path, dialect: str, split: int) -> None:
    """Lines that are no messages, before the handshake and within a turn, even byte by byte, change nothing."""
    noise = [{"garbage": line} for line in NOISE]
    spoken = [{"text": "one "}, *noise, {"text": "Grüße 🌍\u2028\n"}, *noise]
    program = scripted_codex(tmp_path, turns(spoken, startup=noise, split=split), dialect=dialect)
    with running_bridge(tmp_path, CODEX_BIN=str(program), PROXY_MODELS="m", PROXY_DIALECT=dialect) as bridge:
        for _ in range(2):
            response = bridge.post("/responses", {"model": "m", "input": "hi"})
            assert text_of(response.json()) == "one Grüße 🌍\u2028\n"
        assert bridge.stderr.read_text().count("child ready") == 1


def test_pain_11_a_piece_that_was_lost_in_noise(tmp_path: Path) -> None:
    """A delta with a raw newline cannot be read; the request that it belonged to fails, and says so."""
    where = {"threadId": FIRST_THREAD, "turnId": "turn-2"}
    delta = {"method": "item/agentMessage/delta", "params": {**where, "itemId": "msg-3", "delta": "c#d"}}
    item = {"type": "agentMessage", "id": "msg-3", "text": "abc\ndef"}
    done = {"method": "item/completed", "params": {**where, "item": item}}
    unreadable = {"garbage": json.dumps(delta, separators=(",", ":")).replace("#", "\n")}
    steps: list[dict[str, Any]] = [{"deltas": ["ab"]}, unreadable, {"deltas": ["ef"]}, {"garbage": json.dumps(done)}]
    program = scripted_codex(tmp_path, turns(steps))
    with running_bridge(tmp_path, CODEX_BIN=str(program), PROXY_MODELS="m") as bridge:
        response = bridge.post("/responses", {"model": "m", "input": "hi"})
        assert response.status_code == 502, response.text
        assert response.json()["error"]["code"] == "backend_error"
        assert "damaged piece" in response.json()["error"]["message"]
