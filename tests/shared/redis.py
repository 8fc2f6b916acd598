"""A real Redis server in a directory of its own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packages import NotInstalled, install

PATIENCE = 30
PASSWORD = "pass-word-of-the-limits"


class Redis:
    """A server that can be killed, frozen and started again. It forgets everything when it ends."""

    def __init__(self, program: str, directory: Path) -> None:
        self._program = program
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--requirepass", PASSWORD)
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen([self._program, *options], stdout=log, stderr=log, cwd=self._directory)
        for _ in range(PATIENCE * 10):
            try:
                self.command("PING")
                return
            except ConnectionError:
                assert self._process.poll() is None, (self._directory / "log").read_text()
            try:
                self._process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("Redis does not start")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """It stands still. The kernel continues to accept connections and data for it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def command(self, *words: str) -> str:
        """The reply to one command, as it is on the wire."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            for each in (("AUTH", PASSWORD), words):
                parts = [f"*{len(each)}\r\n", *(f"${len(word)}\r\n{word}\r\n" for word in each)]
                connection.sendall("".join(parts).encode())
                reply = connection.recv(65536).decode()
            return reply


@contextmanager
def running_redis() -> Iterator[Redis]:
    """A server that runs. Raises NotInstalled where there is none and none can be installed."""
    if (program := shutil.which("redis-server")) is None:
        install("redis-server")
        program = shutil.which("redis-server")
    if program is None:
        raise NotInstalled("The package redis-server has no redis-server.")
    with tempfile.TemporaryDirectory(prefix="turnbridge-redis-") as directory:
        server = Redis(program, Path(directory))
        try:
            server.start()
            yield server
        finally:
            server.kill()
