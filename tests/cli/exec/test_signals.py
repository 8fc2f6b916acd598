"""A run that is stopped from outside: the last line, the exit code, and nothing that is left behind."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from cli.exec.command import Command, Ran, child_of, finish, left_of, steps, threads_in
from harness import scripted_codex, turns
from protocols.wire.lines import read_lines, text_of
from server.prompted import is_alive, wait_for
from warm import WarmProcess

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

HANGS = steps({"text": "begun"}, {"hang": True})
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}

each_signal = pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)


def scripted(codex: Command, name: str, script: dict[str, Any]) -> dict[str, str]:
    """Variables for a run in front of a child with this script."""
    return {"CODEX_BIN": str(scripted_codex(codex.directory, script, name))}


def stop(process: WarmProcess, number: signal.Signals) -> Ran:
    """Signal a run, and wait for its end."""
    process.send_signal(number)
    return finish(process, seconds=8)


@each_signal
def test_a_turn_that_hangs_is_stopped(codex: Command, number: signal.Signals) -> None:
    """What was said stays; then `interrupted`, on stdout and on stderr. The child is gone with the run."""
    with codex.start(*HANGS, "--json") as process:
        assert process.stdout is not None
        begun = b"".join(process.stdout.readline() for _ in range(4))
        child = child_of(process)
        ran = stop(process, number)
    whole = Ran(ran.code, begun + ran.stdout, ran.stderr)
    whole.failed("interrupted", exit_code=CODES[number])
    assert text_of(read_lines(begun)) == "begun"
    assert len(whole.events) == 5
    assert ran.stderr == "error: The run was interrupted.\n"
    assert not is_alive(child)


def test_text_mode_ends_with_its_newline(codex: Command) -> None:
    """Whatever ends it."""
    with codex.start(*HANGS) as process:
        assert process.stdout is not None
        assert process.stdout.read(5) == b"begun"
        ran = stop(process, signal.SIGINT)
    assert (ran.code, ran.stdout, ran.stderr) == (130, b"\n", "error: The run was interrupted.\n")


def test_a_codex_that_is_not_ready_yet(codex: Command) -> None:
    """Nothing had begun: the error is the only line."""
    mute = scripted(codex, "mute", turns([], startup=[{"hang": True}]))
    with codex.start("--prompt", "hi", "--json", **mute) as process:
        child = child_of(process)
        ran = stop(process, signal.SIGINT)
    ran.failed("interrupted", exit_code=130)
    assert len(ran.events) == 1
    assert not is_alive(child)


@each_signal
def test_an_input_that_does_not_come(command: Command, number: signal.Signals) -> None:
    """Nothing is sent yet; it ends in the same way."""
    with command.start("--mock", "--prompt", "-", "--json") as process:
        wait_for(lambda: threads_in(process, "read", 0), "it reads stdin")
        ran = stop(process, number)
    ran.failed("interrupted", exit_code=CODES[number])


def test_a_run_that_is_killed_takes_its_child_with_it(codex: Command) -> None:
    """It has no time to say goodbye."""
    script = turns([{"text": "begun"}, {"hang": True}], ignore_eof=True)
    with codex.start("--prompt", "hi", **scripted(codex, "orphan", script)) as process:
        assert process.stdout is not None
        process.stdout.read(5)
        child = child_of(process)
        process.kill()
        process.wait()
    wait_for(lambda: not is_alive(child), "the child is gone")


# --timeout


def test_a_turn_that_takes_too_long(codex: Command) -> None:
    """It is stopped, and its child is gone with it."""
    assert "1.2 s" in codex.run(*HANGS, "--json", "--timeout", "1.2").failed("timeout")
    assert left_of(codex.directory) == []


def test_no_time_at_all(codex: Command) -> None:
    """Nothing had begun."""
    ran = codex.run(*HANGS, "--json", "--timeout", "0.001")
    ran.failed("timeout")
    assert len(ran.events) == 1


def test_the_time_for_the_input_counts(command: Command) -> None:
    """It is the whole run that may take so long."""
    with command.start("--mock", "--prompt", "-", "--json", "--timeout", "0.3") as process:
        process.wait(5)
        assert process.stdout is not None
        assert read_lines(process.stdout.read())[-1]["code"] == "timeout"
