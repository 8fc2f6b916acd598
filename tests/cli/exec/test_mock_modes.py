"""The mock: the whole command without a model, a login or a network, and the same bytes every time."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from cli.exec.command import Command, Ran, Word
from harness import ROOT
from protocols.wire.lines import calls_of, items_of, text_of, usage_of

PAGE = (ROOT / "docs/exec-wire.md").read_text()
SHOWN = re.findall(r"^```sh\nturnbridge exec (--mock.*?)\n```\n\n```jsonl\n(.*?)^```$", PAGE, re.M | re.S)
"""Command lines of the page, and what it says that they print."""

SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 3, "maxLength": 12},
        "limit": {"type": "integer", "minimum": 5, "multipleOf": 7},
        "sort": {"enum": ["new", "old"]},
        "tags": {"type": "array", "items": {"type": "string", "format": "email"}, "minItems": 2},
    },
    "required": ["query", "limit", "sort", "tags"],
    "additionalProperties": False,
}
TOOLS: tuple[Word, ...] = ("--tool", f"search:inline={json.dumps(SEARCH)}", "--tool", 'close:inline={"type":"object"}')


def requests_of(log: Path) -> list[dict[str, Any]]:
    """What --log-requests wrote."""
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]


@pytest.mark.parametrize(("typed", "printed"), SHOWN, ids=[typed.split()[2] for typed, _ in SHOWN])
def test_each_mode_prints_what_the_page_says(command: Command, warm: Command, typed: str, printed: str) -> None:
    """Byte for byte, in every run: nothing in it is random, and nothing depends on the time or the machine."""
    for ran in (command.run(*shlex.split(typed)), warm.run(*shlex.split(typed))):
        assert ran.stdout.decode() == printed
        ran.succeeded()
    assert list(command.directory.iterdir()) == []


def test_the_page_shows_all_modes() -> None:
    """So that the test above has seen them."""
    assert {typed.split()[2] for typed, _ in SHOWN} == {"text", "echo", "tool-call", "tool-loop"}


@pytest.mark.parametrize(
    ("mode", "stdout", "stderr"),
    [
        ("text", "mock response text\n", ""),
        ("tool-call", "", "note: the model calls mock_tool; "),
        ("tool-loop", "mock tool result: ok\n", "note: the model calls mock_tool; "),
    ],
)
def test_text_mode_is_for_people(warm: Command, mode: str, stdout: str, stderr: str) -> None:
    """The text and one newline on stdout, nothing else; a call is a note on stderr."""
    ran = warm.run("--mock", "--mock-mode", mode, "--prompt", "hi")
    assert (ran.code, ran.stdout.decode()) == (0, stdout)
    assert ran.stderr.startswith(stderr)
    assert len(ran.stderr.splitlines()) == bool(stderr)


# echo


PROMPTS = ["hi", "😀" * 900, "a" + "é👩‍👩‍👧" * 300, 'quo"te \\ \n\x1b \u2028', "word " * 4000]


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_echo_is_the_whole_request_as_it_is_logged(warm: Command, prompt: str) -> None:
    """However long it is, in deltas of 800 characters, never cut within one; --json and text mode say the same."""
    log = warm.directory / "requests"
    echo = ("--mock", "--mock-mode", "echo", "--prompt", prompt)
    events = warm.run(*echo, "--json", "--log-requests", log).succeeded()
    logged = log.read_text()
    assert logged.endswith("\n")
    assert json.loads(logged)["input"][0]["content"][0]["text"] == prompt
    echoed = text_of(events)
    assert echoed == logged[:-1]
    assert warm.run(*echo).stdout.decode() == f"{echoed}\n"
    sizes = [len(event["delta"]) for event in events if event["type"] == "response.output_text.delta"]
    assert sizes[:-1] == [800] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= 800


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
def test_the_mock_alone_repeats_the_prompt(warm: Command, prompt: str) -> None:
    """As the model mock-echo does."""
    for words in (
        ("--mock", prompt),
        ("--mock", "-p", prompt),
        ("-m", "mock-echo", prompt),
        ("--backend", "mock", prompt),
    ):
        ran = warm.run(*words)
        assert (ran.code, ran.stdout.decode(), ran.stderr) == (0, f"{prompt}\n", "")


# Tools


def test_the_first_tool_is_called_with_an_example_of_its_schema(warm: Command) -> None:
    """The arguments are valid, whatever the schema wants."""
    events = warm.run("--mock", "--mock-mode", "tool-call", "--prompt", "hi", "--json", *TOOLS).succeeded()
    ((name, arguments),) = calls_of(events)
    assert name == "search"
    jsonschema_rs.validate(SEARCH, json.loads(arguments))
    assert [(item["id"], item["call_id"]) for item in items_of(events)] == [("fc_mock", "call_mock")]


@pytest.mark.parametrize(
    ("choice", "name"),
    [("auto", "search"), ("required", "search"), ("function:search", "search"), ("function:close", "close")],
)
def test_a_forced_tool_is_called(warm: Command, choice: str, name: str) -> None:
    """--tool-choice function:NAME becomes the object form of the API."""
    log = warm.directory / "forced"
    mode = ("--mock", "--mock-mode", "tool-call", "--prompt", "hi", "--json", "--log-requests", log)
    events = warm.run(*mode, *TOOLS, "--tool-choice", choice).succeeded()
    assert [called for called, _ in calls_of(events)] == [name]
    kind, _, wanted = choice.partition(":")
    assert requests_of(log)[0]["tool_choice"] == ({"type": "function", "name": wanted} if wanted else kind)


@pytest.mark.parametrize("mode", ["tool-loop", "tool-call"])
def test_a_tool_without_a_schema_gets_no_arguments(warm: Command, mode: str) -> None:
    """An empty schema is one."""
    events = warm.run("--mock", "--mock-mode", mode, "--prompt", "hi", "--json", "--tool", "f:inline={}").succeeded()
    assert calls_of(events) == [("f", "{}")]


# The tool loop


LOOP: tuple[Word, ...] = ("--mock", "--mock-mode", "tool-loop", "--prompt", "hi", "--json")


def looped(warm: Command, *arguments: Word) -> tuple[Ran, list[dict[str, Any]]]:
    """A run with --auto-tools, and what it sent."""
    log = warm.directory / "looped"
    return warm.run(*LOOP, "--auto-tools", "--log-requests", log, *arguments), requests_of(log)


def test_a_tool_loop_is_two_requests_and_one_answer(warm: Command) -> None:
    """The second has the call and its output, in this order; there is one end, with the usage of both."""
    ran, (first, second) = looped(warm, *TOOLS, "--tool-output", "search=found")
    events = ran.succeeded()
    (call, message) = items_of(events)
    assert (call["type"], message["content"][0]["text"]) == ("function_call", "mock tool result: found")
    assert second["input"] == [
        *first["input"],
        {"type": "function_call", "name": "search", "arguments": call["arguments"], "call_id": "call_mock"},
        {"type": "function_call_output", "call_id": "call_mock", "output": "found"},
    ]
    assert {**second, "input": []} == {**first, "input": []}
    # Each step alone:
    conversation = warm.directory / "second.json"
    conversation.write_text(json.dumps(second["input"]))
    begun = warm.run("--mock", "--mock-mode", "tool-call", "--prompt", "hi", "--json", *TOOLS).succeeded()
    ended = warm.run(*LOOP, "--input-json", conversation, *TOOLS).succeeded()
    assert [item["type"] for item in items_of(ended)] == ["message"]
    assert usage_of(events)[1] == usage_of(begun)[1] + usage_of(ended)[1]
    assert usage_of(events)[0] > usage_of(begun)[0] * 2


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (("--tool-output", "close=it is = open"), "it is = open"),
        (("--tool-output", "close="), ""),
        (("--tool-output", "close=$args"), "{}"),
        (("--tool-output", "close=say $args"), "say $args"),
        (("--tool-output", "close=héllo 😀"), "héllo 😀"),
        ((), "err: there is no output for close"),
    ],
    ids=["text", "empty", "arguments", "in-a-text", "unicode", "none"],
)
def test_the_output_of_a_tool(warm: Command, given: tuple[Word, ...], output: str) -> None:
    """It is taken as it is; `$args` alone stands for the arguments. Without one, the model is told that it failed."""
    ran, (_, second) = looped(warm, "--tool", 'close:inline={"type":"object"}', *given)
    assert second["input"][-1] == {"type": "function_call_output", "call_id": "call_mock", "output": output}
    assert text_of(ran.succeeded(silent=False)) == f"mock tool result: {output}"
    assert ran.stderr.startswith("" if given else "warning: close was called")


def test_the_page_s_script_of_a_mock_model(warm: Command) -> None:
    """What docs/exec-wire.md shows of --auto-tools with a mock model, and what it says that it prints."""
    (typed, printed), *_ = re.findall(
        r"^```sh\nturnbridge exec (-m mock-.*?)\n```\n\nprints `(.*?)`", PAGE, re.M | re.S
    )
    ran = warm.run(*shlex.split(typed))
    assert (ran.code, ran.stdout.decode(), ran.stderr) == (0, f"{printed}\n", "")


def test_a_forced_choice_is_over_after_the_first_step(warm: Command) -> None:
    """Else the model could never answer."""
    _, (first, second) = looped(warm, *TOOLS, "--tool-choice", "function:close", "--tool-output", "close=1")
    assert first["tool_choice"] == {"type": "function", "name": "close"}
    assert second["tool_choice"] == "auto"


@pytest.mark.parametrize(("arguments", "steps"), [((), 4), (("--max-steps", "1"), 1), (("--max-steps", "3"), 3)])
def test_a_model_that_never_stops_calling_is_stopped(warm: Command, arguments: tuple[Word, ...], steps: int) -> None:
    """After --max-steps requests: an error, not a success. Every call has ids of its own."""
    log = warm.directory / "endless"
    mode = ("--mock", "--mock-mode", "tool-call", "--prompt", "hi", "--json", "--auto-tools", "--log-requests", log)
    ran = warm.run(*mode, "--tool-output", "mock_tool=again", *arguments)
    assert f"{steps} step" in ran.failed("max_steps_exceeded")
    assert len(requests_of(log)) == steps
    ids = [(item["id"], item["call_id"]) for item in items_of(ran.events)]
    assert ids == [(f"fc_mock{end}", f"call_mock{end}") for end in ["", "_2", "_3", "_4"][:steps]]


# Other ways to it


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--model", "mock-text"), "mock response text"),
        (("--model", "MOCK-Text"), "mock response text"),
        (("--backend", "mock", "--mock-mode", "text"), "mock response text"),
        (("--mock", "--model", "mock-text"), "mock response text"),
        (("--mock", "--model", "mock-text", "--mock-mode", "tool-loop"), "mock tool result: ok"),
        (("--mock", "--mock-mode", "text", "--model", "anything-else"), "mock response text"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_other_ways_to_the_mock(warm: Command, arguments: tuple[Word, ...], text: str) -> None:
    """A mock's model, or the backend; the model is told back as it was written."""
    events = warm.run(*arguments, "--prompt", "hi", "--json").succeeded()
    assert text_of(events) == text
    given = [value for flag, value in pairwise(arguments) if flag == "--model"]
    assert events[0]["response"]["model"] == (given or ["gpt-5.2-codex"])[0]
