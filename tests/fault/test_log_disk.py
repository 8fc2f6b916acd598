"""A disk that is full for real: the bridge goes on without a log, or it stops, as it was told."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote

import pytest
from fault.small_disk import SmallDisk, bridge_on_a_small_disk, environment, on_a_small_disk
from harness import ROOT, RunningBridge
from server.prompted import MODEL, ask, is_alive, prompted_codex, wait_for

from bridge.log.read import RecordReader

pytestmark = pytest.mark.deep

GOOD = {"model": "mock-echo", "input": "hi"}


def health(bridge: RunningBridge) -> str:
    with bridge.client() as client:
        return str(client.get(f"{bridge.root}/healthz").json()["status"])


def fill_the_disk(bridge: RunningBridge, disk: SmallDisk) -> None:
    """What is left after that is less than a record."""
    disk.fill()
    wait_for(lambda: bridge.post("/responses", GOOD).status_code == 200 and health(bridge) == "degraded", "it is full")


def test_records_are_dropped_while_there_is_no_room_and_then_written_again(tmp_path: Path) -> None:
    """Nobody notices but /healthz and whoever reads the log: what is missing is counted, what is there is whole."""
    with bridge_on_a_small_disk(tmp_path, "--mock-only") as (bridge, disk):
        assert bridge.post("/responses", GOOD).status_code == 200
        assert health(bridge) == "ok"
        fill_the_disk(bridge, disk)
        for _ in range(3):
            assert bridge.events("/responses", GOOD)[-1]["type"] == "response.completed"
        disk.make_room()
        assert bridge.post("/responses", GOOD).status_code == 200
        wait_for(lambda: health(bridge) == "ok", "the log is written again")
        with bridge.client() as client:
            last = client.post("/responses", json=GOOD).headers["x-request-id"]
        log = tmp_path / "copy.ndjson"
        bridge.process.terminate()
        # The disk is gone with the process; the log is read before.
        wait_for(lambda: f'"kind":"turn_end","req_id":"{last}"' in (disk.path / "events.ndjson").read_text(), "the end")
        log.write_bytes((disk.path / "events.ndjson").read_bytes())
        assert bridge.process.wait(20) == 0
    (line,) = [line for line in bridge.stderr.read_text().splitlines() if "ERROR" in line]
    assert "records are being dropped: No space left on device" in line
    reader = RecordReader([log])
    records = [record for _, record in reader]
    assert records[0]["kind"] == "header"
    assert reader.trouble.gaps > 0
    assert reader.trouble.foreign <= 1
    mine = [record["kind"] for record in records if record["req_id"] == last]
    assert (mine[0], mine[-1]) == ("client_request", "turn_end")


def test_with_stop_running_turns_fail_cleanly_and_the_bridge_ends(tmp_path: Path) -> None:
    """Exit code 1, one line, at once although the grace is long; the stream that ran ends with an error event."""
    settings = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL}
    with (
        bridge_on_a_small_disk(tmp_path, "--log-on-error=stop", **settings) as (bridge, disk),
        ThreadPoolExecutor(1) as pool,
        bridge.client() as client,
    ):
        body = ask({"text": "begun"}, {"hang": True}, stream=True)
        with client.stream("POST", "/responses", json=body) as response:
            lines = response.iter_lines()
            assert any("begun" in line for line in lines)
            disk.fill()
            # Whether this one is still answered does not matter.
            pool.submit(bridge.post, "/responses", ask({"text": "word " * 4000}))
            rest = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        assert rest[-1]["type"] == "response.failed"
        assert rest[-1]["response"]["error"]["message"]
        assert bridge.process.wait(10) == 1
    told = bridge.stderr.read_text()
    (line,) = [line for line in told.splitlines() if not line.startswith(("INFO", "WARNING"))]
    assert line.startswith(f"error: The event log {tmp_path}/disk/events.ndjson could not be written: No space left")


def test_a_log_that_is_rotated_goes_on_where_there_is_room(tmp_path: Path) -> None:
    """With --log-keep the oldest files make room for new ones, also on a disk that would be full long since.

    A file is ended by the records that bring it to its size, and those of one read come together: the answers are so
    short that three files have room, however many pieces of an answer are read at once.
    """
    body = {"model": "mock-echo", "input": "word " * 50}
    flags = ("--log-max-bytes=30000", "--log-keep=3", "--log-on-error=stop", "--mock-only")
    with bridge_on_a_small_disk(tmp_path, *flags, PROXY_STORE="memory") as (bridge, disk):
        for _ in range(30):
            assert bridge.post("/responses", body).status_code == 200
        wait_for(lambda: len(list(disk.path.iterdir())) == 3, "three files are left")
        bridge.process.terminate()
        assert bridge.process.wait(20) == 0


_ASK_FOR_EVER = """
import os, sys, openai
print(os.getpid(), flush=True)
client = openai.OpenAI(max_retries=0)
while True:
    client.responses.create(model="mock-echo", input="word " * 2000)
"""


def test_record_ends_its_command(tmp_path: Path) -> None:
    """It does not let it go on unrecorded: the command and what it has started are gone, the exit code is 1."""
    place = tmp_path / "disk"
    script = f"{quote(sys.executable)} -c '{_ASK_FOR_EVER}' & sleep 1000 & echo $!; wait"
    command = (sys.executable, "-P", "-m", "bridge", "record", "--mock-only", f"--log-events={place}/run.ndjson")
    ran = subprocess.run(
        on_a_small_disk(place, "256k", *command, "--", "sh", "-c", script),
        capture_output=True,
        env=environment(tmp_path, PROXY_STORE="memory"),
        cwd=ROOT,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1, ran
    pids = [int(line) for line in ran.stdout.split()]
    assert len(pids) == 2
    assert not any(is_alive(pid) for pid in pids)
    error, summary = [line for line in ran.stderr.splitlines() if line.startswith(("error: ", "turnbridge: "))]
    assert error.startswith(f"error: The event log {place}/run.ndjson could not be written: No space left on device.")
    assert f"the log is {place}/run.ndjson" in summary
