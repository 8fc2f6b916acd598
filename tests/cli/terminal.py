"""A terminal with a program in it, as a person uses it: type, and wait for what appears."""

from __future__ import annotations

import codecs
import os
import pty
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SECONDS = 30


class Terminal:
    """The other end of a pseudo terminal."""

    def __init__(self, descriptor: int, pid: int) -> None:
        self.pid = pid
        self._descriptor = descriptor
        self._shown = ""
        # What is read may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def type(self, text: str) -> None:
        """As on the keyboard; `\\x03` is Ctrl-C."""
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> str:
        """Everything that appears up to and with this text, since the last time."""
        deadline = time.monotonic() + SECONDS
        while text not in self._shown:
            if not select.select([self._descriptor], [], [], deadline - time.monotonic())[0]:
                raise AssertionError(f"{text!r} did not appear: {self._shown!r}")
            try:
                self._shown += self._decoder.decode(os.read(self._descriptor, 65536))
            except OSError:
                raise AssertionError(f"{text!r} did not appear before the end: {self._shown!r}") from None
        before, found, self._shown = self._shown.partition(text)
        return before + found

    def wait(self) -> int:
        """The exit code of the program; what it still writes is taken away."""
        with suppress(OSError):
            while os.read(self._descriptor, 65536):
                pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def terminal(argv: list[str], environment: dict[str, str], directory: Path) -> Iterator[Terminal]:
    """A program that leads a session of its own, with the terminal in its hands."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execve(argv[0], argv, environment)
    try:
        yield Terminal(descriptor, pid)
    finally:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        os.close(descriptor)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
