"""The log on disk: private, whole lines, and never in the way."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import trio
from harness import running_bridge

from bridge.errors import ConfigError
from bridge.protolog.writer import LogWriter


async def write(writer: LogWriter, *lines: bytes) -> None:
    """Let it run, queue lines, and stop it."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        for line in lines:
            writer.write(line)
        nursery.cancel_scope.cancel()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_file_is_private(tmp_path: Path) -> None:
    """0600 whatever the umask is."""
    before = os.umask(0)
    try:
        writer = LogWriter(tmp_path / "events.ndjson")
    finally:
        os.umask(before)
    await write(writer, b"{}\n")
    assert mode(writer.path) == 0o600


async def test_what_is_queued_at_the_end_is_written(tmp_path: Path) -> None:
    """A stop loses nothing, and the order is the order of the queue."""
    writer = LogWriter(tmp_path / "events.ndjson")
    lines = [b'{"n":%d}\n' % number for number in range(10_000)]
    await write(writer, *lines)
    assert writer.path.read_bytes() == b"".join(lines)
    assert writer.dropped == 0


async def test_a_file_is_appended_to(tmp_path: Path) -> None:
    """A second run keeps what the first one wrote."""
    path = tmp_path / "events.ndjson"
    await write(LogWriter(path), b'{"run":1}\n')
    await write(LogWriter(path), b'{"run":2}\n')
    assert path.read_bytes() == b'{"run":1}\n{"run":2}\n'


@pytest.mark.parametrize("torn", [b'{"run":1}\n{"tor', b'{"tor', b"\xff", b"\0"], ids=repr)
async def test_a_torn_last_line_is_ended_before_the_first_new_one(tmp_path: Path, torn: bytes) -> None:
    """What an earlier run left half written stays by itself and does not swallow our header."""
    path = tmp_path / "events.ndjson"
    path.write_bytes(torn)
    await write(LogWriter(path), b'{"run":2}\n')
    assert path.read_bytes() == torn + b'\n{"run":2}\n'


async def test_a_full_disk_drops_records_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """Every record is counted, the program's log has one line, and nothing is raised."""
    writer = LogWriter(Path("/dev/full"))
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
    writer = LogWriter(tmp_path / "events.ndjson", max_queued=100)
    for _ in range(30):
        writer.write(b"x" * 9 + b"\n")
    assert writer.dropped == 19
    await write(writer)
    assert writer.path.read_bytes() == (b"x" * 9 + b"\n") * 11


@pytest.mark.parametrize("path", ["{tmp}", "{tmp}/none/events", "{tmp}/file/events", "/proc/nowhere/events"])
def test_a_path_that_cannot_be_written_stops_the_program_at_start(tmp_path: Path, path: str) -> None:
    """Before anybody relies on the log."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        LogWriter(Path(path.format(tmp=tmp_path)))


def test_turns_do_not_notice_a_full_disk(tmp_path: Path) -> None:
    """With --log-events on a full disk requests are served as ever; the program's log and /healthz tell of it."""
    with running_bridge(tmp_path, "--mock-only", "--log-events=/dev/full") as bridge:
        for _ in range(3):
            assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        assert bridge.events("/responses", {"model": "mock-echo", "input": "hi"})[-1]["type"] == "response.completed"
        assert "records are being dropped: No space left" in bridge.stderr.read_text()
        with bridge.client() as client:
            assert client.get(f"{bridge.root}/healthz").json()["status"] == "degraded"
            assert client.get(f"{bridge.root}/readyz").status_code == 200
