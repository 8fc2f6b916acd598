"""The log on disk: private, whole lines, and never in the way."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from harness import RunningBridge, running_bridge
from log.logs import records_of, whole_log
from server.prompted import wait_for

from bridge.errors import ConfigError
from bridge.log.event_log import LogWriter
from bridge.log.rotation import LogFile

GOOD = {"model": "mock-echo", "input": "hi"}


async def write(writer: LogWriter, *lines: bytes) -> None:
    """Let it run, queue lines, and stop it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for line in lines:
            writer.write(line)
        nursery.cancel_scope.cancel()


def writer_of(path: Path, **options: Any) -> LogWriter:
    return LogWriter(LogFile(path), **options)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_file_is_private(tmp_path: Path) -> None:
    """0600 whatever the umask is."""
    path = tmp_path / "events.ndjson"
    before = os.umask(0)
    try:
        writer = writer_of(path)
    finally:
        os.umask(before)
    await write(writer, b"{}\n")
    assert mode(path) == 0o600


async def test_what_is_queued_at_the_end_is_written(tmp_path: Path) -> None:
    """A stop loses nothing, and the order is the order of the queue."""
    path = tmp_path / "events.ndjson"
    writer = writer_of(path)
    lines = [b'{"n":%d}\n' % number for number in range(10_000)]
    await write(writer, *lines)
    assert path.read_bytes() == b"".join(lines)
    assert writer.dropped == 0


async def test_a_file_is_appended_to(tmp_path: Path) -> None:
    """A second run keeps what the first one wrote."""
    path = tmp_path / "events.ndjson"
    await write(writer_of(path), b'{"run":1}\n')
    await write(writer_of(path), b'{"run":2}\n')
    assert path.read_bytes() == b'{"run":1}\n{"run":2}\n'


@pytest.mark.parametrize("torn", [b'{"run":1}\n{"tor', b'{"tor', b"\xff", b"\0"], ids=repr)
async def test_a_torn_last_line_is_ended_before_the_first_new_one(tmp_path: Path, torn: bytes) -> None:
    """What an earlier run left half written stays by itself and does not swallow our header."""
    path = tmp_path / "events.ndjson"
    path.write_bytes(torn)
    await write(writer_of(path), b'{"run":2}\n')
    assert path.read_bytes() == torn + b'\n{"run":2}\n'


async def test_the_header_is_written_before_anything_else_happens(tmp_path: Path) -> None:
    """The writer has started when it is on disk, so that whoever waits for that knows that the log can be written."""
    path = tmp_path / "events.ndjson"
    writer = writer_of(path)
    writer.write(b"early\n")
    async with trio.open_nursery() as nursery:
        await nursery.start(writer.run, lambda continues: b"header\n")
        assert path.read_bytes() == b"header\nearly\n"
        nursery.cancel_scope.cancel()


async def test_a_full_disk_drops_records_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every record is counted, the program's log has one line, and nothing is raised."""
    writer = writer_of(Path("/dev/full"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for number in range(1, 4):
            writer.write(b"{}\n{}\n")
            with trio.fail_after(5):
                while writer.dropped < 2 * number:
                    await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    assert writer.dropped == 6
    assert writer.fault == "No space left on device"
    assert [record.getMessage() for record in caplog.records] == [
        "event log /dev/full: records are being dropped: No space left on device"
    ]


async def test_a_disk_that_does_not_keep_up_drops_records(tmp_path: Path) -> None:
    """The queue has a bound; beyond it records are counted and dropped, those before it are written."""
    path = tmp_path / "events.ndjson"
    writer = writer_of(path, max_queued=100)
    for _ in range(30):
        writer.write(b"x" * 9 + b"\n")
    assert writer.dropped == 19
    await write(writer)
    assert path.read_bytes() == (b"x" * 9 + b"\n") * 11


async def test_who_wants_to_know_hears_of_every_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a disk that is full and of one that is too slow; the program's log is then left to whoever asked."""
    heard: list[int] = []
    failures = []
    for path, lines in ((Path("/dev/full"), 1), (tmp_path / "events.ndjson", 30)):
        writer = LogWriter(LogFile(path), max_queued=100, on_drop=lambda: heard.append(1))
        for _ in range(lines):
            writer.write(b"x" * 9 + b"\n")
        await write(writer)
        failures.append(writer.failure)
    assert len(heard) == 1 + 19
    assert failures == ["No space left on device", "the disk is too slow"]
    assert caplog.records == []


def test_a_device_stays_as_it_is(tmp_path: Path) -> None:
    """Who may everything must not change the rights of /dev/full for everybody."""
    before = mode(Path("/dev/full"))
    with running_bridge(tmp_path, "--mock-only", "--log-events=/dev/full", "--log-max-bytes=10", "--log-keep=1"):
        pass
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)
    assert mode(Path("/dev/full")) == before


@pytest.mark.parametrize("path", ["{tmp}", "{tmp}/none/events", "{tmp}/file/events", "/proc/nowhere/events"])
def test_a_path_that_cannot_be_written_stops_the_program_at_start(tmp_path: Path, path: str) -> None:
    """Before anybody relies on the log."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        writer_of(Path(path.format(tmp=tmp_path)))


def ask(bridge: RunningBridge, times: int = 1) -> None:
    for _ in range(times):
        assert bridge.post("/responses", GOOD).status_code == 200


def test_turns_do_not_notice_a_full_disk(tmp_path: Path) -> None:
    """With --log-events on a full disk requests are served as ever; the program's log and /healthz tell of it."""
    with running_bridge(tmp_path, "--mock-only", "--log-events=/dev/full") as bridge:
        ask(bridge, 3)
        assert bridge.events("/responses", GOOD)[-1]["type"] == "response.completed"
        assert "records are being dropped: No space left" in bridge.stderr.read_text()
        with bridge.client() as client:
            assert client.get(f"{bridge.root}/healthz").json()["status"] == "degraded"
            assert client.get(f"{bridge.root}/readyz").status_code == 200


def test_who_wants_everything_recorded_is_not_served_by_a_bridge_that_cannot(tmp_path: Path) -> None:
    """--log-on-error stop: it ends by itself, with exit code 1 and one line that tells why and what to do."""
    with running_bridge(tmp_path, "--mock-only", "--log-events=/dev/full", "--log-on-error=stop") as bridge:
        assert bridge.process.wait(20) == 1
    (line,) = bridge.stderr.read_text().splitlines()
    assert line.startswith("error: The event log /dev/full could not be written: No space left on device.")
    assert "--log-on-error drop" in line


def test_sighup_goes_on_in_a_new_file(tmp_path: Path) -> None:
    """What was moved away is whole; the new file begins with a header that names it, and nothing is lost between."""
    path, moved = tmp_path / "events.ndjson", tmp_path / "events.ndjson.1"
    with running_bridge(tmp_path, "--mock-only", f"--log-events={path}") as bridge:
        ask(bridge, 2)
        path.rename(moved)
        ask(bridge)
        bridge.process.send_signal(signal.SIGHUP)
        wait_for(path.exists, "the new file is there")
        ask(bridge, 2)
    records = whole_log([moved, path])
    assert [record["kind"] for record in records].count("turn_end") == 5
    assert [record["kind"] for record in records_of(path)].count("client_request") == 2


def test_sighup_without_reason_changes_nothing(tmp_path: Path) -> None:
    """Nobody has moved the file: it goes on, without a second header."""
    path, other = tmp_path / "events.ndjson", tmp_path / "logs"
    other.mkdir()
    with (
        running_bridge(tmp_path, "--mock-only", f"--log-events={path}") as bridge,
        running_bridge(other, "--mock-only", f"--log-events={other}") as second,
    ):
        ask(bridge)
        bridge.process.send_signal(signal.SIGHUP)
        ask(bridge)
        # In a directory there is a new file each time: whoever sends it wants the old one to be complete.
        ask(second)
        second.process.send_signal(signal.SIGHUP)
        wait_for(lambda: len(list(other.glob("*.ndjson"))) == 2, "the second file is there")
        ask(second)
    assert [record["kind"] for record in whole_log([path])].count("turn_end") == 2
    assert [record["kind"] for record in whole_log(sorted(other.glob("*.ndjson")))].count("turn_end") == 2
