"""The default backend: a Codex app-server that is started for the run. Here it is the stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.exec.command import Command, steps
from harness import scripted_codex, turns
from protocols.wire.lines import calls_of, items_of, text_of, usage_of
from server.prompted import MODEL, prompted_codex

LOOK = ("--tool", 'look:inline={"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}')
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"x\\"}"}</tool_call>'


def test_a_text(codex: Command) -> None:
    """Its pieces, and the usage that Codex counted; text mode prints it with one newline."""
    prompt = steps({"deltas": ["Hello ", "wörld"]}, {"usage": {"input": 7, "output": 3, "cached": 2}})
    events = codex.run(*prompt, "--json").succeeded()
    assert [event["delta"] for event in events if "delta" in event] == ["Hello ", "wörld"]
    assert usage_of(events) == (7, 3, 2)
    assert events[0]["response"]["model"] == MODEL
    ran = codex.run(*prompt)
    assert (ran.code, ran.stdout.decode(), ran.stderr) == (0, "Hello wörld\n", "")


@pytest.mark.parametrize("said", ["two\n\n", "no\r\nend "])
def test_text_mode_ends_with_one_newline(codex: Command, said: str) -> None:
    """One is added where there is none; nothing else changes."""
    assert codex.run(*steps({"text": said})).stdout.decode() == (said if said.endswith("\n") else f"{said}\n")


def test_thoughts_and_calls(codex: Command) -> None:
    """Reasoning, text and the calls in it are items, one after the other."""
    prompt = steps({"reasoning": ["why", "then"], "raw_reasoning": ["raw"]}, {"text": f"I look. {CALL}{CALL}"})
    events = codex.run(*prompt, *LOOK, "--json").succeeded()
    thoughts, message, *calls = items_of(events)
    assert [part["text"] for part in thoughts["summary"]] == ["why", "then"]
    assert [part["text"] for part in thoughts["content"]] == ["raw"]
    assert message["content"][0]["text"] == "I look. "
    assert calls_of(events) == [("look", '{"q":"x"}')] * 2
    assert len({call[name] for call in calls for name in ("id", "call_id")}) == 4


def test_calls_in_text_mode(codex: Command) -> None:
    """The text alone on stdout; one note names each function once."""
    ran = codex.run(*steps({"text": f"I look. {CALL}{CALL}"}), *LOOK)
    assert (ran.code, ran.stdout) == (0, b"I look. \n")
    (note,) = ran.stderr.splitlines()
    assert note.startswith("note: the model calls look; ")


@pytest.mark.parametrize(
    ("wanted", "text", "code"),
    [
        (
            [{"text": "part"}, {"error": {"message": "slow\ndown", "info": "rateLimitExceeded"}}],
            "part",
            "rate_limit_exceeded",
        ),
        ([{"text": "part"}, {"exit": 3}], "part", "backend_crashed"),
        ([{"text": "part"}, {"retry": "broke"}, {"text": "again"}], "part", "stream_interrupted"),
        ([{"text": "part"}, {"interrupted": True}], "part", "interrupted"),
        ([], "", "empty_response"),
    ],
    ids=["failed", "died", "restarted", "interrupted", "empty"],
)
def test_a_turn_that_fails(codex: Command, wanted: list[dict[str, Any]], text: str, code: str) -> None:
    """What was said is shown, then the error: exit code 1, never `completed`."""
    ran = codex.run(*steps(*wanted), "--json")
    ran.failed(code)
    assert text_of(ran.events) == text


def test_a_turn_that_fails_in_text_mode(codex: Command) -> None:
    """What was said, its newline, and one line on stderr."""
    ran = codex.run(*steps({"text": "part"}, {"error": {"message": "slow\ndown", "info": None}}))
    assert (ran.code, ran.stdout, ran.stderr) == (1, b"part\n", "error: slow down\n")


def test_an_error_without_a_message(codex: Command) -> None:
    """A line of the protocol has one."""
    codex.run(*steps({"error": {"message": "", "info": None}}), "--json").failed("upstream_error")


@pytest.mark.parametrize(
    ("program", "seconds", "codes"),
    [
        ("echo no good >&2; exit 3", "30", ("handshake_failed",)),
        ("exec cat", "30", ("handshake_failed",)),
        # The run and the handshake wait equally long: either may be the first to say so.
        ("exec sleep 100", "0.5", ("handshake_pending", "handshake_failed")),
    ],
    ids=["dies", "repeats", "never_answers"],
)
def test_a_codex_that_is_another_program(codex: Command, program: str, seconds: str, codes: tuple[str, ...]) -> None:
    """It does not become ready; the run says so, and ends by itself."""
    path = codex.directory / "no-codex"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    ran = codex.run("--prompt", "hi", "--json", CODEX_BIN=str(path), PROXY_RPC_TIMEOUT=seconds)
    assert ran.events[-1]["code"] in codes
    ran.failed(str(ran.events[-1]["code"]))
    assert len(ran.events) == 1


def test_a_codex_that_refuses(codex: Command) -> None:
    """It has begun, so there is an answer, which fails."""
    script = turns([], refuse={"turn/start": {"code": -32600, "message": "not today"}})
    program = scripted_codex(codex.directory, script, "refusing")
    ran = codex.run("--prompt", "hi", "--json", CODEX_BIN=str(program))
    assert "not today" in ran.failed("backend_error")


def test_no_codex_at_all(codex: Command) -> None:
    """It says what to install."""
    codex.run("--prompt", "hi", "--json", CODEX_BIN="", PATH="/nowhere").failed("codex_not_found")


# Models


def test_a_model_that_does_not_exist(codex: Command) -> None:
    """The message names some that do; a name that begins like Codex's own is Codex's to judge."""
    message = codex.run(*steps({"text": "no"}), "--json", "--model", "none").failed("model_not_found")
    assert "'none'" in message
    assert MODEL in message
    assert "must begin with or match one of gpt-, " in message
    for model in (("--model", "gpt-none"), ("--model", "none", "--backend", "app-server")):
        assert codex.run(*steps({"text": "yes"}), *model).code == 0


def test_the_model_that_codex_home_names(command: Command, tmp_path: Path) -> None:
    """Without --model it is asked, and told; nothing is written there."""
    home, log = tmp_path / "codex-home", tmp_path / "log"
    home.mkdir()
    (home / "config.toml").write_text('model = "my-house-model"\n')
    codex: dict[str, Any] = {"CODEX_BIN": str(prompted_codex(tmp_path)), "CODEX_HOME": str(home)}
    ran = command.run(*steps({"text": "hi"}), "--json", "--log-requests", log, **codex)
    assert ran.succeeded()[0]["response"]["model"] == "my-house-model"
    assert json.loads(log.read_text().splitlines()[0])["params"]["model"] == "my-house-model"
    assert [path.name for path in home.iterdir()] == ["config.toml"]


@pytest.mark.parametrize("model", ["llama-3", "claude-opus"])
def test_a_provider_of_codex_home_takes_any_model(command: Command, tmp_path: Path, model: str) -> None:
    """As with `serve`, also one that begins like another provider's, where that has no key."""
    home, log = tmp_path / "codex-home", tmp_path / "log"
    home.mkdir()
    (home / "config.toml").write_text('model_provider = "house"\n[model_providers.house]\nname = "House"\n')
    codex: dict[str, Any] = {"CODEX_BIN": str(prompted_codex(tmp_path)), "CODEX_HOME": str(home)}
    ran = command.run(*steps({"text": "hi"}), "--json", "--model", model, "--log-requests", log, **codex)
    assert ran.succeeded()[0]["response"]["model"] == model
    assert json.loads(log.read_text().splitlines()[0])["params"]["model"] == model


def test_an_effort_in_the_name_of_a_model(codex: Command, tmp_path: Path) -> None:
    """It is taken off for Codex, and told back as it was typed."""
    log = tmp_path / "log"
    ran = codex.run(*steps({"text": "hi"}), "--json", "--log-requests", log, "--model", f"{MODEL}-xhigh")
    assert ran.succeeded()[0]["response"]["model"] == f"{MODEL}-xhigh"
    start, *_, turn = [json.loads(line)["params"] for line in log.read_text().splitlines()]
    assert (start["model"], turn["effort"]) == (MODEL, "xhigh")


# Logs and trace


def test_logs_and_trace(codex: Command) -> None:
    """What was really sent, what stdout said, and with --json on stderr what Codex said, line by line."""
    requests, responses = codex.directory / "requests", codex.directory / "responses"
    prompt = steps({"deltas": ["Hello ", "world"]})
    logs = ("--log-requests", requests, "--log-responses", responses)
    ran = codex.run(*prompt, "--json", "--trace", *logs, "--system", "be brief", "--session-id", "s-1")
    ran.succeeded(silent=False)
    assert responses.read_bytes() == ran.stdout
    sent = [json.loads(line) for line in requests.read_text().splitlines()]
    assert [call["method"] for call in sent] == ["thread/start", "thread/inject_items", "turn/start"]
    assert sent[0]["params"]["developerInstructions"] == "be brief"
    assert sent[1]["params"]["items"][-1]["content"][0]["text"] == prompt[1]
    told = ran.stderr.splitlines()
    (warning,) = [line for line in told if not line.startswith("{")]
    assert warning.startswith("warning: left out: --session-id")
    traced = [line for line in told if line != warning]
    raw = [json.loads(line) for line in traced]
    assert [line["params"]["delta"] for line in raw if line.get("method") == "item/agentMessage/delta"] == [
        "Hello ",
        "world",
    ]
    assert raw[-1]["method"] == "turn/completed"


def test_trace_in_place_of_the_text(codex: Command) -> None:
    """Without --json, on stdout; an error still goes to stderr."""
    ran = codex.run(*steps({"text": "Hello"}, {"error": {"message": "boom", "info": None}}), "--trace")
    assert (ran.code, ran.stderr) == (1, "error: boom\n")
    methods = [json.loads(line).get("method") for line in ran.stdout.splitlines()]
    assert "item/agentMessage/delta" in methods
    assert methods[-1] == "turn/completed"


# Input


def test_a_conversation(codex: Command) -> None:
    """--input-json is read as the API reads it: each item goes to the model."""
    log = codex.directory / "conversation"
    items = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "found"},
        {"role": "user", "content": json.dumps([{"text": "so"}])},
    ]
    arguments = ("--input-json", "-", *LOOK, "--json", "--log-requests", log)
    assert text_of(codex.run(*arguments, stdin=json.dumps(items).encode()).succeeded()) == "so"
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    (injected,) = [call["params"]["items"] for call in sent if call["method"] == "thread/inject_items"]
    assert [item["type"] for item in injected][-4:] == ["message", "function_call", "function_call_output", "message"]


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([{"type": "function_call_output", "call_id": "call_1", "output": "late"}], "missing_function_call"),
        ([{"type": "message", "role": "user", "content": [{"type": "input_file"}]}], "unsupported_content"),
        ([{"type": "message", "role": "nobody", "content": "hi"}], "invalid_request"),
    ],
)
def test_a_conversation_that_cannot_be_taken(codex: Command, items: list[Any], code: str) -> None:
    """Codex is not asked."""
    ran = codex.run("--input-json", "-", "--json", stdin=json.dumps(items).encode(), CODEX_BIN="/bin/false")
    ran.failed(code)
    assert len(ran.events) == 1


def test_a_tool_loop(codex: Command) -> None:
    """Two turns of one child; the second is told the output."""
    script = turns(
        [{"text": CALL}, {"usage": {"input": 5, "output": 2}}], [{"text": "done"}, {"usage": {"input": 9, "output": 1}}]
    )
    log = codex.directory / "looped"
    loop = ("--auto-tools", "--tool-output", "look=$args", "--log-requests", log)
    program = scripted_codex(codex.directory, script, "looping")
    events = codex.run("--prompt", "hi", "--json", *LOOK, *loop, CODEX_BIN=str(program)).succeeded()
    assert [item["type"] for item in items_of(events)] == ["function_call", "message"]
    assert text_of(events) == "done"
    assert usage_of(events) == (14, 3, 0)
    assert '\\"q\\":\\"x\\"' in log.read_text().splitlines()[-1] + log.read_text().splitlines()[-2]
