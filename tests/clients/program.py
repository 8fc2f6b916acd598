"""A client in a process of its own, which is told line by line what to do.

    with Program([python, "-m", "programs.some_client"], {"OPENAI_BASE_URL": …}) as program:
        program.run("plain", prompt="hi")  # {"ok": {"text": "hello"}}

One JSON object per line goes in, `{"case": "plain", "prompt": "hi"}`, and one comes out: `{"ok": {…}}`, or
`{"error": {"type": "RateLimitError", "message": "…", "status": 429}}` for what the client raised. The program ends when
its standard input does.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Self

FAREWELL = 10
"""Seconds for a program to end by itself."""


class Program:
    """A running program, for as long as the ``with`` block.

    It inherits nothing of our environment but PATH, so that no proxy, key or setting of this machine reaches a client.
    Its HOME is an empty directory. `env` is added, and may override both. It is killed when a case fails the protocol:
    an answer that comes late would be taken for the next one's.
    """

    limit: float = 60
    """Seconds for one case."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._argv, self._env = argv, env

    def __repr__(self) -> str:
        return f"<Program {' '.join(self._argv)}>"

    def __enter__(self) -> Self:
        self._home = tempfile.TemporaryDirectory(prefix="client-", ignore_cleanup_errors=True)
        self._stderr = Path(self._home.name, "stderr.txt")
        self._unread = b""
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={"PATH": os.environ["PATH"], "HOME": self._home.name, **self._env},
            )
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it died with a line unread, which the case has reported
            self._process.stdin.close()
        try:
            self._process.wait(FAREWELL)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._home.cleanup()

    def run(self, case: str, **parameters: Any) -> dict[str, Any]:
        """One case; the reply, with "ok" or "error". Raises AssertionError, with the stderr, when there is none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"case": case, **parameters}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._fail(case, "is dead already")
        line = self._read_line(case)
        try:
            reply: Any = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict) or not reply.keys() & {"ok", "error"}:
            self._fail(case, f"wrote this line instead of a reply: {line!r}")
        return reply

    def _read_line(self, case: str) -> bytes:
        assert self._process.stdout is not None
        output, deadline = self._process.stdout.fileno(), time.monotonic() + self.limit
        while b"\n" not in self._unread:
            ready, _, _ = select.select([output], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                self._fail(case, f"did not answer within {self.limit} s")
            piece = os.read(output, 1 << 16)
            if not piece:
                self._fail(case, f"ended with exit code {self._process.wait(FAREWELL)}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _fail(self, case: str, what: str) -> NoReturn:
        self._process.kill()
        self._process.wait()
        stderr = self._stderr.read_text(errors="replace")
        raise AssertionError(f"case {case!r}: {self!r} {what}; its stderr:\n{stderr[-8000:]}")
