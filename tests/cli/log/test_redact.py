"""`turnbridge log redact` on the log of a real bridge."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli.log.exported import QUESTION, ask_everything, typed
from harness import ROOT, running_bridge, scripted_codex, turns

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

PIECES = ["the pass", "word is hun", "ter", "2-and-more", ", is it not?"]
SPLIT = "hunter2-and-more"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log with five requests."""
    directory = tmp_path_factory.mktemp("redacted")
    path = directory / "day.ndjson"
    with running_bridge(directory, "--mock-only", "--log-events", str(path)) as bridge:
        ask_everything(bridge)
    return path


@pytest.fixture(scope="module")
def spelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log in which the model spells a secret out, piece by piece."""
    directory = tmp_path_factory.mktemp("spelled")
    path = directory / "spelled.ndjson"
    program = scripted_codex(directory, turns([{"deltas": PIECES}]))
    settings = {"CODEX_BIN": str(program), "PROXY_MODELS": "scripted"}
    with running_bridge(directory, "--log-events", str(path), **settings) as bridge:
        bridge.events("/responses", {"model": "scripted", "input": "tell me"})
    return path


def test_secrets_are_removed_and_the_rest_stays(log: Path, tmp_path: Path) -> None:
    listed = tmp_path / "secrets.txt"
    listed.write_text("mock response text\n\n")
    copy = tmp_path / "copy.ndjson"
    done = typed("redact", log, "--output", copy, "--secret", "<b>fox</b>", "--secret-file", listed)
    assert b"<b>fox" in log.read_bytes()
    assert b"<b>fox" not in copy.read_bytes()
    assert b"mock response text" not in copy.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o600
    assert b"%d records" % (len(log.read_bytes().splitlines()) - 1) in done.stderr
    before, after = (typed("export", path, "--jsonl", "-").stdout.splitlines() for path in (log, copy))
    assert [json.loads(row)["total_s"] for row in before] == [json.loads(row)["total_s"] for row in after]
    assert json.loads(after[0])["text"].startswith("what does the [redacted:")
    assert json.loads(copy.read_bytes().splitlines()[0])["redacted"][0]["secrets"] == 2


def test_texts_are_removed_and_their_shape_stays(log: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    typed("redact", log, "--output", copy, "--texts")
    assert b"fox" not in copy.read_bytes()
    assert b"Bern" not in copy.read_bytes()
    before, after = (
        [json.loads(row) for row in typed("export", path, "--jsonl", "-").stdout.splitlines()] for path in (log, copy)
    )
    assert [len(row["text"]) for row in before] == [len(row["text"]) for row in after]
    assert len(after[0]["text"]) == len(QUESTION)
    for name in ("id", "ts", "model", "outcome", "usage", "first_event_s", "status", "finish_reason", "tools"):
        assert [row[name] for row in before] == [row[name] for row in after]
    assert [call["name"] for call in after[2]["calls"]] == ["weather"]


def test_a_split_secret_is_removed_from_every_piece(spelled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    typed("redact", spelled, "--output", copy, "--secret", SPLIT)
    (row,) = (json.loads(line) for line in typed("export", copy, "--jsonl", "-").stdout.splitlines())
    records = [json.loads(line) for line in copy.read_bytes().splitlines()]
    deltas = [each["payload"]["params"]["delta"] for each in records if each.get("method") == "item/agentMessage/delta"]
    assert re.fullmatch(r"the password is \[redacted:[0-9a-f]{8}\], is it not\?", row["text"])
    assert "".join(deltas) == row["text"]
    assert len(deltas) == len(PIECES)


@pytest.mark.parametrize(
    "options", [("--pattern", "sk-proj-[a-z0-9]+"), ("--pattern", "no such"), ("--outcome", "completed")]
)
def test_a_key_that_is_not_named_is_removed_from_every_piece(tmp_path: Path, options: tuple[str, ...]) -> None:
    """A chat stream has it only in pieces."""
    path, copy = tmp_path / "day.ndjson", tmp_path / "copy.ndjson"
    key = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
    asked = {"model": "mock-echo", "messages": [{"role": "user", "content": f"key {key} it is"}], "stream": True}
    with running_bridge(tmp_path, "--mock-only", "--log-events", str(path)) as bridge, bridge.client() as client:
        client.post("/chat/completions", json=asked)
    done = typed("redact", path, "--output", copy, *options)
    assert b"removed nothing" not in done.stderr
    assert b"uvwxyz" not in copy.read_bytes()
    (row,) = (json.loads(line) for line in typed("export", copy, "--jsonl", "-").stdout.splitlines())
    assert re.fullmatch(r"key \[redacted:[0-9a-f]{8}\] it is", row["text"])


def test_a_split_match_is_removed_only_where_it_was_found(spelled: Path, tmp_path: Path) -> None:
    """Elsewhere the same letters may be part of a word."""
    copy = tmp_path / "copy.ndjson"
    typed("redact", spelled, "--output", copy, "--pattern", r"word is h\w+")
    assert b'"word is hun' not in copy.read_bytes()
    assert b"scripted" in copy.read_bytes()
    (row,) = (json.loads(line) for line in typed("export", copy, "--jsonl", "-").stdout.splitlines())
    assert re.fullmatch(r"the pass\[redacted:[0-9a-f]{8}\]-and-more, is it not\?", row["text"])


def test_a_secret_that_remains_is_reported_and_no_copy_is_kept(log: Path, tmp_path: Path) -> None:
    """The log's own words are never changed; if one of them is a secret, no copy is written."""
    copy = tmp_path / "copy.ndjson"
    done = typed("redact", log, "--output", copy, "--secret", "client_request", code=1)
    assert re.search(rb"a secret remains: line \d+, client_request of req_", done.stderr)
    assert b"no copy was written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_pattern(log: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    done = typed("redact", log, "--output", copy, "--pattern", r"[Ff]ox|B\w+n")
    assert b"patterns" in done.stderr
    assert b"fox" not in copy.read_bytes()
    assert b"Bern" not in copy.read_bytes()


def test_a_copy_can_be_put_over_an_older_one_but_not_over_the_log(log: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    copy.write_text("older")
    typed("redact", log, "--output", copy, "--texts")
    assert copy.read_bytes().startswith(b'{"ts"')
    before = log.read_bytes()
    link = tmp_path / "link.ndjson"
    link.symlink_to(log)
    for same in (log, link):
        assert b"the log itself" in typed("redact", log, "--output", same, "--texts", code=2).stderr
    beside = log.with_name("beside.ndjson")
    assert b"part of the log" in typed("redact", log.parent, "--output", beside, "--texts", code=2).stderr
    assert log.read_bytes() == before


def test_filters_take_a_part_out_of_a_log(log: Path, tmp_path: Path) -> None:
    """Whole requests and the events of their backends; nothing of the others, and nothing is missing."""
    copy = tmp_path / "copy.ndjson"
    typed("redact", log, "--output", copy, "--tool", "weather")
    (row,) = map(json.loads, typed("export", copy, "--jsonl", "-").stdout.splitlines())
    assert row in [json.loads(each) for each in typed("export", log, "--jsonl", "-").stdout.splitlines()]
    assert b"fox" in log.read_bytes()
    assert b"fox" not in copy.read_bytes()
    verified = typed("verify", copy)
    assert verified.stdout == b"1 request(s): 1 the same, 0 different, 0 not played\n"
    assert verified.stderr == b""
    refused = typed("redact", log, "--output", tmp_path / "other.ndjson", "--model", "nobody-else", code=2)
    assert b"matches the filters" in refused.stderr
    assert not (tmp_path / "other.ndjson").exists()


def test_a_part_of_transcripts_is_taken_by_files(tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    typed("redact", ROOT / "fixtures/traces", "--output", copy, "--outcome", "cancelled")
    outcomes = [json.loads(line)["outcome"] for line in typed("ls", copy, "--json").stdout.splitlines()]
    assert outcomes == ["cancelled", "cancelled"]


def test_foreign_lines_are_reported_and_not_copied(log: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.ndjson"
    broken.write_bytes(log.read_bytes() + b'{"password": "of somebody else"}\ntorn {')
    done = typed("redact", broken, "--output", tmp_path / "copy.ndjson", "--secret", "nothing")
    assert b"1 line(s) are not event log records" in done.stderr
    assert b"torn" in done.stderr
    assert b"somebody" not in (tmp_path / "copy.ndjson").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), b"what to remove"),
        (("--secret", "abc"), b"fewer than 4"),
        (("--secret-file", "/no/such/file"), b"cannot be read"),
        (("--pattern", "("), b"--pattern ("),
        (("--pattern", "x*"), b"empty text"),
    ],
)
def test_mistakes_are_one_line(log: Path, tmp_path: Path, arguments: tuple[str, ...], said: bytes) -> None:
    done = typed("redact", log, "--output", tmp_path / "copy.ndjson", *arguments, code=2)
    assert said in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []
