"""stdin, stdout and stderr as a shell or a program may give them: closed, full, abandoned, never read."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from cli.exec.command import Command, Word, child_of, finish, steps, threads_in
from protocols.wire.lines import read_events, read_lines, text_of
from server.prompted import is_alive, wait_for

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

TEXT: tuple[Word, ...] = ("--mock", "--mock-mode", "text", "--prompt", "hi")
ANSWER = "mock response text"
PIECE = "0123456789" * 10_000
LONG = steps({"text": PIECE}, repeat=4)
"""A prompt for an answer whose every piece is more than a pipe holds."""


class Pipe:
    """A pipe that the test reads when it likes."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def is_full(self) -> bool:
        """Whether a writer would have to wait."""
        return not select.select([], [self.writer], [], 0)[1]

    def drain(self, at_once: int = 1024 * 1024) -> bytes:
        """All that is in it, to its end."""
        self._close_writer()
        pieces = []
        while piece := os.read(self.reader, at_once):
            pieces.append(piece)
        return b"".join(pieces)

    def close(self) -> None:
        self._close_writer()
        os.close(self.reader)

    def _close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A pipe for stdout or stderr."""
    made = Pipe()
    yield made
    made.close()


# Closed from the beginning


@pytest.mark.parametrize("arguments", [("--prompt", "-"), ("-",), ("--input-json", "-")], ids=" ".join)
def test_a_closed_stdin_is_named(command: Command, arguments: tuple[str, ...]) -> None:
    """It is not the same as an empty one; where nobody reads it, it does not matter."""
    ran = command.run("--mock", "--json", *arguments, shell="<&-")
    assert ran.failed("usage_error", exit_code=2).startswith("stdin is closed")
    assert command.run(*TEXT, shell="<&-").code == 0


def test_a_closed_stdout_is_a_failure(command: Command) -> None:
    """The answer cannot be given. It does not land in a file that got the descriptor's number instead."""
    log = command.directory / "log"
    ran = command.run(*TEXT, "--log-responses", log, shell=">&-")
    assert (ran.code, ran.stdout, ran.stderr) == (1, b"", "error: stdout is closed.\n")
    assert read_events(log.read_bytes())[-1]["code"] == "output_failed"


def test_a_closed_stderr_changes_nothing_else(command: Command) -> None:
    """Neither the answer nor an error nor an exit code; no diagnostics in a log."""
    log = command.directory / "log"
    command.run(*TEXT, "--json", "--log-requests", log, shell="2>&-").succeeded()
    assert len(log.read_bytes().splitlines()) == 1
    ran = command.run("--mock", "--json", "--log-requests", log, shell="2>&-")
    assert (ran.code, ran.events[-1]["code"]) == (2, "usage_error")


def test_all_of_them_closed(codex: Command) -> None:
    """With a child, whose own pipes take the free numbers."""
    ran = codex.run(*steps({"text": "hello"}), shell="<&- >&- 2>&-")
    assert (ran.code, ran.stdout, ran.stderr) == (1, b"", "")


# Full


def test_a_full_disk(command: Command) -> None:
    """An error that can be told on stderr alone."""
    ran = command.run(*TEXT, "--json", shell=">/dev/full")
    assert (ran.code, ran.stderr) == (1, "error: stdout cannot be written: No space left on device.\n")


def test_a_pipe_that_does_not_block(codex: Command, pipe: Pipe) -> None:
    """Some programs give their children such pipes: the reader is slow, not gone."""
    os.set_blocking(pipe.writer, False)
    with codex.start(*LONG, "--json", stdout=pipe.writer) as process:
        wait_for(pipe.is_full, "the pipe is full")
        assert text_of(read_events(pipe.drain())) == PIECE * 4
        assert finish(process).code == 0


# Abandoned


@pytest.mark.parametrize("form", [("--json",), (), ("--trace",)], ids=["json", "text", "trace"])
def test_a_reader_that_leaves_ends_the_run_quietly(codex: Command, form: tuple[Word, ...]) -> None:
    """As `| head -1` does: nothing on stderr, exit code 1, and the child is gone."""
    with codex.start(*steps({"text": "line\n"}, {"text": PIECE}, {"hang": True}), *form) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        child = child_of(process)
        process.stdout.close()
        process.stdout = None
        ran = finish(process)
    assert first.endswith(b"\n")
    assert (ran.code, ran.stderr) == (1, "")
    assert not is_alive(child)


def test_a_reader_that_left_before_the_beginning(command: Command) -> None:
    """Also before the one line of a run that never began."""
    reader, writer = os.pipe()
    os.close(reader)
    for arguments, code, stderr in (
        ((*TEXT, "--json"), 1, ""),
        (("--mock", "--json"), 2, "error: Missing prompt"),
    ):
        with command.start(*arguments, stdout=writer) as process:
            ran = finish(process)
        assert ran.code == code
        assert ran.stderr.startswith(stderr)
        assert len(ran.stderr.splitlines()) == bool(stderr)
    os.close(writer)


# Never read


def test_a_reader_that_never_reads_does_not_delay_a_signal(codex: Command, pipe: Pipe) -> None:
    """The run is over in seconds, and so is its child."""
    with codex.start(*LONG, "--json", stdout=pipe.writer) as process:
        wait_for(lambda: threads_in(process, "write", 1), "it waits for room")
        child = child_of(process)
        process.send_signal(signal.SIGINT)
        ran = finish(process, seconds=8)
    assert ran.code == 130
    assert not is_alive(child)


def test_no_line_is_written_into_another(codex: Command, pipe: Pipe) -> None:
    """Who reads late, after an interrupt, gets whole lines."""
    with codex.start(*LONG, "--json", stdout=pipe.writer) as process:
        wait_for(lambda: threads_in(process, "write", 1), "it waits for room")
        process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 0.3
        while threads_in(process, "write", 1) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        read_lines(pipe.drain(at_once=4096))


def test_a_stderr_without_a_reader_does_not_delay_a_signal(codex: Command, pipe: Pipe) -> None:
    """--trace can fill it."""
    arguments = (*LONG, "--json", "--trace")
    with codex.start(*arguments, stdout=subprocess.DEVNULL, stderr=pipe.writer) as process:
        wait_for(lambda: threads_in(process, "write", 2), "it waits for room")
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130


# A terminal


def test_a_terminal_gets_no_control_characters(codex: Command) -> None:
    """What a model says cannot play with it; a file or a pipe gets it all."""
    said = "\x1b[31mred\x07\x9b1m and \ttab\nline"
    prompt = steps({"text": said})
    assert codex.run(*prompt).stdout.decode() == f"{said}\n"
    ours, theirs = pty.openpty()
    with codex.start(*prompt, stdout=theirs) as process:
        os.close(theirs)
        ran = finish(process)
    assert (ran.code, ran.stderr) == (0, "")
    assert os.read(ours, 1024) == b"[31mred1m and \ttab\r\nline\r\n"
    os.close(ours)
