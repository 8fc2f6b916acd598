"""Memory of a bridge whose child writes a line of 16 MiB: how much it has at most, above what it had before."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import orjson
import pytest
from harness import KEY, RunningBridge, python_program, running_bridge
from server.prompted import resident_mib

LINE = 16
"""MiB of text in the line."""

CHILD = f"""
import json, os, sys

TEXT = "x" * ({LINE} << 20)
TURN = {{"turnId": "turn", "itemId": "msg"}}

def write(method=None, **params):
    message = params if method is None else {{"method": method, "params": params}}
    data = memoryview(json.dumps(message, separators=(",", ":")).encode() + b"\\n")
    while data:
        data = data[os.write(1, data):]

def answer(thread, model):
    item = {{"type": "agentMessage", "id": "msg", "text": TEXT}}
    command = {{"type": "commandExecution", "id": "c", "aggregatedOutput": TEXT}}
    if model == "answer":
        write("item/agentMessage/delta", threadId=thread, **TURN, delta=TEXT)
        write("item/completed", threadId=thread, turnId="turn", item=item)
    else:
        if model == "output":
            write("item/commandExecution/outputDelta", threadId=thread, **TURN, delta=TEXT)
        elif model == "twin":
            write("codex/event/agent_message", conversationId=thread, msg={{"message": TEXT}})
        elif model == "command":
            write("item/completed", threadId=thread, turnId="turn", item=command)
        elif model == "foreign":
            write("item/completed", threadId="another", turnId="turn", item=item)
        elif model == "unknown":
            write("news/of/tomorrow", text=TEXT)
        write("item/agentMessage/delta", threadId=thread, **TURN, delta="hi")
    write("turn/completed", threadId=thread, turn={{"id": "turn", "items": [], "status": "completed", "error": None}})

models = {{}}
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {{}}
    if "id" not in message:
        continue
    if method == "bridge/probe":
        write(id=message["id"], error={{"code": -32600, "message": "expected `thread/start`, `turn/start`"}})
        continue
    result = {{"userAgent": "child/1"}} if method == "initialize" else {{}}
    if method == "thread/start":
        thread = f"thread-{{len(models)}}"
        models[thread] = params["model"]
        result = {{"thread": {{"id": thread}}}}
    elif method == "turn/start":
        result = {{"turn": {{"id": "turn"}}}}
    write(id=message["id"], result=result)
    if method == "turn/start":
        answer(params["threadId"], models[params["threadId"]])
"""


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[RunningBridge]:
    child = python_program(tmp_path / "codex", CHILD)
    models = "short,answer,output,twin,command,foreign,unknown"
    with running_bridge(tmp_path, CODEX_BIN=str(child), PROXY_MODELS=models, PROXY_DIALECT="current") as running:
        for stream in (False, True):
            ask(running, "short", stream=stream)
        yield running


def ask(bridge: RunningBridge, model: str, *, stream: bool = False, path: str = "/v1/responses") -> int:
    """How many bytes the answer has; a client that keeps none of them."""
    connection = HTTPConnection("127.0.0.1", bridge.port, timeout=60)
    asked = {"input": "hi"} if path == "/v1/responses" else {"messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection.request("POST", path, orjson.dumps({"model": model, "stream": stream, **asked}), headers)
    response = connection.getresponse()
    assert response.status == 200
    size = 0
    while piece := response.read(1 << 20):
        size += len(piece)
    connection.close()
    return size


def grown(bridge: RunningBridge, model: str, *, stream: bool = False, path: str = "/v1/responses") -> tuple[float, int]:
    """(how many times the line's size the bridge has grown at most, how many bytes the client got)."""
    pid = bridge.process.pid
    before = resident_mib(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what it has now
    size = ask(bridge, model, stream=stream, path=path)
    return (resident_mib(pid, "VmHWM") - before) / LINE, size


@pytest.mark.parametrize("model", ["output", "twin"])
def test_a_long_line_that_nobody_reads_is_not_kept(bridge: RunningBridge, model: str) -> None:
    """Its first bytes tell what it is. One that is only a little longer than a read would already be 0.1."""
    assert grown(bridge, model)[0] < 0.3


@pytest.mark.parametrize("model", ["command", "foreign", "unknown"])
def test_a_long_line_that_has_to_be_read(bridge: RunningBridge, model: str) -> None:
    """The line, the copy that the parser makes, and the text in it."""
    assert grown(bridge, model)[0] < 3.2


@pytest.mark.parametrize(
    ("path", "stream", "copies", "most"),
    [
        ("/v1/chat/completions", False, 1, 5),
        ("/v1/chat/completions", True, 1, 5.5),
        ("/v1/responses", False, 1, 6.5),
        # The delta, and then the whole text in four events: three of them end the item, and come together.
        ("/v1/responses", True, 5, 9.5),
    ],
)
def test_a_long_line_that_the_client_gets(
    bridge: RunningBridge, path: str, stream: bool, copies: int, most: float
) -> None:
    """The child writes the text twice, as Codex does: as a delta, and when the item is complete."""
    times, size = grown(bridge, "answer", stream=stream, path=path)
    assert size == pytest.approx(copies * LINE << 20, rel=0.01)
    assert times < most
