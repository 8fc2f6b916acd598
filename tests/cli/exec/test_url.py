"""--url: a bridge that runs already answers, over HTTP; so would any server that speaks the Responses API."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cli.exec.command import Command, environment, finish, steps
from harness import KEY, RunningBridge, running_bridge
from protocols.wire.lines import calls_of, items_of, text_of, usage_of
from real.provider import Provider, script
from server.prompted import MODEL, prompted_codex

LOOK = ("--tool", 'look:inline={"type":"object","properties":{"q":{"const":"x"}},"required":["q"]}')
TEXT = ("--model", MODEL, *steps({"deltas": ["Hello ", "world"]}))


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that has made its own key."""
    directory = tmp_path_factory.mktemp("served")
    settings = {"CODEX_BIN": str(prompted_codex(directory)), "PROXY_MODELS": MODEL, "PROXY_API_KEY": ""}
    with running_bridge(directory, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def beside(bridge: RunningBridge, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command of the user who runs the bridge: the key is in their state directory."""
    directory = tmp_path_factory.mktemp("beside")
    settings = environment(directory) | {"XDG_STATE_HOME": str(bridge.state)}
    return Command(directory, settings, ("--url", bridge.root))


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge whose mocks speak the legacy dialect."""
    with running_bridge(tmp_path_factory.mktemp("legacy"), "--mock-only", PROXY_DIALECT="legacy") as running:
        yield running


def key_of(bridge: RunningBridge) -> str:
    """The key that the bridge has made."""
    return (bridge.state / "turnbridge/api-key").read_text().strip()


# A bridge


def test_a_text(bridge: RunningBridge, beside: Command) -> None:
    """With the key of this machine, and with or without /v1; the key is in no log."""
    log = beside.directory / "log"
    ran = beside.run(*TEXT, "--json", "--trace", "--log-requests", log)
    assert text_of(ran.succeeded(silent=False)) == "Hello world"
    assert json.loads(log.read_text())["model"] == MODEL
    traced = [json.loads(line)["type"] for line in ran.stderr.splitlines()]
    assert (traced[0], traced[-1]) == ("response.created", "response.completed")
    assert key_of(bridge) not in log.read_text() + ran.stderr + ran.stdout.decode()
    ran = beside.run(*TEXT, "--url", f"{bridge.url}/")
    assert (ran.code, ran.stdout, ran.stderr) == (0, b"Hello world\n", "")


def test_a_call(beside: Command) -> None:
    """A `<tool_call>` in the model's text is a call, over there already."""
    prompt = steps({"text": 'I look. <tool_call>{"name":"look","arguments":"{\\"q\\":\\"x\\"}"}</tool_call>'})
    events = beside.run("--model", MODEL, *prompt, "--json", *LOOK).succeeded()
    assert (text_of(events), calls_of(events)) == ("I look. ", [("look", '{"q":"x"}')])


def test_a_mock_model_of_that_bridge(beside: Command) -> None:
    """Who names a bridge means that bridge."""
    events = beside.run("--model", "mock-text", "--prompt", "hi", "--json").succeeded()
    assert events[0]["response"]["id"] != "resp_mock"


WEATHER = ("--tool", 'weather:inline={"type":"object","properties":{"city":{"const":"Bern"}},"required":["city"]}')


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "mock-echo", "hello\n there"),
        ("-m", "mock-text", "hello"),
        ("-m", "mock-tool-call", *WEATHER, "hello"),
        ("-m", "mock-tool-loop", *WEATHER, "hello"),
        ("-m", "mock-tool-loop", *WEATHER, "--auto-tools", "--tool-output", "weather=sunny [21 °C]\n", "hello"),
    ],
    ids=["echo", "text", "tool-call", "tool-loop", "auto-tools"],
)
@pytest.mark.parametrize("dialect", ["current", "legacy"])
def test_a_mock_means_the_same_everywhere(
    beside: Command, legacy: RunningBridge, arguments: tuple[str, ...], dialect: str
) -> None:
    """In exec itself, and from a bridge over --url, whichever dialect its children speak."""
    there = ("--url", legacy.root, "--provider-key", KEY) if dialect == "legacy" else ()
    here = replace(beside, always=()).run("--json", *arguments).succeeded()
    served = beside.run("--json", *arguments, *there).succeeded()
    assert calls_of(here) == calls_of(served)
    assert text_of(here) == text_of(served)
    assert [item["type"] for item in items_of(here)] == [item["type"] for item in items_of(served)]
    if "--auto-tools" in arguments:
        assert text_of(here) == "mock tool result: sunny [21 °C]\n"


def test_a_wrong_key_and_no_key(bridge: RunningBridge, beside: Command, warm: Command) -> None:
    """The bridge refuses the one; without the other it is not even asked."""
    ran = beside.run(*TEXT, "--json", "--provider-key", "wrong-key-0123")
    assert "key" in ran.failed("upstream_unauthorized")
    assert "wrong-key-0123" not in ran.stderr
    ran = warm.run(*TEXT, "--json", "--url", bridge.root)
    assert "--provider-key" in ran.failed("usage_error", exit_code=2)
    warm.run(*TEXT, "--json", "--url", bridge.root, PROXY_API_KEY=key_of(bridge)).succeeded()


def test_a_model_that_it_does_not_have(beside: Command) -> None:
    """Its error is the error here."""
    ran = beside.run("--model", "none", "--prompt", "hi", "--json")
    assert "'none'" in ran.failed("model_not_found")


def test_no_bridge_there(beside: Command, warm: Command) -> None:
    """After some tries. It says which URL, that a bridge is missing, and what to do; also to those who have no key."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens: nor does anybody else, meanwhile
        port = taken.getsockname()[1]
        for there in (f"http://127.0.0.1:{port}", f"http://localhost:{port}/v1/"):
            for command in (beside, warm):
                message = command.run("--url", there, *TEXT, "--json").failed("upstream_unreachable")
                assert message.startswith(f"No bridge answers at {there.removesuffix('/v1/')}")
                assert "`turnbridge serve`" in message
                assert "--url" in message


# Another server


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    """One that does what the prompt says."""
    with Provider() as running:
        yield running


@pytest.fixture(scope="module")
def direct(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The command in front of it."""
    directory = tmp_path_factory.mktemp("direct")
    always = ("--json", "--url", provider.base_url, "--provider-key", "k-0123456789")
    return Command(directory, environment(directory), always)


def test_what_is_sent(direct: Command, provider: Provider) -> None:
    """The input exactly as it is, the key in its header, the session as cache key; thoughts and a call come back."""
    items = [
        {"type": "something_new", "value": [1, None]},
        {
            "role": "user",
            "content": script({"do": "calls", "summary": ["hm"], "calls": [{"name": "look"}]}),
            "added": {},
        },
    ]
    ran = direct.run("--input-json", "-", *LOOK, "--session-id", "s-1", stdin=json.dumps(items).encode())
    thoughts, call = items_of(ran.succeeded())
    assert thoughts["type"] == "reasoning"
    assert thoughts["encrypted_content"].endswith(":c2VjcmV0")
    assert (call["name"], call["arguments"]) == ("look", "{}")
    assert usage_of(ran.events) == (11, 7, 3)
    request = provider.requests[-1]
    assert request.body["input"] == items
    assert request.body["prompt_cache_key"] == "s-1"
    assert request.headers["authorization"] == "Bearer k-0123456789"


def test_a_tool_loop(direct: Command, provider: Provider) -> None:
    """Two requests of one session; the second has the thoughts, the call and its output, in this order."""
    before = len(provider.requests)
    action = {"do": "calls", "summary": ["hm"], "calls": [{"name": "look", "arguments": '{"q":"x"}'}]}
    loop = ("--auto-tools", "--tool-output", "look=$args")
    events = direct.run("--prompt", script(action), *LOOK, *loop).succeeded()
    assert text_of(events) == 'result: {"q":"x"}'
    assert usage_of(events) == (22, 14, 6)
    first, second = [request.body for request in provider.requests[before:]]
    thoughts, call, output = second["input"][len(first["input"]) :]
    assert (thoughts["type"], thoughts["encrypted_content"]) == ("reasoning", "c2VjcmV0")
    assert (call["type"], output["type"], output["output"]) == ("function_call", "function_call_output", '{"q":"x"}')
    assert call["call_id"] == output["call_id"]
    assert first["prompt_cache_key"] == second["prompt_cache_key"]


@pytest.mark.parametrize(
    ("action", "text", "code"),
    [
        ({"do": "incomplete", "pieces": ["so ", "far"]}, "so far", "max_output_tokens"),
        ({"do": "incomplete", "pieces": ["so"], "reason": "content_filter"}, "so", "content_filter"),
        ({"do": "drop", "n": 2}, "word0 word1 ", "stream_truncated"),
        ({"do": "failed", "code": "context_length_exceeded"}, "", "context_length_exceeded"),
        ({"do": "error", "status": 400, "code": "odd_prompt", "message": "odd"}, "", "odd_prompt"),
        ({"do": "empty"}, "", "empty_response"),
    ],
    ids=["cut", "filtered", "dropped", "failed", "refused", "empty"],
)
def test_an_incomplete_or_failed_answer(direct: Command, action: dict[str, Any], text: str, code: str) -> None:
    """What was said is shown, then the error."""
    ran = direct.run("--prompt", script(action))
    ran.failed(code)
    assert text_of(ran.events) == text


def test_an_interrupt_closes_the_connection(command: Command, provider: Provider) -> None:
    """The model has not to go on for nobody."""
    before, gone = len(provider.requests), len(provider.gone)
    there = ("--json", "--url", provider.base_url, "--provider-key", "k-0123456789")
    with command.start(*there, "--prompt", script({"do": "hang"})) as process:
        provider.wait_requests(before + 1)
        process.send_signal(signal.SIGTERM)
        finish(process).failed("interrupted", exit_code=143)
    provider.wait_gone(gone + 1)
