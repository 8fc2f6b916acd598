"""The recordings of real Codex in fixtures/logs: each is answered again byte for byte; together they hold all kinds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli.running import run_command
from harness import ROOT
from log.replayed import compared, play_log, recordings_in

from bridge.log.recording import Recording

LOGS = sorted((ROOT / "fixtures/logs").glob("*.ndjson"))
TRACES = sorted((ROOT / "fixtures/traces").glob("*.ndjson"))
EVERYTHING = recordings_in(*LOGS)


@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.stem)
def test_every_recording_verifies(log: Path) -> None:
    play_log(log)


def test_a_continued_conversation_stays_so_without_its_beginning() -> None:
    """A log may hold only the later turns of a conversation; what their clients were told is told again."""
    later = [each for each in EVERYTHING if each.client_header("x-conversation") == "continued"]
    assert later
    for recording in later:
        (found,) = compared([recording])
        assert found.outcome == "same", found.lines
        assert found.now is not None
        assert found.now.client_header("x-conversation") == "continued"


def test_the_command_says_so() -> None:
    ran = run_command("replay", ROOT / "fixtures/logs", "--verify")
    assert (ran.returncode, ran.stderr) == (0, "")
    count = len(EVERYTHING)
    assert ran.stdout == f"{count} request(s): {count} the same, 0 different, 0 not played\n"
    again = run_command("log", "verify", ROOT / "fixtures/logs")
    assert (again.returncode, again.stdout) == (0, ran.stdout)


def outcome(name: str, reason: str | None = None, error: str | None = None) -> Callable[[Recording], bool]:
    def fits(recording: Recording) -> bool:
        end = recording.end or {}
        return (
            end.get("outcome") == name
            and (reason is None or end.get("reason") == reason)
            and (error is None or (end.get("error") or {}).get("code") == error)
        )

    return fits


def status(number: int) -> Callable[[Recording], bool]:
    return lambda recording: recording.status == number


def sent(text: bytes) -> Callable[[Recording], bool]:
    return lambda recording: text in recording.sent


def asked(name: str) -> Callable[[Recording], bool]:
    return lambda recording: bool((recording.body or {}).get(name))


def called(method: str, without: str = "") -> Callable[[Recording], bool]:
    def fits(recording: Recording) -> bool:
        methods = {frame.method for frames in recording.attempts.values() for frame in frames}
        return method in methods and without not in methods

    return fits


def assist(begins: bytes) -> Callable[[Recording], bool]:
    return lambda recording: recording.path == "/v1/assist" and recording.sent.startswith(begins)


def noted(kind: str) -> Callable[[Recording], bool]:
    return lambda recording: any(name == kind for name, _ in recording.notes)


KINDS: dict[str, Callable[[Recording], bool]] = {
    "text": outcome("completed"),
    "a call in text": noted("tool_call"),
    "a repaired call": noted("tool_repair"),
    "a block that is no call": noted("tool_reject"),
    "a custom tool's call": sent(b"custom_tool_call"),
    "thoughts": sent(b"reasoning_summary_text.delta"),
    "thoughts in chat": sent(b"reasoning_content"),
    "thoughts in tags": sent(b"<think>"),
    "encrypted thoughts": lambda recording: "encrypted_content" in str((recording.body or {}).get("include")),
    "a limit of the provider's": status(429),
    "a request that the provider refuses": status(400),
    "a failure of the provider's": outcome("failed"),
    "an answer that is cut": outcome("incomplete"),
    "a model that does not exist": outcome("failed", error="model_not_found"),
    "a client that leaves": outcome("cancelled", "client_gone"),
    "a client that cancels": lambda recording: (
        outcome("cancelled")(recording) and (recording.end or {}).get("reason") != "client_gone"
    ),
    "a child that dies": outcome("failed", error="backend_crashed"),
    "a background response": asked("background"),
    "several choices": asked("n"),
    "a stop sequence": asked("stop"),
    "a format": asked("text"),
    "a continuation by id": asked("previous_response_id"),
    "a thread that is kept": called("thread/inject_items", without="thread/start"),
    "calls of the provider's own": called("item/tool/call"),
    "CAP as events": assist(b"event: stream.packet\n"),
    "CAP as lines": assist(b'{"op":"delta"'),
    "CAP as one object": assist(b'{"request_id"'),
    "CAP over a socket": lambda recording: recording.path == "/v1/assist/ws",
    "thoughts in CAP": sent(b'"type":"thought_trace"'),
    "a search in CAP": sent(b'"kind":"web_search"'),
    "a failure in CAP's stream": sent(b'{"op":"error"'),
    "a refusal in CAP": assist(b'{"code"'),
    "CAP's time limit": outcome("failed", error="deadline_exceeded"),
    "a conversation in CAP": lambda recording: "conversation_id" in (recording.body or {}).get("payload", {}),
    "the current dialect": called("thread/start"),
    "the legacy dialect": called("newConversation"),
    "history as text": called("turn/start", without="thread/inject_items"),
    "a response, streamed": lambda recording: recording.path == "/v1/responses" and recording.streamed,
    "a response, whole": lambda recording: recording.path == "/v1/responses" and not recording.streamed,
    "a chat, streamed": lambda recording: recording.path == "/v1/chat/completions" and recording.streamed,
    "a response over a WebSocket": lambda recording: (
        recording.path == "/v1/responses" and recording.status is None and recording.streamed
    ),
    "a run of exec": lambda recording: recording.path == "exec" and outcome("completed")(recording),
    "a run of exec with a tool's output": lambda recording: recording.path == "exec" and len(recording.attempts) == 2,
    "a run of exec that fails": lambda recording: recording.path == "exec" and outcome("failed")(recording),
    "a run of exec that is interrupted": outcome("cancelled", "interrupted"),
    "a chat, whole": lambda recording: recording.path == "/v1/chat/completions" and not recording.streamed,
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_recordings_hold_every_kind_of_turn(kind: str) -> None:
    assert any(map(KINDS[kind], EVERYTHING))


@pytest.mark.parametrize("protocol", ["responses", "chat", "wire", "cap", "text"])
def test_everything_can_be_read_in_every_protocol(protocol: str) -> None:
    """What was refused is refused again; nothing else is."""
    ran = run_command("replay", ROOT / "fixtures/logs", "--as", protocol)
    refused = [recording.id for recording in EVERYTHING if recording.start is None]
    assert [line.split()[1].rstrip(":") for line in ran.stderr.splitlines()] == refused
    assert ran.returncode == 1
    assert ran.stdout.count("word0") or "wörld ☕" in ran.stdout


def test_transcripts_are_read_too() -> None:
    """They have no client, so there is nothing to compare; what the child said is shown as a response."""
    shown = run_command("replay", ROOT / "fixtures/traces")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line.split("-1 ")[0] for line in shown.stdout.splitlines() if line.startswith(": ")] == [
        f": {trace.stem}" for trace in TRACES
    ]
    assert shown.stdout.count("event: response.created") == len(TRACES)
    ran = run_command("replay", ROOT / "fixtures/traces", "--verify", "-v")
    assert (ran.returncode, ran.stderr) == (1, "error: nothing was compared: none of the requests can be played\n")
    assert ran.stdout.count("the log does not contain its client's answer") == len(TRACES)
