"""Plain transcripts of a real Codex that another client talks to: every turn in them is found and played."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from appserver.standin.wire import Wire
from cli.running import run_command
from real import codex_binaries
from real.provider import Provider, codex_home, script

Message = dict[str, Any]


class NotedWire(Wire):
    """Stdin and stdout of a Codex; `transcript` gets every line of both."""

    def __init__(self, process: subprocess.Popen[bytes], transcript: Path) -> None:
        super().__init__(process)
        self._transcript = transcript

    def write(self, line: bytes) -> None:
        self._note("out", line)
        super().write(line)

    def _line(self, seconds: float) -> bytes:
        line = super()._line(seconds)
        self._note("in", line)
        return line

    def _note(self, direction: str, line: bytes) -> None:
        with self._transcript.open("a") as file:
            file.write(json.dumps({"t": monotonic(), "dir": direction, "msg": json.loads(line)}) + "\n")


@contextmanager
def codex(version: str, directory: Path, transcript: Path) -> Iterator[NotedWire]:
    """A Codex that has shaken hands; its home stays for the next one."""
    binary = codex_binaries.find(version)
    if isinstance(binary, str):
        pytest.skip(binary)
    with Provider() as provider:
        home = codex_home(directory / "home", provider)
        process = subprocess.Popen(
            [binary, "app-server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(directory), "CODEX_HOME": str(home)},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            wire = NotedWire(process, transcript)
            capabilities = {"experimentalApi": True}
            wire.call("initialize", clientInfo={"name": "probe", "version": "0"}, capabilities=capabilities)
            yield wire
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def say(text: str) -> str:
    """A prompt that is answered with a text."""
    return script({"do": "text", "pieces": [text]})


def turn(wire: Wire, thread: str, text: str) -> None:
    """One turn in a thread."""
    reply = wire.call("turn/start", threadId=thread, input=[{"type": "text", "text": say(text)}])
    assert "result" in reply, reply
    wire.until("turn/completed")


def legacy_turn(wire: Wire, conversation: str, text: str) -> None:
    """One turn in a conversation."""
    items = [{"type": "text", "data": {"text": say(text)}}]
    reply = wire.call("sendUserMessage", conversationId=conversation, items=items)
    assert "result" in reply, reply
    wire.until("codex/event/task_complete")


def played(transcript: Path) -> tuple[str, list[Message]]:
    """The text of every turn, and the rows of `log ls`."""
    ran = run_command("replay", transcript, "--as", "text")
    assert (ran.returncode, ran.stderr) == (0, "")
    responses = run_command("replay", transcript, "--as", "responses").stdout
    events = [json.loads(line[6:]) for line in responses.splitlines() if line.startswith("data: {")]
    ends = [event["response"] for event in events if event["type"] == "response.completed"]
    assert [end["usage"]["total_tokens"] for end in ends] == [18] * ran.stdout.count("\n")
    listed = run_command("log", "ls", transcript, "--json")
    assert (listed.returncode, listed.stderr) == (0, "")
    return ran.stdout, [json.loads(line) for line in listed.stdout.splitlines()]


@pytest.mark.parametrize("version", [codex_binaries.CURRENT, codex_binaries.NEWEST])
def test_every_turn_of_every_thread_is_found(version: str, tmp_path: Path) -> None:
    """Two turns in one thread, then one in a fork of it; another Codex resumes it."""
    first, second = tmp_path / "first.ndjson", tmp_path / "second.ndjson"
    with codex(version, tmp_path, first) as wire:
        thread = str(wire.call("thread/start", model="gpt-5.2")["result"]["thread"]["id"])
        turn(wire, thread, "one")
        turn(wire, thread, "two")
        fork = wire.call("thread/fork", threadId=thread)["result"]["thread"]["id"]
        turn(wire, str(fork), "three")
    with codex(version, tmp_path, second) as wire:
        wire.call("thread/resume", threadId=thread)
        turn(wire, thread, "four")
    said, rows = played(first)
    assert said == "one\ntwo\nthree\n"
    assert [row["id"] for row in rows] == ["first-1", "first-2", "first-3"]
    assert {(row["outcome"], row["requested_model"], row["input_tokens"]) for row in rows} == {
        ("completed", "gpt-5.2", 11)
    }
    said, (row,) = played(second)
    assert said == "four\n"
    assert (row["outcome"], row["requested_model"], row["output_tokens"]) == ("completed", "gpt-5.2", 7)


def test_every_turn_of_every_legacy_conversation_is_found(tmp_path: Path) -> None:
    """Two turns in one conversation; another Codex resumes it."""
    first, second = tmp_path / "first.ndjson", tmp_path / "second.ndjson"
    with codex(codex_binaries.LEGACY, tmp_path, first) as wire:
        begun = wire.call("newConversation", model="gpt-5.2")["result"]
        conversation = str(begun["conversationId"])
        wire.call("addConversationListener", conversationId=conversation)
        legacy_turn(wire, conversation, "one")
        legacy_turn(wire, conversation, "two")
    with codex(codex_binaries.LEGACY, tmp_path, second) as wire:
        resumed = wire.call("resumeConversation", path=begun["rolloutPath"])["result"]["conversationId"]
        wire.call("addConversationListener", conversationId=resumed)
        legacy_turn(wire, str(resumed), "three")
    said, rows = played(first)
    assert said == "one\ntwo\n"
    assert [(row["id"], row["outcome"], row["output_tokens"]) for row in rows] == [
        ("first-1", "completed", 7),
        ("first-2", "completed", 7),
    ]
    said, (row,) = played(second)
    assert said == "three\n"
    assert (row["outcome"], row["requested_model"]) == ("completed", "gpt-5.2")
