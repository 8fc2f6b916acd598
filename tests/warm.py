"""`turnbridge` as a process of its own, without the second that an interpreter needs to load it.

It is forked from an interpreter that has loaded everything (see `fork_server.py`); each process of the tests keeps one.
Tests of how the command starts, what it loads, or what variables do to Python itself start it afresh.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent


class WarmProcess:
    """A command with the public interface of `subprocess.Popen`, as far as tests need it. `args` has no program.

    Each of the three streams is inherited (None), a new pipe (`subprocess.PIPE`), another file, or `DEVNULL`; stderr
    may also be `STDOUT`. `communicate` may be called once.
    """

    def __init__(
        self,
        args: Sequence[str | bytes | Path],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
        text: bool = False,
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        theirs: list[int] = []
        to_close: list[int] = []

        def stream(number: int, given: Any) -> IO[Any] | None:
            """Choose the command's file. Returns our end of a new pipe."""
            if given == subprocess.PIPE:
                ends = os.pipe()
                mine, other = ends if number else ends[::-1]
                theirs.append(other)
                to_close.append(other)
                if text:
                    return open(mine, "r" if number else "w", encoding="utf-8")
                return open(mine, "rb" if number else "wb")
            if given == subprocess.DEVNULL:
                to_close.append(os.open(os.devnull, os.O_RDWR))
                theirs.append(to_close[-1])
            elif given == subprocess.STDOUT:
                theirs.append(theirs[1])
            else:
                theirs.append(number if given is None else given if isinstance(given, int) else given.fileno())
            return None

        self.stdin, self.stdout, self.stderr = map(stream, range(3), (stdin, stdout, stderr))
        order = {
            "arguments": [os.fsdecode(each) for each in args],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        }
        self._connection, connected = socket.socketpair()
        with connected:
            socket.send_fds(_server(), [b"."], [connected.fileno(), *theirs])
        for file in to_close:
            os.close(file)
        self._connection.sendall(json.dumps(order).encode() + b"\n")
        self._lock = threading.Lock()
        self.pid = self._read_number()

    def _read_number(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            piece = self._connection.recv(1)
            assert piece, "the interpreter that commands are forked from is gone"
            line += piece
        return int(line)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                if not select.select([self._connection], [], [], timeout)[0]:
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(list(map(os.fsdecode, self.args)), timeout)
                self.returncode = os.waitstatus_to_exitcode(self._read_number())
                self._connection.close()
            return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input` to its stdin and read both outputs to their ends, each in a thread."""
        limit = None if timeout is None else time.monotonic() + timeout
        outputs: list[Any] = [None, None]

        def read(number: int, stream: IO[Any]) -> None:
            with stream:
                outputs[number] = stream.read()

        def write(stream: IO[Any]) -> None:
            with suppress(BrokenPipeError), stream:
                if input:
                    stream.write(input)

        work = [(read, (number, each)) for number, each in enumerate((self.stdout, self.stderr)) if each is not None]
        threads = [threading.Thread(target=target, args=args, daemon=True) for target, args in work]
        if self.stdin is not None:
            threads.append(threading.Thread(target=write, args=(self.stdin,), daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(None if limit is None else max(0.0, limit - time.monotonic()))
            if thread.is_alive():
                raise subprocess.TimeoutExpired(list(map(os.fsdecode, self.args)), timeout or 0)
        self.wait(None if limit is None else max(0.0, limit - time.monotonic()))
        return outputs[0], outputs[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> WarmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()


Process = WarmProcess | subprocess.Popen[Any]


def run_warm(
    *arguments: str | bytes | Path,
    env: dict[str, str],
    input: Any = None,
    cwd: Path = ROOT,
    text: bool = False,
    timeout: float = 60,
) -> subprocess.CompletedProcess[Any]:
    """Run it to its end; what it wrote is captured, as text or as bytes. Without input its stdin is empty."""
    pipe = subprocess.PIPE
    with WarmProcess(arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, text=text) as process:
        try:
            stdout, stderr = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.wait(), stdout, stderr)


@functools.cache
def _server() -> socket.socket:
    """The socket for orders to the fork server."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "tests/fork_server.py"), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
        )

    @atexit.register
    def end() -> None:
        ours.close()
        process.wait()

    return ours
