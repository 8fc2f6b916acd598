"""What is removed from a copy, what it leaves behind, and what stays."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT
from log.export.making import LogMaker, recordings

from bridge.log.redact import Remover
from bridge.redact import mark

SECRET = 'Zürich/"47\n'
BODY = {
    "model": "mock-text",
    "input": [{"role": "user", "content": "where does the treasure lie, at which palm?"}],
    "tools": [{"type": "function", "name": "dig", "description": "digs at a palm for the treasure"}],
    "metadata": {"name": "Alice", "id": "Alice"},
}
SENT = [
    'event: response.output_text.delta\ndata: {"item_id":"m1","delta":"under the third palm"}\n\n',
    'data: {"choices":[{"index":0,"delta":{"content":"under the third palm, to be exact"}}]}\n\ndata: [DONE]\n\n',
]
WORDS = ("treasure", "palm", "Alice", "digs")


def copied(path: Path, secrets: tuple[str, ...] = (), pattern: str | None = None, *, texts: bool = False) -> Path:
    """The copy of a log."""
    scrubber = Remover(secrets, [re.compile(pattern)] if pattern else [], texts=texts, key=b"k")
    lines = [(line, json.loads(line)) for line in path.read_bytes().splitlines()]
    copy = path.with_name("copy.ndjson")
    copy.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in scrubber.copy(lines)))
    return copy


@pytest.fixture
def log(tmp_path: Path) -> LogMaker:
    return LogMaker(tmp_path / "log.ndjson")


@pytest.mark.parametrize(
    "place",
    [
        lambda secret: {"body": {"input": f"a {secret} b"}},
        lambda secret: {"body": {"input": [{"type": "function_call", "arguments": json.dumps({"key": secret})}]}},
        lambda secret: {"body": {"input": json.dumps({"inner": json.dumps({"key": secret})})}},
        lambda secret: {"body": {secret: 1}},
        lambda secret: {"sent": [f"data: {json.dumps({'delta': secret})}\n\n"]},
        lambda secret: {"sent": [f"data: {json.dumps({'delta': secret}, ensure_ascii=False)}\n\n"]},
        lambda secret: {"sent": ["data: " + json.dumps({"delta": secret}).replace("/", "\\/") + "\n\n"]},
        lambda secret: {"answer": {"output": [{"content": [{"text": secret}]}]}},
        lambda secret: {"said": [f"x{secret}x"]},
        lambda secret: {"model": secret},
        lambda secret: {"headers": [("x-a", secret)]},
    ],
)
def test_a_secret_is_removed_everywhere(log: LogMaker, place: Any) -> None:
    log.turn(**place(SECRET))
    copy = copied(log.close(), (SECRET,)).read_text()
    assert mark(SECRET) in copy
    assert "47" not in copy.replace(mark(SECRET), "")


def test_a_number_can_be_a_secret(log: LogMaker) -> None:
    log.turn(body={"card": 4111111111111111})
    (recording,) = recordings(copied(log.close(), ("4111111111111111",)))
    assert recording.body == {"card": mark("4111111111111111")}


def test_equal_secrets_stay_equal_and_others_do_not(log: LogMaker) -> None:
    log.turn(body={"a": "first secret", "b": "first secret", "c": "other secret"})
    (recording,) = recordings(copied(log.close(), ("first secret", "other secret")))
    assert recording.body is not None
    assert recording.body["a"] == recording.body["b"] != recording.body["c"]


def test_a_pattern_applies_to_texts_not_to_lines(log: LogMaker) -> None:
    """Otherwise one that matches quotes and braces would break the copy."""
    log.turn(body={"input": "call 079 123 45 67, or 079 123 45 68"})
    (recording,) = recordings(copied(log.close(), pattern=r"\d{3}( \d\d\d?){3}|[{}\"]+"))
    assert recording.body == {"input": f"call {mark('079 123 45 67')}, or {mark('079 123 45 68')}"}


def test_texts_leave_their_length_and_nothing_else(log: LogMaker) -> None:
    log.turn(body=BODY, sent=SENT, said=["under the ", "third palm"], error={"code": "x", "message": "no such palm"})
    path = log.close()
    copy = copied(path, texts=True)
    assert not [word for word in WORDS if word in copy.read_text()]
    (before,), (after,) = recordings(path), recordings(copy)
    assert before.body is not None
    assert after.body is not None
    question, hidden = before.body["input"][0]["content"], after.body["input"][0]["content"]
    assert len(question) == len(hidden)
    assert re.fullmatch(r"\[text:[0-9a-f]{8}\]x+", hidden)
    assert after.body["tools"][0]["name"] == "dig"
    assert [frame.payload["params"]["delta"] for frame in after.attempts[0]] == ["x" * 10, "x" * 10]
    assert [piece.mono for piece in after.client] == [piece.mono for piece in before.client]
    assert [len(str(piece.payload)) for piece in after.client] == [len(str(piece.payload)) for piece in before.client]
    assert after.end == (before.end or {}) | {"error": {"code": "x", "message": "x" * len("no such palm")}}


def test_short_texts_leave_no_hash(log: LogMaker) -> None:
    """A reader of the copy could try all short words."""
    log.turn(said=["yes", "no!"])
    (recording,) = recordings(copied(log.close(), texts=True))
    assert {frame.payload["params"]["delta"] for frame in recording.attempts[0]} == {"xxx"}


def test_the_header_lists_what_was_done(log: LogMaker) -> None:
    log.turn(body=BODY)
    path = log.close()
    first = copied(path, ("treasure",), "palm")
    again = first.rename(path.with_name("first.ndjson"))
    header = json.loads(copied(again, texts=True).read_text().splitlines()[0])
    assert header["format"] == 2
    assert [{**step, "program": None} for step in header["redacted"]] == [
        {"program": None, "secrets": 1, "patterns": 1, "texts": False},
        {"program": None, "secrets": 0, "patterns": 0, "texts": True},
    ]


@pytest.mark.parametrize("trace", sorted((ROOT / "fixtures/traces").iterdir()), ids=lambda path: path.stem)
def test_a_transcript_is_copied_as_one(tmp_path: Path, trace: Path) -> None:
    """It gets a header, and its requests are still those that they were."""
    path = tmp_path / trace.name
    path.write_bytes(trace.read_bytes())
    copy = copied(path, texts=True)
    assert "redacted" in json.loads(copy.read_text().splitlines()[0])
    before, after = recordings(path), recordings(copy)
    assert len(before) == len(after)
    assert [len(each.attempts[0]) for each in before] == [len(each.attempts[0]) for each in after]


def test_what_is_nested_too_deeply_is_removed(log: LogMaker) -> None:
    deep: Any = "treasure"
    for _ in range(230):
        deep = [deep]
    log.turn(body={"input": deep})
    text = copied(log.close(), texts=True).read_text()
    assert "treasure" not in text
    assert "nested deeper" in text
