"""Node's clients against a bridge over the real Codex: what each of them can do, and what the model sees of it.

Each client is a program in node/ that runs as long as the tests do. A test tells it one case; the prompt says what the
model is to do, and the test looks at what the client made of the answer and at what reached the model's provider.

The packages are those of node/package.json. Some of them ask for Node 22; what is used here runs with Node 20, too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from clients.program import Program
from harness import KEY
from real.provider import USAGE, Json
from real.rig import Rig, said

TABLE = """
                    openai     openai  ai         ai    ai        anthropic  google
                    responses  chat    responses  chat  compatiblemessages   gemini
plain               x          x       x          x     x         x          x
stream_helper       x          x       -          -     -         x          -
tool_loop           x          x       x          x     x         x          x
tool_runner         x          -       -          -     -         x          -
parallel_tools      x          x       x          x     x         x          x
unicode_arguments   x          x       x          x     x         x          x
no_arguments        x          x       x          x     x         x          x
text_and_call       x          x       x          x     x         x          x
structured          x          x       x          x     x         x          x
generate_object     -          -       x          x     x         -          -
reasoning           x          x       x          -     x         x          x
history             x          x       x          x     x         x          x
reasoning_history   x          x       x          x     x         x          x
concurrent          x          x       x          x     x         x          x
cancel              x          x       x          x     x         x          x
rate_limit          x          x       x          x     x         x          x
broken_stream       x          x       x          x     x         x          x
retry               x          x       x          x     x         x          x
models              x          -       -          -     -         x          x
"""
"""Who can do what. "ai" is the AI SDK: with @ai-sdk/openai (responses, which is its default, and .chat) and with
@ai-sdk/openai-compatible. "anthropic" is @anthropic-ai/sdk, "google" is @google/genai. A case has a test of its name
below, and a function of its name in the client's program.

Why some are absent:
stream_helper       the AI SDK streams by one function, and @google/genai too; plain has it
tool_runner         classes of openai and anthropic; in the others tool_loop is the client's own loop already
generate_object     the AI SDK's older functions for structured output
reasoning           @ai-sdk/openai's chat model does not read it
models              the same in openai's chat; the AI SDK lists no models
"""

# Not here yet: previous_response_id, responses.retrieve, item_reference (see reasoning_history in node/ai_sdk.mjs),
# websockets, n, stop.

PROGRAMS = {
    "openai-responses": ["openai_responses.mjs"],
    "openai-chat": ["openai_chat.mjs"],
    "ai-responses": ["ai_sdk.mjs", "responses"],
    "ai-chat": ["ai_sdk.mjs", "chat"],
    "ai-compatible": ["ai_sdk.mjs", "compatible"],
    "anthropic-messages": ["anthropic.mjs"],
    "google-gemini": ["google_genai.mjs"],
}

ENDS = {"openai-responses": "completed", "anthropic-messages": "end_turn", "google-gemini": "STOP"}
"""What an API calls the end of a whole answer; "stop" for the others."""

RATE_LIMIT_ERRORS = {"openai": "RateLimitError", "anthropic": "RateLimitError", "google": "ApiError"}
"""What a package raises for a 429; the AI SDK has one class for all."""

ROWS = {case: marks for case, *marks in (line.split() for line in TABLE.splitlines()[3:])}


def clients_of(case: str) -> list[str]:
    """The names of the clients that can do it."""
    return [client for client, mark in zip(PROGRAMS, ROWS[case], strict=True) if mark == "x"]


def cases_of(client: str) -> set[str]:
    """What a client can do."""
    return {case for case in ROWS if client in clients_of(case)}


class Programs:
    """The clients' programs: each is started when it is first needed, and anew after a case that it did not survive."""

    def __init__(self, directory: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self._directory, self._environment, self._stack = directory, environment, stack
        self._running: dict[str, Program] = {}

    def run(self, name: str, case: str, **parameters: Any) -> Json:
        """What a client's program replies."""
        if name not in self._running:
            file, *arguments = PROGRAMS[name]
            program = Program(["node", str(self._directory / file), *arguments], self._environment)
            self._running[name] = self._stack.enter_context(program)
        try:
            return self._running[name].run(case, **parameters)
        except AssertionError:
            del self._running[name]
            raise


class Client:
    """A client, for the case that this test is about."""

    def __init__(self, name: str, case: str, programs: Programs) -> None:
        self.name, self.case, self._programs = name, case, programs

    def run(self, action: Json | None = None, **parameters: Any) -> Any:
        """What the client reports, for a prompt that says what the model is to do."""
        reply = self._reply(action, **parameters)
        assert "ok" in reply, reply
        return reply["ok"]

    def fail(self, action: Json, **parameters: Any) -> Any:
        """The error that the client raises."""
        reply = self._reply(action, **parameters)
        assert "error" in reply, reply
        return reply["error"]

    def _reply(self, action: Json | None, **parameters: Any) -> Json:
        prompt = {"prompt": said(action)} if action else {}
        return self._programs.run(self.name, self.case, **prompt, **parameters)


@pytest.fixture(scope="session")
def programs(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """The programs in a directory of their own, with the bridge as their OpenAI."""
    directory = tmp_path_factory.mktemp("node")
    for source in Path(__file__).with_name("node").glob("*.mjs"):
        shutil.copy(source, directory)
    # Node looks for packages beside the file that imports them.
    (directory / "node_modules").symlink_to(Path(os.environ["TURNBRIDGE_CLIENTS_NODE"], "node_modules"))
    environment = {"OPENAI_BASE_URL": rig.bridge.url, "OPENAI_API_KEY": KEY, "BRIDGE_MODEL": "gpt-5.2"}
    with ExitStack() as stack:
        yield Programs(directory, environment, stack)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with every client that the table names for it."""
    if "client" in metafunc.fixturenames:
        case = metafunc.function.__name__.removeprefix("test_")
        metafunc.parametrize("client", clients_of(case), indirect=True)


@pytest.fixture
def client(request: pytest.FixtureRequest, programs: Programs) -> Client:
    """Each client of the table's row for this test."""
    case = request.function.__name__.removeprefix("test_")
    return Client(request.param, case, programs)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Both ways to be answered."""
    return bool(request.param)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_table_is_complete(name: str, programs: Programs) -> None:
    """Whatever a client's program can do is in the table, and nothing else; and every row has its test."""
    assert set(programs.run(name, "cases")["ok"]["cases"]) == cases_of(name)
    assert {f"test_{case}" for case in ROWS} <= globals().keys()


# Text


def test_plain(client: Client, rig: Rig, stream: bool) -> None:
    """The text, its pieces as they came, its end and its token numbers, for one model call."""
    pieces = ["Grüße, ", "<b> ", "世界 ", "🌍\n"]
    answer = client.run({"do": "text", "pieces": pieces}, stream=stream)
    assert answer["text"] == "".join(pieces)
    assert answer["end"] == ENDS.get(client.name, "stop")
    assert answer["usage"] == list(USAGE.values())
    if stream:
        assert answer["pieces"] == pieces
    assert len(rig.posts) == 1


def test_stream_helper(client: Client) -> None:
    """The client's own accumulator hears every event, and its snapshot grows into the whole text."""
    answer = client.run({"do": "text", "pieces": ["one ", "two ", "three"]})
    assert answer["text"] == answer["snapshot"] == "one two three"
    kinds = answer["kinds"]
    if client.name == "openai-responses":
        assert kinds[:2] == ["response.created", "response.in_progress"]
        assert kinds.count("response.output_text.delta") == 3
        assert kinds[-1] == "response.completed"
    elif client.name == "anthropic-messages":
        assert kinds[:2] == ["connect", "message_start"]
        assert kinds.count("content_block_delta") == 3
        assert kinds[-5:] == ["message_delta", "message_stop", "message", "finalMessage", "end"]
    else:
        assert kinds[0] == "connect"
        assert kinds.count("content") == 3
        assert kinds[-4:] == ["content.done", "chatCompletion", "message", "end"]


# Tools: the client executes its functions, and the model gets what they give


def call(name: str, **arguments: Any) -> Json:
    """A call for the model to make."""
    return {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


def outputs(rig: Rig) -> list[str]:
    """The results of functions that the model was sent last."""
    items = rig.posts[-1].body["input"]
    found = [item["output"] for item in items if item["type"] == "function_call_output"]
    return [output if isinstance(output, str) else "".join(part["text"] for part in output) for output in found]


def test_tool_loop(client: Client, rig: Rig, stream: bool) -> None:
    """A call is executed, its result reaches the model, and the second answer is built on it."""
    answer = client.run({"do": "calls", "calls": [call("weather", city="Bern")]}, stream=stream)
    assert answer["executed"] == [["weather", {"city": "Bern"}]]
    assert answer["text"] == "result: sunny in Bern"
    assert [step["calls"] for step in answer["steps"]] == [["weather"], []]
    assert outputs(rig) == ["sunny in Bern"]
    assert len(rig.posts) == 2


def test_tool_runner(client: Client, rig: Rig, stream: bool) -> None:
    """The same, with a class that checks every item of an answer before it executes anything."""
    then = {"do": "calls", "calls": [call("add", a=2, b=3), call("clock")]}
    calls = [call("weather", city="Bern")]
    answer = client.run({"do": "calls", "pieces": ["Looking. "], "calls": calls, "then": then}, stream=stream)
    assert [step["calls"] for step in answer["steps"]] == [["weather"], ["add", "clock"], []]
    assert answer["executed"] == [["weather", {"city": "Bern"}], ["add", {"a": 2, "b": 3}], ["clock", {}]]
    assert answer["text"] == "result: 5; noon"
    assert outputs(rig) == ["sunny in Bern", "5", "noon"]


def test_parallel_tools(client: Client, rig: Rig, stream: bool) -> None:
    """Several calls in one answer are all executed before the model is asked again, each result under its own id."""
    calls = [call("weather", city="Bern"), call("add", a=2, b=3), call("weather", city="Thun")]
    answer = client.run({"do": "calls", "calls": calls}, stream=stream)
    expected = [["weather", {"city": "Bern"}], ["add", {"a": 2, "b": 3}], ["weather", {"city": "Thun"}]]
    assert answer["executed"] == expected
    assert [step["calls"] for step in answer["steps"]] == [["weather", "add", "weather"], []]
    assert answer["text"] == "result: sunny in Bern; 5; sunny in Thun"
    assert outputs(rig) == ["sunny in Bern", "5", "sunny in Thun"]
    assert len(rig.posts) == 2


def test_unicode_arguments(client: Client, rig: Rig, stream: bool) -> None:
    """Arguments keep every character on their way to the function, and its result on its way to the model."""
    text = '"double" \'single\' `back` \\ \\n\nnew line\ttab 😀 é 世界 \u2028 {"json": [1]} @ &lt; '
    given = text + "</tool_call>"  # a model is shown this as &lt;/tool_call> while tools are offered to it as text
    answer = client.run({"do": "calls", "calls": [call("note", text=given)], "chunk": 3}, stream=stream)
    assert answer["executed"] == [["note", {"text": given}]]
    (output,) = outputs(rig)
    assert output.startswith(text)


def test_no_arguments(client: Client, stream: bool) -> None:
    """A function without parameters is called with an empty object."""
    answer = client.run({"do": "calls", "calls": [{"name": "clock"}]}, stream=stream)
    assert answer["executed"] == [["clock", {}]]
    assert answer["text"] == "result: noon"


def test_text_and_call(client: Client, rig: Rig, stream: bool) -> None:
    """What the model says beside its call is shown, without tags, and it finds it in the history."""
    action = {"do": "calls", "pieces": ["Let me look. "], "calls": [call("weather", city="Bern")], "chunk": 4}
    answer = client.run(action, stream=stream)
    assert [(step["text"].strip(), step["calls"]) for step in answer["steps"]] == [
        ("Let me look.", ["weather"]),
        ("result: sunny in Bern", []),
    ]
    history = [item.get("role") or item["type"] for item in rig.posts[-1].body["input"]]
    assert history[-4:] == ["user", "assistant", "function_call", "function_call_output"]


# Structured output, reasoning


CITY = {"name": "Bern", "people": 134_000, "rivers": ["Aare"]}


def answers_with_an_object(client: Client, rig: Rig, stream: bool) -> None:
    action = {"do": "text", "pieces": [json.dumps(CITY)], "chunk": 5}
    assert client.run(action, stream=stream)["object"] == CITY
    form = rig.posts[-1].body["text"]["format"]
    assert form["type"] == "json_schema"
    assert form["schema"]["properties"].keys() == CITY.keys()


def test_structured(client: Client, rig: Rig, stream: bool) -> None:
    """A zod schema reaches the model's provider, and the answer comes as an object that the client has checked."""
    answers_with_an_object(client, rig, stream)


def test_generate_object(client: Client, rig: Rig, stream: bool) -> None:
    """The same by the older functions."""
    answers_with_an_object(client, rig, stream)


def test_reasoning(client: Client, stream: bool) -> None:
    """The model's thoughts come apart from its text: in responses part by part, in chat as one text."""
    action = {"do": "reasoning", "summary": ["First this.", "Then that."], "pieces": ["42"], "chunk": 4}
    answer = client.run(action, stream=stream)
    assert answer["text"] == "42"
    parts = ["First this.", "Then that."]
    assert answer["reasoning"] == (parts if client.name.endswith("responses") else ["\n\n".join(parts)])


# Several requests


def sees_the_first_turn(client: Client, first: Json, stream: bool) -> None:
    prompts = ["I am Ada. " + said(first), "Who am I? " + said({"do": "recall"})]
    seen = json.loads(client.run(prompts=prompts, stream=stream)["text"])
    assert seen[-3:] == [["user", prompts[0]], ["assistant", "Hello Ada."], ["user", prompts[1]]]
    assert ["developer", "Be brief."] in seen


def test_history(client: Client, stream: bool) -> None:
    """The second turn brings the first: the model sees the instructions, and who said what, in order."""
    sees_the_first_turn(client, {"do": "text", "pieces": ["Hello Ada."]}, stream)


def test_reasoning_history(client: Client, stream: bool) -> None:
    """The same when the first turn was thought about: a client sends back what it was given, thoughts included."""
    sees_the_first_turn(client, {"do": "reasoning", "pieces": ["Hello Ada."]}, stream)


def test_concurrent(client: Client, rig: Rig, stream: bool) -> None:
    """Eight requests run at the same time, and each is given its own answer."""
    texts = [f"answer {number} " * 20 for number in range(8)]
    prompts = [said({"do": "text", "pieces": [text], "chunk": 10}) for text in texts]
    rig.provider.crowd = rig.since + 8
    assert client.run(prompts=prompts, stream=stream)["texts"] == texts
    assert len(rig.posts) == 8


def test_cancel(client: Client, rig: Rig) -> None:
    """AbortController ends the client's stream, and the model's work."""
    left = len(rig.provider.gone)
    answer = client.run({"do": "slow", "n": 600, "seconds": 60})
    assert answer["pieces"][0] == "word0 "
    assert rig.provider.wait_gone(left + 1)[left:] == [rig.since]


# Failures


def test_rate_limit(client: Client, stream: bool) -> None:
    """A 429 of the model's provider is the client's own error for that."""
    error = client.fail({"do": "error", "status": 429}, stream=stream)
    assert error["type"] == RATE_LIMIT_ERRORS.get(client.name.partition("-")[0], "AI_APICallError")
    assert (error["status"], error["code"]) == (429, "rate_limit_exceeded")


def test_broken_stream(client: Client) -> None:
    """A stream that breaks after its first words is an error for the client, and no short answer."""
    answer = client.run({"do": "drop", "n": 3, "delay": 0.02})
    assert answer["pieces"] == ["word0 ", "word1 ", "word2 "]
    assert "disconnected" in answer["error"]


def test_retry(client: Client, rig: Rig) -> None:
    """A failure that the bridge calls transient is tried again by the client itself."""
    action = {"do": "error", "status": 429, "message": f"slow down, {client.name}", "times": 1}
    assert client.run(action)["text"] == "recovered"
    assert len(rig.posts) == 2


def test_models(client: Client) -> None:
    """The client pages through the list; the model that these tests use, listed or not, can be retrieved."""
    answer = client.run()
    assert answer["retrieved"] == "gpt-5.2"
    assert {"codex-5", "mock-echo"} <= set(answer["models"])
