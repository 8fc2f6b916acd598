"""Summaries of requests: what is told of each, whatever the log looks like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.log.making import LogMaker, name_of
from harness import ROOT
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.log.log import Log
from bridge.log.summary import Scanner, Span, Summary

TRACES = sorted((ROOT / "fixtures/traces").glob("*.ndjson"))


def summaries(path: Path) -> tuple[list[Summary], Log]:
    """All of a log, and the log."""
    log = Log(path)
    return list(log.summaries()), log


def written(tmp_path: Path, *parts: bytes, name: str = "log.ndjson") -> Path:
    path = tmp_path / name
    path.write_bytes(b"".join(parts))
    return path


# What is told


def test_a_request_is_told_with_everything(tmp_path: Path) -> None:
    """Names, times, tokens, calls and repairs, and where its lines stand."""
    made = LogMaker("0a1b2c3d")
    name = made.begin(1)
    made.say(name, "a", "b")
    made.note(name, "tool_reject", reason="bad_json", source="x")
    made.end(name, calls=("look", "look"), repairs=("code_fence",), usage={"input_tokens": 5, "output_tokens": 3})
    [found], log = summaries(written(tmp_path, made.data))
    start = len(made.lines[0])
    assert found == Summary(
        name, "0a1b2c3d", "2026-03-01T08:00:00.000000Z", "2026-03-01T08:00:00.000000Z", "/v1/responses",
        "gpt-5.2-real", "gpt-5.2", "app-server", "completed", input_tokens=5, output_tokens=3, first_event_s=0.25,
        total_s=1.5, calls=["look", "look"], repairs=["code_fence"], rejects=1,
        spans=[Span("log.ndjson", start, len(made.data))],
    )  # fmt: skip
    assert log.trouble.sentences() == []


@pytest.mark.parametrize("name", ["", "\n", 'a"b', "\\", "ä", "a\tb"], ids=repr)
def test_a_request_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Found by the fuzzer: a name that JSON writes otherwise. Its records are found, and the search has an end."""
    made = LogMaker()
    made.begin(1)
    [first, *lines] = made.lines
    own = [json.dumps(json.loads(line) | {"req_id": name}, ensure_ascii=False).encode() + b"\n" for line in lines]
    [found], log = summaries(written(tmp_path, first, *own))
    assert found.id == name
    assert len(list(log.records(found))) == len(own)


def test_requests_come_in_the_order_in_which_they_ended(tmp_path: Path) -> None:
    """And those without an end come last."""
    made = LogMaker()
    first, second, third = (made.begin(number) for number in (1, 2, 3))
    made.end(third)
    made.end(first)
    found, _ = summaries(written(tmp_path, made.data))
    assert [(each.id, each.outcome) for each in found] == [
        (third, "completed"),
        (first, "completed"),
        (second, "unfinished"),
    ]


def test_a_refused_request_has_no_turn_but_a_model(tmp_path: Path) -> None:
    """The name that was asked for is told."""
    made = LogMaker()
    name = name_of(7)
    asked = {"path": "/v1/responses", "body": {"input": 5, "model": "nope"}}
    made.recorder.event("http_ingress", "in", "client_request", name, asked)
    made.fail(name, "model_not_found")
    [found], _ = summaries(written(tmp_path, made.data))
    assert (found.requested_model, found.model, found.outcome, found.error) == (
        "nope",
        "",
        "failed",
        "model_not_found",
    )


def test_attempts_belong_to_their_request(tmp_path: Path) -> None:
    """`req_…#1` is no request of its own."""
    made = LogMaker()
    name = made.begin(1)
    made.say(f"{name}#1", "second choice")
    made.note(f"{name}#1", "tool_reject", reason="bad_json")
    made.end(name)
    [found], log = summaries(written(tmp_path, made.data))
    assert (found.id, found.rejects) == (name, 1)
    kinds = [record["kind"] for record in log.records(found)]
    assert kinds == ["client_request", "turn_start", "rpc_request", "rpc_notification", "tool_reject", "turn_end"]


@pytest.mark.parametrize("trace", TRACES, ids=lambda path: path.stem)
def test_a_plain_transcript_is_a_log_too(trace: Path) -> None:
    """Each of its threads is a request, with the outcome that the child told."""
    [found], log = summaries(trace)
    wanted = "failed" if "error" in trace.stem else "cancelled" if "interrupt" in trace.stem else "completed"
    assert (found.outcome, found.model, found.is_transcript) == (wanted, "gpt-5.2", True)
    assert found.total_s is not None
    assert log.trouble.sentences() == []
    assert len(list(log.records(found))) > 5


# Hard inputs


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    """And nothing is wrong with it."""
    found, log = summaries(written(tmp_path))
    assert (found, log.trouble.sentences()) == ([], [])


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, bytes(range(256)) * 100 + b"\n")
    with pytest.raises(ConfigError, match=f"{path} is not an event log"):
        summaries(path)


def test_foreign_lines_before_a_log_are_told(tmp_path: Path) -> None:
    made = LogMaker()
    made.whole(1)
    found, log = summaries(written(tmp_path, b"foreign\n" + made.data))
    assert len(found) == 1
    assert log.trouble.foreign == 1
    assert "at byte 0 of log.ndjson" in log.trouble.sentences()[0]


def test_a_torn_last_line_is_told_and_the_rest_is_whole(tmp_path: Path) -> None:
    """The request whose end was torn is unfinished."""
    made = LogMaker()
    made.whole(1)
    made.whole(2)
    found, log = summaries(written(tmp_path, made.data[:-20]))
    assert [each.outcome for each in found] == ["completed", "unfinished"]
    assert log.trouble.torn == 1


def test_a_last_line_without_its_newline_counts_when_it_is_whole(tmp_path: Path) -> None:
    """Only the newline is missing."""
    made = LogMaker()
    made.whole(1)
    found, log = summaries(written(tmp_path, made.data[:-1]))
    assert [each.outcome for each in found] == ["completed"]
    assert log.trouble.sentences() == []


def test_a_log_cut_at_both_ends_tells_what_it_has(tmp_path: Path) -> None:
    """A request whose beginning is missing is told by its end; one whose end is missing is unfinished."""
    made = LogMaker()
    first, second = made.begin(1), made.begin(2)
    made.end(first, calls=("look",))
    middle = made.lines.index(next(line for line in made.lines if b'"turn_start"' in line and second.encode() in line))
    made.say(second, "x", "y")
    data = b"".join(made.lines[middle:])
    found, log = summaries(written(tmp_path, data[50:]))
    assert [(each.id, each.outcome, each.begun) for each in found] == [(first, "completed", False)]
    assert found[0].time == "2026-03-01T07:59:58.500000Z"
    assert log.trouble.foreign == 1
    found, _ = summaries(written(tmp_path, data[:-5]))
    assert [(each.id, each.outcome, each.begun) for each in found] == [
        (first, "completed", False),
        (second, "unfinished", False),
    ]


def test_foreign_lines_are_counted_and_lose_nothing(tmp_path: Path) -> None:
    """Text, JSON of another form, and lines of ours that are broken: each is counted once, and told where."""
    made = LogMaker()
    made.whole(1)
    foreign = [b"a line of another program\n", b'{"level":"info"}\n', b'{"ts":"broken\n', b'{"ts":"glued"}{"x":1}\n']
    at = 5
    lines = made.lines[:at] + foreign + made.lines[at:]
    found, log = summaries(written(tmp_path, *lines))
    assert [each.outcome for each in found] == ["completed"]
    assert (log.trouble.foreign, log.trouble.gaps) == (4, 0)
    assert log.trouble.first == f"at byte {sum(map(len, lines[:at]))} of log.ndjson"


def test_missing_records_are_counted(tmp_path: Path) -> None:
    """Also when the line before them is glued to the one after."""
    made = LogMaker()
    made.whole(1, answer="abcdefgh")
    lines = made.lines
    _, log = summaries(written(tmp_path, *lines[:6], *lines[9:]))
    assert (log.trouble.gaps, log.trouble.foreign) == (3, 0)
    _, log = summaries(written(tmp_path, *lines[:6], lines[6][:90], lines[9][100:], *lines[10:]))
    assert (log.trouble.gaps, log.trouble.foreign) == (4, 1)


def test_two_interleaved_runs_are_both_whole(tmp_path: Path) -> None:
    """Lines of two processes in one file, one after the other."""
    one, other = LogMaker("11111111"), LogMaker("22222222")
    for number in range(20):
        one.whole(number)
        other.whole(100 + number)
    lines = [line for pair in zip(one.lines, other.lines, strict=True) for line in pair]
    found, log = summaries(written(tmp_path, *lines))
    assert {(each.run, each.outcome) for each in found} == {("11111111", "completed"), ("22222222", "completed")}
    assert len(found) == 40
    assert log.trouble.sentences() == []
    [wanted] = log.find(name_of(105))
    assert len(list(log.records(wanted))) == len(other.lines) // 20


def test_a_run_that_was_killed_within_a_line(tmp_path: Path) -> None:
    """Wherever that was, also behind a brace: the line is told, the next run is whole."""
    killed, following = LogMaker("11111111"), LogMaker("22222222")
    name = killed.begin(1)
    killed.say(name, "a", "b")
    following.whole(2)
    last = len(killed.data) - len(killed.lines[-1])
    for end in range(last + 1, len(killed.data) - 1):
        found, log = summaries(written(tmp_path, killed.data[:end] + b"\n", following.data))
        assert [each.outcome for each in found] == ["completed", "unfinished"]
        assert (log.trouble.foreign, log.trouble.gaps) == (1, 0), end


# Any damage


@st.composite
def damaged(draw: st.DrawFn) -> list[bytes]:
    """The lines of two runs, some of them missing, torn, or with others between."""
    lines: list[bytes] = []
    for run in ("11111111", "22222222"):
        made = LogMaker(run)
        for number in range(draw(st.integers(1, 4))):
            made.whole(number + (int(run) & 0xFF), answer="abc")
        lines += made.lines
    if draw(st.booleans()):
        lines.sort(key=lambda line: json.loads(line)["seq"])
    # A line twice and another gone make up for each other in every count; nothing that writes logs does that.
    damages = draw(st.sampled_from((("gone", "torn", "foreign", "blank"), ("twice", "foreign", "blank"))))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(damages)):
            case "gone":
                del lines[at]
            case "torn":
                lines[at] = lines[at][: draw(st.integers(0, max(0, len(lines[at]) - 2)))].rstrip(b"}") + b"\n"
            case "foreign":
                lines.insert(at, draw(st.sampled_from((b"text\n", b"{}\n", b'{"ts":"x"}\n', b"\xff\n"))))
            case "blank":
                lines.insert(at, b"\n")
            case "twice":
                lines.insert(at, lines[at])
    return lines


@given(damaged(), st.lists(st.integers(1, 40), max_size=12))
def test_the_quick_look_sees_what_reading_every_line_would(lines: list[bytes], sizes: list[int]) -> None:
    """However the log is cut into blocks, and whatever was done to it."""
    exact = Scanner("log")
    wanted, at = [], 0
    for line in lines:
        wanted += exact.feed(at, line)  # a line alone is always parsed
        at += len(line)
    wanted += exact.rest(at)
    quick = Scanner("log")
    found, at, left = [], 0, list(lines)
    while left:
        count = sizes.pop() if sizes else len(left)
        block, left = b"".join(left[:count]), left[count:]
        found += quick.feed(at, block)
        at += len(block)
    assert [*found, *quick.rest(at)] == wanted
    assert quick.trouble == exact.trouble
    assert {name: run.next for name, run in quick.runs.items()} == {name: run.next for name, run in exact.runs.items()}


def test_recorded_words_do_not_count_as_records(tmp_path: Path) -> None:
    """A body and an answer that hold what looks like the lines of a log."""
    made = LogMaker()
    inner = json.loads(next(line for line in _ended(2) if b'"turn_end"' in line))
    name = made.begin(1, metadata={"log": inner, "phase": "turn"})
    made.rpc(name, "in", "rpc_notification", {"method": "x", "params": inner, "phase": "turn", "kind": "turn_end"})
    made.say(name, '{"phase":"turn","kind":"turn_end"}')
    made.end(name)
    found, log = summaries(written(tmp_path, made.data))
    assert [(each.id, each.outcome) for each in found] == [(name, "completed")]
    assert log.trouble.sentences() == []


def _ended(number: int) -> list[bytes]:
    made = LogMaker()
    made.whole(number)
    return made.lines


def test_lines_of_another_writer_are_read_too(tmp_path: Path) -> None:
    """The same records with blanks, and with their members in another order."""
    made = LogMaker()
    made.whole(1)
    spaced = b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in made.lines)
    ordered = b"".join(json.dumps(json.loads(line), sort_keys=True).encode() + b"\n" for line in made.lines)
    wanted, _ = summaries(written(tmp_path, made.data))
    for data in (spaced, ordered):
        found, log = summaries(written(tmp_path, data))
        assert [(each.id, each.outcome, each.calls) for each in found] == [
            (each.id, each.outcome, each.calls) for each in wanted
        ]
        assert log.trouble.sentences() == []
        assert len(list(log.records(found[0]))) == len(made.lines) - 1


def test_a_line_of_fifty_megabytes(tmp_path: Path) -> None:
    """A request that large is listed with what stands around it."""
    made = LogMaker()
    made.whole(1)
    made.whole(2, said="x" * 50_000_000)
    made.whole(3)
    found, log = summaries(written(tmp_path, made.data))
    assert [(each.id, each.requested_model) for each in found] == [(name_of(n), "gpt-5.2") for n in (1, 2, 3)]
    assert log.trouble.sentences() == []


def test_a_log_of_the_future_is_read_and_told(tmp_path: Path) -> None:
    """What is known of it is shown."""
    made = LogMaker()
    made.whole(1)
    found, log = summaries(written(tmp_path, made.data.replace(b'"format":2', b'"format":9')))
    assert len(found) == 1
    assert log.trouble.newer == 1


# Directories


def test_a_request_may_begin_in_one_file_and_end_in_another(tmp_path: Path) -> None:
    """Over three files; its records are found in all of them, and nothing of the others."""
    made = LogMaker()
    first, second = made.begin(1), made.begin(2)
    cut = [len(made.lines)]
    made.say(first, "a")
    made.note(second, "tool_reject", reason="bad_json")
    cut.append(len(made.lines))
    made.end(second)
    made.say(first, "b")
    made.end(first)
    for number, (begin, end) in enumerate(zip([0, *cut], [*cut, None], strict=True)):
        written(tmp_path, *made.lines[begin:end], name=f"{number}.ndjson")
    found, log = summaries(tmp_path)
    assert [(each.id, each.outcome, each.begun, each.model) for each in found] == [
        (second, "completed", True, "gpt-5.2-real"),
        (first, "completed", True, "gpt-5.2-real"),
    ]
    assert [span.file for span in found[1].spans] == ["0.ndjson", "1.ndjson", "2.ndjson"]
    assert found[0].rejects == 1
    deltas = [record for record in log.records(found[1]) if record["kind"] == "rpc_notification"]
    assert [record["payload"]["params"]["delta"] for record in deltas] == ["a", "b"]
    assert log.trouble.sentences() == []


def test_a_file_that_is_missing_between_two_is_told_as_missing_records(tmp_path: Path) -> None:
    """The run's numbers go on from file to file."""
    made = LogMaker()
    made.whole(1)
    third = len(made.lines) // 3
    written(tmp_path, *made.lines[:third], name="0.ndjson")
    written(tmp_path, *made.lines[2 * third :], name="2.ndjson")
    _, log = summaries(tmp_path)
    assert log.trouble.gaps == third
