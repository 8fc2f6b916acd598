"""The commands of `turnbridge log` on turns of CAP, as a real Codex made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.running import run_command
from harness import ROOT
from log.replayed import recordings_in

LOG = ROOT / "fixtures/logs/cap-current.ndjson"
LEGACY = ROOT / "fixtures/logs/cap-legacy.ndjson"


def ran(*words: Any) -> str:
    found = run_command(*words)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What `export --jsonl` tells."""
    out = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    ran("log", "export", LOG, "--jsonl", out)
    return [json.loads(line) for line in out.read_text().split("\n")[:-1]]


def test_the_list_can_be_narrowed() -> None:
    def listed(*filters: str) -> list[Any]:
        return [json.loads(line) for line in ran("log", "ls", LOG, "--json", *filters).splitlines()]

    everything = listed()
    assert len(everything) == len(recordings_in(LOG))
    assert {each["path"] for each in everything} == {"/v1/assist", "/v1/assist/ws"}
    assert [each["path"] for each in listed("--path", "*/ws")] == ["/v1/assist/ws"]
    assert [each["error"] for each in listed("--outcome", "failed:turn_busy")] == ["turn_busy"]
    assert [each["requested_model"] for each in listed("--model", "no-such-model")] == ["no-such-model"]
    assert len(listed("--grep", "over a socket")) == 1
    assert len(listed("--grep", "Then that.")) == 6


def test_a_turn_is_told_as_a_conversation(rows: list[dict[str, Any]]) -> None:
    thinking = next(row for row in rows if row["reasoning"])
    told = ran("log", "show", LOG, thinking["id"])
    for words in ("/v1/assist · streamed · gpt-5.2", "[user]", "[reasoning]", "First this.", "[assistant]"):
        assert words in told
    refused = next(row for row in rows if row["status"] == 403)
    told = ran("log", "show", LOG, refused["id"])
    for words in ("[user]\n  hi", "[error]", "'payload.meta.sandbox' asks for", "failed:forbidden, HTTP 403"):
        assert words in told


def test_rows_have_what_was_said(rows: list[dict[str, Any]]) -> None:
    """In each form the same."""
    forms = [row for row in rows if row["text"] == "Good morning, wörld ☕"]
    assert [(row["streamed"], row["finish_reason"]) for row in forms] == [(True, "completed")] * 2 + [
        (False, "completed")
    ]
    assert {row["reasoning"] for row in rows if row["text"] == "so"} == {"First this. Then that."}
    # A search is no call of the client's.
    assert [row["calls"] for row in rows if row["calls"]] == []
    assert [row["finish_reason"] for row in rows if row["text"] == "cut off"] == ["incomplete"] * 2


def test_an_archive_says_which_form_it_was(tmp_path: Path) -> None:
    ran("log", "export", LOG, "--har", tmp_path / "log.har")
    entries = json.loads((tmp_path / "log.har").read_text())["log"]["entries"]
    kinds = {(entry["response"]["content"]["mimeType"], entry["response"]["content"]["text"][:6]) for entry in entries}
    assert {
        ("text/event-stream", "event:"),
        ("application/x-ndjson", '{"op":'),
        ("application/json", '{"code'),
    } <= kinds


def test_a_copy_for_others_has_the_shape_and_nothing_that_was_said(tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    ran("log", "redact", LOG, "--texts", "--output", copy)
    data = copy.read_text()
    for said in ("morning", "Ada", "user-1", "session-1", "First this", "Be brief", "over "):
        assert said not in data, said
    for then, now in zip(recordings_in(LOG), recordings_in(copy), strict=True):
        assert (then.body or {}).get("request_id") == (now.body or {}).get("request_id")
        assert len(then.sent.split(b"\n")) == len(now.sent.split(b"\n"))
        assert then.sent.count(b'"op":"delta"') == now.sent.count(b'"op":"delta"')


def test_a_secret_that_came_in_pieces_is_found_in_all_forms(tmp_path: Path) -> None:
    copy = tmp_path / "copy.ndjson"
    ran("log", "redact", LOG, "--secret", "word1 word2", "--output", copy)
    assert [each.sent.count(b"word0") for each in recordings_in(copy)] == [
        each.sent.count(b"word0") for each in recordings_in(LOG)
    ]
    for each in recordings_in(copy):
        texts = [json.loads(line[6:]) for line in each.sent.decode().split("\n") if line.startswith("data: ")]
        assert "word1 word2" not in "".join(packet["p"] for packet in texts if packet["op"] == "delta")


def test_ids_and_times_make_no_difference(rows: list[dict[str, Any]]) -> None:
    first, second = [row["id"] for row in rows if row["text"] == "hello from the provider"][:2]
    found = run_command("log", "diff", f"{LOG}:{first}", f"{LOG}:{second}")
    assert "timestamp" not in "".join(line for line in found.stdout.splitlines() if line[:1] in "+-")
    assert "no difference" in ran("log", "diff", f"{LOG}:{first}", f"{LOG}:{first}")
    both = run_command("log", "diff", LOG, LEGACY)
    assert "47 pairs" in both.stdout
    times = ('"timestamp"', '"duration_ms"', '"created_at"', '"ttft_ms"')
    assert all("<time>" in line for line in both.stdout.splitlines() if any(name in line for name in times))


def test_the_numbers_are_counted() -> None:
    told = ran("log", "stats", LOG)
    for words in ("47 requests", "deadline_exceeded", "/v1/assist", "app-server"):
        assert words in told
