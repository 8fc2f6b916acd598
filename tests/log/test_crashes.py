"""A child's exit is shown with the turns that it ended, wherever its record stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli.log.making import LogMaker, name_of
from cli.running import run_command
from log.replayed import recordings_in

from bridge.log.log import Log
from bridge.log.recording import MOST_HELD, exit_cause, last_words

STDERR = "\x1b[31mERROR\x1b[0m out of memory\n"


def crash(made: LogMaker, *names: str, later: float = 0.5, **payload: Any) -> None:
    """These turns fail, and then the exit of their child is recorded."""
    for name in names:
        made.fail(name, "backend_crashed")
    made.wait(later - 1)
    made.recorder.lifecycle("backend_exit", {"code": 3, "stderr": STDERR, **payload})


def exits(path: Path) -> dict[str, Any]:
    """The exit of each request: as recordings have it, which is the same that its records end with."""
    found = {recording.id: recording.exit for recording in recordings_in(path)}
    log = Log(path)
    for summary in log.summaries():
        last = list(log.records(summary))[-1]
        assert found[summary.id] == (last["payload"] if last["kind"] == "backend_exit" else None)
    return found


def test_the_exit_belongs_to_the_requests_that_it_names(tmp_path: Path) -> None:
    """Not to one of another child that failed at the same time, nor to one that failed otherwise; others may follow."""
    made, path = LogMaker(), tmp_path / "log.ndjson"
    mine, also, other, limited = (made.begin(number) for number in (1, 2, 3, 4))
    made.fail(other, "backend_crashed")
    made.fail(limited)
    made.whole(5)
    crash(made, mine, also, ended_requests=[mine, f"{also}#1"])
    made.whole(6)
    path.write_bytes(made.data)
    found = exits(path)
    assert [name for name, exit in found.items() if exit] == [mine, also]
    assert list(found) == [summary.id for summary in Log(path).summaries()]


def test_a_log_that_does_not_name_them_has_the_exit_next_to_their_end(tmp_path: Path) -> None:
    made, path = LogMaker(), tmp_path / "log.ndjson"
    crash(made, made.begin(1))
    made.wait(60)
    made.fail(made.begin(2), "backend_crashed")
    path.write_bytes(made.data)
    assert [bool(exit) for exit in exits(path).values()] == [True, False]


def test_the_exit_may_stand_in_the_next_file_or_before_the_end(tmp_path: Path) -> None:
    made = LogMaker()
    early = made.begin(1)
    made.recorder.lifecycle("backend_exit", {"code": 1, "stderr": "", "ended_requests": [early]})
    made.fail(early, "backend_crashed")
    late = made.begin(2)
    crash(made, late, ended_requests=[late])
    (tmp_path / "1.ndjson").write_bytes(b"".join(made.lines[:-1]))
    (tmp_path / "2.ndjson").write_bytes(made.lines[-1])
    assert [exit and exit["code"] for exit in exits(tmp_path).values()] == [1, 3]


def test_an_exit_that_never_comes_is_not_waited_for_without_end(tmp_path: Path) -> None:
    made, path = LogMaker(), tmp_path / "log.ndjson"
    made.fail(made.begin(1), "backend_crashed")
    for number in range(2, MOST_HELD + 10):
        made.whole(number, answer="x")
        made.wait(-1)
    path.write_bytes(made.data)
    found = recordings_in(path)
    assert [recording.id for recording in found] == [name_of(number) for number in range(1, MOST_HELD + 10)]
    assert found[0].exit is None


def test_it_is_shown_without_colours(tmp_path: Path) -> None:
    made, path = LogMaker(), tmp_path / "log.ndjson"
    name = made.begin(1)
    crash(made, name, ended_requests=[name])
    path.write_bytes(made.data)
    shown = run_command("log", "show", path).stdout
    assert shown.endswith("  The child ended with exit code 3. Its last words on stderr:\n    ERROR out of memory\n")
    assert '"kind":"backend_exit"' in run_command("log", "show", path, "--json").stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("exit", "cause"),
    [
        ({"code": 0}, "ended with exit code 0"),
        ({"code": -9}, "was killed by SIGKILL"),
        ({"code": -99}, "was killed by signal 99"),
        ({"code": "x"}, "has ended"),
        (None, "has ended"),
    ],
)
def test_causes_are_told_in_words(exit: Any, cause: str) -> None:
    assert exit_cause(exit) == cause
    assert last_words(exit) == ""
