"""`turnbridge exec` as a process of its own, in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ROOT
from protocols.wire.lines import Event, read_events, text_of
from real.rig import processes
from server.prompted import wait_for
from warm import WarmProcess, run_warm

EXEC = (sys.executable, "-P", "-m", "bridge", "exec")
SECONDS = 30
"""No run of the tests takes longer, unless it hangs."""

Word = str | bytes | Path


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def events(self) -> list[Event]:
        """The lines of stdout; fails when they break the protocol."""
        return read_events(self.stdout)

    @property
    def text(self) -> str:
        """What the model said, of a run with --json."""
        return text_of(self.events)

    def failed(self, code: str, exit_code: int = 1) -> str:
        """The message of a run with --json that failed with this code; it is on stderr, too."""
        assert self.code == exit_code, self
        error = self.events[-1]
        assert (error["type"], error["code"]) == ("error", code), self
        told = [line.removeprefix("error: ") for line in self.stderr.splitlines() if line.startswith("error: ")]
        assert told == [" ".join(error["message"].split("\n"))], self
        return str(error["message"])

    def succeeded(self, *, silent: bool = True) -> list[Event]:
        """The events of a run with --json that went well, and had nothing to say beside them."""
        assert self.code == 0, self
        assert self.events[-1]["type"] == "response.completed", self
        assert not silent or self.stderr == "", self
        return self.events


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Nothing of this machine's but PATH; everything that is written lands in `directory`."""
    homes = {f"XDG_{kind}_HOME": str(directory / kind.lower()) for kind in ("STATE", "CACHE", "CONFIG", "DATA")}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PROXY_CODEX_WORKDIR": str(directory / "work"),
        **homes,
        **more,
    }


@dataclass(frozen=True)
class Command:
    """The command in one environment. `always` are arguments of each run."""

    directory: Path
    environment: dict[str, str]
    always: tuple[Word, ...] = ()

    def run(self, *arguments: Word, stdin: bytes = b"", shell: str = "", **more: str) -> Ran:
        """Run it to its end. `shell` redirects, as `<&-` does; `more` are variables."""
        env = self.environment | more
        if shell:
            program = ["/bin/sh", "-c", f'exec "$@" {shell}', "sh", *EXEC, *self.always, *arguments]
            done = subprocess.run(program, input=stdin, capture_output=True, env=env, cwd=ROOT, timeout=SECONDS)
        else:
            done = run_warm("exec", *self.always, *arguments, input=stdin, env=env, timeout=SECONDS)
        return Ran(done.returncode, done.stdout, done.stderr.decode())

    @contextmanager
    def start(
        self, *arguments: Word, stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE, **more: str
    ) -> Iterator[WarmProcess]:
        """Run it beside the test; after the block it is gone. Its stdin is an open pipe."""
        with WarmProcess(
            ["exec", *self.always, *arguments],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            env=self.environment | more,
            cwd=ROOT,
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def finish(process: WarmProcess, seconds: float = SECONDS) -> Ran:
    """Wait for the end of a run; what it has written since."""
    stdout, stderr = process.communicate(timeout=seconds)
    return Ran(process.wait(), stdout or b"", (stderr or b"").decode())


def child_of(process: WarmProcess) -> int:
    """The Codex that a run has started."""

    def children() -> list[int]:
        # It leads a session of its own. Others come and go while the libraries are loaded.
        return [pid for pid, parent, session in processes() if parent == process.pid and pid == session]

    return wait_for(children, "the run has a child")[0]


def left_of(directory: Path) -> list[int]:
    """The processes that were started from a program in a directory, and are still there."""
    left = []
    for pid, _, _ in processes():
        with suppress(OSError):
            if os.fsencode(directory) in Path(f"/proc/{pid}/cmdline").read_bytes():
                left.append(pid)
    return left


def threads_in(process: WarmProcess, call: str, descriptor: int) -> int:
    """How many threads of a run wait within `read` or `write` of a descriptor."""
    numbers = {"read": 63, "write": 64} if os.uname().machine == "aarch64" else {"read": 0, "write": 1}
    waiting = [str(numbers[call]), hex(descriptor)]
    tasks = Path(f"/proc/{process.pid}/task").glob("*/syscall")
    return [task.read_text().split()[:2] for task in tasks].count(waiting)


def steps(*wanted: dict[str, Any], repeat: int = 1) -> tuple[Word, ...]:
    """The prompt for a child that does what it says (see docs/standin.md)."""
    return ("--prompt", json.dumps({"steps": wanted, "repeat": repeat}))


def words(arguments: Sequence[Word] | str) -> list[Word]:
    """Arguments, also of a text that is split at its blanks."""
    return list(arguments.split()) if isinstance(arguments, str) else list(arguments)
