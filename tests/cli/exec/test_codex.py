"""A real Codex, started for the run, in front of the scripted provider."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from cli.exec.command import Command, Word, environment, finish
from protocols.wire.lines import calls_of, items_of, text_of, usage_of
from real import codex_binaries
from real.provider import Provider, codex_home
from real.rig import said

LOOK: tuple[Word, ...] = (
    "--tool",
    'look:inline={"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}',
)
CALLS = {"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"x"}'}]}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9"
    "awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """What the model says."""
    with Provider() as running:
        yield running


@pytest.fixture(scope="module")
def codex(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command in front of the pinned Codex; what it learns about it is kept between the runs."""
    binary = codex_binaries.find(codex_binaries.CURRENT)
    if isinstance(binary, str):
        pytest.skip(binary)
    directory = tmp_path_factory.mktemp("real")
    home = codex_home(directory / "codex-home", provider)
    return Command(directory, environment(directory, CODEX_BIN=str(binary), CODEX_HOME=str(home)), ("--json",))


def prompt(action: dict[str, Any]) -> tuple[Word, ...]:
    """What makes the provider do this."""
    return ("--prompt", said(action))


def test_a_text(codex: Command, provider: Provider) -> None:
    """The model's words and nothing of Codex's own; the instructions are the user's alone."""
    events = codex.run(*prompt({"do": "text", "pieces": ["Hello ", "wörld"]}), "--system", "be brief").succeeded()
    assert text_of(events) == "Hello wörld"
    assert usage_of(events) == (11, 7, 3)
    body = provider.requests[-1].body
    assert "be brief" in json.dumps(body["input"])
    assert not body.get("instructions")
    provider.wait_idle()


def test_a_tool_loop(codex: Command, provider: Provider) -> None:
    """The second request has what the model wrote, the call, then its output; one answer, with the usage of both."""
    before = len(provider.requests)
    events = codex.run(*prompt(CALLS), *LOOK, "--auto-tools", "--tool-output", "look=it is $5").succeeded()
    assert calls_of(events) == [("look", '{"q":"x"}')]
    assert text_of(events) == "result: it is $5"
    assert usage_of(events) == (22, 14, 6)
    first, second = provider.requests[before:]
    call, output = second.body["input"][-2:]
    assert (call["type"], call["name"], call["arguments"]) == ("function_call", "look", '{"q":"x"}')
    assert (output["type"], output["output"]) == ("function_call_output", "it is $5")
    assert output["call_id"] == call["call_id"] == items_of(events)[0]["call_id"]
    assert second.body["input"][:-3] == first.body["input"]


def test_a_rate_limit(codex: Command) -> None:
    """The provider's 429."""
    codex.run(*prompt({"do": "error", "status": 429})).failed("rate_limit_exceeded")


def test_an_answer_that_was_cut(codex: Command) -> None:
    """What was said, then the reason."""
    ran = codex.run(*prompt({"do": "incomplete", "pieces": ["so ", "far"]}))
    assert "incomplete" in ran.failed("max_output_tokens")
    assert [item["content"][0]["text"] for item in items_of(ran.events)] == ["so far"]


def test_thoughts_an_image_and_the_settings_of_a_request(codex: Command, provider: Provider) -> None:
    """Effort, output schema and image reach the provider; its encrypted thoughts come back, under their own id."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    (codex.directory / "schema.json").write_text(json.dumps(schema))
    action = said({"do": "reasoning", "summary": ["hm"], "pieces": ['{"a":"b"}']})
    content = [{"type": "input_text", "text": action}, {"type": "input_image", "image_url": PIXEL}]
    arguments = ("--input-json", "-", "--effort", "high", "--output-schema", codex.directory / "schema.json")
    ran = codex.run(*arguments, stdin=json.dumps([{"role": "user", "content": content}]).encode())
    thoughts, message = items_of(ran.succeeded())
    assert (thoughts["summary"][0]["text"], message["content"][0]["text"]) == ("hm", '{"a":"b"}')
    assert thoughts["encrypted_content"].endswith(":c2VjcmV0")
    body = provider.requests[-1].body
    assert body["reasoning"]["effort"] == "high"
    assert body["text"]["format"]["schema"] == schema
    images = [part for item in body["input"] for part in item.get("content", ()) if part["type"] == "input_image"]
    assert [image["image_url"] for image in images] == [PIXEL]


def test_a_web_search(codex: Command, provider: Provider) -> None:
    """It is offered, and shown."""
    events = codex.run(*prompt({"do": "search", "query": "weather Bern"}), "--web-search").succeeded()
    search = items_of(events)[0]
    assert (search["type"], search["action"]["query"]) == ("web_search_call", "weather Bern")
    assert "web_search" in [tool["type"] for tool in provider.requests[-1].body["tools"]]


def test_an_interrupt_reaches_the_provider(codex: Command, provider: Provider) -> None:
    """It has not to go on for nobody."""
    before, gone = len(provider.requests), len(provider.gone)
    with codex.start(*prompt({"do": "slow", "n": 200, "seconds": 20})) as process:
        provider.wait_requests(before + 1)
        process.send_signal(signal.SIGINT)
        finish(process).failed("interrupted", exit_code=130)
    provider.wait_gone(gone + 1)
