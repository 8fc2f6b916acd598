"""`turnbridge log stats`: what a log adds up to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli.log.making import USAGE, LogCommand, LogMaker

from bridge.log.commands.stats import Latency, bar


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A hundred requests over five hours; number n takes n tenths of a second."""
    made = LogMaker()
    for number in range(1, 101):
        made.wait(180)
        name = made.begin(number, model="mini" if number % 4 == 0 else "gpt-5.5")
        times: dict[str, Any] = {"first_event_s": number / 100, "total_s": number / 10, "usage": USAGE}
        if number % 10 == 0:
            made.fail(name, "rate_limited" if number % 20 else "timeout")
        elif number % 7 == 0:
            made.end(name, calls=("look", "read"), repairs=("code_fence",), **times)
        else:
            made.end(name, **times)
    made.note(made.begin(200), "tool_reject", reason="bad_json")
    path = tmp_path / "log.ndjson"
    path.write_bytes(made.data)
    return path


def test_everything_is_counted(log: LogCommand, path: Path) -> None:
    """By outcome, model, backend, error, tool and repair; tokens and latencies."""
    [told] = log.run("stats", path, "--json").objects
    assert told["requests"] == 101
    assert told["outcomes"] == {"completed": 90, "failed": 10, "unfinished": 1}
    assert told["models"] == {"gpt-5.5-real": 75, "mini-real": 25, "gpt-5.2-real": 1}
    assert told["errors"] == {"rate_limited": 5, "timeout": 5}
    assert told["calls"] == {"look": 13, "read": 13}
    assert told["repairs"] == {"code_fence": 13}
    assert told["rejects"] == 1
    assert told["tokens"]["input_tokens"] == 90 * 1234
    assert told["total_s"]["count"] == 100
    assert (told["total_s"]["p99"], told["total_s"]["max"]) == (9.8, 9.9)
    assert (told["from"], told["busiest_minute"]) == ("2026-03-01T08:03:00Z", 2)


def test_it_is_shown_in_eighty_columns(log: LogCommand, path: Path) -> None:
    """With percentiles, and two plots."""
    lines = log.run("stats", path).lines
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("101 requests, 2026-03-01 08:03 to 13:01, ")
    assert any(line.split() == ["completed", "90", "89.1%"] for line in lines)
    latency = [line.split() for line in lines].index(["latency", "requests", "p50", "p90", "p99", "max"])
    assert lines[latency + 2].split()[:3] == ["total", "100", "4.40s"]
    durations = lines.index("duration of requests")
    assert lines[durations + 1].split()[:4] == ["up", "to", "0.20s", "1"]
    over_time = lines[lines.index("requests over time") + 1 :]
    assert 4 <= len(over_time) <= 16
    assert all("█" in line for line in over_time)
    assert sum(int(line.split()[2]) for line in over_time) == 101


def test_filters(log: LogCommand, path: Path) -> None:
    """Only matching requests are counted; if there is none, the output says so."""
    [told] = log.run("stats", path, "--json", "--model", "mini*").objects
    assert told["requests"] == 25
    assert log.run("stats", path, "--model", "other").stdout == "no requests\n"


def test_an_empty_log(log: LogCommand, tmp_path: Path) -> None:
    """Adds up to nothing."""
    empty = tmp_path / "empty.ndjson"
    empty.touch()
    assert log.run("stats", empty).lines == ["no requests"]
    [told] = log.run("stats", empty, "--json").objects
    assert (told["requests"], told["total_s"]["p50"]) == (0, None)


@pytest.mark.parametrize(("share", "wanted"), [(50, 5), (90, 9), (99, 10), (100, 10), (1, 1)])
def test_percentiles(share: int, wanted: int) -> None:
    """The smallest value that so many per cent do not exceed."""
    latency = Latency()
    for value in (3, 1, 2, 10, 9, 8, 4, 5, 6, 7):
        latency.add(value)
    assert latency.percentile(share) == wanted


def test_a_bar_is_never_invisible() -> None:
    """What is not nothing can be seen, and what is largest is full."""
    assert (bar(0, 100, 10), bar(1, 10_000, 10), bar(50, 100, 10), bar(100, 100, 10)) == ("", "▏", "█████", "█" * 10)
