"""`turnbridge log diff`: what is different, and what differs in every run and does not count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.log.making import LogCommand, LogMaker
from harness import running_bridge

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time


def written(path: Path, made: LogMaker) -> Path:
    path.write_bytes(made.data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """1 and 2 are the same, cut into other pieces; 3 was asked differently, 4 answered differently."""
    made = LogMaker()
    made.whole(1, answer="one\ntwo\nthree")
    name = made.begin(2)
    made.say(name, "one\n", "two\nthree")
    made.tell(name, "one\ntwo", "\nthree")
    made.end(name, usage={"input_tokens": 1234, "cached_tokens": 1000, "output_tokens": 56, "reasoning_tokens": 7})
    made.whole(3, answer="one\ntwo\nthree", said="other?")
    made.whole(4, answer="one\n2\nthree")
    made.fail(made.begin(5))
    return written(tmp_path / "log.ndjson", made)


def test_ids_times_and_deltas_are_ignored(log: LogCommand, path: Path) -> None:
    """Two requests that are the same to a person are the same."""
    shown = log.run("diff", f"{path}:0001", f"{path}:0002")
    assert (shown.code, shown.stdout, shown.stderr) == (0, "no difference\n", "")


def test_what_was_asked(log: LogCommand, path: Path) -> None:
    """As JSON, member by member."""
    shown = log.run("diff", f"{path}:0001", f"{path}:req_0003")
    assert shown.code == 1
    assert [line for line in shown.lines if line.startswith(("@@", "-", "+")) and line[1:2] in "@ "] == [
        "@@ the request",
        '-    "input": "hello?",',
        '+    "input": "other?",',
    ]


def test_what_was_answered(log: LogCommand, path: Path) -> None:
    """Line by line, on both sides of the bridge."""
    lines = log.run("diff", f"{path}:0001", f"{path}:0004").lines
    begin = lines.index("@@ the backend's output")
    assert lines[begin : begin + 6] == ["@@ the backend's output", " [text]", "   one", "-  two", "+  2", "   three"]
    assert "@@ the client's answer" in lines
    assert "@@ the request" not in lines


def test_how_it_ended(log: LogCommand, path: Path) -> None:
    """Outcome, error, tokens."""
    lines = log.run("diff", f"{path}:0001", f"{path}:0005").lines
    assert '-  "outcome": "completed",' in lines
    assert any(line.startswith("+") and "rate_limited" in line for line in lines)


def test_two_logs_are_compared_in_pairs(log: LogCommand, path: Path, tmp_path: Path) -> None:
    """By path and model, in their order; requests without a partner are listed."""
    same = tmp_path / "same.ndjson"
    same.write_bytes(path.read_bytes())
    equal = log.run("diff", path, same)
    assert (equal.code, equal.stdout.partition(";")[0]) == (0, "5 pairs, 5 without a difference, 0 with")
    made = LogMaker()
    made.whole(101, answer="one\ntwo\nthree")
    made.whole(102, model="mini")
    other = log.run("diff", path, written(tmp_path / "other.ndjson", made))
    assert other.code == 1
    assert other.lines[-1] == ("1 pairs, 1 without a difference, 0 with; 4 only in the first log, 1 only in the second")
    assert sum(line.startswith("only in ") for line in other.lines) == 5


def test_two_runs_of_a_real_bridge_are_the_same(log: LogCommand, tmp_path: Path) -> None:
    """The same requests to two bridges: text, a call, chat, a refusal. Only ids and times differ."""
    paths = []
    for run in ("one", "two"):
        directory = tmp_path / run
        directory.mkdir()
        paths.append(directory / "events.ndjson")
        with running_bridge(directory, "--mock-only", f"--log-events={paths[-1]}") as bridge:
            tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
            bridge.events("/responses", {"model": "mock-text", "input": "hi"})
            bridge.post("/responses", {"model": "mock-tool-call", "input": "hi", "tools": [tool]})
            bridge.events("/chat/completions", {"model": "mock-text", "messages": [{"role": "user", "content": "x"}]})
            bridge.post("/responses", {"model": "nope", "input": "hi"})
    shown = log.run("diff", *paths)
    assert (shown.code, shown.stdout.partition(";")[0]) == (0, "4 pairs, 4 without a difference, 0 with")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("{log}:0001", "{log}"), "of both logs"),
        (("{log}:ffff", "{log}:0001"), "begins with 'ffff'"),
        (("{log}:000", "{log}:0001"), "write more of the id"),
        (("{log}:0001", "{log}:0002", "--model", "x"), "only when two whole logs"),
        (("none.ndjson", "{log}"), "does not exist"),
        (("none:1", "{log}:1"), "does not exist"),
    ],
)
def test_mistakes(log: LogCommand, path: Path, arguments: tuple[str, ...], said: str) -> None:
    """Reported, with exit code 2."""
    shown = log.run("diff", *(each.replace("{log}", str(path)) for each in arguments))
    assert (shown.code, shown.stdout) == (2, "")
    assert said in shown.stderr


def test_colours_and_controls(log: LogCommand, tmp_path: Path) -> None:
    """What is gone is red, what is new is green, and nothing recorded is obeyed."""
    made = LogMaker()
    made.whole(1, answer="a\x1b[2Jb")
    made.whole(2, answer="c\x1b[2Jd")
    path = written(tmp_path / "log.ndjson", made)
    code, seen = log.on_terminal("diff", f"{path}:0001", f"{path}:0002")
    assert code == 1
    assert "\x1b[31m-  a\\u001b[2Jb" in seen
    assert "\x1b[32m+  c\\u001b[2Jd" in seen
    assert re.findall(r"\x1b\[(?!\d+m)", seen) == []
