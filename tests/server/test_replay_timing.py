"""Played answers come at the pace of the recorded ones, or as much faster as is wanted."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from harness import RunningBridge
from log.replayed import recordings_in
from server.prompted import ask, open_response, send_request
from server.recorded import ended, recording, replaying

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

GAPS = (0.05, 0.15, 0.02, 0.1, 0.08, 0.03, 0.12, 0.06, 0.04, 0.1)
STEPS = [step for number, gap in enumerate(GAPS) for step in ({"sleep": gap}, {"text": f"word{number} "})]
BODY = ask(*STEPS, stream=True)
TRIES = 3
"""A machine that is busy with other things may be late once; not each time."""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of one answer with gaps."""
    with recording(tmp_path_factory.mktemp("recorded")) as bridge:
        bridge.events("/responses", BODY)
        return ended(bridge)


def recorded_offsets(log: Path) -> list[float]:
    """When each word left the recorded bridge, in seconds after the request came."""
    (recording,) = recordings_in(log)
    pieces = [piece for piece in recording.client if piece.kind == "client_sse"]
    return [piece.mono - recording.at for piece in pieces for _ in range(str(piece.payload).count("text.delta\n"))]


def offsets(bridge: RunningBridge, body: dict[str, Any] = BODY) -> list[float]:
    """When each word arrives, in seconds after the request was sent."""
    began = time.perf_counter()
    connection, response = open_response(bridge, "/v1/responses", body)
    arrived = []
    while line := response.readline():
        if line.startswith(b"event: response.output_text.delta"):
            arrived.append(time.perf_counter() - began)
    connection.close()
    return arrived


def lateness(now: list[float], then: list[float], speed: float = 1) -> float:
    """By how much the events are off, in seconds: the median."""
    assert len(now) == len(then) == len(GAPS)
    return median(abs(one - other / speed) for one, other in zip(now, then, strict=True))


@pytest.mark.parametrize("speed", [1, 4])
def test_events_come_when_they_came(log: Path, tmp_path: Path, speed: int) -> None:
    """Within 20 ms (median); at another speed that much earlier."""
    then = recorded_offsets(log)
    assert then[-1] > sum(GAPS)
    with replaying(tmp_path / "replaying", log, "--speed", str(speed)) as bridge:
        off = []
        for _ in range(TRIES):
            off.append(lateness(offsets(bridge), then, speed))
            if off[-1] < 0.02:
                return
    raise AssertionError(f"off by {off}")


def test_a_whole_answer_takes_as_long_as_it_took(log: Path, tmp_path: Path) -> None:
    with replaying(tmp_path / "replaying", log, "--speed", "2") as bridge:
        began = time.perf_counter()
        assert bridge.post("/responses", BODY | {"stream": False}).status_code == 200
        assert time.perf_counter() - began > sum(GAPS) / 2


def test_nothing_is_waited_for_unless_wanted(log: Path, tmp_path: Path) -> None:
    with replaying(tmp_path / "replaying", log) as bridge:
        offsets(bridge)
        assert min(offsets(bridge)[-1] for _ in range(TRIES)) < sum(GAPS) / 2


def test_a_wait_ends_when_its_client_or_the_bridge_does(log: Path, tmp_path: Path) -> None:
    """Played a hundred times slower than it was recorded."""
    with replaying(tmp_path / "replaying", log, "--speed", "0.01", PROXY_GRACE="0") as bridge:
        send_request(bridge, "/v1/responses", BODY).close()
        with send_request(bridge, "/v1/responses", BODY):
            assert bridge.post("/responses", {"input": "another"}).status_code == 404
            began = time.perf_counter()
            assert bridge.stop() == 0
            assert time.perf_counter() - began < 5
