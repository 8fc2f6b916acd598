"""Logs made by the bridge's own recorder, in a few words, and `turnbridge log` as a process of its own."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fcntl import ioctl
from pathlib import Path
from struct import pack
from termios import TIOCSWINSZ
from typing import Any

from harness import ROOT
from warm import Process, WarmProcess, run_warm

from bridge.log.record import Recorder
from bridge.redact import Redactor

BRIDGE = (sys.executable, "-m", "bridge", "log")
BEGUN = datetime(2026, 3, 1, 8, tzinfo=UTC)
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"x\\"}"}</tool_call>'
DONE = {"outcome": "completed", "reason": None, "error": None}
USAGE = {"input_tokens": 1234, "cached_tokens": 1000, "output_tokens": 56, "reasoning_tokens": 7}


def name_of(number: int) -> str:
    """The id of the n-th request; two differ in their first digits."""
    return f"req_{number:04x}" + f"{number:028x}"


class LogMaker:
    """Records what a bridge would have seen. `lines` are the log; a second of time goes by with each request."""

    def __init__(self, run: str = "aaaaaaaa") -> None:
        self.lines: list[bytes] = []
        self._seconds = 0.0
        self.recorder = Recorder(self._write, self._now, Redactor(), run)
        self._write(self.recorder.header(dialect="auto", settings={}))

    def _write(self, data: bytes) -> None:
        self.lines += [line + b"\n" for line in data.split(b"\n")[:-1]]

    def _now(self) -> tuple[str, float]:
        wall = BEGUN + timedelta(seconds=self._seconds)
        return f"{wall:%Y-%m-%dT%H:%M:%S.%f}Z", 500.0 + self._seconds

    @property
    def data(self) -> bytes:
        """The log so far."""
        return b"".join(self.lines)

    def wait(self, seconds: float) -> None:
        """Let time go by."""
        self._seconds += seconds

    def begin(
        self, number: int, said: str = "hello?", *, model: str = "gpt-5.2", path: str = "/v1/responses", **members: Any
    ) -> str:
        """A request comes and its turn begins."""
        name = name_of(number)
        body = (
            {"model": model, "input": said}
            if path == "/v1/responses"
            else {"model": model, "messages": [{"role": "user", "content": said}]}
        )
        self.recorder.event("http_ingress", "in", "client_request", name, {"path": path, "body": body | members})
        about = {"model": f"{model}-real", "requested_model": model, "effort": None, "backend": "app-server"}
        self.recorder.event("turn", "none", "turn_start", name, about | {"dropped": []})
        start = {"jsonrpc": "2.0", "id": 5, "method": "thread/start", "params": {"model": model}}
        self.rpc(name, "out", "rpc_request", start)
        return name

    def rpc(self, name: str, direction: str, kind: str, message: dict[str, Any]) -> None:
        """One message of the child's."""
        line = json.dumps(message, separators=(",", ":")).encode()
        self.recorder.rpc(direction, kind, line, method=message.get("method"), key=f"thread-{name}", req_id=name)

    def say(self, name: str, *pieces: str, method: str = "item/agentMessage/delta") -> None:
        """Pieces of an answer, as the child tells them."""
        for piece in pieces:
            params = {"threadId": f"thread-{name}", "turnId": "turn-1", "itemId": method[:9], "delta": piece}
            self.rpc(name, "in", "rpc_notification", {"method": method, "params": params})

    def tell(self, name: str, *texts: str) -> None:
        """A stream, as the client gets it."""
        self.recorder.event("client_egress", "out", "client_start", name, {"status": 200, "headers": []})
        for text in texts:
            data = json.dumps({"type": "response.output_text.delta", "item_id": f"msg_{name[4:]}", "delta": text})
            self.recorder.client_sse(name, f"event: response.output_text.delta\ndata: {data}\n\n".encode())
        self.recorder.event("client_egress", "out", "client_sse_done", name, {})

    def note(self, request: str, kind: str, /, **payload: Any) -> None:
        """What was noted of a call."""
        self.recorder.event("tool_parse", "none", kind, request, payload)

    def end(self, name: str, *, calls: tuple[str, ...] = (), repairs: tuple[str, ...] = (), **members: Any) -> None:
        """The request is over."""
        told = {"usage": None, "calls": list(calls), "repairs": list(repairs), "first_event_s": 0.25, "total_s": 1.5}
        self.recorder.event("turn", "none", "turn_end", name, DONE | told | members)
        self.wait(1)

    def fail(self, name: str, code: str = "rate_limited", **members: Any) -> None:
        """The request fails."""
        error = {"code": code, "message": f"It is {code}.", "http_status": 429, "type": "rate_limit_error"}
        self.end(name, outcome="failed", error=error | {"severity": "transient", "param": None} | members)

    def whole(self, number: int, said: str = "hello?", answer: str = "well", **members: Any) -> str:
        """A request from its beginning to its end."""
        name = self.begin(number, said, **members)
        self.say(name, *answer)
        self.tell(name, *answer)
        self.end(name, usage=USAGE)
        return name


@dataclass(frozen=True)
class Shown:
    """What a command wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


@dataclass
class LogCommand:
    """`turnbridge log` with a home of its own."""

    directory: Path
    columns: int = 80
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def cache(self) -> Path:
        return self.directory / "cache"

    def env(self, **more: str) -> dict[str, str]:
        ours = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "XDG_CACHE_HOME": str(self.cache), "TZ": "UTC"}
        return ours | {"COLUMNS": str(self.columns), "TERM": "xterm-256color"} | self.environment | more

    def run(self, *arguments: object, **environment: str) -> Shown:
        """Run it to its end, in pipes. Whatever is asked of it, it never ends in a traceback."""
        ran = run_warm("log", *map(str, arguments), env=self.env(**environment))
        shown = Shown(ran.returncode, ran.stdout.decode("utf-8", "replace"), ran.stderr.decode("utf-8", "replace"))
        assert "Traceback" not in shown.stderr, shown.stderr
        return shown

    def on_terminal(self, *arguments: object, **environment: str) -> tuple[int, str]:
        """(exit code, everything that appears) with a terminal for stdout and stderr."""
        ours, theirs = pty.openpty()
        ioctl(ours, TIOCSWINSZ, pack("HHHH", 24, self.columns, 0, 0))
        env = self.env(**environment)
        del env["COLUMNS"]
        words = ["log", *map(str, arguments)]
        with WarmProcess(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=ROOT) as process:
            os.close(theirs)
            seen = b""
            while True:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # how Linux tells that the other side has closed
                    break
                if not data:
                    break
                seen += data
        os.close(ours)
        text = seen.decode("utf-8", "replace").replace("\r\n", "\n")
        assert "Traceback" not in text, text
        return process.wait(), text

    @contextmanager
    def running(self, *arguments: object) -> Iterator[Running]:
        """It runs until the block is left; it must be ended there."""
        words = ["log", *map(str, arguments)]
        process = WarmProcess(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.env(), cwd=ROOT)
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


@dataclass
class Running:
    """A command that has not ended."""

    process: Process
    _rest: bytes = b""

    def line(self, seconds: float = 20) -> str:
        """The next line of stdout."""
        assert self.process.stdout is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], seconds)
            assert ready, f"no line within {seconds:g} s"
            data = os.read(self.process.stdout.fileno(), 65536)
            assert data, f"it has ended: {self.process.stderr.read().decode()}"  # type: ignore[union-attr]
            self._rest += data
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode()
