"""The commands of this directory as a person types them, on the log of a real bridge."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from harness import RunningBridge
from warm import run_warm

QUESTION = "what does the <b>fox</b> say?"
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}


def typed(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    """`turnbridge log …`, which must exit with this code, and never with a traceback."""
    done = run_warm("log", *arguments, env=dict(os.environ))
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return done


def ask_everything(bridge: RunningBridge) -> None:
    """Requests of every kind: both endpoints, streamed and not, a call, an error."""
    bridge.events("/responses", {"model": "mock-echo", "input": QUESTION})
    bridge.post("/chat/completions", {"model": "mock-text", "messages": [{"role": "user", "content": "hello"}]})
    called: dict[str, Any] = {"model": "mock-tool-call", "input": "weather in Bern?", "tools": [WEATHER]}
    assert bridge.events("/responses", called)[-1]["response"]["output"][0]["name"] == "weather"
    assert bridge.post("/responses", {"model": "nobody", "input": "?"}).status_code == 400
    bridge.post("/responses", {"model": "mock-echo"})
