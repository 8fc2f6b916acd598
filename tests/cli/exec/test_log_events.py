"""--log-events: the request, every frame of the backend, every line of the wire protocol, and the end are on record."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from cli.exec.command import Command, Ran, Word, finish, steps
from log.logs import Json, records_of, whole_log
from protocols.wire.lines import read_lines
from real.provider import Provider, script
from server.prompted import MODEL

from bridge.cli.exec.options import Options, make_turn
from bridge.core.items import FunctionCall, FunctionOutput, Image, Message, Text
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.log.read import RecordReader
from bridge.log.recording import Recording, read_recordings
from bridge.protocols.reading import parse_request
from bridge.protocols.responses.build import build_request

SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}},"required":["q"]}'
LOOK: tuple[Word, ...] = ("--tool", f"look:inline={SCHEMA}")
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"x\\"}"}</tool_call>'
KEY = "of-the-provider-0123456789"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run.ndjson"


def only(log: Path) -> Recording:
    """The one request of a log in which nothing is wrong."""
    reader = RecordReader([log])
    (recording,) = read_recordings(reader)
    assert reader.trouble.sentences() == []
    assert recording.complete
    return recording


def kinds(records: list[Json]) -> list[str]:
    return [record["kind"] for record in records if record["phase"] != "backend_lifecycle"]


def lines_of(recording: Recording) -> list[Json]:
    """The lines of the wire protocol that are on record."""
    assert {piece.kind for piece in recording.client} == {"client_line"}
    return [piece.payload for piece in recording.client]


def end_of(recording: Recording) -> Json:
    assert recording.end is not None
    return recording.end


# What is recorded


@pytest.mark.parametrize("shown", [("--json",), ()], ids=["json", "text"])
def test_a_run_of_the_mock(warm: Command, log: Path, shown: tuple[str, ...]) -> None:
    """Header, request, lines and end; the lines are those of --json, also when the text is shown."""
    ran = warm.run("--mock", "--prompt", "hi", "--instructions", "be brief", "--log-events", log, *shown)
    assert (ran.code, ran.stderr) == (0, "")
    records = whole_log([log])
    assert kinds(records)[:3] == ["header", "client_request", "turn_start"]
    assert kinds(records)[-1] == "turn_end"
    recording = only(log)
    assert lines_of(recording) == warm.run("--mock", "--prompt", "hi", "--instructions", "be brief", "--json").events
    assert recording.path == "exec"
    assert recording.request == {"path": "exec", "body": recording.body}
    assert recording.body == {
        "model": "gpt-5.2-codex",
        "instructions": "be brief",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "parallel_tool_calls": False,
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
    }
    assert recording.start == {
        "model": "gpt-5.2-codex",
        "requested_model": "gpt-5.2-codex",
        "effort": None,
        "backend": "mock",
        "dropped": [],
    }
    end = end_of(recording)
    assert (end["outcome"], end["error"], end["calls"]) == ("completed", None, [])
    assert end["usage"]["output_tokens"] > 0
    assert 0 <= end["first_event_s"] <= end["total_s"]


def test_every_frame_of_a_codex(codex: Command, log: Path, tmp_path: Path) -> None:
    """Beside --trace and --log-requests, which see what they always see; what was found in the text is noted, too."""
    sent = tmp_path / "requests"
    asked = (*steps({"deltas": ["I look. "]}, {"text": CALL}), *LOOK, "--json", "--trace", "--log-requests", sent)
    plain = codex.run(*asked)
    methods = [json.loads(line)["method"] for line in sent.read_text().splitlines()]
    ran = codex.run(*asked, "--log-events", log)
    assert len(ran.stderr.splitlines()) == len(plain.stderr.splitlines())
    assert [json.loads(line)["method"] for line in sent.read_text().splitlines()] == methods
    records = whole_log([log])
    assert kinds(records)[0] == "header"
    assert {"backend_start", "handshake", "backend_exit"} <= {record["kind"] for record in records}
    recording = only(log)
    assert lines_of(recording) == ran.events
    called = [frame.method for frame in recording.attempts[0] if frame.kind == "rpc_request"]
    assert called[: len(methods)] == methods
    assert "item/agentMessage/delta" in {frame.method for frame in recording.attempts[0]}
    assert [kind for kind, _ in recording.notes] == ["tool_call"]
    assert end_of(recording)["calls"] == ["look"]
    # As for serve: what is done to free the thread is no part of the turn.
    frames = [record["kind"] for record in records if record["req_id"] == recording.id]
    assert frames.index("turn_end") > max(i for i, kind in enumerate(frames) if kind == "client_line")


def test_every_step_of_a_loop(codex: Command, log: Path) -> None:
    """Each step has its number; what the tools gave back is with the request, so that it can be played again."""
    loop = ("--auto-tools", "--tool-output", "look=$args", "--max-steps", "2")
    ran = codex.run(*steps({"text": CALL}), *LOOK, *loop, "--log-events", log, "--json")
    ran.failed("max_steps_exceeded")
    recording = only(log)
    assert recording.request is not None
    assert recording.request["tool_outputs"] == {"look": "$args"}
    assert recording.request["max_steps"] == 2
    assert sorted(recording.attempts) == [0, 1]
    assert {record["req_id"] for record in records_of(log)} >= {recording.id, f"{recording.id}#1"}
    assert lines_of(recording) == ran.events
    end = end_of(recording)
    assert (end["outcome"], end["error"]["code"]) == ("failed", "max_steps_exceeded")
    assert end["calls"] == ["look", "look"]


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


def test_every_frame_of_a_provider(warm: Command, provider: Provider, log: Path) -> None:
    """The body that was sent, and each event; the key is in neither, nor the one that the user spells out."""
    config = warm.directory / "config.toml"
    config.write_text(
        f'[backends.mine]\ntype = "responses"\nbase_url = "{provider.base_url}"\nkey = "{KEY}"\n'
        '[routing.patterns]\nmine = ["to-mine"]\n'
    )
    asked = script({"do": "text", "pieces": ["Hello ", "world"]})
    ran = warm.run(
        "--config", config, "--model", "to-mine", "--prompt", f"{asked} {KEY}", "--log-events", log, "--json"
    )
    ran.succeeded()
    assert KEY not in log.read_text()
    recording = only(log)
    sent, *came = recording.attempts[0]
    assert (sent.kind, sent.direction, sent.payload["model"]) == ("upstream_request", "out", "to-mine")
    assert {frame.kind for frame in came} == {"upstream_event"}
    assert came[-1].payload["type"] == "response.completed"
    assert lines_of(recording) == ran.events
    assert recording.start is not None
    assert recording.start["backend"] == "mine"
    assert end_of(recording)["usage"] == {
        "input_tokens": 11,
        "cached_tokens": 3,
        "output_tokens": 7,
        "reasoning_tokens": 2,
    }


def test_a_bridge_over_there(warm: Command, provider: Provider, log: Path) -> None:
    """--url with --provider-key: the same frames, and no key."""
    asked = script({"do": "text", "pieces": ["Hello"]})
    url = ("--url", provider.base_url, "--provider-key", KEY)
    warm.run(*url, "--prompt", f"{asked} {KEY}", "--log-events", log, "--json").succeeded()
    assert KEY not in log.read_text()
    assert {frame.kind for frame in only(log).attempts[0]} == {"upstream_request", "upstream_event"}


# How it ended


def test_a_turn_that_fails(codex: Command, log: Path) -> None:
    """The error with all that makes it, and the line that told it."""
    broken = {"error": {"message": "no quota", "info": "usageLimitExceeded"}}
    ran = codex.run(*steps({"text": "begun"}, broken), "--log-events", log, "--json")
    assert ran.code == 1
    end = end_of(only(log))
    assert end["outcome"] == "failed"
    assert end["error"]["code"] == ran.events[-1]["code"]
    assert {"message", "http_status", "type", "param", "severity", "retry_after"} < set(end["error"])
    assert lines_of(only(log)) == ran.events


@pytest.mark.parametrize(
    "wrong",
    [("--codex-bin", "/no/such/codex"), ("--model", "no-such-model")],
    ids=["no codex", "no model"],
)
def test_a_run_that_cannot_start(codex: Command, log: Path, wrong: tuple[str, ...]) -> None:
    """It has a request, no beginning, and an end."""
    ran = codex.run(*steps({"text": "hi"}), *wrong, "--log-events", log, "--json")
    assert ran.code != 0
    recording = only(log)
    assert recording.start is None
    assert end_of(recording)["error"]["code"] == ran.events[-1]["code"]
    assert lines_of(recording) == ran.events


def test_a_run_that_is_interrupted(codex: Command, log: Path) -> None:
    """Ctrl-C in the middle of the answer: what was said is there, and that it was not the model who ended it."""
    hangs = steps({"text": "begun"}, {"hang": True})
    with codex.start(*hangs, "--json", "--log-events", log) as process:
        assert process.stdout is not None
        begun = b"".join(process.stdout.readline() for _ in range(4))
        process.send_signal(signal.SIGINT)
        ran = finish(process)
    assert ran.code == 130
    recording = only(log)
    assert lines_of(recording) == read_lines(begun + ran.stdout)
    assert (end_of(recording)["outcome"], end_of(recording)["reason"]) == ("cancelled", "interrupted")


def test_a_reader_that_leaves(codex: Command, log: Path) -> None:
    """stdout is closed: cancelled, as by a client of serve that has gone."""
    hangs = steps({"text": "begun"}, {"flood": 100_000}, {"hang": True})
    with codex.start(*hangs, "--json", "--log-events", log) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 1
    assert (end_of(only(log))["outcome"], end_of(only(log))["reason"]) == ("cancelled", "client_gone")


def test_a_limit_of_time(codex: Command, log: Path) -> None:
    ran = codex.run(*steps({"text": "begun"}, {"hang": True}), "--timeout", "1", "--log-events", log, "--json")
    ran.failed("timeout")
    assert (end_of(only(log))["outcome"], end_of(only(log))["error"]["code"]) == ("failed", "timeout")


# Where it goes


def test_files_and_directories(warm: Command, tmp_path: Path) -> None:
    """A file is appended to; in a directory each run has its own. PROXY_LOG_EVENTS is for serve."""
    ignored: dict[str, Any] = {"PROXY_LOG_EVENTS": str(tmp_path / "of-serve.ndjson")}
    for _ in range(2):
        for target in (tmp_path / "run.ndjson", f"{tmp_path}/logs/"):
            assert warm.run("--mock", "--prompt", "hi", "--log-events", target, **ignored).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "run.ndjson"]
    reader = RecordReader([tmp_path / "run.ndjson"])
    one, other = read_recordings(reader)
    assert one.id != other.id
    assert reader.trouble.sentences() == []
    assert [len(whole_log([path])) for path in (tmp_path / "logs").iterdir()] == [
        len(records_of(tmp_path / "run.ndjson")) // 2
    ] * 2


@pytest.mark.parametrize("target", ["", "{dir}/none/run.ndjson", "{dir}/file/run.ndjson"])
def test_a_log_that_cannot_be_begun(warm: Command, tmp_path: Path, target: str) -> None:
    """It is a mistake in what was typed; nobody is asked."""
    (tmp_path / "file").write_text("")
    ran = warm.run("--mock", "--prompt", "hi", "--log-events", target.format(dir=tmp_path), "--json")
    assert ran.code == 2
    assert [event["type"] for event in ran.events] == ["error"]
    assert "log" in ran.stderr


def test_a_log_that_cannot_be_written(codex: Command) -> None:
    """Nothing is done unrecorded: the run fails, although the model could have answered."""
    ran = codex.run(*steps({"text": "hi"}), "--log-events", "/dev/full", "--json")
    assert "/dev/full" in ran.failed("event_log_failed")
    assert [event["type"] for event in ran.events] == ["error"]


def test_a_log_that_fails_at_the_end(command: Command) -> None:
    """The answer is out by then; the exit code and stderr tell that it is not on record."""
    limited = f'ulimit -f 2; exec {quote(sys.executable)} -P -m bridge exec "$@"'
    ran = run_limited(command, limited, "--mock", "--prompt", "word " * 1000, "--log-events", "run.ndjson", "--json")
    assert ran.code == 1
    assert "error: The event log run.ndjson could not be written: File too large." in ran.stderr


def run_limited(command: Command, shell: str, *arguments: str) -> Ran:
    import subprocess

    from harness import ROOT

    done = subprocess.run(
        ["sh", "-c", shell, "sh", *arguments],
        capture_output=True,
        env=command.environment | {"PYTHONPATH": str(ROOT)},
        cwd=command.directory,
        timeout=30,
    )
    return Ran(done.returncode, done.stdout, done.stderr.decode())


def test_a_run_without_a_log_loads_nothing_for_it(command: Command) -> None:
    """It should begin as quickly as ever."""
    done = run_limited(
        command, f'exec {quote(sys.executable)} -X importtime -P -m bridge exec "$@"', "--mock", "--prompt", "x"
    )
    assert done.code == 0
    assert "bridge.cli.exec.output" in done.stderr
    assert not re.search(r"bridge\.log\b", done.stderr)


# The request, as a body


def read_again(turn: Turn) -> Turn:
    """The turn that a server would make of its body."""
    body = json.loads(json.dumps(build_request(turn)))
    read = parse_request(body, "responses")
    return read.for_model(ModelChoice(read.model, turn.model))


def same(turn: Turn) -> Turn:
    """What is known of a turn by its body."""
    return replace(turn, session=None, provider_key=None, backend="")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": "gpt-5.5", "effort": "high", "instructions": "be\nbrief", "append_system_prompt": "now"},
        {"tool": (f"look:inline={SCHEMA}", "a.b-c:inline={}"), "tool_choice": "function:look"},
        {"tool": (f"look:inline={SCHEMA}",), "tool_choice": "required", "web_search": True},
        {"web_search": True, "session_id": "s-1", "provider_key": "k"},
    ],
    ids=lambda options: ",".join(options) or "nothing",
)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_body_is_read_as_the_same_turn(options: dict[str, Any], parallel: bool) -> None:
    turn = make_turn(Options(prompt="hi", **options), verbatim=False, parallel=parallel)
    assert read_again(turn) == same(turn)
    assert build_request(turn).get("prompt_cache_key") == options.get("session_id")


def test_items_are_read_as_the_same_items(tmp_path: Path) -> None:
    """Whatever was said before, a schema for the answer, and an effort that the model's name implies."""
    (tmp_path / "schema").write_text(SCHEMA)
    turn = make_turn(Options(prompt="hi", output_schema=str(tmp_path / "schema")), verbatim=False, parallel=True)
    turn = replace(
        turn,
        effort="low",
        items=(
            Message("system", (Text("a"),)),
            Message("developer", (Text("b"), Text("c"))),
            Message(
                "user", (Text("d"), Image("data:image/png;base64,AA=="), Image("data:image/png;base64,AA==", "low"))
            ),
            Message("assistant", (Text("e"),)),
            FunctionCall("call_1", "look", '{"q": "x"}'),
            FunctionOutput("call_1", (Text("f"),)),
            FunctionCall("call_2", "look", "{}", "space"),
            FunctionOutput("call_2", (Text("g"), Text("h"))),
            FunctionCall("call_3", "patch", "*** text", None, True),
            FunctionOutput("call_3", (Text("i"), Image("data:image/png;base64,AA==")), True),
        ),
    )
    assert read_again(turn) == same(turn)


def test_items_that_are_sent_unchanged_are_logged_unchanged(warm: Command, log: Path) -> None:
    items = [{"type": "something_new", "value": [1, None]}, {"role": "user", "content": "hi", "added": {}}]
    ran = warm.run("--mock", "--input-json", "-", "--log-events", log, stdin=json.dumps(items).encode())
    assert ran.code == 0
    body = only(log).body
    assert body is not None
    assert body["input"] == items


def test_the_model_that_codex_home_names(codex: Command, log: Path) -> None:
    """Without --model: what was used stands in the request, not what would be used elsewhere."""
    home = log.parent / "codex-home"
    home.mkdir()
    (home / "config.toml").write_text(f'model = "{MODEL}"\n')
    unnamed = replace(codex, always=())
    unnamed.run(*steps({"text": "hi"}), "--codex-home", home, "--log-events", log, "--json").succeeded()
    body = only(log).body
    assert body is not None
    assert body["model"] == MODEL
