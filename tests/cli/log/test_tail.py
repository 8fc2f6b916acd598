"""`turnbridge log tail`: the last requests and new ones, across rotation and truncation."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from cli.log.making import LogCommand, LogMaker, Running, name_of

from bridge.log.read import log_files

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time


class Growing:
    """A log that is being written; `write` appends what was made since."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.made = LogMaker()
        self._written = 0

    def write(self, *, torn: int = 0) -> None:
        data = self.made.data
        end = len(data) - torn
        with self.path.open("ab") as file:
            file.write(data[self._written : end])
        self._written = end


@pytest.fixture
def growing(tmp_path: Path) -> Growing:
    """With three requests in it."""
    growing = Growing(tmp_path / "log.ndjson")
    for number in (1, 2, 3):
        growing.made.whole(number)
    growing.write()
    return growing


def follow(running: Running, *numbers: int) -> None:
    """These requests come next."""
    for number in numbers:
        assert running.line().split()[2] == name_of(number)[4:12]


def test_the_last_ones(log: LogCommand, growing: Growing) -> None:
    """Without -f it ends there."""
    shown = log.run("tail", "-n", "2", growing.path)
    assert [line.split()[2] for line in shown.lines] == ["model", "00020000", "00030000"]


def test_what_comes_is_followed(log: LogCommand, growing: Growing) -> None:
    """Each request as it ends; a line that is half written is waited for. Ctrl-C ends it, without a word."""
    begun = growing.made.begin(4)
    growing.write()
    with log.running("tail", "-f", "-n", "1", growing.path) as running:
        running.line()
        follow(running, 3)
        growing.made.whole(5)
        growing.write()
        follow(running, 5)
        growing.made.end(begun)
        growing.write(torn=10)
        growing.write()
        follow(running, 4)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(20) == 0
        assert running.process.stderr is not None
        assert running.process.stderr.read() == b""


def test_rotation_is_followed(log: LogCommand, growing: Growing) -> None:
    """The rest of the old file, then the new one of the same name; a request that went over is whole."""
    with log.running("tail", "-f", "-n", "0", growing.path) as running:
        running.line()
        over = growing.made.begin(4)
        growing.made.whole(5)
        growing.path.rename(growing.path.with_suffix(".1"))
        old, growing.path = growing.path, growing.path.with_suffix(".1")
        growing.write()
        growing.path = old
        growing.made.end(over)
        growing.made.whole(6)
        growing.write()
        follow(running, 5)
        assert running.line().split()[2:5] == [name_of(4)[4:12], "gpt-5.2", "completed"]
        follow(running, 6)


def test_truncation_is_followed(log: LogCommand, growing: Growing) -> None:
    """A file that is shorter than before is a new one."""
    with log.running("tail", "-f", "-n", "1", growing.path) as running:
        running.line()
        follow(running, 3)
        again = Growing(growing.path)
        growing.path.write_bytes(b"")
        again.made.whole(7)
        again.write()
        follow(running, 7)


def test_new_files_of_a_directory_are_followed(log: LogCommand, tmp_path: Path) -> None:
    """One after the other."""
    (tmp_path / "logs").mkdir()
    growing = Growing(tmp_path / "logs/1.ndjson")
    growing.made.whole(1)
    over = growing.made.begin(2)
    growing.write()
    with log.running("tail", "-f", tmp_path / "logs") as running:
        running.line()
        follow(running, 1)
        growing.path = tmp_path / "logs/2.ndjson"
        growing.made.whole(3)
        growing.write()
        follow(running, 3)
        growing.path = tmp_path / "logs/3.ndjson"
        growing.made.end(over)
        growing.write()
        assert running.line().split()[2:5] == [name_of(2)[4:12], "gpt-5.2", "completed"]
    assert len(log_files(tmp_path / "logs")) == 3


def test_events_are_one_line_per_record(log: LogCommand, growing: Growing) -> None:
    """The last ones, then each that comes; filters count for them, too."""
    shown = log.run("tail", "--events", "-n", "3", growing.path)
    assert [line.split()[3:5] for line in shown.lines[-1:]] == [["bridge", "turn_end"]]
    assert len(shown.lines) == 3
    with log.running("tail", "-f", "--events", "-n", "1", "--req", "0003", growing.path) as running:
        assert running.line().split()[1:5] == ["00030000", "·", "bridge", "turn_end"]
        growing.made.whole(4)
        growing.made.begin(3)
        growing.write()
        assert running.line().split()[1:5] == ["00030000", "client", "→", "client_request"]


def test_filters_count_for_what_comes(log: LogCommand, growing: Growing) -> None:
    """Also a text, for which the lines are read."""
    with log.running("tail", "-f", "--grep", "needle", growing.path) as running:
        running.line()
        growing.made.whole(4)
        growing.made.whole(5, answer="a NEEDLE there")
        growing.write()
        follow(running, 5)


def test_json(log: LogCommand, growing: Growing) -> None:
    """One object a line and no head."""
    found = log.run("tail", "--json", growing.path).objects
    assert [each["id"] for each in found] == [name_of(1), name_of(2), name_of(3)]
    records = log.run("tail", "--json", "--events", "-n", "2", growing.path).objects
    assert [each["kind"] for each in records] == ["client_sse_done", "turn_end"]
