"""What `turnbridge serve` loads: what the first request needs, and nothing that only some need."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest
from harness import KEY, ROOT

LATE = {
    "the last resort of a person": {"rich", "pdb", "unittest"},
    "other event loops": {"asyncio", "anyio", "concurrent.futures", "multiprocessing"},
    "WebSockets": {"wsproto", "bridge.http.websocket"},
    "upstreams over HTTP": {
        "httpx2",
        "httpcore2",
        "http.client",
        "urllib.request",
        "bridge.upstream.codex",
        "bridge.routing.build",
        "bridge.upstream.client",
        "bridge.protocols.messages.build",
        "bridge.protocols.messages.decoder",
        "bridge.protocols.messages.models",
    },
    "Anthropic's clients": {"bridge.protocols.messages.request", "bridge.protocols.messages.encoder"},
    "Google's clients": {
        "bridge.protocols.gemini.request",
        "bridge.protocols.gemini.encoder",
        "bridge.protocols.gemini.decoder",
    },
    "tools": {
        "jsonschema_rs",
        "bridge.tools.call_stream",
        "bridge.tools.examples",
        "bridge.tools.parser",
        "bridge.tools.stage",
    },
    "requests of the child": {"jsonrpcserver", "jsonschema"},
    "CAP": {
        "bridge.protocols.cap.decoder",
        "bridge.protocols.cap.models",
        "bridge.protocols.cap.stream",
        "bridge.cap.endpoint",
    },
    "the event log and replay": {
        "bridge.log.event_log",
        "bridge.playback.recorded",
        "bridge.log.read",
        "bridge.playback.backend",
        "bridge.playback.player",
    },
    "the live page": {"bridge.page.records", "bridge.page.site", "bridge.page.turns", "bridge.log.export"},
    "metrics and traces": {
        "prometheus_client",
        "opentelemetry",
        "bridge.app.prometheus",
        "bridge.telemetry.tracing",
    },
    "the description of the API": {"bridge.protocols.openapi"},
    "the configuration file": {"tomllib"},
    "other commands": {
        "yaml",
        "bridge.lab",
        "bridge.cli.exec",
        "bridge.lab.commands",
        "bridge.log.commands",
        "bridge.cap.commands",
    },
    "chat bodies": {"bridge.protocols.chat.request"},
}
"""Modules, and all that is in them, by what loads them."""

REQUESTS = {"bridge.protocols.responses.request"}
"""What the first request of its kind loads."""


def loaded(notes: Path) -> set[str]:
    """The modules in what Python tells of its imports, each with the packages that it is in."""
    names = re.findall(r"^import time:.*\| +(\S+)$", notes.read_text(), re.M)
    return {name.rsplit(".", count)[0] for name in names for count in range(name.count(".") + 1)}


def ask(port: int) -> None:
    """One short turn."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    connection.request("POST", "/v1/responses", json.dumps({"model": "mock-echo", "input": "hi"}), headers)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.read()
    connection.close()


def test_serve_loads_late_what_few_need(tmp_path: Path) -> None:
    """Start, memory and the first answer depend on it: one import too many is easily made, and seldom noticed."""
    notes = tmp_path / "imports"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PROXY_API_KEY": KEY, "PORT": "0"}
    command = [sys.executable, "-X", "importtime", "-m", "bridge", "serve", "--mock-only"]
    with (
        notes.open("w") as stderr,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, env=env, cwd=ROOT, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            at_start = loaded(notes)
            ask(int(line.rpartition(":")[2].partition("/")[0]))
            after_a_turn = loaded(notes)
        finally:
            process.kill()
    assert {"trio", "bridge.server.run"} <= at_start
    late = set().union(*LATE.values())
    assert not at_start & (late | REQUESTS)
    assert not after_a_turn & late
    assert after_a_turn >= REQUESTS


LOG_COMMANDS = [
    ["ls"], ["show"], ["stats"], ["diff"], ["tail"], ["export", "--html"], ["export", "--har"], ["export", "--jsonl"],
    ["redact", "--texts", "--output"],
]  # fmt: skip


@pytest.mark.parametrize("command", LOG_COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_log_commands_start_without_the_model_of_the_settings(command: list[str], tmp_path: Path) -> None:
    """They read no settings, and pydantic takes a tenth of a second to build it."""
    script = (
        "import sys; from bridge.cli import build_app\n"
        "build_app(completion=False)(sys.argv[1:], standalone_mode=False)\n"
        "print([name for name in sys.modules if name.startswith('bridge.settings')], file=sys.stderr)"
    )
    log, copy = str(ROOT / "fixtures/logs/text-history.ndjson"), str(tmp_path / "copy")
    operands = {"diff": [log, log], "export": [command[-1], copy, log], "redact": [*command[1:], copy, log]}
    arguments = ["log", command[0], *operands.get(command[0], [log])]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=env, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("[]\n"), done.stderr
