"""Many files, one log: names in order of time, whole lines, nothing lost between two files, nothing deleted unasked."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trio
from harness import ROOT, running_bridge
from log.logs import Json, records_of, turns_in, whole_log
from server.prompted import wait_for

from bridge.errors import ConfigError, LogFailed
from bridge.log.event_log import RETRY, EventLog
from bridge.log.read import RecordReader, log_files
from bridge.log.rotation import FileNames, LogDirectory, LogFile, files_at
from bridge.redact import Redactor

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def opened(target: Path | str, **options: Any) -> AsyncIterator[EventLog]:
    """A log that is being written; it is complete after the block."""
    log = EventLog(str(target), Redactor(), {"dialect": "auto", "settings": {}}, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        yield log
        nursery.cancel_scope.cancel()


def note(log: EventLog, number: int, size: int = 100) -> None:
    log.recorder.event("turn", "none", "note", None, {"number": number, "padding": "x" * size})


def notes(records: list[Json]) -> list[int]:
    return [record["payload"]["number"] for record in records if record["kind"] == "note"]


def is_written(directory: Path, number: int) -> bool:
    return any(b'"number":%d,' % number in path.read_bytes() for path in directory.iterdir())


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it is so; the clock of the test stands still meanwhile."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        await trio.lowlevel.checkpoint()


def ticking(*seconds: float) -> Callable[[], datetime]:
    """A clock that tells these times one after the other, then the last one for ever."""
    left = list(seconds)
    return lambda: NOON + timedelta(seconds=left.pop(0) if len(left) > 1 else left[0])


# Names


def test_names_sort_in_the_order_in_which_they_were_given() -> None:
    """Also several in one second, and when the clock is set back."""
    names = FileNames(
        lambda stamp, later: f"{stamp}-0123abcd{later}.ndjson", ticking(0, 0.2, *[0.9] * 20, 1, 60, 30, 61)
    )
    given = [names.next() for _ in range(26)]
    assert given == sorted(given)
    assert len(set(given)) == len(given)
    assert given[:3] == [
        "20260301T120000-0123abcd.ndjson",
        "20260301T120000-0123abcd_0002.ndjson",
        "20260301T120000-0123abcd_0003.ndjson",
    ]
    assert given[-3:] == [
        "20260301T120100-0123abcd.ndjson",
        "20260301T120100-0123abcd_0002.ndjson",
        "20260301T120101-0123abcd.ndjson",
    ]


@pytest.mark.parametrize(
    ("name", "aside"),
    [
        ("events.ndjson", ["events-20260301T120000.ndjson", "events-20260301T120000_0002.ndjson"]),
        ("events", ["events-20260301T120000", "events-20260301T120000_0002"]),
        ("a.b.log", ["a.b-20260301T120000.log", "a.b-20260301T120000_0002.log"]),
    ],
)
def test_a_full_file_keeps_its_name_and_gets_the_time(tmp_path: Path, name: str, aside: list[str]) -> None:
    """What somebody else has put there under such a name is not written over."""
    (tmp_path / aside[0]).write_text("of somebody else")
    files = LogFile(tmp_path / name, ticking(0))
    part = files.begin()
    os.write(part.descriptor, b"full\n")
    after = files.rotate(part)
    for each in (part, after):
        os.close(each.descriptor)
    assert (tmp_path / aside[0]).read_text() == "of somebody else"
    assert (tmp_path / aside[1]).read_text() == "full\n"
    assert after.continues == aside[1]
    assert (tmp_path / name).read_text() == ""


def test_a_link_goes_on_pointing_to_the_file_that_is_written(tmp_path: Path) -> None:
    """The file is moved aside where it lies."""
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "events.ndjson").symlink_to(disk / "log.ndjson")
    files = LogFile(tmp_path / "events.ndjson", ticking(0))
    part = files.begin()
    after = files.rotate(part)
    os.write(after.descriptor, b"new\n")
    for each in (part, after):
        os.close(each.descriptor)
    assert (tmp_path / "events.ndjson").is_symlink()
    assert (disk / "log.ndjson").read_text() == "new\n"
    assert sorted(path.name for path in disk.iterdir()) == ["events-20260301T120000.ndjson", "log.ndjson"]


def test_what_is_a_directory(tmp_path: Path) -> None:
    """One that exists as such, or is written with a slash; it is made, for its owner alone."""
    (tmp_path / "file").write_text("")
    assert isinstance(files_at(f"{tmp_path}", "0123abcd"), LogDirectory)
    assert isinstance(files_at(f"{tmp_path}/new", "0123abcd"), LogFile)
    assert isinstance(files_at(f"{tmp_path}/new/er/", "0123abcd"), LogDirectory)
    before = os.umask(0)
    try:
        part = files_at(f"{tmp_path}/new/er/", "0123abcd").begin()
    finally:
        os.umask(before)
    os.close(part.descriptor)
    assert stat.S_IMODE((tmp_path / "new" / "er").stat().st_mode) == 0o700
    assert stat.S_IMODE(part.path.stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="cannot be written"):
        EventLog(f"{tmp_path}/file/", Redactor(), {})


# Size


@pytest.mark.parametrize("form", ["directory", "file"])
async def test_size(tmp_path: Path, form: str) -> None:
    """A file ends with the record that fills it; the next one begins with a header that names it."""
    target = tmp_path if form == "directory" else tmp_path / "events.ndjson"
    async with opened(target, max_bytes=1000) as log:
        for number in range(100):
            note(log, number)
            await trio.lowlevel.checkpoint()
    files = log_files(tmp_path)
    assert len(files) > 15
    assert notes(whole_log(files)) == list(range(100))
    sizes = [path.stat().st_size for path in files]
    assert min(sizes[:-1]) >= 1000
    assert max(sizes) < 1400
    assert (tmp_path / "events.ndjson").exists() == (form == "file")


async def test_a_limit_that_the_header_exceeds(tmp_path: Path) -> None:
    """One record a file, and an end to it."""
    async with opened(tmp_path, max_bytes=1) as log:
        for number in range(5):
            note(log, number)
    assert notes(whole_log(log_files(tmp_path))) == list(range(5))
    assert len(log_files(tmp_path)) == 6


async def test_a_file_that_was_full_already_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "events.ndjson"
    async with opened(path) as log:
        for number in range(30):
            note(log, number)
    async with opened(path, max_bytes=2000) as log:
        note(log, 30)
        note(log, 31)
    old, new = log_files(tmp_path)
    assert notes(records_of(old)) == list(range(31))
    assert notes(records_of(new)) == [31]


@pytest.mark.parametrize("target", [pytest.param("logs/", marks=pytest.mark.deep), "events.ndjson"])
def test_under_load(tmp_path: Path, target: str) -> None:
    """A bridge that streams many answers at once and rotates all the time: no record is lost, torn, or out of order."""
    logs = tmp_path / "logs"
    logs.mkdir()
    where = logs if target == "logs/" else logs / target
    with (
        running_bridge(tmp_path, "--mock-only", f"--log-events={where}", "--log-max-bytes=20000") as bridge,
        ThreadPoolExecutor(8) as pool,
    ):
        asked = {"model": "mock-echo", "input": "word " * 500}
        answers = list(pool.map(lambda _: bridge.events("/responses", asked), range(24)))
    assert {answer[-1]["type"] for answer in answers} == {"response.completed"}
    files = log_files(logs)
    assert len(files) > 10
    found = turns_in(whole_log(files))
    complete = [kinds for kinds in found.values() if kinds[0] == "client_request"]
    assert len(complete) == 24
    for kinds in complete:
        assert {"turn_start", "client_start", "client_sse", "client_sse_done", "turn_end"} <= set(kinds)
    reader = RecordReader(files)
    assert sum(1 for _ in reader) == sum(len(records_of(path)) for path in files)
    assert reader.trouble.sentences() == []


_RUN = """
import sys, trio
from bridge.log.event_log import EventLog
from bridge.redact import Redactor

async def main():
    log = EventLog(sys.argv[1], Redactor(), {"dialect": "auto", "settings": {}}, max_bytes=20_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number in range(2000):
            log.recorder.event("turn", "none", "note", None, {"number": number, "padding": "x" * 50})
            await trio.sleep(0)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def test_two_programs_share_a_file(tmp_path: Path) -> None:
    """Whoever finds it full moves it aside; neither loses a record, or moves away what the other has just begun."""
    path = tmp_path / "events.ndjson"
    running = [subprocess.Popen([sys.executable, "-c", _RUN, str(path)], cwd=ROOT) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    by_run: dict[str, list[Json]] = {}
    files = log_files(tmp_path)
    for file in files:
        for record in records_of(file):
            by_run.setdefault(record["run"], []).append(record)
    assert len(by_run) == 2
    for records in by_run.values():
        assert sorted(notes(records)) == list(range(2000))
        assert sorted(record["seq"] for record in records) == list(range(len(records)))
    assert max(file.stat().st_size for file in files) < 100_000


@pytest.mark.parametrize("by_a_bridge", [True, False])
def test_a_file_that_is_moved_away_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_a_bridge: bool
) -> None:
    """Between the look and the move: another bridge waits, and after anybody else the file of that name is opened."""
    path = tmp_path / "events.ndjson"
    files, other = LogFile(path, ticking(0)), LogFile(path, ticking(60))
    part, its = files.begin(), other.begin()
    others: list[Thread] = []

    def moved(real: Path, aside: Path) -> Path:
        monkeypatch.undo()
        if by_a_bridge:
            others.append(Thread(target=lambda: os.close(other.rotate(its).descriptor)))
            others[0].start()
            time.sleep(0.02)
            assert others[0].is_alive()
        else:
            path.rename(tmp_path / "theirs")
        return real.rename(aside)

    monkeypatch.setattr(Path, "rename", moved)
    after = files.rotate(part)
    for thread in others:
        thread.join()
    for each in (part, its, after):
        os.close(each.descriptor)
    aside = "events-20260301T120000.ndjson" if by_a_bridge else "theirs"
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([aside, "events.ndjson"])
    assert after.continues == aside


def test_who_holds_the_directory_is_not_waited_for_long(tmp_path: Path) -> None:
    files = LogFile(tmp_path / "events.ndjson", ticking(0))
    part = files.begin()
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    after = files.rotate(part)
    for descriptor in (held, part.descriptor, after.descriptor):
        os.close(descriptor)
    assert after.continues == "events-20260301T120000.ndjson"


# Deleted files


@pytest.mark.parametrize("form", ["directory", "file"])
async def test_a_log_that_is_deleted_goes_on_in_a_new_file(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when its directory has gone; what comes then is whole, and it is told that something is missing."""
    logs = tmp_path / "logs"
    logs.mkdir()
    async with opened(f"{logs}/" if form == "directory" else logs / "events.ndjson") as log:
        note(log, 1)
        await until(lambda: is_written(logs, 1))
        if form == "directory":
            shutil.rmtree(logs)
        else:
            (logs / "events.ndjson").unlink()
        note(log, 2)
        await until(lambda: logs.exists() and is_written(logs, 2))
        note(log, 3)
    (file,) = log_files(logs)
    records = records_of(file)
    assert records[0]["kind"] == "header"
    assert "continues" not in records[0]
    assert notes(records) == [2, 3]
    assert log.writer.deleted
    assert log.writer.dropped == 0
    (said,) = (record.getMessage() for record in caplog.records)
    assert "was deleted with all of its records" in said


async def test_a_log_that_is_deleted_at_the_end_is_noticed(tmp_path: Path) -> None:
    async with opened(tmp_path / "events.ndjson", on_error="stop") as log:
        note(log, 1)
        await until(lambda: is_written(tmp_path, 1))
        log.check()
        (tmp_path / "events.ndjson").unlink()
    with pytest.raises(LogFailed, match="was deleted while it was written"):
        log.check()


@pytest.mark.parametrize("on_error", ["drop", "stop"])
async def test_a_deleted_log_that_cannot_be_begun_anew_fails(tmp_path: Path, on_error: str) -> None:
    """As on a full disk; and once it can be, it goes on."""
    logs, failed = tmp_path / "logs", trio.Event()
    logs.mkdir()
    log = EventLog(str(logs / "events.ndjson"), Redactor(), {}, on_error=on_error)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run, failed.set)
        shutil.rmtree(logs)
        note(log, 1)
        await until(lambda: log.writer.dropped == 1)
        assert log.writer.fault == "the file was deleted, and no other can be opened: No such file or directory"
        assert failed.is_set() == (on_error == "stop")
        logs.mkdir()
        note(log, 2)
        nursery.cancel_scope.cancel()
    assert notes(records_of(logs / "events.ndjson")) == [2]
    assert log.writer.fault is None


# Age


async def test_age(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Counted from the first record: a file in which nothing happens is not followed by another."""
    async with opened(tmp_path, max_age=60) as log:
        mock_clock.jump(1000)
        note(log, 1)
        await until(lambda: is_written(tmp_path, 1))
        mock_clock.jump(59)
        note(log, 2)
        await until(lambda: is_written(tmp_path, 2))
        assert len(log_files(tmp_path)) == 1
        mock_clock.jump(2)
        await until(lambda: len(log_files(tmp_path)) == 2)
        mock_clock.jump(1000)
        note(log, 3)
        await until(lambda: is_written(tmp_path, 3))
    first, second = log_files(tmp_path)
    assert notes(records_of(first)) == [1, 2]
    assert notes(records_of(second)) == [3]
    whole_log([first, second])


def test_age_in_a_bridge(tmp_path: Path) -> None:
    """PROXY_LOG_MAX_AGE in seconds: the file is complete although nothing more comes."""
    logs = tmp_path / "logs"
    with running_bridge(tmp_path, "--mock-only", PROXY_LOG_EVENTS=f"{logs}/", PROXY_LOG_MAX_AGE="0.3") as bridge:
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        wait_for(lambda: len(log_files(logs)) >= 2, "the file is followed by another")
    whole_log(log_files(logs))


# Keeping


async def test_only_so_many_files_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The newest ones, each deletion is told; what only looks alike stays."""
    caplog.set_level("INFO", "bridge.log")
    old = ["20250101T000000-0123abcd.ndjson", "20250101T000000-0123abcd_0002.ndjson"]
    others = [
        "20250101T000000.ndjson",
        "20250101T000000-0123abcd.ndjson.gz",
        "20250101T000000-0123abcd-2.ndjson",
        "my-20250101T000000-0123abcd.ndjson",
        "notes.ndjson",
    ]
    for name in (*old, *others):
        (tmp_path / name).write_text("{}\n")
    (tmp_path / "20250101T000001-0123abcd.ndjson").symlink_to("notes.ndjson")
    async with opened(tmp_path, max_bytes=1, keep=3) as log:
        for number in range(10):
            note(log, number)
    left = {path.name for path in tmp_path.iterdir()}
    assert set(others) < left
    assert (tmp_path / "20250101T000001-0123abcd.ndjson").is_symlink()
    ours = sorted(left - set(others) - {"20250101T000001-0123abcd.ndjson"})
    assert len(ours) == 3
    assert [notes(records_of(tmp_path / name)) for name in ours] == [[8], [9], []]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(old) + 11 - 3
    assert all("is deleted" in line and "PROXY_LOG_KEEP" in line for line in told)


async def test_files_beside_a_file_are_kept_by_number_too(tmp_path: Path) -> None:
    """The one that is being written counts; those of another log do not."""
    (tmp_path / "other-20250101T000000.ndjson").write_text("{}\n")
    (tmp_path / "events-20250101T000000.log").write_text("{}\n")
    async with opened(tmp_path / "events.ndjson", max_bytes=1, keep=3) as log:
        for number in range(10):
            note(log, number)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names.pop() == "other-20250101T000000.ndjson"
    assert names.pop(0) == "events-20250101T000000.log"
    assert names.pop() == "events.ndjson"
    assert [notes(records_of(tmp_path / name)) for name in names] == [[8], [9]]


async def test_all_files_are_kept_unless_somebody_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path, max_bytes=1) as log:
        for number in range(50):
            note(log, number)
    assert len(log_files(tmp_path)) == 51


async def test_a_file_that_another_writes_to_is_not_deleted(tmp_path: Path) -> None:
    """Two bridges may share a directory, and one of them may have a single, old file."""
    async with opened(tmp_path) as patient:
        note(patient, 1)
        async with opened(tmp_path, max_bytes=1, keep=1) as log:
            for number in range(5):
                note(log, number)
        note(patient, 2)
    assert notes(whole_log([tmp_path / Path(patient.writer.shown).name])) == [1, 2]
    assert len(log_files(tmp_path)) == 2


# Trouble


async def test_when_no_new_file_can_be_begun_the_old_one_goes_on(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is lost; it is told, and tried again after a while."""
    logs, kept = tmp_path / "logs", tmp_path / "kept"
    async with opened(f"{logs}/", max_bytes=500) as log:
        logs.rename(kept)
        for number in range(20):
            note(log, number)
            await until(partial(is_written, kept, number))
        logs.mkdir()
        mock_clock.jump(RETRY + 1)
        await until(lambda: any(logs.iterdir()))
        note(log, 20)
    assert len(caplog.records) == 1
    assert "cannot open a new file, still writing to the old one: No such file" in caplog.text
    assert log.writer.dropped == 0
    (file,) = log_files(kept)
    shutil.copy(file, logs)
    assert notes(whole_log(log_files(logs))) == list(range(21))


_FULL = """
import resource, sys, trio
from bridge.log.event_log import EventLog
from bridge.redact import Redactor

def disk(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

async def main():
    disk(int(sys.argv[2]))
    log = EventLog(sys.argv[1], Redactor(), {"dialect": "auto", "settings": {}})
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number in range(30):
            if number == 20:
                while log.writer.dropped < 10:
                    await trio.sleep(0.001)
                disk(resource.RLIM_INFINITY)
            log.recorder.event("turn", "none", "note", None, {"number": number, "padding": "x" * 50})
        nursery.cancel_scope.cancel()
    print(log.writer.dropped)

trio.run(main)
"""


@pytest.mark.parametrize("room", [0, 1, 100, 1000, 1250])
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, room: int) -> None:
    """A limit on the size of files stands for it. What is lost is counted exactly, the header is not lost, and no whole
    line is glued to a torn one."""
    path = tmp_path / "events.ndjson"
    run = subprocess.run(
        [sys.executable, "-c", _FULL, str(path), str(room)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    reader = RecordReader([path])
    records = [record for _, record in reader]
    assert records[0]["kind"] == "header"
    found = notes(records)
    assert found[-10:] == list(range(20, 30))
    assert found == sorted(found)
    assert int(run.stdout) == 30 - len(found)
    assert reader.trouble.foreign <= 1
    assert reader.trouble.torn == 0
