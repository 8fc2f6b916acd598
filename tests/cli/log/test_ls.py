"""`turnbridge log ls`: one line per request, of any log, at any size."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli.log.making import BRIDGE, USAGE, LogCommand, LogMaker, name_of
from harness import ROOT
from peak import peak, watched

RATE = 100e6
MEMORY = 150 * 1024 * 1024


def written(path: Path, made: LogMaker) -> Path:
    path.write_bytes(made.data)
    return path


@pytest.fixture
def made() -> LogMaker:
    """A request of each kind."""
    made = LogMaker()
    made.whole(1)
    called = made.begin(2, model="a-model-with-quite-a-long-name")
    made.end(called, calls=("look", "look", "read"), repairs=("code_fence",), usage=USAGE, total_s=75.25)
    made.fail(made.begin(3))
    made.begin(4)
    return made


# What is shown


def test_eighty_columns(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """Time, request, model, outcome, tokens, times, calls, repairs; no line is longer."""
    shown = log.run("ls", written(tmp_path / "log.ndjson", made))
    assert shown.lines == [
        "time           request  model          outcome      in  out first total call rep",
        "03-01 08:00:00 00010000 gpt-5.2        completed  1.2k   56 0.25s 1.50s",
        "03-01 08:00:01 00020000 a-model-with-… completed  1.2k   56 0.25s 75.2s    3   1",
        "03-01 08:00:02 00030000 gpt-5.2        failed        -    - 0.25s 1.50s",
        "03-01 08:00:03 00040000 gpt-5.2        unfinished    -    -     -     -",
    ]
    assert (shown.code, shown.stderr) == (0, "")


def test_a_wider_terminal_shows_more(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """The error's code, the whole name, the tools, the endpoint; and no line is longer than the terminal."""
    path = written(tmp_path / "log.ndjson", made)
    for columns in (79, 120, 220):
        shown = log.run("ls", path, COLUMNS=str(columns))
        assert max(map(len, shown.lines)) <= max(80, columns)
    assert "failed:rate_limited" in shown.stdout
    assert "a-model-with-quite-a-lo…" in shown.stdout
    assert "look×2, read" in shown.stdout
    assert "/v1/responses" in shown.stdout


def test_the_short_id_is_enough_for_show(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """An id from the list is accepted."""
    path = written(tmp_path / "log.ndjson", made)
    short = log.run("ls", path).lines[2].split()[2]
    assert log.run("show", path, short).lines[0].startswith(name_of(2))


def test_json_has_everything(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """One object per line, with the position of the request."""
    found = log.run("ls", written(tmp_path / "log.ndjson", made), "--json").objects
    assert [each["outcome"] for each in found] == ["completed", "completed", "failed", "unfinished"]
    assert found[1]["calls"] == ["look", "look", "read"]
    assert (found[2]["error"], found[2]["message"]) == ("rate_limited", "It is rate_limited.")
    assert found[0]["spans"][0]["file"] == "log.ndjson"


def test_times_are_of_this_machine(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """In the zone that TZ names."""
    shown = log.run("ls", written(tmp_path / "log.ndjson", made), TZ="Europe/Zurich")
    assert shown.lines[1].startswith("03-01 09:00:00")


def test_filters(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """They choose among the lines; if nothing matches, a note says so."""
    path = written(tmp_path / "log.ndjson", made)
    assert [line[15:19] for line in log.run("ls", path, "--tool", "look").lines[1:]] == ["0002"]
    assert [line[15:19] for line in log.run("ls", path, "--outcome", "failed:rate_limited").lines[1:]] == ["0003"]
    nothing = log.run("ls", path, "--model", "other")
    assert (nothing.code, nothing.stdout, nothing.stderr) == (0, "", "note: no request matches the filters.\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--outcome", "ok"), "completed, incomplete, failed"),
        (("--since", "soon"), "how long ago"),
        (("--grep", ""), "--grep is empty"),
        (("--no-such-flag",), "--no-such-flag"),
    ],
)
def test_mistakes_are_one_line(log: LogCommand, tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """With exit code 2."""
    shown = log.run("ls", written(tmp_path / "log.ndjson", LogMaker()), *arguments)
    assert (shown.code, shown.stdout, len(shown.stderr.splitlines())) == (2, "", 1)
    assert said in shown.stderr


# Terminals and pipes


def test_colours_only_on_a_terminal(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """And not when NO_COLOR says so."""
    path = written(tmp_path / "log.ndjson", made)
    assert "\x1b[31mfailed" in log.on_terminal("ls", path)[1]
    assert "\x1b" not in log.on_terminal("ls", path, NO_COLOR="1")[1]
    assert "\x1b" not in log.on_terminal("ls", path, TERM="dumb")[1]
    assert "\x1b" not in log.run("ls", path).stdout


VIEWS = ("ls", "ls --json", "show --frames", "show --json", "show", "stats", "tail", "tail --events")


@pytest.mark.parametrize("view", VIEWS)
def test_what_was_recorded_cannot_play_with_the_terminal(log: LogCommand, tmp_path: Path, view: str) -> None:
    """Escape sequences, controls and marks that turn text around are never written as they are."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eevil\u2066\x00\r"
    made = LogMaker()
    name = made.begin(1, evil, model=evil, instructions=evil)
    made.say(name, evil)
    made.tell(name, evil)
    made.note(name, "tool_reject", reason=evil, source=evil, name=evil)
    made.fail(name, evil, message=evil)
    path = written(tmp_path / "log.ndjson", made)
    words = [*view.split(), path, *(["0001"] if view.startswith("show") else [])]
    code, seen = log.on_terminal(*words, "--no-index", NO_COLOR="1")
    assert code == 0
    assert re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", seen) is None


def test_a_closed_pipe_ends_it_silently(log: LogCommand, tmp_path: Path) -> None:
    """`| head` is no mistake."""
    made = LogMaker()
    for number in range(4000):
        made.end(made.begin(number))
    path = written(tmp_path / "log.ndjson", made)
    words = shlex.join([*BRIDGE, "ls", str(path)])
    ran = subprocess.run(
        ["bash", "-c", f"{words} | head -2; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, env=log.env(), cwd=ROOT, text=True,
    )  # fmt: skip
    assert ran.stderr == ""
    assert ran.stdout.splitlines()[2] in ("0", "141")


# Hard inputs


def test_there_is_no_log(log: LogCommand, tmp_path: Path) -> None:
    """One line that says what to do."""
    (tmp_path / "empty").mkdir()
    for path, said in ((tmp_path / "none.ndjson", "does not exist"), (tmp_path / "empty", "contains no event log")):
        shown = log.run("ls", path)
        assert (shown.code, shown.stdout, len(shown.stderr.splitlines())) == (2, "", 1)
        assert said in shown.stderr


def test_a_file_that_is_not_a_log(log: LogCommand, tmp_path: Path) -> None:
    """An empty file may become one; a binary file is a mistake."""
    empty, binary = tmp_path / "empty.ndjson", tmp_path / "binary"
    empty.touch()
    binary.write_bytes(os.urandom(100_000))
    assert log.run("ls", empty).stderr == "note: the log contains no requests.\n"
    shown = log.run("ls", binary)
    assert (shown.code, shown.stdout) == (2, "")
    assert f"{binary} is not an event log" in shown.stderr


def test_faults_of_a_log_are_reported_after_the_list(log: LogCommand, made: LogMaker, tmp_path: Path) -> None:
    """Foreign lines, missing records, a torn end: each in a sentence on stderr."""
    path = tmp_path / "log.ndjson"
    path.write_bytes(b"".join([*made.lines[:3], b"foreign\n", *made.lines[5:]])[:-7])
    shown = log.run("ls", path)
    assert shown.code == 0
    assert len(shown.lines) > 1
    assert [line[:16] for line in shown.stderr.splitlines()] == [
        "note: 1 line(s) ",
        "note: the last l",
        "note: 2 record(s",
    ]


# Size


def generated(directory: Path, size: str, tokens: int = 300) -> Path:
    path = directory / "large.ndjson"
    maker = [sys.executable, str(ROOT / "scripts/make-log"), str(path), "--bytes", size, "--tokens", str(tokens)]
    subprocess.run(maker, check=True, capture_output=True)
    return path


def measured(log: LogCommand, *arguments: object) -> tuple[float, int, int]:
    """(seconds of processor time, bytes of memory at most, bytes of lines) of a command."""
    reader, writer = os.pipe()
    told = log.directory / "peak"
    words = [*watched(told), "log", *map(str, arguments)]
    with subprocess.Popen(words, stdout=writer, stderr=subprocess.DEVNULL, env=log.env(), cwd=ROOT) as process:
        os.close(writer)
        count = 0
        while data := os.read(reader, 1 << 16):
            count += len(data)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    os.close(reader)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime, peak(told), count


@pytest.mark.deep
def test_sixty_megabytes(log: LogCommand, tmp_path: Path) -> None:
    """100 MB a second, start-up left aside, with little memory; the second time it is all there already.

    Processor time is measured: what else the machine does is no concern of this test.
    """
    path = generated(tmp_path, "60M")
    started, _, _ = measured(log, "ls", written(tmp_path / "small.ndjson", LogMaker()))
    seconds, memory, size = measured(log, "ls", path, "--no-index")
    assert size > 10_000
    assert path.stat().st_size / max(seconds - started, 0.01) > RATE
    assert memory < MEMORY
    measured(log, "ls", path)
    again, _, same = measured(log, "ls", path)
    assert same == size
    assert again - started < 0.3


@pytest.mark.deep
@pytest.mark.parametrize("tokens", [300, 1], ids=["usual", "tiny"])
def test_a_gigabyte(log: LogCommand, tmp_path: Path, tokens: int) -> None:
    """100 MB a second for `ls` of usual requests; flat memory for all commands, with 100,000 tiny requests too."""
    path = generated(tmp_path, "1G", tokens)
    begun = time.perf_counter()
    seconds, memory, _ = measured(log, "ls", path, "--no-index")
    print(f"ls: {path.stat().st_size / (time.perf_counter() - begun) / 1e6:.0f} MB/s, {memory >> 20} MiB")
    assert path.stat().st_size / seconds > (RATE if tokens > 1 else RATE / 2)
    assert memory < MEMORY
    _, memory, _ = measured(log, "stats", path)
    assert memory < MEMORY
    last = log.run("tail", "-n", "1", path).lines[-1].split()[2]
    seconds, memory, _ = measured(log, "show", path, last)
    assert seconds < 1.5
    assert memory < MEMORY


@pytest.mark.deep
def test_progress_is_shown_on_a_terminal_alone(log: LogCommand, tmp_path: Path) -> None:
    """Bytes, rate and the time that is left, when it takes a while; in a pipe nothing."""
    made = LogMaker()
    for number in range(1500):
        made.whole(number, answer="abcdefghij")
    # Two runs, one line each in turn, and a foreign line in each block: the slowest way to read.
    path = tmp_path / "slow.ndjson"
    path.write_bytes(
        b"".join(line + (b"x\n" if number % 500 == 0 else b"") for number, line in enumerate(made.lines)) * 8
    )
    code, seen = log.on_terminal("stats", path, "--no-index")
    assert code == 0
    assert re.search(r"\r\x1b\[K +\d+% █*░* [\d.]+ MB of [\d.]+ MB, [\d.]+ MB/s, \d+ s left", seen)
    assert "%" not in log.run("stats", path, "--no-index").stderr


def test_transcripts_are_listed_by_their_names(log: LogCommand) -> None:
    """They have no time, which leaves room for what `log show` needs to know which of them is meant."""
    shown = log.run("ls", ROOT / "fixtures/traces")
    names = [line[:23].rstrip("… ") for line in shown.lines[1:]]
    assert names[1] == "current_0.166.0_error4"
    assert all(len(line) <= 80 for line in shown.lines)
    assert log.run("show", ROOT / "fixtures/traces", names[1]).lines[0] == "current_0.166.0_error429-1"
