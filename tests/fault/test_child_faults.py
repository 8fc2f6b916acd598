"""What a child can do to the bridge: the rows of docs/promises.md that are proven nowhere else, by their numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness import running_bridge, scripted_codex, turns
from server.inprocess import Program, finish, python, supervised, turn, until
from server.prompted import is_alive, resident_mib

from bridge.appserver.turn import Limits

Json = dict[str, Any]

THREAD = {"threadId": "00000000-0000-4000-8000-000000000001", "turnId": "turn-2"}
"""The stand-in counts its threads and turns."""
ASKED = {"model": "m", "input": "hi"}

_BABBLING = """
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "thread/start":
        while True:
            sys.stdout.write("Segmentation fault? No, just words.\\n")
    if "id" in message:
        known = message["method"] in ("initialize", "model/list", "account/read")
        error = {"code": -32600, "message": "unknown variant, expected one of `thread/start`, `turn/start`"}
        reply = {"result": {"userAgent": "babbler/1", "data": []}} if known else {"error": error}
        print(json.dumps({"id": message["id"], **reply}), flush=True)
"""


async def test_fault_07_a_child_that_says_nothing_but_garbage_is_replaced() -> None:
    """Noise without end is no answer: calls run into their deadline, and after three of them another child is there."""
    async with supervised(python(_BABBLING), limits=Limits(rpc=4)) as supervisor:
        child = await supervisor.acquire()
        for waiting in [child.start(turn(text="hi")) for _ in range(3)]:
            result = await finish(waiting)
            assert result.end is not None
            assert result.end.error is not None
            assert result.end.error.code == "backend_timeout"
        await until(lambda: supervisor.restarts == 1, "a restart")
        assert not is_alive(child.process.pid)


def message(method: str, **params: Any) -> str:
    """A notification in the stand-in's first thread."""
    return json.dumps({"method": method, "params": {**THREAD, **params}}, separators=(",", ":"))


def test_fault_08_a_child_that_ends_its_lines_with_cr(tmp_path: Path) -> None:
    """As programs of Windows do: every message is understood, and nothing of it is in the text."""
    program = scripted_codex(tmp_path, turns([{"deltas": ["one\r\n", "two"]}]))
    wrapped = tmp_path / "with-cr"
    wrapped.write_text(f"#!/bin/sh\n{program} \"$@\" | sed -u 's/$/\\r/'\n")
    wrapped.chmod(0o755)
    with running_bridge(tmp_path, CODEX_BIN=str(wrapped), PROXY_MODELS="m") as bridge:
        answer = bridge.post("/responses", ASKED)
        assert answer.status_code == 200, answer.text
        assert answer.json()["output"][0]["content"][0]["text"] == "one\r\ntwo"
        with bridge.client() as client:
            told = client.get(f"{bridge.root}/metrics").text
        garbage = re.findall(r"^turnbridge_child_garbage_lines_total\{.*\} (\S+)$", told, re.M)
        assert garbage
        assert set(map(float, garbage)) == {0}


@pytest.mark.parametrize("kept", [None, -1], ids=["whole", "torn"])
async def test_fault_09_the_last_line_of_a_child_without_its_newline(tmp_path: Path, kept: int | None) -> None:
    """It counts when it is whole: the turn that it ends has ended well. Half of it is none: the turn has failed."""
    item = {"type": "agentMessage", "id": "msg-3", "text": "all of it"}
    last = message("turn/completed", turn={"id": "turn-2", "status": "completed", "items": []})[:kept]
    steps = [{"garbage": message("item/completed", item=item)}, {"unended": last}, {"exit": 0}]
    program = Program(scripted_codex(tmp_path, turns(steps), dialect="current"), "app-server")
    async with supervised(program) as supervisor:
        result = await finish((await supervisor.acquire()).start(turn(text="hi")))
        assert result.end is not None
        assert result.text == "all of it"
        assert (result.end.outcome, result.end.error and result.end.error.code) == (
            ("completed", None) if kept is None else ("failed", "backend_crashed")
        )


def test_fault_12_a_line_that_does_not_end(tmp_path: Path) -> None:
    """100 MB of it are thrown away as they come, and the memory stays as it was; once it has ended, the child is
    understood again. (What it belonged to fails: test_pain_10_a_line_beyond_all_measure.)"""
    flood = {"unended": "endless ", "times": 100_000_000 // 8}
    script = turns([{"text": "before "}, flood, {"garbage": ""}, {"text": "and after"}])
    settings = {"CODEX_BIN": str(scripted_codex(tmp_path, script)), "PROXY_MODELS": "m"}
    with running_bridge(tmp_path, **settings) as bridge:
        answer = bridge.post("/responses", ASKED)
        assert answer.json()["output"][0]["content"][0]["text"] == "before and after"
        assert resident_mib(bridge.process.pid, "VmHWM") < 250
