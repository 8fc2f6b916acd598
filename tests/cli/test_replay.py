"""`turnbridge replay`: what it prints, what it compares, what it writes, and what it says of logs that are broken."""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cli.exec.command import Command, environment, steps
from cli.running import run_command
from harness import ROOT, running_bridge
from log.replayed import play_log, recordings_in
from server.prompted import MODEL, prompted_codex

Json = dict[str, Any]
LOGS = ROOT / "fixtures/logs"
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"tea\\"}"}</tool_call>'


def some_requests(log: Path, wanted: Callable[[Json], bool], most: int = 3) -> list[Json]:
    """The header and the records of the first few requests whose records hold what is wanted."""
    records = [json.loads(line) for line in log.read_text().splitlines()]
    names = list(dict.fromkeys(record["req_id"].partition("#")[0] for record in records[1:] if record["req_id"]))
    found = {name: [r for r in records if (r["req_id"] or "").partition("#")[0] == name] for name in names}
    chosen = [name for name in names if any(map(wanted, found[name]))][:most]
    kept = [records[0], *(record for name in chosen for record in found[name])]
    return [record | {"seq": number} for number, record in enumerate(kept)]


def write(path: Path, records: list[Json]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


@pytest.fixture
def tools_log(tmp_path: Path) -> Path:
    """Two requests whose answers call a tool."""
    return write(tmp_path / "tools.ndjson", some_requests(LOGS / "current.ndjson", is_call, 2))


def is_call(record: Json) -> bool:
    return bool(record["kind"] == "tool_call")


def test_it_prints_the_recorded_answers(tools_log: Path) -> None:
    ran = run_command("replay", tools_log)
    assert (ran.returncode, ran.stderr) == (0, "")
    for recording in recordings_in(tools_log):
        assert f": {recording.id} {recording.path}\n" in ran.stdout
        assert recording.sent.decode() in ran.stdout


def test_it_prints_another_protocol(tools_log: Path) -> None:
    text = run_command("replay", tools_log, "--as", "text").stdout
    assert text.count('[call look {"q":"tea"}]') == 2
    for line in run_command("replay", tools_log, "--as", "wire").stdout.splitlines():
        assert "type" in json.loads(line)
    assert "chat.completion.chunk" in run_command("replay", tools_log, "--as", "chat").stdout
    assert "response.completed" in run_command("replay", tools_log, "--as", "responses").stdout
    packets = [json.loads(line) for line in run_command("replay", tools_log, "--as", "cap").stdout.splitlines()]
    calls = [packet["p"]["data"] for packet in packets if packet["op"] == "event"]
    assert [call["arguments"]["q"] for call in calls] == ["tea", "tea", "milk", "sugar"]
    assert [packet["op"] for packet in packets].count("close") == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--as", "xml"), "Choose one of responses, chat, messages, gemini, wire, cap, text"),
        (("--as", "text", "--verify"), "Use it without --as"),
        (("--update",), "--update requires --verify"),
        (("--req", "req_none"), "contains no request that matches"),
    ],
)
def test_invalid_options_are_reported(tools_log: Path, words: tuple[str, ...], told: str) -> None:
    ran = run_command("replay", tools_log, *words)
    assert ran.returncode == 2
    assert told in ran.stderr


@pytest.mark.parametrize("command", ["log ls", "log tail", "log stats", "log show", "log export --jsonl -", "replay"])
def test_a_file_that_is_not_a_log_is_rejected(tmp_path: Path, command: str) -> None:
    """Whatever is in it. An empty file may become one."""
    words = command.split()
    empty = tmp_path / "empty.ndjson"
    empty.touch()
    for number, content in enumerate(("no log\n", "no end", '{"some": "json"}\n', "\x00\x01\n\x02")):
        other = tmp_path / f"{number}.txt"
        other.write_text(content)
        ran = run_command(*words, other)
        assert ran.returncode == 2
        assert f"{other} is not an event log" in ran.stderr
    assert run_command(*words, empty).returncode == (2 if command in ("log show", "replay") else 0)


def test_an_empty_log_contains_no_request(tmp_path: Path) -> None:
    (tmp_path / "notes.ndjson").touch()
    assert "notes.ndjson contains no request." in run_command("replay", tmp_path / "notes.ndjson").stderr


@pytest.mark.parametrize("command", ["replay --verify", "log export --jsonl -"])
def test_a_log_may_come_through_a_pipe(tmp_path: Path, command: str) -> None:
    pipe = tmp_path / "log.ndjson"
    os.mkfifo(pipe)
    content = (LOGS / "text-history.ndjson").read_bytes()
    threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True).start()
    ran = run_command(*command.split(), pipe)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("18 request(s): 18 the same" if command == "replay --verify" else '{"id":"req_')


@pytest.mark.parametrize("protocol", ["responses", "chat", "wire", "cap"])
def test_two_replays_without_a_recorded_answer_are_the_same(tmp_path: Path, protocol: str) -> None:
    """Ids and times that no answer tells are derived from the recording: none is of today."""
    records = [json.loads(line) for line in (LOGS / "current-ends.ndjson").read_text().splitlines()]
    unheard = [record for record in records if record["phase"] != "client_egress"]
    log = write(tmp_path / "log.ndjson", [record | {"seq": number} for number, record in enumerate(unheard)])
    first, again = (run_command("replay", log, "--as", protocol) for _ in range(2))
    assert first.stdout == again.stdout
    assert first.stdout.count("word0") > 1
    traces = [run_command("replay", ROOT / "fixtures/traces", "--as", protocol) for _ in range(2)]
    assert traces[0].stdout == traces[1].stdout
    if protocol == "responses":
        days = {record["ts"][:10] for record in unheard}
        created = re.findall(r'"created_at":(\d+)', first.stdout)
        assert {datetime.fromtimestamp(int(each), UTC).date().isoformat() for each in created} == days


def test_response_headers_are_compared(tools_log: Path) -> None:
    """What is dropped today, and was not then, differs; an update changes that header and no id."""
    original = tools_log.read_text()
    changed = original.replace(
        '["cache-control", "no-cache"]', '["cache-control", "no-cache"], ["x-bridge-dropped", "stop"]'
    )
    assert changed != original
    tools_log.write_text(changed)
    ran = run_command("replay", tools_log, "--verify")
    assert ran.returncode == 1
    assert "the response headers differ" in ran.stdout
    assert "-x-bridge-dropped: stop" in ran.stdout
    assert run_command("replay", tools_log, "--verify", "--update").returncode == 0
    assert [json.loads(line) for line in tools_log.read_text().splitlines()] == [
        json.loads(line) for line in original.splitlines()
    ]


def test_one_request_can_be_chosen(tools_log: Path) -> None:
    first, second = recordings_in(tools_log)
    ran = run_command("replay", tools_log, "--verify", "-v", "--req", first.id)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert first.id in ran.stdout
    assert second.id not in ran.stdout


def test_a_continuation_does_not_need_the_earlier_requests(tmp_path: Path) -> None:
    """What it continues may be filtered out, or in a log that is gone."""
    log = LOGS / "current-ends.ndjson"
    later = [each for each in recordings_in(log) if (each.body or {}).get("previous_response_id")]
    assert later
    for recording in later:
        ran = run_command("replay", log, "--verify", "--req", recording.id)
        assert (ran.returncode, ran.stdout) == (0, "1 request(s): 1 the same, 0 different, 0 not played\n")


def test_a_renamed_tool_is_a_difference(tools_log: Path) -> None:
    """The model calls what is not offered any more: its call is text now, and the diff shows it."""
    renamed = [json.loads(line) for line in tools_log.read_text().splitlines()]
    for record in renamed:
        if record["kind"] == "client_request":
            text = json.dumps(record["payload"]["body"]["tools"]).replace('"look"', '"peek"')
            record["payload"]["body"]["tools"] = json.loads(text)
    ran = run_command("replay", write(tools_log, renamed), "--verify")
    assert ran.returncode == 1
    assert "2 request(s): 0 the same, 2 different, 0 not played" in ran.stdout
    assert "is the first that differs" in ran.stdout
    assert "--- recorded" in ran.stdout
    assert "+++ now" in ran.stdout
    assert any(line.strip().startswith("+") and "tool_call" in line for line in ran.stdout.splitlines())


def test_a_difference_can_be_accepted(tools_log: Path) -> None:
    """--update writes what clients get today, and nothing else; then there is no difference any more."""
    data = tools_log.read_text().replace("response.output_item.added", "response.something_else")
    data = data.replace('"object":"chat.completion"', '"object":"other"') + "a foreign line\n\n" + '{"torn":'
    tools_log.write_text(data)
    tools_log.chmod(0o640)
    before = tools_log.read_bytes().split(b"\n")
    assert run_command("replay", tools_log, "--verify").returncode == 1
    ran = run_command("replay", tools_log, "--verify", "--update")
    assert ran.returncode == 0
    assert f"{tools_log} now contains the answers of the current code." in ran.stdout
    after = tools_log.read_bytes().split(b"\n")
    play_log(tools_log)
    assert len(after) == len(before)
    assert stat.S_IMODE(tools_log.stat().st_mode) == 0o640
    for old, new in zip(before, after, strict=True):
        assert old == new or b"client_egress" in old
    assert [path.name for path in tools_log.parent.iterdir() if path.name.endswith(".new")] == []


def test_a_log_that_cannot_be_rewritten_stays_as_it_is(tmp_path: Path, tools_log: Path) -> None:
    tools_log.write_text(tools_log.read_text().replace("response.output_item.added", "response.something_else"))
    before = tools_log.read_bytes()
    (tmp_path / ".tools.ndjson.new").mkdir()
    ran = run_command("replay", tools_log, "--verify", "--update")
    assert ran.returncode == 2
    assert "cannot be rewritten" in ran.stderr
    assert tools_log.read_bytes() == before


def test_a_log_that_was_put_together_twice_is_two_logs(tools_log: Path) -> None:
    """Ids that stand in it twice are two requests each, for --update too."""
    broken = tools_log.read_text().replace("response.output_item.added", "response.something_else")
    tools_log.write_text(tools_log.read_text() + broken)
    ran = run_command("replay", tools_log, "--verify", "--update")
    assert ran.returncode == 0
    assert len(play_log(tools_log)) == 4


def test_torn_foreign_and_cut_logs_are_told_of(tools_log: Path) -> None:
    lines = tools_log.read_bytes().splitlines(keepends=True)
    tools_log.write_bytes(b"".join([lines[0], b"not ours\n", b"[1, 2]\n", *lines[1:]]) + b'{"ts": "half')
    ran = run_command("replay", tools_log, "--verify")
    assert ran.returncode == 0
    assert "2 line(s) are not event log records" in ran.stderr
    assert "the last line of 1 file(s) is torn" in ran.stderr
    tools_log.write_bytes(b"".join([lines[0], *lines[10:-10]]))
    ran = run_command("replay", tools_log, "--verify", "-v")
    assert ran.returncode == 0
    assert "its request is not in the log" in ran.stdout
    assert "only the recorded beginning was compared" in ran.stdout
    assert "9 record(s) are missing" in ran.stderr


def test_two_interleaved_runs_are_one_log(tmp_path: Path) -> None:
    one = (LOGS / "current-ends.ndjson").read_text().splitlines(keepends=True)
    other = (LOGS / "legacy-ends.ndjson").read_text().splitlines(keepends=True)
    mixed = tmp_path / "mixed.ndjson"
    mixed.write_text("".join(line for pair in zip(one, other, strict=False) for line in pair))
    left = max(one, other, key=len)[min(len(one), len(other)) :]
    mixed.write_text(mixed.read_text() + "".join(left))
    assert len(play_log(mixed)) == len(recordings_in(LOGS / "current-ends.ndjson", LOGS / "legacy-ends.ndjson"))


def test_a_log_of_the_format_before_is_played(tmp_path: Path) -> None:
    """Format 1: no run, no head of an answer, errors with code and message alone."""
    records = some_requests(LOGS / "current.ndjson", lambda record: True, 99)
    records[0]["format"] = 1
    for record in records:
        record.pop("run")
        if record["kind"] == "turn_end":
            error = record["payload"]["error"]
            record["payload"]["error"] = error and {name: error[name] for name in ("code", "message")}
            for name in ("calls", "repairs"):
                record["payload"].pop(name)
    old = write(tmp_path / "old.ndjson", [record for record in records if record["kind"] != "client_start"])
    ran = run_command("replay", old, "--verify")
    told = ran.stdout.splitlines()[-1]
    assert ran.stderr == ""
    assert told.endswith("0 not played")
    different = [line.split()[1] for line in ran.stdout.splitlines() if line.startswith("different")]
    ends = {each.id: (each.end or {}).get("error") for each in recordings_in(old)}
    # The members of an error that are not in the log cannot be told again; everything else is.
    assert all(ends[name] is not None for name in different)
    assert len(different) <= 6


def test_runs_of_exec_in_front_of_a_child_are_the_same_again(tmp_path: Path) -> None:
    """Text, thoughts, a failure, a run that takes too long, a call and its output in the next step."""
    settings = environment(tmp_path, CODEX_BIN=str(prompted_codex(tmp_path)), PROXY_MODELS=MODEL)
    always = ("--backend", "app-server", "--model", MODEL, "--json", "--log-events", tmp_path / "log.ndjson")
    command = Command(tmp_path, settings, always)
    command.run(*steps({"reasoning": ["Hm."]}, {"deltas": ["Good ", "morning"]})).succeeded()
    assert command.run(*steps({"text": "half"}, {"error": {"message": "it broke"}})).code == 1
    command.run(*steps({"text": "half"}, {"hang": True}), "--timeout", "5").failed("timeout")
    tool = (
        "--tool",
        'look:inline={"type":"object"}',
        "--auto-tools",
        "--tool-output",
        "look=found",
        "--max-steps",
        "2",
    )
    command.run(*steps({"text": CALL}), *tool)
    found = play_log(tmp_path / "log.ndjson")
    assert len(found) == 4
    assert sorted(found[-1].recording.attempts) == [0, 1]


def test_a_run_of_the_mock_is_never_played(tmp_path: Path) -> None:
    """It has no backend whose words could be read again; an empty answer would be a lie."""
    log = tmp_path / "log.ndjson"
    Command(tmp_path, environment(tmp_path)).run("--mock", "--prompt", "hi", "--log-events", log)
    for ways in ((), ("--as", "responses"), ("--as", "text"), ("--verify", "-v")):
        ran = run_command("replay", log, *ways)
        assert "the mock of exec has no backend to play" in ran.stdout + ran.stderr
        assert "completed" not in ran.stdout
        assert ran.returncode == (1 if ways else 0)
    refused = run_command("serve", "--replay", log, PORT="0")
    assert refused.returncode == 2
    assert "contains no request that can be replayed" in refused.stderr


def test_a_redacted_log_verifies(tmp_path: Path) -> None:
    """A secret by its name, one by its shape, and one in a URL: each is a hash in the log, and stays that hash."""
    log = tmp_path / "log.ndjson"
    secrets = {"metadata": {"password": "hunter2hunter2", "more": f"sk-{'a' * 24} https://me:secret@host/"}}
    with running_bridge(tmp_path, "--mock-only", "--log-events", str(log)) as bridge:
        for stream in (False, True):
            body = {"model": "mock-echo", "input": f"Bearer {'b' * 20}", "stream": stream}
            bridge.post("/responses", body | secrets).raise_for_status()
    assert b"hunter2" not in log.read_bytes()
    assert len(play_log(log)) == 2
