"""What the flags become: the request, as --log-requests shows it, and the logs themselves."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.exec.command import Command, Word

SCHEMA = {"type": "object", "properties": {"zürich": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}, "x-odd": [None, 1e3]}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
ITEMS = [
    {"role": "system", "content": "be brief"},
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "what?"}, IMAGE],
        "added": [1, None],
    },
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA", "status": None},
    {"type": "something_new", "value": {"deep": [{}]}},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f", "arguments": "{ }"},
    {"type": "function_call_output", "call_id": "call_1", "output": [{"type": "input_text", "text": "ok"}, IMAGE]},
]
"""A conversation with what the bridge knows and what it does not."""


def sent(warm: Command, *arguments: Word, stdin: bytes = b"") -> dict[str, Any]:
    """The request of a run."""
    log = warm.directory / "sent"
    ran = warm.run("--mock", "--mock-mode", "text", "--log-requests", log, *arguments, stdin=stdin)
    assert (ran.code, ran.stdout, ran.stderr) == (0, b"mock response text\n", "")
    (line,) = log.read_text().splitlines()
    request: dict[str, Any] = json.loads(line)
    return request


def said(request: dict[str, Any]) -> str:
    """The one user message of a request."""
    (message,) = request["input"]
    assert (message["type"], message["role"]) == ("message", "user")
    (part,) = message["content"]
    return str(part["text"])


# What is asked


@pytest.mark.parametrize(
    ("arguments", "stdin", "text"),
    [
        (("--prompt", "hello"), b"", "hello"),
        (("--prompt", "  two\nlines \t"), b"", "  two\nlines \t"),
        (("--prompt=-dash",), b"", "-dash"),
        (("--prompt=--json",), b"", "--json"),
        (("--prompt", "-"), "from stdin, é😀\n".encode(), "from stdin, é😀\n"),
        (("--prompt", "--"), b"", "--"),
        (("--prompt", "one", "--prompt", "two"), b"", "two"),
        (("--prompt", "hello"), b"not read", "hello"),
    ],
)
def test_the_prompt_is_sent_as_it_is(warm: Command, arguments: tuple[Word, ...], stdin: bytes, text: str) -> None:
    """From the command line or from stdin; stdin is read only where a dash asks for it."""
    assert said(sent(warm, *arguments, stdin=stdin)) == text


def test_a_large_prompt_on_stdin(warm: Command) -> None:
    """No limit that a person meets."""
    text = "0123456789abcdef" * 300_000
    assert said(sent(warm, "--prompt", "-", stdin=text.encode())) == text


def test_a_prompt_on_stdin_that_is_not_utf8(warm: Command) -> None:
    """It is not guessed at."""
    assert "UTF-8" in warm.run("--mock", "--prompt", "-", "--json", stdin=b"\xff").failed("usage_error", exit_code=2)


def test_input_items_are_sent_exactly(warm: Command) -> None:
    """Images, reasoning, unknown items and members; --prompt is then not used. From a file, or from stdin."""
    text = json.dumps(ITEMS).encode()
    path = warm.directory / "items.json"
    path.write_bytes(text)
    assert sent(warm, "--input-json", path)["input"] == ITEMS
    assert sent(warm, "--prompt", "hello", "--input-json", path)["input"] == ITEMS
    assert sent(warm, "--input-json", "-", stdin=b"\n " + text)["input"] == ITEMS


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "function_call_output", "call_id": "call_1", "output": "late"}],
        [{"type": "custom_tool_call_output", "call_id": "call_1", "output": "late"}],
        [
            {"type": "function_call", "call_id": "call_2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "late"},
        ],
    ],
)
def test_an_output_without_its_call_is_refused_before_it_is_sent(warm: Command, items: list[Any]) -> None:
    """Nothing is sent; the request, not the command line, is wrong."""
    log = warm.directory / "refused"
    ran = warm.run("--mock", "--json", "--input-json", "-", "--log-requests", log, stdin=json.dumps(items).encode())
    assert "call_1" in ran.failed("missing_function_call")
    assert log.read_text() == ""


# What goes with it


@pytest.mark.parametrize(
    ("arguments", "instructions"),
    [
        ((), ""),
        (("--system", "be brief"), "be brief"),
        (("--instructions", "be brief"), "be brief"),
        (("--instructions", "be brief", "--system", "be brief"), "be brief"),
        (("--system", "be brief", "--append-system-prompt", "and kind"), "be brief\n\nand kind"),
        (("--append-system-prompt", "and kind"), "and kind"),
        (("--system", "", "--append-system-prompt", "and kind"), "and kind"),
        (("--system", " é\n", "--append-system-prompt", " "), " é\n\n\n "),
    ],
)
def test_instructions(warm: Command, arguments: tuple[Word, ...], instructions: str) -> None:
    """--system and --instructions are one setting; what is appended follows after a blank line."""
    assert sent(warm, "--prompt", "hi", *arguments)["instructions"] == instructions


def test_tools_are_sent_as_they_are(warm: Command) -> None:
    """In their order, not strict, their schemas untouched; names may have what the API allows."""
    path = warm.directory / "schema with = and :json=.json"
    path.write_text(json.dumps(SCHEMA))
    tools = ("--tool", f"files.read:json={path}", "--tool", "a-b:c:inline=" + json.dumps(SCHEMA), "--web-search")
    assert sent(warm, "--prompt", "hi", *tools)["tools"] == [
        {"type": "function", "name": "files.read", "strict": False, "parameters": SCHEMA},
        {"type": "function", "name": "a-b:c", "strict": False, "parameters": SCHEMA},
        {"type": "web_search", "external_web_access": True},
    ]


def test_the_other_settings(warm: Command) -> None:
    """Session, model, effort and output schema; without them the defaults of the protocol."""
    schema = warm.directory / "output.json"
    schema.write_text(json.dumps(SCHEMA))
    plain = sent(warm, "--prompt", "hi")
    assert (plain["model"], plain["prompt_cache_key"], plain["tools"]) == ("gpt-5.2-codex", "session_mock", [])
    assert (plain["store"], plain["stream"], plain["tool_choice"]) == (False, True, "auto")
    assert "previous_response_id" not in plain
    settings = ("--model", "gpt-9", "--session-id", "s-1", "--effort", "xhigh", "--output-schema", schema)
    request = sent(warm, "--prompt", "hi", *settings)
    assert (request["model"], request["prompt_cache_key"]) == ("gpt-9", "s-1")
    assert request["reasoning"]["effort"] == "xhigh"
    assert request["text"]["format"] == {"type": "json_schema", "name": "output", "strict": True, "schema": SCHEMA}


def test_a_key_is_nowhere_but_in_its_header(warm: Command) -> None:
    """Not in a log, not in the echo."""
    log = warm.directory / "keyed"
    ran = warm.run(
        "--mock", "--prompt", "hi", "--provider-key", "sk-canary", "--log-requests", log, "--trace", "--json"
    )
    assert "canary" not in log.read_text() + ran.stdout.decode() + ran.stderr


# Files of all kinds


def test_a_file_whose_name_is_not_utf8(warm: Command) -> None:
    """A path is bytes."""
    directory = os.fsencode(warm.directory)
    items, schema, log = (directory + b"/caf\xe9-" + name for name in (b"items", b"schema", b"log"))
    Path(os.fsdecode(items)).write_text('[{"role":"user","content":"hi"}]')
    Path(os.fsdecode(schema)).write_text("{}")
    ran = warm.run("--mock", "--json", "--input-json", items, "--output-schema", schema, "--log-responses", log)
    ran.succeeded()
    assert Path(os.fsdecode(log)).read_bytes() == ran.stdout


def test_a_tool_whose_file_name_is_not_utf8(warm: Command) -> None:
    """The path behind `json=` is a path, too."""
    path = os.fsencode(warm.directory) + b"/caf\xe9-tool"
    Path(os.fsdecode(path)).write_text("{}")
    warm.run("--mock", "--prompt", "hi", "--json", "--tool", b"f:json=" + path).succeeded()


def test_a_file_that_begins_with_a_byte_order_mark(warm: Command) -> None:
    """As some editors write it."""
    schema, items, log = (warm.directory / name for name in ("bom-schema.json", "bom-items.json", "bom-log"))
    schema.write_text('{"type":"object"}', encoding="utf-8-sig")
    items.write_text('[{"role":"user","content":"hi"}]', encoding="utf-8-sig")
    given = ("--tool", f"f:json={schema}", "--output-schema", schema, "--input-json", items)
    assert warm.run("--mock", *given, "--log-requests", log).stdout == b"hi\n"
    assert json.loads(log.read_text())["tools"][0]["parameters"] == {"type": "object"}


def test_a_file_that_can_be_read_once(warm: Command) -> None:
    """As `<(…)` of a shell makes it: a pipe."""
    pipe = warm.directory / "pipe"
    os.mkfifo(pipe)
    inputs: list[tuple[tuple[Word, ...], str, Callable[[Any], Any]]] = [
        (("--prompt", "hi", "--tool", f"f:json={pipe}"), '{"x":1}', lambda sent: sent["tools"][0]["parameters"]),
        (("--input-json", pipe), '[{"x":1}]', lambda sent: sent["input"][0]),
    ]
    for flag, content, member in inputs:
        writer = threading.Thread(target=pipe.write_text, args=(content,))
        writer.start()
        ran = warm.run("--mock", "--mock-mode", "echo", "--json", *flag)
        writer.join()
        assert member(json.loads(ran.text)) == {"x": 1}


# Logs


def test_the_log_of_responses_is_appended(warm: Command) -> None:
    """The lines of --json, also in text mode, also for a failure; those of earlier runs stay."""
    log = warm.directory / "responses"
    log.write_text("earlier\n")
    runs = [
        warm.run("--mock", "--mock-mode", mode, "--prompt", "hi", "--log-responses", log, *form)
        for mode, form in (("text", ("--json",)), ("tool-call", ("--json", "--auto-tools", "--max-steps", "1")))
    ]
    written = b"earlier\n" + runs[0].stdout + runs[1].stdout
    assert log.read_bytes() == written
    assert warm.run("--mock", "--mock-mode", "text", "--prompt", "hi", "--log-responses", log).code == 0
    assert log.read_bytes() == written + runs[0].stdout


def test_the_log_of_requests_is_overwritten(warm: Command) -> None:
    """It holds this run's; both logs are private when they are new."""
    log, other = warm.directory / "anew", warm.directory / "new"
    log.write_text("earlier\n" * 100)
    echo = ("--mock", "--mock-mode", "echo", "--prompt", "hi")
    request = warm.run(*echo, "--log-requests", log, "--log-responses", other).stdout
    assert log.read_bytes() == request
    assert other.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written(warm: Command) -> None:
    """A full disk is a failure, and told as one."""
    ran = warm.run("--mock", "--prompt", "hi", "--json", "--log-requests", "/dev/full")
    assert "--log-requests" in ran.failed("output_failed")


def test_a_log_of_responses_that_cannot_be_written(warm: Command) -> None:
    """The same; stdout still ends as the protocol wants it."""
    ran = warm.run("--mock", "--prompt", "hi", "--json", "--log-responses", "/dev/full")
    assert "--log-responses" in ran.failed("output_failed")
