"""Which requests are meant, and what is said about a filter that makes no sense."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cli.log.making import LogMaker, name_of

from bridge.errors import UsageError
from bridge.log.filters import parse_filters
from bridge.log.log import Log

NOW = datetime(2026, 3, 1, 8, 0, 10, tzinfo=UTC)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    """Five requests, a second apart from 08:00:00 on."""
    made = LogMaker()
    made.whole(1, "Where is Bern?", "In Switzerland", model="gpt-5.2")
    made.whole(2, "ÄPFEL", "x", model="mini", path="/v1/chat/completions")
    called = made.begin(3, model="gpt-5.5")
    made.end(called, calls=("read_file", "look"))
    made.fail(made.begin(4, model="gpt-5.5"), "rate_limited")
    made.end(made.begin(5), outcome="cancelled", reason="client_gone")
    made.begin(6)
    path = tmp_path_factory.mktemp("filters") / "log.ndjson"
    path.write_bytes(made.data)
    return Log(path)


def chosen(log: Log, **typed: Any) -> list[int]:
    """The numbers of the requests that fit."""
    filters = parse_filters(NOW, **typed)
    numbers = {name_of(number): number for number in range(1, 7)}
    return [numbers[each.id] for each in log.summaries() if filters.accepts(each, log.records)]


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"model": "gpt-5.5"}, [3, 4]),
        ({"model": "GPT-5.?"}, [1, 3, 4, 5, 6]),
        ({"model": "mini-real"}, [2]),
        ({"model": "*real"}, [1, 2, 3, 4, 5, 6]),
        ({"model": "gpt"}, []),
        ({"outcome": "completed"}, [1, 2, 3]),
        ({"outcome": "failed"}, [4]),
        ({"outcome": "failed:rate_*"}, [4]),
        ({"outcome": "failed:other"}, []),
        ({"outcome": "cancelled:client_gone"}, [5]),
        ({"outcome": "unfinished"}, [6]),
        ({"since": "2026-03-01T08:00:03"}, [4, 5, 6]),
        ({"since": "8s"}, [3, 4, 5, 6]),
        ({"since": "1h"}, [1, 2, 3, 4, 5, 6]),
        ({"since": "08:00:04"}, [5, 6]),
        ({"until": "2026-03-01T09:00:01+01:00"}, [1, 2]),
        ({"since": "2026-03-01T08:00:01Z", "until": "2026-03-01T08:00:02Z"}, [2, 3]),
        ({"since": "2026-03-02"}, []),
        ({"tool": "look"}, [3]),
        ({"tool": "read*"}, [3]),
        ({"tool": "rm"}, []),
        ({"req": "0003"}, [3]),
        ({"req": "req_0003"}, [3]),
        ({"req": "00"}, [1, 2, 3, 4, 5, 6]),
        ({"path": "chat"}, [2]),
        ({"path": "/v1/responses"}, [1, 3, 4, 5, 6]),
        ({"path": "/v1/*"}, [1, 2, 3, 4, 5, 6]),
        ({"grep": "where is"}, [1]),
        ({"grep": "switzerland"}, [1]),
        ({"grep": "äpfel"}, [2]),
        ({"grep": "It is rate_limited"}, [4]),
        ({"grep": "nowhere"}, []),
        ({"grep": "hello", "outcome": "failed"}, [4]),
    ],
    ids=str,
)
def test_what_fits(log: Log, typed: dict[str, str], wanted: list[int]) -> None:
    """All filters that are given must fit. The answer is searched as a whole, however it was cut into pieces."""
    assert chosen(log, **typed) == wanted


def test_only_a_text_needs_the_lines_of_a_request(log: Log) -> None:
    """All other filters look at the summary alone."""

    def never(_: Any) -> Iterator[dict[str, Any]]:
        raise AssertionError("the lines were read")

    filters = parse_filters(NOW, model="*", outcome="completed", since="1d", tool="look", path="/v1", req="0")
    assert [each.id for each in log.summaries() if filters.accepts(each, never)] == [name_of(3)]


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ({"outcome": "ok"}, ("--outcome 'ok'", "completed", "failed:rate_limit_exceeded")),
        ({"outcome": ""}, ("--outcome", "completed")),
        ({"since": "yesterday"}, ("--since 'yesterday'", "2h")),
        ({"until": "25:99"}, ("--until '25:99'", "08:30")),
        ({"since": "99999999999d"}, ("--since", "3d")),
        ({"model": " "}, ("--model", "empty")),
        ({"grep": ""}, ("--grep", "empty")),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_told_in_one_line(typed: dict[str, str], names: tuple[str, ...]) -> None:
    """With what to write instead."""
    with pytest.raises(UsageError) as told:
        parse_filters(NOW, **typed)
    assert "\n" not in told.value.message
    assert [name for name in names if name not in told.value.message] == []


def test_a_time_without_a_zone_is_of_this_machine(log: Log) -> None:
    """Nine o'clock in Bern is eight o'clock UTC."""
    bern = NOW.astimezone(timezone(timedelta(hours=1)))
    filters = parse_filters(bern, since="2026-03-01T09:00:04")
    assert [each.id for each in log.summaries() if filters.accepts(each, log.records)] == [name_of(5), name_of(6)]


def test_transcripts_have_no_time(tmp_path: Path) -> None:
    """So they are not of any time."""
    path = tmp_path / "t.ndjson"
    path.write_text('{"t":1,"dir":"out","msg":{"id":1,"method":"thread/start","params":{"model":"m"}}}\n')
    filters = parse_filters(NOW, since="2000-01-01")
    log = Log(path)
    assert len(list(log.summaries())) == 1
    assert [each for each in log.summaries() if filters.accepts(each, log.records)] == []
