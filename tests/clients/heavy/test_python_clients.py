"""Python clients that people use, as they use them, against a bridge over the real Codex.

Each client is a program in programs/ with one function per case; it executes its tools itself, and tells what came of
it. The table below says what each of them can do. A client's own quirks belong into its program.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from clients.program import Program
from harness import KEY
from real.provider import USAGE, Json
from real.rig import Rig, said

HERE = Path(__file__).parent

# What each client can do

ALL = {
    *("plain", "streamed", "history", "concurrent", "cancel", "rate_limit"),
    *("tools", "streamed_tools", "structured", "reasoning"),
}

TABLE: dict[str, set[str]] = {
    "openai_agents responses": ALL,
    "openai_agents chat": ALL,
    "langchain responses": {*ALL, "structured_by_tool"},
    # "reasoning": its chat API reads nothing that is not in OpenAI's own, where there is no reasoning.
    "langchain chat": {*ALL, "structured_by_tool"} - {"reasoning"},
    "pydantic_ai responses": {*ALL, "structured_by_tool"},
    "pydantic_ai chat": {*ALL, "structured_by_tool"},
    "litellm responses": ALL,
    "litellm chat": ALL,
    "llm responses": {*ALL, "command"},
    # "reasoning": its chat models look for none.
    "llm chat": {*ALL, "command"} - {"reasoning"},
    "google_genai gemini": {*ALL, "automatic"},
}

RATE_LIMIT_ERRORS = {
    "openai_agents": "RateLimitError",
    "langchain": "OpenAIRateLimitError",
    "pydantic_ai": "ModelRateLimitError",
    "litellm": "RateLimitError",
    "llm": "RateLimitError",
    "google_genai": "ClientError",
}
"""What each client raises for a 429."""

RETRIES = {"llm": 2}
"""The others are told to make none; llm cannot be."""


@dataclass(frozen=True)
class Client:
    """One of the table, running."""

    name: str
    api: str
    program: Program

    def run(self, case: str, **parameters: Any) -> Json:
        """What the client reports of a case that must succeed."""
        reply = self.program.run(case, api=self.api, **parameters)
        assert "ok" in reply, reply
        result: Json = reply["ok"]
        return result


@pytest.fixture(scope="session")
def programs(rig: Rig) -> Iterator[Callable[[str], Program]]:
    """Gives the program of a client; each is started when it is first needed."""
    running: dict[str, Program] = {}
    environment = {
        "OPENAI_BASE_URL": rig.bridge.url,
        "OPENAI_API_KEY": KEY,
        "BRIDGE_MODEL": "gpt-5.2",
        "PYTHONPATH": str(HERE),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with ExitStack() as stack:

        def start(name: str) -> Program:
            if name not in running:
                suffix = "_LITELLM" if name == "litellm" else ""
                python = os.environ[f"TURNBRIDGE_CLIENTS_PYTHON{suffix}"]
                program = Program([python, "-P", "-m", f"programs.{name}"], environment)
                running[name] = stack.enter_context(program)
            return running[name]

        yield start


@pytest.fixture
def client(request: pytest.FixtureRequest, programs: Callable[[str], Program]) -> Client:
    name, api = request.param.split()
    return Client(name, api, programs(name))


def who_can(case: str) -> pytest.MarkDecorator:
    """Run a test with every client that the table lists the case for."""
    return pytest.mark.parametrize("client", [who for who, cases in TABLE.items() if case in cases], indirect=True)


# Texts


@who_can("plain")
def test_plain(rig: Rig, client: Client) -> None:
    """The text arrives whole, with the tokens that it cost; the model is sent the two messages alone, once."""
    action = {"do": "text", "pieces": ["Grüße, ", "<b> \\ ", "世界 🌍\n", "ok"]}
    result = client.run("plain", prompt="hello " + said(action))
    assert result["text"] == "Grüße, <b> \\ 世界 🌍\nok"
    assert result["usage"] == list(USAGE.values())
    (post,) = rig.posts
    assert post.body["model"] == "gpt-5.2"
    assert messages(post.body) == [("developer", "You are a tester."), ("user", "hello " + said(action))]


@who_can("streamed")
def test_streamed(rig: Rig, client: Client) -> None:
    """The text arrives piece by piece as the model says it, and with the tokens that it cost."""
    pieces = ["One", " two", " \n", "🌍", " three"]
    result = client.run("streamed", prompt=said({"do": "text", "pieces": pieces}))
    assert result["pieces"] == pieces
    assert result["text"] == "".join(pieces)
    assert result["usage"] == list(USAGE.values())
    assert len(rig.posts) == 1


@who_can("history")
def test_history(client: Client) -> None:
    """In the second turn the model is sent all of the first one, in order."""
    first, second = "one " + said({"do": "text", "pieces": ["I said: é"]}), "two " + said({"do": "recall"})
    result = client.run("history", prompts=[first, second])
    told = [("user", first), ("assistant", "I said: é"), ("user", second)]
    assert [tuple(message) for message in json.loads(result["text"])][-3:] == told


@who_can("command")
def test_command(rig: Rig, client: Client) -> None:
    """The same with the client's command, whose second run continues the first."""
    first, second = "one " + said({"do": "text", "pieces": ["I said: é"]}), "two " + said({"do": "recall"})
    texts = client.run("command", prompts=[first, second])["texts"]
    assert texts[0] == "I said: é\n"
    told = [["user", first], ["assistant", "I said: é"], ["user", second]]
    assert json.loads(texts[1])[-3:] == told
    assert len(rig.posts) == 2


@who_can("concurrent")
def test_concurrent(rig: Rig, client: Client) -> None:
    """Eight requests that are answered at the same time: each gets its own answer."""
    texts = [f"answer {number} " * 10 for number in range(8)]
    rig.provider.crowd = len(rig.provider.requests) + len(texts)
    actions = [{"do": "text", "pieces": [text], "chunk": 7, "delay": 0.005} for text in texts]
    assert client.run("concurrent", prompts=[said(action) for action in actions])["texts"] == texts


@who_can("cancel")
def test_cancel(rig: Rig, client: Client) -> None:
    """A client that leaves in the middle of a stream ends the model call."""
    gone = len(rig.provider.gone)
    assert client.run("cancel", prompt=said({"do": "slow", "n": 60, "seconds": 30}))["pieces"] == ["word0 "]
    rig.provider.wait_gone(gone + 1)


@who_can("reasoning")
def test_reasoning(client: Client) -> None:
    """What the model thought comes where the client shows thoughts, apart from what it said."""
    action = {"do": "reasoning", "summary": ["I think", "therefore"], "pieces": ["42"]}
    for case in ("plain", "streamed"):
        result = client.run(case, prompt=said(action))
        assert result["text"] == "42"
        assert result["reasoning"].split("\n\n") in (["I think", "therefore"], ["I thinktherefore"])


@who_can("rate_limit")
def test_rate_limit(rig: Rig, client: Client) -> None:
    """A provider's 429 is the client's own error for it."""
    action = {"do": "error", "status": 429, "code": "rate_limit_exceeded", "message": "slow down"}
    error = client.program.run("plain", api=client.api, prompt=said(action))["error"]
    assert (error["type"], error["status"]) == (RATE_LIMIT_ERRORS[client.name], 429)
    assert len(rig.posts) == 1 + RETRIES.get(client.name, 0)


# Objects

BERN = {"name": 'Bern "Bärn" 🐻', "people": 137_000, "districts": ["Mattenhof", "Länggasse\n"]}


@who_can("structured")
def test_structured(rig: Rig, client: Client) -> None:
    """The client gets its object, and the model is asked for it by the client's schema.

    By the API's own way, or in words where a schema is not strict, which is for the bridge to know.
    """
    action = {"do": "text", "pieces": [json.dumps(BERN)], "chunk": 5}
    assert client.run("structured", prompt=said(action))["object"] == BERN
    (post,) = rig.posts
    asked = [post.body.get("text"), [text for role, text in messages(post.body) if role == "developer"]]
    assert all(name in json.dumps(asked) for name in BERN)


@who_can("structured_by_tool")
def test_structured_by_tool(client: Client) -> None:
    """The same, where the client takes the arguments of a call for the object."""
    action = {"do": "calls", "calls": [{"name": "City", "arguments": json.dumps(BERN)}]}
    assert client.run("structured_by_tool", prompt=said(action))["object"] == BERN


# Calls: (function, arguments, what it returns), as in programs/shared.py

ODD = "quote \" and ' and back\\slash\nline\ttab 😀 \u2028 {curly} <b>"
LOOK = ("look", {"q": "Bern"}, "found Bern")
ADD = ("add", {"a": 2, "b": -3}, "sum -1")
CLOCK: tuple[str, Json, str] = ("clock", {}, "it is noon")

LOOPS: dict[str, list[tuple[str, Json, str]]] = {
    "one call": [LOOK],
    "parallel calls": [LOOK, ADD, CLOCK, ("look", {"q": "Genève"}, "found Genève")],
    "odd characters": [("look", {"q": ODD}, f"found {ODD}")],
    "no arguments": [CLOCK],
}


@who_can("tools")
@pytest.mark.parametrize("calls", LOOPS.values(), ids=LOOPS.keys())
def test_tools(rig: Rig, client: Client, calls: list[tuple[str, Json, str]]) -> None:
    """The client executes what the model calls, and the model's second answer has the results."""
    check_loop(rig, client, "tools", calls)


@who_can("streamed_tools")
@pytest.mark.parametrize("calls", LOOPS.values(), ids=LOOPS.keys())
def test_streamed_tools(rig: Rig, client: Client, calls: list[tuple[str, Json, str]]) -> None:
    """The same, streamed."""
    check_loop(rig, client, "streamed_tools", calls)


def check_loop(rig: Rig, client: Client, case: str, calls: list[tuple[str, Json, str]]) -> None:
    # Cut small, so that tags, escapes and characters are put together from pieces.
    result = client.run(case, prompt=said({"do": "calls", "calls": wanted(calls), "chunk": 5}))
    assert sorted(result["executed"], key=str) == sorted(([name, given] for name, given, _ in calls), key=str)
    assert result["text"] == "result: " + "; ".join(output for *_, output in calls)
    first, second = rig.posts
    assert outputs(first.body) == []
    assert outputs(second.body) == [output for *_, output in calls]


@who_can("automatic")
def test_automatic_tools(rig: Rig, client: Client) -> None:
    """The client's own loop executes the calls, and sends the results back."""
    check_loop(rig, client, "automatic", LOOPS["parallel calls"])


@who_can("tools")
def test_two_rounds_of_tools(rig: Rig, client: Client) -> None:
    """Calls that follow on calls: the model is sent all results so far, in order."""
    then = {"do": "calls", "calls": wanted([ADD]), "then": {"do": "text", "pieces": ["at last"]}}
    result = client.run("tools", prompt=said({"do": "calls", "calls": wanted([LOOK]), "then": then}))
    assert result["text"] == "at last"
    assert result["executed"] == [["look", LOOK[1]], ["add", ADD[1]]]
    assert outputs(rig.posts[-1].body) == ["found Bern", "sum -1"]
    assert len(rig.posts) == 3


@who_can("tools")
@pytest.mark.parametrize("case", ["tools", "streamed_tools"])
def test_text_and_a_call_in_one_answer(rig: Rig, client: Client, case: str) -> None:
    """What the model says before a call is shown, and sent back to it."""
    action = {"do": "calls", "pieces": ["Let me see. "], "calls": wanted([LOOK])}
    result = client.run(case, prompt=said(action))
    assert [text.strip() for text in result["texts"]] == ["Let me see.", "result: found Bern"]
    # In the thread that is continued it stands as the model wrote it, with its call.
    spoken = [(role, text.partition("<tool_call>")[0].strip()) for role, text in messages(rig.posts[-1].body)]
    assert ("assistant", "Let me see.") in spoken


def wanted(calls: list[tuple[str, Json, str]]) -> list[Json]:
    """Calls for a script."""
    return [{"name": name, "arguments": json.dumps(given, ensure_ascii=False)} for name, given, _ in calls]


# What the provider saw


def messages(body: Json) -> list[tuple[str, str]]:
    return [
        (item["role"], "".join(part["text"] for part in item["content"])) for item in body["input"] if "role" in item
    ]


def outputs(body: Json) -> list[str]:
    """What the client's functions returned."""
    return [item["output"] for item in body["input"] if item["type"] == "function_call_output"]
