"""A recorded child over its pipes, as any client of the protocol sees it; and transcripts to play."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

from harness import ROOT
from warm import Process, WarmProcess

Message = dict[str, Any]
THREAD = "01a1e19c-0000-7000-8000-000000000001"
TURN = "01a1e19c-0000-7000-8000-00000000000a"
AGENT = "probe/0.166.0 (Linux; x86_64) xterm (probe; 0.1)"


class Wire:
    """Stdin and stdout of `turnbridge app-server --replay`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._id = 100
        self._buffer = b""
        self.seen: list[Message] = []

    def write(self, line: bytes) -> None:
        """One line of any kind."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, **params: Any) -> int:
        """One request; its id."""
        self._id += 1
        self.write(json.dumps({"id": self._id, "method": method, "params": params}).encode())
        return self._id

    def read(self, seconds: float = 10) -> Message:
        """The next message."""
        message: Message = json.loads(self._line(seconds))
        return message

    def nothing(self, seconds: float = 0.3) -> bool:
        """Whether nothing comes for that long."""
        assert self.process.stdout is not None
        return not self._buffer and not select.select([self.process.stdout], [], [], seconds)[0]

    def call(self, method: str, **params: Any) -> Message:
        """One request and its reply; what comes before it is kept in `seen`."""
        number = self.send(method, **params)
        while (message := self.read()).get("id") != number or "method" in message:
            self.seen.append(message)
        return message

    def until(self, *methods: str) -> list[Message]:
        """All messages up to a notification of one of these methods."""
        seen, self.seen = self.seen, []
        while not seen or seen[-1].get("method") not in methods:
            seen.append(self.read())
        return seen

    def rest(self) -> list[Message]:
        """All that comes until the child ends by itself."""
        assert self.process.stdout is not None
        lines = (self._buffer + self.process.stdout.read()).splitlines()
        return self.seen + [json.loads(line) for line in lines]

    def start(self, **params: Any) -> str:
        """Shake hands, where that is still to be done, and begin a thread; its id."""
        if self._id == 100:
            self.call("initialize", clientInfo={"name": "probe", "version": "0"})
        return str(self.call("thread/start", **params)["result"]["thread"]["id"])

    def turn(self, prompt: str, **params: Any) -> str:
        """One whole turn in a thread of its own; its text."""
        thread = self.start(**params)
        reply = self.call("turn/start", threadId=thread, input=[{"type": "text", "text": prompt}])
        assert "result" in reply, reply
        messages = self.until("turn/completed")
        return "".join(m["params"]["delta"] for m in messages if m.get("method") == "item/agentMessage/delta")

    def _line(self, seconds: float) -> bytes:
        assert self.process.stdout is not None
        deadline = monotonic() + seconds
        while b"\n" not in self._buffer:
            ready = select.select([self.process.stdout], [], [], max(0, deadline - monotonic()))[0]
            assert ready, f"nothing within {seconds:g} s"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, "the child has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line


@contextmanager
def playing(log: Path, *arguments: str, code: int = 0, stderr: Path | None = None) -> Iterator[Wire]:
    """The real command, from its start to the end of its stdin; it ends with `code`."""
    errors = stderr.open("wb") if stderr is not None else subprocess.DEVNULL
    process = WarmProcess(
        ["app-server", f"--replay={log}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Wire(process)
        process.stdin.close()
        assert process.wait(10) == code
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        if not isinstance(errors, int):
            errors.close()


# Transcripts


def asked(at: float, number: int, method: str, **params: Any) -> Message:
    """A call of the recorded client's."""
    return {"t": at, "dir": "out", "msg": {"id": number, "method": method, "params": params}}


def replied(at: float, number: int, result: Any) -> Message:
    """Its reply."""
    return {"t": at, "dir": "in", "msg": {"id": number, "result": result}}


def noted(at: float, method: str, **params: Any) -> Message:
    """A notification."""
    return {"t": at, "dir": "in", "msg": {"method": method, "params": params}}


HANDSHAKE = [
    asked(0.0, 1, "initialize", clientInfo={"name": "probe", "version": "0"}),
    replied(0.01, 1, {"userAgent": AGENT}),
]


def begun(prompt: str, *, at: float = 1.0, number: int = 2, thread: str = THREAD, turn: str = TURN) -> list[Message]:
    """A thread and a turn in it that runs."""
    start: Message = {"id": turn, "items": [], "status": "inProgress", "error": None}
    return [
        asked(at, number, "thread/start", model="gpt-5.2", cwd="/recorded"),
        replied(
            at, number, {"thread": {"id": thread, "path": f"/sessions/rollout-{thread}.jsonl"}, "model": "gpt-5.2"}
        ),
        asked(at, number + 1, "turn/start", threadId=thread, input=[{"type": "text", "text": prompt}]),
        replied(at, number + 1, {"turn": start}),
        noted(at, "turn/started", threadId=thread, turn=start),
    ]


def delta(at: float, text: str, *, thread: str = THREAD, turn: str = TURN, item: str = "msg_1") -> Message:
    """A piece of the answer."""
    return noted(at, "item/agentMessage/delta", threadId=thread, turnId=turn, itemId=item, delta=text)


def completed(at: float, *, thread: str = THREAD, turn: str = TURN) -> Message:
    """The end."""
    done: Message = {"id": turn, "items": [], "status": "completed", "error": None}
    return noted(at, "turn/completed", threadId=thread, turn=done)


def whole_turn(prompt: str, answer: str, number: int) -> list[Message]:
    """The `number`th thread of a transcript, with one turn."""
    thread, turn = f"{THREAD[:-2]}{number:02d}", f"{TURN[:-3]}{number:02d}a"
    return [
        *begun(prompt, at=float(number), number=number * 2, thread=thread, turn=turn),
        delta(number + 0.1, answer, thread=thread, turn=turn, item=f"msg_{number}"),
        completed(number + 0.2, thread=thread, turn=turn),
    ]


def transcript(directory: Path, *entries: Sequence[Message], handshake: bool = True) -> Path:
    """A file of these entries."""
    path = directory / "transcript.ndjson"
    lines = [*(HANDSHAKE if handshake else ()), *(entry for part in entries for entry in part)]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    return path
