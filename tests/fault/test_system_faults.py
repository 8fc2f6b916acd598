"""What the system can do to the bridge: rows of docs/promises.md that are proven nowhere else, by their numbers."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from fault.few_processes import bridge_with_few_processes
from harness import KEY, RunningBridge, read_sse, running_bridge
from log.logs import records_of, turns_in, whole_log
from server.inprocess import Program, finish, first_text, supervised, turn
from server.prompted import MODEL, ask, children_of, open_response, prompted_codex, wait_for
from store.stores import MANY_BYTES, Clock, response, running
from warm import WarmProcess, run_warm

from bridge.log.event_log import LAST_WRITES, LogWriter
from bridge.log.rotation import LogFile
from bridge.store.sqlite import SqliteStore

HI = ask({"text": "hi"})

Json = dict[str, Any]
ECHO = {"model": "mock-echo", "input": "hi"}


def text_of(events: list[Json]) -> str:
    """What a stream of responses says."""
    return "".join(event.get("delta", "") for event in events if event["type"] == "response.output_text.delta")


# Limits of the system


@contextmanager
def no_more_files(pid: int) -> Iterator[None]:
    """A process may open no more files at once than it has now, while this lasts."""
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(set(range(usual[0])) - used), usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


def test_fault_25_no_more_files_can_be_opened(tmp_path: Path) -> None:
    """Streams go on, and who comes waits in the queue until there is room; it is told once. A child that dies now
    cannot be replaced, which is told to clients, and is when it can be."""
    settings = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "PROXY_STORE": "memory"}
    with running_bridge(tmp_path, **settings) as bridge:
        assert bridge.post("/responses", ask({"text": "hi"})).status_code == 200
        pid = bridge.process.pid
        words = [{"text": "tick "}, {"sleep": 0.05}]
        connection, stream = open_response(bridge, "/v1/responses", ask(*words, repeat=20, stream=True))
        with closing(connection), ExitStack() as waiting:
            with no_more_files(pid):
                crowd = [
                    waiting.enter_context(socket.create_connection(("127.0.0.1", bridge.port), timeout=20))
                    for _ in range(3)
                ]
                for waiter in crowd:
                    waiter.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                wait_for(lambda: "no connection can be accepted" in bridge.stderr.read_text(), "it is told")
                events = list(read_sse(iter(stream.read().decode().splitlines())))
                assert events[-1]["type"] == "response.completed"
                assert text_of(events) == "tick " * 20
            for waiter in crowd:
                assert waiter.recv(65536).startswith(b"HTTP/1.1 200")
        with bridge.client() as client:
            assert client.post("/responses", json=ask({"text": "hi"})).status_code == 200
            (child,) = children_of(pid)
            with no_more_files(pid):
                # Its pipes leave room for three files; to start another takes more.
                os.kill(child, signal.SIGKILL)
                refused = wait_for(
                    lambda: got if (got := client.post("/responses", json=HI)).status_code == 503 else None, "a refusal"
                )
                assert "could not be started" in refused.json()["error"]["message"]
                assert refused.headers["retry-after"]
            wait_for(
                lambda: client.post("/responses", json=ask({"text": "hi"})).status_code == 200, "another child", 90
            )
    told = bridge.stderr.read_text()
    assert told.count("no connection can be accepted: Too many open files") == 1
    assert "Traceback" not in told


def test_fault_26_no_process_and_no_thread_can_be_started(tmp_path: Path) -> None:
    """The bridge is up and says why it cannot serve, its log is written all the same; when it can, it does."""
    log = tmp_path / "events.ndjson"
    with bridge_with_few_processes(tmp_path, f"--log-events={log}") as bridge:
        refused = bridge.post("/responses", ECHO)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert "Resource temporarily unavailable" in refused.json()["error"]["message"]
        with bridge.client() as client:
            assert client.get(f"{bridge.root}/readyz").status_code == 503
            assert client.get(f"{bridge.root}/healthz").status_code == 200
        ended = [kinds[-1] for kinds in turns_in(records_of(log)).values()]
        assert ended == ["turn_end"]
        bridge.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: bridge.post("/responses", ECHO).status_code == 200, "a child", 90)
        assert bridge.stop() == 0
    assert "Traceback" not in bridge.stderr.read_text()
    whole_log([log])


# The log


@contextmanager
def silent_disk(path: Path) -> Iterator[Path]:
    """A file that takes the first 64 KiB and then nothing more, without a word: a pipe that nobody reads."""
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield path
    finally:
        os.close(reader)


async def test_fault_27_a_disk_that_does_not_answer_holds_up_no_end(
    tmp_path: Path, mock_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A write that hangs is given up a few seconds after the end was wanted, and it is told."""
    mock_clock.rate = 1
    with silent_disk(tmp_path / "log") as path:
        writer = LogWriter(LogFile(path))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            writer.write(b"x" * 100_000 + b"\n")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            assert writer.dropped == 0
            mock_clock.jump(LAST_WRITES)
    assert writer.dropped == 1
    assert "records are being dropped: the disk does not answer" in caplog.text


@pytest.mark.deep
def test_fault_27_turns_do_not_notice_a_disk_that_does_not_answer(tmp_path: Path) -> None:
    """They are answered as ever, and a stop takes little longer than usual."""
    with (
        silent_disk(tmp_path / "log") as path,
        running_bridge(tmp_path, "--mock-only", f"--log-events={path}", PROXY_STORE="memory") as bridge,
    ):
        for _ in range(20):
            answer = bridge.events("/responses", {"model": "mock-echo", "input": "word " * 1000})
            assert answer[-1]["type"] == "response.completed"
        bridge.process.terminate()
        assert bridge.process.wait(LAST_WRITES + 20) == 0
    assert "the disk does not answer" in bridge.stderr.read_text()


def test_fault_28_a_log_that_is_copied_and_emptied_under_the_bridge(tmp_path: Path) -> None:
    """As logrotate's copytruncate does it: what is written next stands at the beginning of the file, in whole lines.

    Each request is a conversation of its own: of one that is repeated the child is told to forget the thread before,
    which is written after the end of the request, and may be so between the copying and the emptying.
    """
    log = tmp_path / "events.ndjson"
    with running_bridge(tmp_path, "--mock-only", f"--log-events={log}") as bridge, bridge.client() as client:
        for number in range(3):
            bodies = [ECHO | {"input": f"hi {number} {each}"} for each in range(3)]
            got = [client.post("/responses", json=body).headers["x-request-id"] for body in bodies]
            wait_for(partial(are_written, log, set(got)), "all is written")
            (tmp_path / f"copy-{number}").write_bytes(log.read_bytes())
            os.truncate(log, 0)
        client.post("/responses", json=ECHO)
    copies = sorted(tmp_path.glob("copy-*"))
    records = [record for path in (*copies, log) for record in records_of(path)]
    assert [record["seq"] for record in records] == list(range(len(records)))
    assert [record["kind"] for record in records].count("turn_end") == 10


def are_written(log: Path, requests: set[str]) -> bool:
    return ends_in(log) >= requests


def ends_in(log: Path) -> set[str]:
    """The requests that have ended, according to a log that may be written at the moment."""
    whole = log.read_bytes().rpartition(b"\n")[0]
    records = [json.loads(line) for line in whole.splitlines()]
    return {record["req_id"] for record in records if record["kind"] == "turn_end"}


# Time

HOUR = 3600.0
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_fault_30_a_clock_that_jumps_loses_nothing_that_is_stored(tmp_path: Path, kind: str) -> None:
    """An hour back, an hour forth, to 1970 and to today again: what was stored at any of these times is there."""
    clock = Clock()
    options: Json = {"ttl": 10 * HOUR, "max_bytes": MANY_BYTES, "now": clock}
    store = SqliteStore(None if kind == "memory" else tmp_path / "store.db", **options)
    async with running(store):
        today = clock.time
        for number, time in enumerate([today, today - HOUR, today, today + HOUR, 0.0, today]):
            clock.time = time
            await store.put("s", response(f"r{number}"))
            for earlier in range(number + 1):
                if earlier != 4 or time == 0.0:  # what was stored in 1970 has expired since
                    assert await store.get("s", f"r{earlier}") is not None


def test_fault_30_a_log_in_which_the_clock_jumps(tmp_path: Path) -> None:
    """Order and durations come from the other clock, which does not jump: the same list, and nothing is wrong."""
    log = tmp_path / "events.ndjson"
    with running_bridge(tmp_path, "--mock-only", f"--log-events={log}") as bridge:
        for _ in range(4):
            assert bridge.events("/responses", ECHO)[-1]["type"] == "response.completed"
    jumped = tmp_path / "jumped.ndjson"
    records = records_of(log)
    times = ("1970-01-01T00:00:01.000000Z", "2026-03-29T02:30:00.000000Z", "2026-03-29T01:30:00.000000Z")
    for number, record in enumerate(records[1:]):
        record["ts"] = times[number % 3]
    jumped.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    listed = [lines_of("log", "ls", "--json", "--no-index", str(path)) for path in (log, jumped)]
    durations = [[(line["id"], line["total_s"], line["outcome"]) for line in lines] for lines in listed]
    assert len(durations[0]) == 4
    assert durations[0] == durations[1]
    assert run_warm("log", "verify", str(jumped), env=ENVIRONMENT).returncode == 0


def lines_of(*arguments: str) -> list[Json]:
    """What a command prints, as JSON."""
    ran = run_warm(*arguments, env=ENVIRONMENT, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture
def prompted(tmp_path: Path) -> Program:
    """The child that does what the message says."""
    return Program(prompted_codex(tmp_path), "app-server")


async def test_fault_31_a_machine_that_was_asleep(prompted: Program, mock_clock: trio.testing.MockClock) -> None:
    """Half an hour is gone at once, for a turn that speaks and for one that is being started: both go on, because the
    child is asked once more. One whose child is silent then ends in time."""
    mock_clock.rate = 1
    async with supervised(prompted) as supervisor:
        child = await supervisor.acquire()
        speaking = child.start(turn({"text": "one "}, {"sleep": 2}, {"text": "two"}))
        silent = child.start(turn({"text": "one "}, {"hang": True}))
        await first_text(speaking)
        await first_text(silent)
        starting = child.start(turn({"text": "three"}))
        async with trio.open_nursery() as nursery:
            texts: dict[str, str] = {}

            async def read(name: str, stream: Any) -> None:
                texts[name] = (await finish(stream)).text

            nursery.start_soon(read, "speaking", speaking)
            nursery.start_soon(read, "starting", starting)
            ended = trio.Event()

            async def wait_in_vain() -> None:
                result = await finish(silent)
                assert result.end is not None
                assert result.end.error is not None
                assert result.end.error.code == "backend_timeout"
                ended.set()

            nursery.start_soon(wait_in_vain)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(HOUR / 2)
            while len(texts) < 2:
                await trio.sleep(0.01)
            assert texts == {"speaking": "two", "starting": "three"}
            assert not ended.is_set()
            waited = trio.current_time()
            while not ended.is_set():
                mock_clock.jump(0.5)  # what is over by more than a second would count as slept through, too
                await trio.sleep(0.001)
            assert trio.current_time() - waited < 2 * 300
        assert supervisor.restarts == 0


# Two of us


def test_fault_37_two_bridges_on_one_login(tmp_path: Path) -> None:
    """Both serve, and the second one tells which process it shares the login with; the login itself is left alone.
    When the first has ended, however it did, nobody is warned any more."""
    home = tmp_path / "codex-home"
    home.mkdir()
    (home / "auth.json").write_text(json.dumps({"tokens": {"access_token": "a", "refresh_token": "r"}}))
    settings = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL, "CODEX_HOME": str(home)}

    def place(name: str) -> Path:
        (tmp_path / name).mkdir()
        return tmp_path / name

    def warning_of(bridge: RunningBridge) -> str:
        lines = [line for line in bridge.stderr.read_text().splitlines() if "uses this CODEX_HOME too" in line]
        return "".join(lines)

    with running_bridge(place("first"), **settings) as first:
        assert first.post("/responses", ask({"text": "hi"})).status_code == 200
        with running_bridge(place("second"), **settings) as second:
            assert second.post("/responses", ask({"text": "hi"})).status_code == 200
            assert f"another bridge (process {first.process.pid})" in warning_of(second)
            assert first.post("/responses", ask({"text": "hi"})).status_code == 200
        assert warning_of(first) == ""
        first.process.kill()
        first.process.wait()
    with running_bridge(place("third"), **settings) as third:
        assert third.post("/responses", ask({"text": "hi"})).status_code == 200
        assert warning_of(third) == ""
    assert [path.name for path in home.iterdir()] == ["auth.json"]


# What is taken away


def test_fault_41_a_working_directory_that_was_cleaned_away(tmp_path: Path) -> None:
    """The next child gets a new one, private. One that somebody else has put there is not used: that is told to the
    operator with its place, to clients without it; when it is gone all is well."""
    work, settings = tmp_path / "work", {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL}
    with running_bridge(tmp_path, **settings) as bridge, bridge.client() as client:

        def status(*steps: Json) -> int:
            return client.post("/responses", json=ask(*steps)).status_code

        assert status({"text": "hi"}) == 200
        work.rmdir()
        assert status({"exit": 1}) == 502
        assert status({"text": "hi"}) == 200
        assert stat.S_IMODE(work.stat().st_mode) == 0o700
        work.rmdir()
        work.symlink_to(tmp_path)
        assert status({"exit": 1}) == 502
        refused = wait_for(
            lambda: got if (got := client.post("/responses", json=HI)).status_code == 503 else None, "a refusal"
        )
        assert "working directory" in refused.json()["error"]["message"]
        assert str(tmp_path) not in refused.text
        assert f"{work} is not a directory (but a link or a file)" in bridge.stderr.read_text()
        work.unlink()
        wait_for(lambda: status({"text": "hi"}) == 200, "another child", 90)


def test_fault_42_nobody_reads_what_the_bridge_says(tmp_path: Path) -> None:
    """As in `turnbridge serve | head -1`: it goes on, and ends without a complaint."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PROXY_API_KEY": KEY, "PORT": "0"}
    reader, stdout = os.pipe()
    os.close(reader)
    log, stderr = tmp_path / "events.ndjson", tmp_path / "stderr"
    with stderr.open("w") as errors:
        process = WarmProcess(["serve", "--mock-only", f"--log-events={log}"], stdout=stdout, stderr=errors, env=env)
    os.close(stdout)
    try:
        wait_for(lambda: "child ready" in stderr.read_text() or process.poll() is not None, "a child", 30)
        process.terminate()
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert "Error" not in stderr.read_text()
    whole_log([log])


def test_fault_43_nobody_reads_stderr(tmp_path: Path) -> None:
    """A full pipe holds up nobody: turns are answered, and it stops. Who reads again is told that lines are missing."""
    reader, stderr = os.pipe()
    os.set_blocking(stderr, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(stderr, b"x" * 4096)
    os.set_blocking(stderr, True)  # as the bridge will find it
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PROXY_API_KEY": KEY, "PORT": "0"}
    pipe = subprocess.PIPE
    with (
        open(reader, "rb", buffering=0) as unread,
        WarmProcess(["serve", "--mock-only"], stdout=pipe, stderr=stderr, env=env, text=True) as process,
    ):
        os.close(stderr)
        try:
            assert process.stdout is not None
            bridge = RunningBridge(process.stdout.readline().split()[-1], process, tmp_path, tmp_path)
            assert bridge.post("/responses", ECHO).status_code == 200
            assert unread.read(filled) == b"x" * filled
            (child,) = children_of(process.pid)
            os.kill(child, signal.SIGKILL)
            wait_for(lambda: bridge.post("/responses", ECHO).status_code == 200, "another child", 90)
            assert bridge.stop() == 0
        finally:
            process.kill()
        told = unread.read(1 << 20).decode()
    assert "log line(s) dropped" in told.splitlines()[0]
    assert "it ended with code -9" in told
