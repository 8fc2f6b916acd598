"""The same command, forked from an interpreter that has loaded it already: a tenth of the time, for many runs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.exec.command import SECONDS, Ran, Word
from harness import ROOT

_PROGRAM = """
import functools, gc, json, os, sys
import httpx2, jsonrpcserver, jsonschema_rs, pydantic, trio, typer.main
import bridge.appserver.backend, bridge.settings
from bridge.cli import main

orders, answers = int(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w")
typer.main.get_command = functools.cache(typer.main.get_command)
sys.argv = ["turnbridge", "exec"]
try:
    main()  # for nothing: what this loads stays loaded
except SystemExit:
    pass
gc.freeze()
for line in os.fdopen(orders):
    order = json.loads(line)
    child = os.fork()
    if child == 0:
        for number, name in enumerate(order["files"]):
            os.dup2(os.open(name, os.O_RDWR), number)
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.argv = ["turnbridge", "exec", *order["arguments"]]
        try:
            main()
        except SystemExit as end:
            os._exit(end.code)  # without tidying up, which would take as long again
    answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\\n")
    answers.flush()
"""


@dataclass(frozen=True)
class Interpreter:
    """It forks one run after the other."""

    process: subprocess.Popen[bytes]
    orders: int
    answers: int

    def fork(self, order: dict[str, object]) -> int:
        """The exit code of one run."""
        os.write(self.orders, json.dumps(order).encode() + b"\n")
        if not select.select([self.answers], [], [], SECONDS)[0]:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise AssertionError(f"hangs: {order['arguments']}")
        return int(os.read(self.answers, 64))


@contextmanager
def running_interpreter(environment: dict[str, str]) -> Iterator[Interpreter]:
    """While it is there."""
    (their_orders, orders), (answers, their_answers) = os.pipe(), os.pipe()
    theirs = (their_orders, their_answers)
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, *map(str, theirs)],
        pass_fds=theirs,
        env=environment,
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        for descriptor in theirs:
            os.close(descriptor)
        try:
            yield Interpreter(process, orders, answers)
        finally:
            os.close(orders)  # which ends it
    os.close(answers)


@dataclass(frozen=True)
class WarmCommand:
    """The command in one environment, as `command.Command`."""

    interpreter: Interpreter
    directory: Path
    environment: dict[str, str]
    always: tuple[Word, ...] = ()

    def run(self, *arguments: Word, stdin: bytes = b"", **more: str) -> Ran:
        """Run it to its end."""
        files = [self.directory / name for name in ("stdin", "stdout", "stderr")]
        for file, content in zip(files, (stdin, b"", b""), strict=True):
            file.write_bytes(content)
        code = self.interpreter.fork(
            {
                "arguments": [os.fsdecode(argument) for argument in (*self.always, *arguments)],
                "environment": self.environment | more,
                "files": [str(file) for file in files],
            }
        )
        return Ran(code, files[1].read_bytes(), files[2].read_text())
