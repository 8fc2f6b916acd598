"""Logs that are broken, or made to do harm: every way to play them ends, without a traceback, and tells why."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import trio
from cli.running import run_command
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st
from server.recorded import replaying

from bridge.errors import BridgeError
from bridge.log.read import RecordReader
from bridge.log.recording import Recording, read_recordings
from bridge.playback.player import LogPlayer
from bridge.replay.compare import update_log
from bridge.replay.verify import PROTOCOLS, Verifier, translate

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

Json = dict[str, Any]
LOGS = sorted((ROOT / "fixtures/logs").glob("*.ndjson"))


def nested(depth: int) -> Any:
    """Lists and objects within each other."""
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**63 - 1,
    "",
    "x",
    "\x00",
    "☕",
    [],
    {},
    [1],
    [{}],
    {"a": 1},
    ": c\n\n",
    nested(99),
]


@cache
def requests_in(log: Path) -> tuple[Json, list[list[Json]]]:
    """The header, and the records of each request."""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    found: dict[str, list[Json]] = {}
    for record in records[1:]:
        if record["req_id"]:
            found.setdefault(record["req_id"].partition("#")[0], []).append(record)
    return records[0], list(found.values())


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a record."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield (*place, name)
        yield from places(member, (*place, name))


class Broken(bytes):
    """A log; a failure shows its size, and leaves it in `hostile.ndjson`."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes"


@st.composite
def broken_logs(draw: st.DrawFn) -> Broken:
    """A few requests of a recording, with members changed, lines moved, doubled or lost, or the end cut off."""
    header, requests = requests_in(draw(st.sampled_from(LOGS)))
    chosen = draw(st.lists(st.sampled_from(requests), min_size=1, max_size=2, unique_by=id))
    records = [header, *(record for request in chosen for record in request)]
    for _ in range(draw(st.integers(0, 3))):
        index = draw(st.integers(0, len(records) - 1))
        records[index] = draw(changed(records[index]))
    lines = [json.dumps(record).encode() for record in records]
    order = draw(st.sampled_from(["kept", "kept", "kept", "moved", "doubled", "lost"]))
    if order == "moved":
        lines = draw(st.permutations(lines))
    elif order == "doubled":
        lines = [line for line in lines for _ in range(2)]
    elif order == "lost":
        lines = [line for line in lines if draw(st.integers(0, 5))]
    data = b"\n".join(lines) + b"\n"
    return Broken(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 4)) == 0 else data)


@st.composite
def changed(draw: st.DrawFn, record: Json) -> Json:
    """A record with another value, or none, somewhere."""
    record = copy.deepcopy(record)
    *above, last = draw(st.sampled_from(list(places(record))))
    holder: Any = record
    for name in above:
        holder = holder[name]
    if draw(st.integers(0, 5)) == 0:
        del holder[last]
    else:
        holder[last] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return record


async def play_everything(path: Path) -> list[tuple[Recording, Recording]]:
    """Play a log in every way; what differs."""
    recordings = list(read_recordings(RecordReader([path])))
    different = []
    verifier = Verifier()
    for recording in recordings:
        found = await verifier.verify(recording)
        assert found.outcome in ("same", "different", "not_played")
        assert found.outcome == "same" or found.lines
        if found.outcome == "different" and found.now is not None:
            different.append((recording, found.now))
        for protocol in PROTOCOLS:
            with suppress(BridgeError):
                await translate(recording, protocol)
    assert len(LogPlayer(recordings).models()) <= len(recordings)
    return different


@given(data=broken_logs())
def test_any_log_is_played_to_its_end(data: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile.ndjson"
    path.write_bytes(data)

    async def play() -> None:
        with trio.fail_after(30):
            different = await play_everything(path)
            update_log([path], different)
            # What was accepted is the same from then on.
            accepted = {recording.number for recording, _ in different}
            left = [recording for recording, _ in await play_everything(path) if recording.number in accepted]
            assert left == []

    trio.run(play)


def line(**members: Any) -> Json:
    base = {"ts": "2026-01-01T00:00:00Z", "mono": 1.0, "run": "0123abcd", "seq": 1, "direction": "in"}
    return base | {"phase": "http_ingress", "kind": "client_request", "req_id": "req_1"} | members


def body(value: Any) -> Json:
    return line(payload={"path": "/v1/responses", "body": value})


HOSTILE: dict[str, bytes] = {
    "deep": json.dumps(body({"model": "m", "input": nested(900)})).encode(),
    "very deep": b"[" * 100_000,
    "huge numbers": json.dumps(line(mono=1e308, seq=2**63 - 1, payload={"path": "/none", "body": {}})).encode(),
    "numbers beyond": b'{"ts":"","mono":1e999,"seq":99999999999999999999999,"kind":"x","phase":"y","req_id":null}',
    "half a character": b'{"ts":"\\ud800","mono":1,"seq":1,"kind":"x","phase":"y","req_id":null}',
    "no UTF-8": b'{"ts":"\xff\xfe","mono":1,"seq":1}',
    "nothing but zeros": b"\x00" * 5000,
    "wrong types": json.dumps(line(run=[], method={}, conversation_id=[1], payload=5)).encode(),
    "an unplayable path": json.dumps(line(payload={"path": "/v1/embeddings", "body": {"model": "m"}})).encode(),
    "no body": json.dumps(line(payload={"path": "/v1/responses", "unreadable": 5})).encode(),
    "a terminal's controls": json.dumps(line(req_id="req_\x1b[31m\x07", payload={"path": "\x1b]0;x\x07"})).encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_are_skipped(name: str, tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    path.write_bytes(HOSTILE[name] + b"\n")
    assert trio.run(play_everything, path) == []


def test_the_commands_report_what_is_wrong(tmp_path: Path) -> None:
    """Of all of them together; the log stays as it is."""
    log = tmp_path / "log.ndjson"
    log.write_bytes(b"\n".join(HOSTILE.values()) + b"\n")
    before = log.read_bytes()
    ran = run_command("replay", log, "--verify", "--update", "-v")
    assert ran.returncode == 1  # nothing could be compared
    assert "line(s) are not event log records" in ran.stderr
    assert "its body could not be read" in ran.stdout
    assert "answers of /v1/embeddings are not played" in ran.stdout
    for words in (("replay", log), ("serve", "--port", "0", "--replay", log)):
        shown = run_command(*words)
        assert shown.returncode in (1, 2)
        assert shown.stderr
        assert "\x1b" not in ran.stdout + ran.stderr + shown.stdout + shown.stderr
    assert log.read_bytes() == before


def test_a_bridge_survives_a_hostile_log(tmp_path: Path) -> None:
    """Requests whose recordings are broken fail; those beside them are answered."""
    header, requests = requests_in(ROOT / "fixtures/logs/current.ndjson")
    good = next(request for request in requests if request[-1]["payload"].get("outcome") == "completed")
    asked = next(record for record in good if record["kind"] == "client_request")["payload"]["body"]
    lines = [header, *good]
    wrong = {"an answer": {"result": 5}, "an error": {"error": []}, "a text": "x", "nothing": None}
    for number, payload in enumerate(wrong.values()):
        name = f"req_{number:032x}"
        for record in good:
            broken = record | {"req_id": name}
            if record["kind"] == "client_request":
                broken["payload"] = record["payload"] | {"body": asked | {"input": f"broken {number}"}}
            elif record["kind"] in ("rpc_response", "rpc_notification"):
                broken["payload"] = payload
            lines.append(broken)
    log = tmp_path / "log.ndjson"
    log.write_text("".join(json.dumps(record) + "\n" for record in lines))
    with replaying(tmp_path / "replaying", log) as bridge:
        for number in range(len(wrong)):
            began = time.monotonic()
            response = bridge.post("/responses", {**asked, "input": f"broken {number}", "stream": False})
            assert response.status_code >= 400
            assert response.json()["error"]["message"]
            assert time.monotonic() - began < 10
        assert bridge.post("/responses", asked).status_code == 200
        assert "Traceback" not in bridge.stderr.read_text()
