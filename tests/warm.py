"""`codex-bridge` as a process of its own, without the second in which an interpreter loads it.

It is forked from one that has loaded everything (see `fork_server.py`), of which each process of the tests keeps one.
Whoever tests how the command is started, what it loads or what variables do to Python itself starts it afresh.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class WarmPopen(subprocess.Popen[Any]):
    """As `subprocess.Popen`, but `args` are the command's arguments, without a program. Takes the usual keywords:
    the three streams, `env`, `cwd`, `text`."""

    _connection: socket.socket

    def _execute_child(  # type: ignore[override]
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *_others: Any,
    ) -> None:
        assert not any((executable, preexec_fn, pass_fds, shell))
        order = {
            "arguments": [os.fsdecode(each) for each in args],
            "cwd": os.fspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
        }
        files = [given if given != -1 else usual for usual, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._connection, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(_server(), [b"."], [theirs.fileno(), *files])
        self._connection.sendall(json.dumps(order).encode() + b"\n")
        self.pid = self._told()
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]

    def _told(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            piece = self._connection.recv(1)
            assert piece, "the interpreter that commands are forked from is gone"
            line += piece
        return int(line)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG:
            try:
                self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                return 0, 0
        status = self._told()
        self._connection.close()
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


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
    with WarmPopen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd=cwd, text=text) as process:
        try:
            stdout, stderr = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@functools.cache
def _server() -> socket.socket:
    """Where to send what is to be started."""
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
