"""`turnbridge log show`: one request as a conversation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli.log.making import BRIDGE, CALL, USAGE, LogCommand, LogMaker, name_of
from harness import ROOT, running_bridge
from server.prompted import LOOK, MODEL, ask, ask_chat, prompted_codex

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

TRACES = ROOT / "fixtures/traces"


def written(path: Path, made: LogMaker) -> Path:
    path.write_bytes(made.data)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log with a request that has everything, between others."""
    made = LogMaker()
    other = made.begin(2, "other")
    tools = [{"type": "function", "name": "look"}, {"type": "web_search"}]
    name = made.begin(1, "Where?", instructions="Be brief.", tools=tools)
    made.say(name, "Let me ", "think.", method="item/reasoning/summaryTextDelta")
    made.say(other, "not mine")
    made.wait(0.25)
    made.say(name, "I look: ", CALL[:20], CALL[20:], " and\nwait")
    made.note(name, "tool_call", name="look", call_id="call_1", source=CALL)
    made.note(name, "tool_repair", name="look", repairs=["trailing_comma"])
    made.note(name, "tool_reject", name="rm", reason="unknown_tool", source="<tool_call>rm</tool_call>")
    made.tell(name, "I look: ")
    made.end(name, calls=("look",), repairs=("trailing_comma",), usage=USAGE)
    made.end(other)
    made.fail(made.begin(3), retry_after=7)
    return written(tmp_path / "log.ndjson", made)


# The conversation


def test_a_request_as_a_conversation(log: LogCommand, path: Path) -> None:
    """Input, reasoning, text, calls, repairs, rejects and the end; nothing of other requests."""
    assert log.run("show", path, "0001").lines == [
        f"{name_of(1)}  2026-03-01 08:00:00 UTC",
        "/v1/responses · streamed · gpt-5.2 → gpt-5.2-real · app-server",
        "",
        "── asked ───────────────────────────────────────────────────────────────────────",
        "[instructions]",
        "  Be brief.",
        "[user]",
        "  Where?",
        "tools: look, web_search",
        "",
        "── answered ────────────────────────────────────────────────────────────────────",
        "[reasoning]",
        "  Let me think.",
        "[assistant]",
        "  I look:",
        f"▶ {CALL}",
        "   and",
        "  wait",
        "",
        "── calls ───────────────────────────────────────────────────────────────────────",
        "called    look  call_1",
        "repaired  look: trailing_comma: a trailing comma was removed",
        "rejected  rm: unknown_tool: the request offered no tool of this name",
        "            <tool_call>rm</tool_call>",
        "",
        "── ended ───────────────────────────────────────────────────────────────────────",
        "completed, HTTP 200, first event after 0.250 s, 1.500 s in all",
        "tokens: 1,234 in (1,000 cached), 56 out (7 reasoning)",
    ]


def test_a_failure_shows_what_to_do(log: LogCommand, path: Path) -> None:
    """The message, the status, and when to try again."""
    lines = log.run("show", path, "0003").lines
    assert lines[-4:] == [
        "failed:rate_limited, first event after 0.250 s, 1.500 s in all",
        "  It is rate_limited.",
        "  HTTP 429 · rate_limit_error",
        "  What to do: try again after 7 s, as the client was advised.",
    ]


def test_blocks_are_marked_and_thoughts_dimmed_on_a_terminal(log: LogCommand, path: Path) -> None:
    """In colours; long lines are wrapped, and no line is longer than the terminal."""
    log.columns = 40
    _, seen = log.on_terminal("show", path, "0001")
    assert "▶ \x1b[33m<tool_call>" in seen
    assert "\x1b[2mLet me think." in seen
    plain = log.on_terminal("show", path, "0001", NO_COLOR="1")[1]
    assert max(len(line) for line in plain.splitlines() if line.startswith(("  ", "▶ ", "──"))) <= 40


def test_frames(log: LogCommand, path: Path) -> None:
    """One line each, with the seconds since the request came, in the order of the log."""
    lines = log.run("show", path, "0001", "--frames").lines
    assert lines[1].split()[:4] == ["+0.0000", "client", "→", "client_request"]
    assert [line.split()[0] for line in lines if "I look:" in line and "backend" in line] == ["+0.2500"]
    assert sum("item/agentMessage/delta" in line for line in lines) == 4
    assert not any("not mine" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_json_gives_the_records(log: LogCommand, path: Path) -> None:
    """As they stand in the log, of this request alone."""
    wanted = [record for line in path.read_bytes().splitlines() if (record := json.loads(line))["req_id"] == name_of(1)]
    assert log.run("show", path, "0001", "--json").objects == wanted


# Which request


def test_a_beginning_is_enough_when_it_is_clear(log: LogCommand, path: Path) -> None:
    """Otherwise the matching ids are listed, or an error says that there is none."""
    assert log.run("show", path, "req_0002").lines[0].startswith(name_of(2))
    several = log.run("show", path, "000")
    assert (several.code, several.stdout) == (2, "")
    assert [name_of(number) in several.stderr for number in (1, 2, 3)] == [True, True, True]
    none = log.run("show", path, "ffff")
    assert (none.code, none.stdout, len(none.stderr.splitlines())) == (2, "", 1)
    assert "`log ls` lists them" in none.stderr
    assert log.run("show", path, "").code == 2


def test_without_an_id_the_last_that_fits(log: LogCommand, path: Path) -> None:
    """All filters choose here, too; what does not fit is not shown, whatever its id."""
    assert log.run("show", path).lines[0].startswith(name_of(3))
    assert log.run("show", path, "--outcome", "completed").lines[0].startswith(name_of(2))
    assert log.run("show", path, "--tool", "look", "--frames").lines[0].startswith(name_of(1))
    assert log.run("show", path, "0001", "--tool", "look").lines[0].startswith(name_of(1))
    refused = log.run("show", path, "0003", "--tool", "look")
    assert (refused.code, refused.stdout) == (2, "")
    assert "No request that matches the filters in" in refused.stderr
    none = log.run("show", path, "--model", "nobody")
    assert (none.code, none.stdout) == (2, "")
    assert "holds no request that matches the filters" in none.stderr


def test_a_log_twice_in_one_file(log: LogCommand, path: Path) -> None:
    """The same request twice is no question; the later is shown."""
    path.write_bytes(path.read_bytes() * 2)
    assert log.run("show", path, "0001", "--json").stdout == log.run("show", path, "0001", "--json").stdout
    assert log.run("show", path, "0001").code == 0


# Other logs


@pytest.mark.parametrize("trace", sorted(path.name for path in TRACES.glob("*.ndjson")))
def test_transcripts(log: LogCommand, trace: str) -> None:
    """Of both dialects: the prompt and the answer, each once."""
    shown = log.run("show", TRACES / trace, trace.removesuffix(".ndjson"))
    assert shown.code == 0
    assert "[user]" in shown.lines
    if "text" in trace or "reasoning" in trace:
        assert shown.lines.count("[assistant]") == 1
    if "reasoning" in trace:
        assert shown.lines.count("[reasoning]") == 1
    if "toolcall" in trace:
        assert any(line.startswith("▶ <tool_call>") for line in shown.lines)
    if "error" in trace:
        assert "[error]" in shown.lines


UPSTREAMS: dict[str, list[dict[str, Any]]] = {
    "responses": [
        {"type": "response.reasoning_summary_text.delta", "item_id": "rs", "delta": "hm"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "Hel"},
        {"type": "response.output_text.delta", "item_id": "m", "delta": "lo"},
        {
            "type": "response.output_item.done",
            "item": {"type": "function_call", "call_id": "c", "name": "look", "arguments": '{"q":1}'},
        },
    ],
    "chat": [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"index": 0, "delta": {"content": "Hel"}}]},
        {"choices": [{"index": 0, "delta": {"content": "lo"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "look"}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"q":1}'}}]}}]},
    ],
    "messages": [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hel"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "lo"}},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "c", "name": "look"}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"q":1}'}},
    ],
}


@pytest.mark.parametrize("api", UPSTREAMS)
def test_providers(log: LogCommand, tmp_path: Path, api: str) -> None:
    """What they say is put together in the same way."""
    made = LogMaker()
    name = made.begin(1)
    for event in UPSTREAMS[api]:
        made.recorder.upstream(name, "in", json.dumps(event).encode())
    made.end(name)
    lines = log.run("show", written(tmp_path / "log.ndjson", made), "0001").lines
    begin = lines.index("[reasoning]")
    assert lines[begin : begin + 6] == ["[reasoning]", "  hm", "[assistant]", "  Hello", "[call]", '▶ look {"q":1}']


def test_messages_of_all_kinds(log: LogCommand, tmp_path: Path) -> None:
    """History, calls and results, pictures, and bodies that make no sense."""
    made = LogMaker()
    items: list[Any] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64," + "A" * 500}]},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "seen"},
        7,
    ]
    made.end(made.begin(1, items))  # type: ignore[arg-type]
    odd = name_of(2)
    made.recorder.event("http_ingress", "in", "client_request", odd, {"path": "/v1/responses", "unreadable": 12})
    made.fail(odd)
    path = written(tmp_path / "log.ndjson", made)
    lines = log.run("show", path, "0001").lines
    begin = lines.index("[developer]")
    assert lines[begin : begin + 10] == [
        "[developer]",
        "  rules",
        "[user]",
        "  [input_image: data:image/png;base64,AAAAAAAA… 522 characters]",
        "[call]",
        "  look({})",
        "[result]",
        "  seen",
        "[user]",
        "  7",
    ]
    assert "The body could not be read (12 bytes)." in log.run("show", path, "0002").lines


def test_a_real_bridge(log: LogCommand, tmp_path: Path) -> None:
    """Its own log, read with its own command: both endpoints, several choices, a refusal."""
    events = tmp_path / "events.ndjson"
    with running_bridge(
        tmp_path, f"--log-events={events}", CODEX_BIN=str(prompted_codex(tmp_path)), PROXY_MODELS=MODEL
    ) as bridge:
        assert bridge.post("/responses", ask({"text": f"so {CALL}"}, tools=[LOOK])).status_code == 200
        assert bridge.post("/chat/completions", ask_chat({"text": "hi"}) | {"n": 2}).status_code == 200
        assert bridge.post("/responses", {"model": MODEL, "input": 5}).status_code == 400
    found = log.run("ls", events, "--json").objects
    assert [(each["outcome"], each["calls"]) for each in found] == [
        ("completed", ["look"]),
        ("completed", []),
        ("failed", []),
    ]
    assert f"▶ {CALL}" in log.run("show", events, found[0]["id"]).lines
    assert "answer 2" in log.run("show", events, found[1]["id"]).lines
    refused = log.run("show", events, found[2]["id"])
    assert '  {"model":"prompted","input":5}' in refused.lines
    assert "change the request" in refused.lines[-1]


# Size


def test_the_second_time_only_the_request_itself_is_read(log: LogCommand, tmp_path: Path) -> None:
    """Measured by what the process reads: a little of the log, and its index."""
    path = tmp_path / "large.ndjson"
    maker = [sys.executable, str(ROOT / "scripts/make-log"), str(path), "--bytes", "40M", "--tokens", "50"]
    subprocess.run(maker, check=True, capture_output=True)
    name = log.run("ls", path, "--json").objects[200]["id"]
    counting = (
        "import sys; from bridge.cli import main\n"
        "try: main()\n"
        "finally: print(open('/proc/self/io').read().split()[1], file=sys.stderr)"
    )
    words = [sys.executable, "-c", counting, "log", "show", str(path), name]
    ran = subprocess.run(words, capture_output=True, env=log.env(), cwd=ROOT, text=True)
    assert ran.stdout.startswith(name)
    assert int(ran.stderr.split()[-1]) < 10_000_000
    words[-1:] = [name, "--no-index"]
    ran = subprocess.run(words, capture_output=True, env=log.env(), cwd=ROOT, text=True)
    assert int(ran.stderr.split()[-1]) > 40_000_000


def test_a_closed_pipe_ends_it_silently(log: LogCommand, path: Path) -> None:
    """A closed pipe ends it without a word."""
    reader, writer = os.pipe()
    os.close(reader)
    ran = subprocess.run(
        [*BRIDGE, "show", str(path), "0001"], stdout=writer, stderr=subprocess.PIPE, env=log.env(), cwd=ROOT
    )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (141, b"")
