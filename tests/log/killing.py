"""A recording bridge that is killed in the middle of its work, again and again; and what must be left each time."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx2
from harness import KEY, RunningBridge, running_bridge
from log.logs import Json
from server.prompted import wait_for

from bridge.log.read import RecordReader, log_files

CLIENTS = 4
_ASKED = {"model": "mock-echo", "input": "word " * 400, "stream": True}


def kill_and_look(directory: Path, times: int) -> None:
    """Kill a bridge `times` times, with its log in a directory and in one file by turns; look at the logs each time."""
    chance = random.Random(times)
    logs, file = directory / "logs", directory / "events.ndjson"
    for number in range(times):
        target = f"{logs}/" if number % 2 else str(file)
        with running_bridge(
            directory, "--mock-only", f"--log-events={target}", "--log-max-bytes=40000", PROXY_STORE="memory"
        ) as bridge:
            _kill_within_an_answer(bridge, directory, pieces=chance.randrange(1, 400))
        for log in (logs, *([file] if file.exists() else [])):
            if log.exists():
                _look(log_files(log.parent if log == file else log), killed=number + 1)


def _turns(directory: Path) -> int:
    """How many turns have begun, according to the logs, of which one may be moved aside at the moment."""
    count = 0
    for path in directory.rglob("*.ndjson"):
        with suppress(FileNotFoundError):
            count += path.read_bytes().count(b'"kind":"turn_start"')
    return count


def _kill_within_an_answer(bridge: RunningBridge, directory: Path, pieces: int) -> None:
    """Let several clients read, and kill it when they have so many lines of their streams, and its log has a turn."""

    def read() -> None:
        with suppress(httpx2.HTTPError), bridge.client(key=KEY) as client:
            while True:
                with client.stream("POST", "/responses", json=_ASKED) as response:
                    for _ in response.iter_lines():
                        seen.append(1)
                        if len(seen) >= pieces:
                            wait_for(lambda: _turns(directory) > before, "a turn is in the log")
                            bridge.process.kill()

    seen: list[int] = []
    before = _turns(directory)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for reading in [pool.submit(read) for _ in range(CLIENTS)]:
            reading.result(30)
    assert bridge.process.wait(20) == -9


def _look(files: list[Path], killed: int) -> None:
    """Every record of every run, from its header up to where it was cut off; at most one torn line for each kill."""
    reader = RecordReader(files)
    runs: dict[str, list[Json]] = {}
    for _, record in reader:
        runs.setdefault(record["run"], []).append(record)
    assert 1 <= len(runs) <= killed
    for records in runs.values():
        assert records[0]["kind"] == "header"
        assert [record["seq"] for record in records] == list(range(len(records)))
        assert "turn_start" in {record["kind"] for record in records}
    assert reader.trouble.gaps == 0
    assert reader.trouble.foreign + reader.trouble.torn <= killed
