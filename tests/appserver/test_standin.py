"""The stand-in over its pipes, as any client of the protocol sees it; and the legacy flows in front of it."""

from __future__ import annotations

import array
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from harness import ROOT, running_bridge, scripted_codex, turns
from server.inprocess import Program, Tape, finish, supervised, turn, until
from server.prompted import LOOK, MODEL, EventLog, ask, ask_chat, prompted_codex, send_request, wait_for
from warm import WarmProcess

from bridge.appserver.standin import STEP_KINDS, parse_script
from bridge.appserver.turn import ChildSettings
from bridge.errors import ConfigError

TEXT = [{"type": "input_text", "text": "hello there"}]
USER = {"type": "message", "role": "user", "content": TEXT}


def _unread(pipe: Any) -> int:
    """How much waits in a pipe."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class Wire:
    """The stand-in's stdin and stdout."""

    def __init__(self, process: WarmProcess) -> None:
        self.process = process
        self._id = 0
        self.seen: list[dict[str, Any]] = []

    def send(self, method: str, **params: Any) -> int:
        """Write one request."""
        self._id += 1
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"id": self._id, "method": method, "params": params}).encode() + b"\n")
        self.process.stdin.flush()
        return self._id

    def read(self) -> dict[str, Any]:
        """The next message."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the stand-in has ended"
        if not line.startswith(b"{"):
            return {"method": "garbage"}
        message: dict[str, Any] = json.loads(line)
        return message

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One request and its reply; notifications on the way are kept in `seen`."""
        number = self.send(method, **params)
        while (message := self.read()).get("id") != number or "method" in message:
            self.seen.append(message)
        return message

    def wait_until_full(self) -> None:
        """Wait until its stdout takes no more."""
        wait_for(lambda: _unread(self.process.stdout) >= 60_000, "the pipe is full")

    def wait_until_taken(self) -> None:
        """Wait until it has read what was sent, and waits for something again."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(
            lambda: not _unread(self.process.stdin) and stat.read_text().rpartition(")")[2].split()[0] == "S",
            "the request is taken in",
        )

    def until(self, method: str) -> list[dict[str, Any]]:
        """All messages up to the notification `method`."""
        seen, self.seen = self.seen, []
        while not seen or seen[-1].get("method") != method:
            seen.append(self.read())
        return seen

    def turn(self, model: str, developer: str | None = None, items: list[dict[str, Any]] | None = None) -> str:
        """One whole turn of the current dialect; its text."""
        started = self.call("thread/start", model=model, developerInstructions=developer, ephemeral=True)
        thread = started["result"]["thread"]["id"]
        self.call("thread/inject_items", threadId=thread, items=items or [USER])
        self.call("turn/start", threadId=thread, input=[])
        messages = self.until("turn/completed")
        return "".join(m["params"]["delta"] for m in messages if m.get("method") == "item/agentMessage/delta")


@contextmanager
def standin(*arguments: str) -> Iterator[Wire]:
    """`turnbridge app-server`, from its start to the end of its stdin."""
    process = WarmProcess(
        ["app-server", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Wire(process)
        process.stdin.close()
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def script_file(directory: Path, *steps: dict[str, Any], **members: Any) -> str:
    """A script with one turn, as arguments."""
    path = directory / "script.json"
    path.write_text(json.dumps(turns(list(steps), **members)))
    return f"--script={path}"


# Modes and dialects


def test_the_modes_answer_as_a_model_would() -> None:
    """echo repeats, text is fixed, tool-call copies the offered example, tool-loop ends when the tool has answered."""
    developer = (
        "Tool: look\nParameters:\n- (no parameters)\nExample tool_call:\n"
        '<tool_call>{"name":"look","arguments":"{}"}</tool_call>'
    )
    output = {"type": "function_call_output", "call_id": "c", "output": "42"}
    with standin() as wire:
        assert "standin" in wire.call("initialize")["result"]["userAgent"]
        listed = [model["id"] for model in wire.call("model/list")["result"]["data"]]
        assert listed == ["mock-echo", "mock-text", "mock-tool-call", "mock-tool-loop"]
        assert wire.call("account/read")["result"] == {"account": None, "requiresOpenaiAuth": False}
        assert wire.turn("mock-echo") == "hello there"
        assert wire.turn("unknown-model") == "hello there"
        assert wire.turn("mock-text") == "mock response text"
        assert wire.turn("mock-tool-call", developer) == '<tool_call>{"name":"look","arguments":"{}"}</tool_call>'
        assert "mock_tool" in wire.turn("mock-tool-call")
        assert "<tool_call>" in wire.turn("mock-tool-loop", developer)
        assert wire.turn("mock-tool-loop", developer, [USER, output]) == "mock tool result: 42"
        assert wire.turn("mock-tool-loop", developer, [USER, output, output]) == "mock tool result: 42; 42"
        assert "<tool_call>" in wire.turn("mock-tool-loop", developer, [USER, output, USER])


def test_a_thread_counts_its_tokens_from_its_beginning() -> None:
    """As Codex does: what a turn has used is the difference."""
    with standin() as wire:
        wire.call("initialize")
        thread = wire.call("thread/start", model="mock-text", ephemeral=True)["result"]["thread"]["id"]
        counts = []
        for _ in range(2):
            wire.call("thread/inject_items", threadId=thread, items=[USER])
            wire.call("turn/start", threadId=thread, input=[])
            told = [m for m in wire.until("turn/completed") if m.get("method") == "thread/tokenUsage/updated"]
            counts.append(told[-1]["params"]["tokenUsage"])
    first, second = counts
    assert first["total"] == first["last"]
    assert {name: second["total"][name] - first["total"][name] for name in first["total"]} == second["last"]
    assert second["last"]["outputTokens"] > 0


def test_the_legacy_dialect_says_each_delta_in_three_spellings(tmp_path: Path) -> None:
    """As Codex 0.107 does it, unless the client has opted out of some; the whole text comes at the end."""
    arguments = (
        script_file(tmp_path, {"deltas": ["a", "b"]}, {"usage": {"input": 3, "output": 2}}),
        "--dialect=legacy",
    )
    with standin(*arguments) as wire:
        wire.call("initialize", capabilities={"optOutNotificationMethods": ["item/agentMessage/delta"]})
        refused = wire.call("turn/start", threadId="x")["error"]
        assert "newConversation" in refused["message"]
        assert "`turn/start`, expected" in refused["message"]
        conversation = wire.call("newConversation", model="m")["result"]["conversationId"]
        wire.call("addConversationListener", conversationId=conversation, experimentalRawEvents=False)
        items = [{"type": "text", "data": {"text": "[user] hi"}}]
        wire.call("sendUserTurn", conversationId=conversation, items=items)
        messages = wire.until("codex/event/task_complete")
    names = [message["method"].removeprefix("codex/event/") for message in messages]
    assert names.count("agent_message_content_delta") == names.count("agent_message_delta") == 2
    assert "item/agentMessage/delta" not in names
    assert messages[-1]["params"]["msg"]["last_agent_message"] == "ab"
    usage = next(m["params"]["msg"]["info"] for m in messages if m["method"].endswith("token_count"))
    assert usage["total_token_usage"]["total_tokens"] == 5


def test_the_current_dialect_alone_has_no_legacy_methods() -> None:
    """Each dialect can be offered without the other, for tests of its detection."""
    with standin("--dialect=current") as wire:
        message = wire.call("newConversation")["error"]["message"]
        assert "`turn/start`" in message
        assert message.count("newConversation") == 1


# Interrupts


@pytest.mark.parametrize("method", [5, None, [1], {"a": 1}], ids=str)
def test_a_method_that_is_not_a_text_is_refused(method: Any) -> None:
    """The stand-in answers with an error and serves the next call."""
    with standin() as wire:
        wire.send(method)
        assert "error" in wire.read()
        assert "result" in wire.call("model/list")


def test_an_interrupt_ends_the_turn_once() -> None:
    """The reply comes, then turn/completed as interrupted; there is nothing to interrupt in an idle thread."""
    with standin() as wire:
        thread = wire.call("thread/start", model="m")["result"]["thread"]["id"]
        assert wire.call("turn/interrupt", threadId=thread)["error"]["message"] == "no active turn to interrupt"
        assert "thread not found" in wire.call("turn/start", threadId="none", input=[])["error"]["message"]


def test_an_interrupt_within_a_line_leaves_whole_lines(tmp_path: Path) -> None:
    """Also while a long line waits in a full pipe: what was begun is written to its end."""
    with standin(script_file(tmp_path, {"text": "x" * 3_000_000, "chunk": 1_000_000}, {"hang": True})) as wire:
        thread = wire.call("thread/start", model="m")["result"]["thread"]["id"]
        wire.call("turn/start", threadId=thread, input=[])
        assert wire.read()["method"] == "turn/started"
        wire.wait_until_full()
        number = wire.send("turn/interrupt", threadId=thread)
        wire.wait_until_taken()
        messages = wire.until("turn/completed")
        assert messages[-1]["params"]["turn"]["status"] == "interrupted"
        assert [message["result"] for message in messages if message.get("id") == number] == [{}]


# Scripts


def test_a_script_says_everything_that_a_codex_can(tmp_path: Path) -> None:
    """Each kind of step that lets a turn go on, in the order in which its messages come."""
    steps: list[dict[str, Any]] = [
        {"reasoning": ["think", "more"], "raw_reasoning": ["raw"]},
        {"text": "abcdef", "chunk": 4},
        {"garbage": "oops"},
        {"retry": "once more"},
        {"no_delta": "silent "},
        {"deltas": ["a", ""]},
        {"flood": 3},
        {"sleep": 0},
        {"stderr": "noted"},
        {"request": {"method": "execCommandApproval", "params": {"x": 1}}},
        {"usage": {"input": 1, "output": 2, "cached": 3, "reasoning": 4}},
        {"interrupted": True},
        {"text": "never said"},
    ]
    with standin(script_file(tmp_path, *steps)) as wire:
        thread = wire.call("thread/start")["result"]["thread"]["id"]
        wire.call("turn/start", threadId=thread, input=[])
        messages = wire.until("turn/completed")
    assert [message["method"] for message in messages] == [
        "turn/started",
        "item/reasoning/summaryTextDelta",
        "item/reasoning/summaryTextDelta",
        "item/reasoning/textDelta",
        "item/completed",
        "item/agentMessage/delta",
        "item/agentMessage/delta",
        "garbage",
        "error",
        *["item/agentMessage/delta"] * 5,
        "execCommandApproval",
        "item/completed",
        "thread/tokenUsage/updated",
        "turn/completed",
    ]
    done = [message["params"]["item"] for message in messages if message["method"] == "item/completed"]
    assert done[1]["text"] == "silent aflood flood flood "
    assert messages[-1]["params"]["turn"]["status"] == "interrupted"


@pytest.mark.parametrize(
    ("step", "code"),
    [({"exit": 5}, 5), ({"signal": int(signal.SIGKILL)}, -signal.SIGKILL)],
    ids=["exit", "kill"],
)
def test_a_script_can_end_the_program(tmp_path: Path, step: dict[str, int], code: int) -> None:
    """With any code or signal, at startup or in a turn."""
    with pytest.raises(AssertionError, match="has ended"), standin(script_file(tmp_path, startup=[step])) as wire:
        wire.read()  # to send it something could come too late
    assert wire.process.returncode == code


def test_a_script_can_keep_silent_refuse_and_introduce_itself(tmp_path: Path) -> None:
    """`mute`, `refuse` and `user_agent` concern the calls, not the turns."""
    members = {
        "mute": ["model/list"],
        "refuse": {"thread/start": {"code": -32001, "message": "Server overloaded; retry later."}},
        "user_agent": "codex_cli_rs/0.79.0",
    }
    with standin(script_file(tmp_path, {"text": "hi"}, **members)) as wire:
        assert wire.call("initialize")["result"]["userAgent"] == "codex_cli_rs/0.79.0"
        wire.send("model/list")
        assert wire.call("thread/start")["error"]["code"] == -32001
        assert wire.seen == []


def test_garbage_may_be_any_bytes(tmp_path: Path) -> None:
    """A byte that is no UTF-8 is written in a script as the surrogate that stands for it."""
    path = tmp_path / "script.json"
    path.write_text(r'{"turns":[{"steps":[{"garbage":"\udcff\udcfe"},{"text":"hi"}]}]}')
    with standin(f"--script={path}") as wire:
        thread = wire.call("thread/start")["result"]["thread"]["id"]
        wire.call("turn/start", threadId=thread, input=[])
        assert "garbage" in [message["method"] for message in wire.until("turn/completed")]


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        "[]",
        "{}",
        '{"turns":[]}',
        '{"turns":5}',
        '{"turns":[5]}',
        '{"turns":[{}]}',
        '{"turns":[{"steps":5}]}',
        '{"turns":[{"steps":["hang"]}]}',
        '{"turns":[{"steps":[{}]}]}',
        '{"turns":[{"steps":[{"txt":"hi"}]}]}',
        '{"turns":[{"steps":[{"text":"hi"}]}],"startup":[{"nap":1}]}',
        '{"turns":[{"steps":[{"text":"hi"}]}],"splitt":1}',
    ],
)
def test_a_wrong_script_is_refused(text: str) -> None:
    """A misspelt member would make a test pass that tests nothing: it is an error that says what is wrong."""
    with pytest.raises(ConfigError):
        parse_script(text.encode())


def test_every_step_is_documented() -> None:
    """docs/standin.md names every kind of step and every member of a script."""
    page = (ROOT / "docs" / "standin.md").read_text()
    members = {"turns", "steps", "startup", "mute", "refuse", "split", "ignore_sigterm", "ignore_eof", "user_agent"}
    assert not [name for name in STEP_KINDS | members if f"`{name}`" not in page]


def test_the_documented_example_runs(tmp_path: Path) -> None:
    """The commands of docs/standin.md print what the page says."""
    page = (ROOT / "docs" / "standin.md").read_text()
    commands, printed = re.search(r"```sh\n(.*?)```.*?```text\n(.*?)```", page, re.S).groups()  # type: ignore[union-attr]
    command = tmp_path / "turnbridge"
    command.write_text(f'#!/bin/sh\nPYTHONPATH={quote(str(ROOT))} exec {quote(sys.executable)} -m bridge "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", commands],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert done.stdout == printed


# The flows of the legacy dialect, through the bridge

OPENING = ["newConversation", "addConversationListener"]
ENDING = ["interruptConversation", "removeConversationListener"]


@pytest.mark.parametrize(
    ("environment", "chat", "responses"),
    [
        ({}, ["sendUserTurn", "sendUserMessage"], ["sendUserTurn", "sendUserMessage"]),
        ({"PROXY_RESPONSES_SKIP_TURN": "true"}, ["sendUserTurn", "sendUserMessage"], ["sendUserMessage"]),
    ],
    ids=["document", "skip_turn"],
)
def test_the_legacy_flows_are_the_document_s(
    tmp_path: Path, environment: dict[str, str], chat: list[str], responses: list[str]
) -> None:
    """Seed 003 sends both calls for chat and for responses, and for responses the message alone with SKIP_TURN."""
    log = EventLog(tmp_path / "events.ndjson")
    settings = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "PROXY_DIALECT": "legacy"}

    def has_replies(req_id: str, count: int) -> bool:
        return len(log.of(req_id, "rpc_response")) >= count

    def has_ended(req_id: str) -> bool:
        return log.calls(req_id)[-1:] == ENDING[-1:]

    with running_bridge(tmp_path, f"--log-events={log.path}", **settings, **environment) as bridge:
        for path, body, sends in (("/v1/chat/completions", ask_chat, chat), ("/v1/responses", ask, responses)):
            with send_request(bridge, path, body({"text": "one"}, {"hang": path}, stream=True)) as client:
                req_id = wait_for(partial(log.request_of, path), "the request")
                assert client.recv(1)
                wait_for(partial(has_replies, req_id, len(OPENING + sends)), "the calls' replies")
            wait_for(partial(has_ended, req_id), "the end of the flow")
            assert log.calls(req_id) == OPENING + sends + ENDING
            asked = [record["payload"]["params"].get("conversationId") for record in log.of(req_id, "rpc_request")]
            assert len({conversation for conversation in asked if conversation}) == 1


@pytest.mark.parametrize(("calls", "method"), [("turn", "sendUserTurn"), ("message", "sendUserMessage")])
async def test_legacy_calls_chooses_one(tmp_path: Path, calls: Any, method: str) -> None:
    """PROXY_LEGACY_CALLS sends the one call that it names, for both endpoints."""
    tape = Tape()
    program = Program(prompted_codex(tmp_path), "app-server")
    settings = ChildSettings(legacy_calls=calls)
    async with supervised(program, settings, dialect="legacy", tap=tape.recorder) as supervisor:
        child = await supervisor.acquire()
        for endpoint in ("chat", "responses"):
            # The pause leaves time for a second call, if there were one.
            result = await finish(child.start(turn({"sleep": 0.1}, {"text": "hi"}, endpoint=endpoint)))
            assert result.text == "hi"
            await until(lambda: not child.turns, "all is let go")
    assert tape.calls() == [*OPENING, method, ENDING[-1]] * 2


def test_a_real_codex_gets_one_prompt(tmp_path: Path) -> None:
    """A Codex release, known by its handshake, takes the second call for a second prompt: it gets one."""
    log = EventLog(tmp_path / "events.ndjson")
    script = turns([{"sleep": 0.2}, {"text": "hi"}], user_agent="turnbridge/0.107.0 (Linux)")
    codex = str(scripted_codex(tmp_path, script, dialect="legacy"))
    with running_bridge(tmp_path, f"--log-events={log.path}", CODEX_BIN=codex, PROXY_MODELS=MODEL) as bridge:
        for path, body in (("/responses", ask(tools=[LOOK])), ("/chat/completions", ask_chat())):
            assert bridge.post(path, body).status_code == 200
    sent = [record["method"] for record in log.records() if record["kind"] == "rpc_request"]
    assert sent.count("sendUserTurn") == 2
    assert "sendUserMessage" not in sent
