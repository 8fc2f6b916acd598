"""A real bridge's log, read back: whole, in order, exact, and free of secrets."""

from __future__ import annotations

import json
import stat
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
from harness import KEY, running_bridge
from server.prompted import LOOK, MODEL, EventLog, ask, ask_chat, prompted_codex, wait_for

from bridge import __version__

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJlLWNhbmFyeQ"
CANARIES = {
    "ours": KEY,
    "openai": "sk-proj-canary0123456789abcdefghij",
    "anthropic": "sk-ant-canary0123456789abcdefghij",
    "bridge": "cb-canary0123456789abcdefghijklmnop",
    "jwt": JWT,
    "github": "ghp_canary0123456789abcdefghij",
    "google": "AIzaCanary0123456789abcdefghijklmnopq",
    "slack": "xoxb-canary-0123456789",
    "bearer": "Bearer canary.opaque.token.0123",
    "url": "https://canary-user:canary-password@example.org/",
}
NEEDLES = [value.removeprefix("Bearer ") for name, value in CANARIES.items() if name != "url"] + ["canary-password"]
LEAKS = "\n".join(f"{name}:\t{value}" for name, value in CANARIES.items())
BARE_LEAKS = "\n".join(CANARIES.values())
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"x\\"}"}</tool_call>'


FOREIGN = '<tool_call>{"name":"rm","arguments":"{}"}</tool_call>'


@dataclass
class Told:
    """What a run left behind: the log, and what really went through the child's pipes."""

    raw: bytes
    records: list[dict[str, Any]]
    received: list[bytes]
    sent: list[bytes]
    ids: dict[str, str]
    mode: int

    def of(self, name: str) -> list[dict[str, Any]]:
        """The records of one request."""
        return [record for record in self.records if record["req_id"] == self.ids[name]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """One run of a bridge with many kinds of requests, its log, and copies of the child's stdin and stdout."""
    directory = tmp_path_factory.mktemp("protolog")
    inner = prompted_codex(directory)
    codex = directory / "codex"
    codex.write_text(f"#!/bin/sh\ntee {directory}/received | {inner} app-server | tee {directory}/sent\n")
    codex.chmod(0o755)
    log = directory / "events.ndjson"
    output = {"type": "function_call_output", "call_id": "c1", "output": LEAKS}
    history = [{"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}, output]
    requests: dict[str, tuple[str, dict[str, Any]]] = {
        "call": (
            "/responses",
            ask({"text": f"so: {CALL}", "chunk": 7}, {"usage": {"input": 5, "output": 3}}, tools=[LOOK], stream=True),
        ),
        "plain": ("/chat/completions", ask_chat({"text": "hi"})),
        "broken": (
            "/responses",
            ask({"text": f"{FOREIGN}{CALL.replace('}</tool', ',}</tool')}"}, tools=[LOOK]),
        ),
        "unmet": ("/responses", ask({"text": "no"}, tools=[LOOK], tool_choice="required")),
        "refused": ("/responses", {"model": MODEL, "input": 5}),
        "failed": ("/responses", ask({"text": "one"}, {"error": {"message": "boom"}}, stream=True)),
        "asked": ("/responses", ask({"request": {"method": "execCommandApproval", "params": {}}}, {"text": "hi"})),
        "garbage": (
            "/responses",
            ask({"garbage": "z" * 10_000}, {"garbage": LEAKS.replace("\n", " ")}, {"text": "hi"}),
        ),
        "said": ("/responses", ask({"text": LEAKS + BARE_LEAKS}, {"reasoning": [LEAKS]}, stream=True)),
        "written": ("/responses", ask({"stderr": LEAKS + BARE_LEAKS}, {"text": "hi"})),
        "typed": ("/responses", ask({"text": "hi"}, instructions=LEAKS + BARE_LEAKS, metadata={"api_key": "hunter2"})),
        "returned": ("/responses", {"model": MODEL, "input": [*history, *_user(ask({"text": "hi"}))]}),
        "failed_with": ("/responses", ask({"error": {"message": LEAKS}})),
    }
    ids = {}
    with running_bridge(directory, f"--log-events={log}", CODEX_BIN=str(codex), PROXY_MODELS=MODEL) as bridge:
        with bridge.client() as client:
            for name, (path, body) in requests.items():
                response = client.post(path, json=body)
                assert response.status_code in (200, 400, 502), (name, response.text)
                ids[name] = response.headers["x-request-id"]
        watched = EventLog(log)
        # A finished turn is still to be freed in the child.
        freed = "thread/unsubscribe"
        wait_for(lambda: [r["method"] for r in watched.of(ids[name], "rpc_response")][-1:] == [freed], freed)
        assert bridge.stop() == 0
    raw = log.read_bytes()
    return Told(
        raw,
        [json.loads(line) for line in raw.split(b"\n")[:-1]],
        (directory / "received").read_bytes().split(b"\n")[:-1],
        (directory / "sent").read_bytes().split(b"\n")[:-1],
        ids,
        stat.S_IMODE(log.stat().st_mode),
    )


def _user(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": body["input"]}]


# Form


def test_the_file_is_private_and_ends_with_a_whole_line(told: Told) -> None:
    """0600, and a clean stop tears no line."""
    assert told.mode == 0o600
    assert told.raw.endswith(b"}\n")


def test_the_first_record_is_a_header(told: Told) -> None:
    """It says what wrote the file and how."""
    header = told.records[0]
    assert (header["kind"], header["format"]) == ("header", 2)
    assert __version__ in header["program"]
    assert header["dialect"]
    assert header["redaction"]
    assert [record["kind"] for record in told.records].count("header") == 1


def test_the_version_of_the_child_is_on_record(told: Told) -> None:
    """With its dialect, from the handshake."""
    shakes = [record["payload"] for record in told.records if record["kind"] == "handshake"]
    assert [shake["dialect"] for shake in shakes] == ["current"]
    assert shakes[0]["version"] == __version__


def test_every_record_has_the_common_members(told: Told) -> None:
    """Time twice, a number without gaps, phase, direction, kind and request."""
    last = 0.0
    for number, record in enumerate(told.records):
        assert record["seq"] == number
        assert record["run"] == told.records[0]["run"]
        assert datetime.fromisoformat(record["ts"]).tzinfo is not None
        assert record["mono"] >= last
        last = record["mono"]
        assert record["direction"] in ("in", "out", "none")
        assert record["req_id"] is None or record["req_id"].startswith("req_")


KINDS = {
    "header": {"header"},
    "http_ingress": {"client_request"},
    "client_egress": {"client_start", "client_sse", "client_json", "client_sse_done"},
    "backend_submission": {"rpc_request"},
    "backend_io": {"rpc_response", "rpc_error", "rpc_notification", "server_request", "server_reply", "garbage"},
    "backend_lifecycle": {"backend_start", "backend_exit", "handshake", "restart", "stderr"},
    "tool_parse": {"tool_call", "tool_repair", "tool_reject"},
    "turn": {"turn_start", "turn_end"},
}


def test_phases_and_kinds_are_those_of_the_table(told: Told) -> None:
    """Nothing else, and of the table nothing missing that happened here."""
    seen: dict[str, set[str]] = {}
    for record in told.records:
        seen.setdefault(record["phase"], set()).add(record["kind"])
    for phase, kinds in seen.items():
        assert kinds <= KINDS[phase], phase
    assert set(seen) == set(KINDS)
    assert seen["client_egress"] == KINDS["client_egress"]
    assert seen["tool_parse"] == KINDS["tool_parse"]
    assert seen["backend_io"] == KINDS["backend_io"]


# One turn


def test_a_streamed_turn_with_a_call_is_told_from_end_to_end(told: Told) -> None:
    """What came in, what was asked of the child, what it said, the call, what went out, and how it ended."""
    records = told.of("call")
    kinds = [record["kind"] for record in records]
    assert kinds[:2] == ["client_request", "turn_start"]
    asked = [record["method"] for record in records if record["kind"] == "rpc_request"]
    assert asked == ["thread/start", "thread/inject_items", "turn/start"], "the thread is kept for the output"
    answered = [record["method"] for record in records if record["kind"] == "rpc_response"]
    assert answered == asked
    assert kinds.index("tool_call") < len(kinds) - 1 - kinds[::-1].index("client_sse")
    assert kinds.count("client_sse_done") == kinds.count("turn_end") == kinds.count("tool_call") == 1
    assert kinds.index("client_sse_done") < kinds.index("turn_end")
    assert records[0]["payload"]["path"] == "/v1/responses"
    assert records[0]["payload"]["body"]["model"] == MODEL
    call = next(record["payload"] for record in records if record["kind"] == "tool_call")
    assert (call["name"], call["source"]) == ("look", CALL)
    end = next(record["payload"] for record in records if record["kind"] == "turn_end")
    assert end["outcome"] == "completed"
    assert end["usage"] == {"input_tokens": 5, "cached_tokens": 0, "output_tokens": 3, "reasoning_tokens": 0}
    assert 0 <= end["first_event_s"] <= end["total_s"]


def test_the_notifications_of_a_turn_are_its_own(told: Told) -> None:
    """Each has its request, its thread, its method, and the number of the read that brought it."""
    notes = [record for record in told.of("call") if record["kind"] == "rpc_notification"]
    threads = {record["conversation_id"] for record in notes}
    assert len(threads) == 1
    for note in notes:
        assert note["method"] == note["payload"]["method"]
        assert note["payload"]["params"]["threadId"] in threads
        assert isinstance(note["chunk"], int)
    deltas = [note["payload"]["params"]["delta"] for note in notes if note["method"] == "item/agentMessage/delta"]
    assert "".join(deltas) == f"so: {CALL}"


def test_what_went_to_the_client_is_there_to_the_byte(told: Told) -> None:
    """The chunks of a stream together are the stream; a JSON answer is itself."""
    stream = "".join(record["payload"] for record in told.of("call") if record["kind"] == "client_sse")
    events = [json.loads(line.removeprefix("data: ")) for line in stream.split("\n") if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    answers = [record["payload"] for record in told.of("plain") if record["kind"] == "client_json"]
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["hi"]


def test_rejections_repairs_and_unmet_choices_are_on_record(told: Told) -> None:
    """Each with its reason and its source."""
    broken = {record["kind"]: record["payload"] for record in told.of("broken") if record["phase"] == "tool_parse"}
    assert broken["tool_reject"]["source"] == FOREIGN
    assert broken["tool_reject"]["reason"]
    assert broken["tool_repair"]["repairs"]
    unmet = [record["payload"] for record in told.of("unmet") if record["kind"] == "tool_reject"]
    assert [payload["reason"] for payload in unmet] == ["choice_unmet"]


def test_every_request_has_one_end(told: Told) -> None:
    """Good, bad or failed: one client_request, one turn_end, with what the client was told."""
    for name in told.ids:
        kinds = [record["kind"] for record in told.of(name)]
        assert kinds.count("client_request") == kinds.count("turn_end") == 1, name
    ends = {name: next(r["payload"] for r in told.of(name) if r["kind"] == "turn_end") for name in told.ids}
    assert ends["plain"]["outcome"] == "completed"
    assert ends["refused"]["outcome"] == "failed"
    assert ends["refused"]["error"]["code"] == "invalid_request"
    error = ends["failed"]["error"]
    assert (error["code"], error["message"], error["http_status"]) == ("upstream_error", "boom", 502)


def test_questions_of_the_child_and_our_answers_are_on_record(told: Told) -> None:
    """Side by side, with the child's own id."""
    asked = [record for record in told.records if record["kind"] == "server_request"]
    replies = [record for record in told.records if record["kind"] == "server_reply"]
    assert [record["rpc_id"] for record in asked] == [record["rpc_id"] for record in replies]
    assert replies[0]["payload"]["result"] == {"decision": "denied"}


def test_a_payload_is_whole_or_marked_as_cut(told: Told) -> None:
    """Garbage of ten thousand characters is cut, and says so."""
    garbage = next(record for record in told.records if record["kind"] == "garbage" and "zzz" in record["payload"])
    assert garbage["truncated"] is True
    assert garbage["length"] == 10_000
    assert len(garbage["payload"]) < 10_000


def test_the_child_s_beginning_and_end_are_on_record(told: Told) -> None:
    """With its command line, exit code and last words."""
    start = next(record["payload"] for record in told.records if record["kind"] == "backend_start")
    assert start["argv"][1] == "app-server"
    assert start["pid"]
    last = next(record["payload"] for record in reversed(told.records) if record["kind"] == "backend_exit")
    assert "code" in last
    assert "openai:" in last["stderr"]


# Exactness


def payloads(told: Told, *kinds: str) -> list[bytes]:
    """The payloads of some kinds of records, as bytes of the file."""
    lines = told.raw.split(b"\n")[:-1]
    chosen = [line for line, record in zip(lines, told.records, strict=True) if record["kind"] in kinds]
    return [line.partition(b',"payload":')[2].removesuffix(b"}") for line in chosen]


def test_requests_are_logged_as_the_exact_lines(told: Told) -> None:
    """Byte for byte what the child read, in that order, except where a secret was taken out."""
    logged = payloads(told, "rpc_request", "server_reply")
    received = [line for line in told.received if b'"method":"initialized"' not in line]
    assert len(logged) == len(received)
    clean = [
        pair for pair in zip(logged, received, strict=True) if b"canary" not in pair[1] and KEY.encode() not in pair[1]
    ]
    assert len(clean) > len(logged) / 2
    assert [one for one, _ in clean] == [other for _, other in clean]


def test_everything_the_child_said_is_in_the_log(told: Told) -> None:
    """Each line once, in order, and exact where it holds no secret."""
    said = [line for line in told.sent if line.startswith(b"{")]
    logged = payloads(told, "rpc_response", "rpc_error", "rpc_notification", "server_request")
    notes = [line for line in logged if b'"method":"initialized"' not in line]
    assert len(notes) == len(said)
    clean = [pair for pair in zip(notes, said, strict=True) if b"canary" not in pair[1] and KEY.encode() not in pair[1]]
    assert [one for one, _ in clean] == [other for _, other in clean]


# Secrets


@pytest.mark.parametrize("needle", NEEDLES)
def test_no_secret_is_in_the_file(told: Told, needle: str) -> None:
    """Not from the client's header or text, a tool's output, the model, an error, garbage or the child's stderr."""
    assert needle.encode() not in told.raw


def test_a_secret_leaves_a_hash_where_it_stood(told: Told) -> None:
    """The same one for the same secret wherever it came from, and the words around it stay."""

    def marks(name: str, kind: str) -> set[str]:
        texts = [json.dumps(record["payload"]) for record in told.of(name) if record["kind"] == kind]
        return {part.split("]")[0] for text in texts for part in text.split("openai:\\t")[1:]}

    typed = {mark.removeprefix("\\\\t").removeprefix("\\t") for mark in marks("typed", "client_request")}
    assert len(typed) == 1
    assert next(iter(typed)).startswith("[redacted:")
    stderr = next(record["payload"]["stderr"] for record in reversed(told.records) if record["kind"] == "backend_exit")
    assert f"openai:\t{next(iter(typed))}]" in stderr


def test_a_member_with_a_secret_s_name_is_hidden(told: Told) -> None:
    """By key, whatever its value looks like."""
    body = next(record["payload"]["body"] for record in told.of("typed") if record["kind"] == "client_request")
    assert body["metadata"]["api_key"].startswith("[redacted:")
    assert b"hunter2" not in told.raw
