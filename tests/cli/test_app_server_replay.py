"""`turnbridge app-server --replay` in Codex's place: a bridge in front of it answers as the recorded one did."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from appserver.standin.wire import Wire, playing, transcript, whole_turn
from harness import ROOT, RunningBridge, running_bridge, scripted_codex, turns
from server.prompted import LOOK, MODEL, EventLog, ask, ask_chat, prompted_codex, wait_for
from warm import run_warm

Requests = list[tuple[str, dict[str, Any]]]


def replaying_codex(directory: Path, log: Path, *arguments: str) -> Path:
    """A program to be used as CODEX_BIN: the child of a log."""
    program = directory / "replaying-codex"
    more = " ".join(arguments)
    python = f"PYTHONPATH={quote(str(ROOT))} exec {quote(sys.executable)}"
    program.write_text(f'#!/bin/sh\n{python} -m bridge "$@" --replay {quote(str(log))} {more}\n')
    program.chmod(0o755)
    return program


def send(bridge: RunningBridge, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """The status and the bytes of an answer."""
    response = bridge.post(path, body)
    return response.status_code, response.text


def without_ids_and_times(text: str) -> str:
    """An answer with its ids numbered as they appear, and no times."""
    names: dict[str, str] = {}
    text = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
    return re.sub(
        r"\b(resp|msg|rs|fc|call|chatcmpl|req)[_-][0-9a-f]{16,}",
        lambda found: names.setdefault(found[0], f"{found[1]}#{len(names)}"),
        text,
    )


PAUSE = {"sleep": 0.05}
"""Pieces that come apart are sent apart; what comes together may be joined."""
SPOKEN: tuple[dict[str, Any], ...] = (
    {"reasoning": ["Let me think."]},
    PAUSE,
    {"deltas": ["Hello "]},
    PAUSE,
    {"deltas": ["wörld"]},
    PAUSE,
    {"usage": {"input": 7, "output": 3, "cached": 1, "reasoning": 1}},
)
CALL = '<tool_call>{"name":"look","arguments":"{\\"q\\":\\"tea\\"}"}</tool_call>'


def all_kinds() -> Requests:
    """Texts, thoughts, calls, failures, questions of the child's; streamed or not."""
    asked: Requests = []
    for stream in (True, False):
        for steps in (
            SPOKEN,
            ({"text": CALL},),
            ({"error": {"message": "too many", "info": "rateLimitExceeded"}},),
            ({"request": {"method": "execCommandApproval", "params": {"x": 1}}}, {"text": "denied"}),
        ):
            tools: dict[str, Any] = {"tools": [LOOK]} if steps[0].get("text") == CALL else {}
            asked.append(("/responses", ask(*steps, stream=stream, **tools)))
            asked.append(("/chat/completions", ask_chat(*steps, stream=stream)))
    return asked


@pytest.mark.parametrize("dialect", ["current", pytest.param("legacy", marks=pytest.mark.deep)])
def test_a_bridge_answers_as_recorded(tmp_path: Path, dialect: str) -> None:
    """Byte for byte apart from ids and times, in both dialects, on both endpoints."""
    log = tmp_path / "log.ndjson"
    (tmp_path / "again").mkdir()
    codex = prompted_codex(tmp_path, dialect)
    with running_bridge(tmp_path, f"--log-events={log}", CODEX_BIN=str(codex), PROXY_MODELS=MODEL) as bridge:
        recorded = [send(bridge, *request) for request in all_kinds()]
    codex = replaying_codex(tmp_path, log, "--speed=1")
    with running_bridge(tmp_path / "again", CODEX_BIN=str(codex), PROXY_MODELS=MODEL) as bridge:
        played = [send(bridge, *request) for request in all_kinds()]
    assert {status for status, _ in recorded} == {200, 429}
    for (status, before), (status_again, after) in zip(recorded, played, strict=True):
        assert (status_again, without_ids_and_times(after)) == (status, without_ids_and_times(before))


@pytest.mark.deep
def test_conversations_and_requests_at_once(tmp_path: Path) -> None:
    """A thread that is continued is continued; requests in another order, and twice as many, get their own answers."""
    log = tmp_path / "log.ndjson"
    (tmp_path / "again").mkdir()

    def talk(bridge: RunningBridge) -> list[str]:
        said, messages = [], list[dict[str, str]]()
        for word in ("one", "two", "three"):
            messages.append({"role": "user", "content": json.dumps([{"text": word}])})
            answer = bridge.post("/chat/completions", {"model": MODEL, "messages": messages}).json()
            said.append(answer["choices"][0]["message"]["content"])
            messages.append({"role": "assistant", "content": said[-1]})
        return said

    def together(bridge: RunningBridge, names: list[int]) -> dict[int, str]:
        with ThreadPoolExecutor(len(names)) as pool:
            answers = pool.map(
                lambda n: bridge.post("/responses", ask({"text": f"answer {n}", "chunk": 2}, PAUSE)).json(), names
            )
            return {n: answer["output"][0]["content"][0]["text"] for n, answer in zip(names, answers, strict=True)}

    codex = prompted_codex(tmp_path)
    with running_bridge(tmp_path, f"--log-events={log}", CODEX_BIN=str(codex), PROXY_MODELS=MODEL) as bridge:
        assert talk(bridge) == ["one", "two", "three"]
        together(bridge, list(range(8)))
    codex = replaying_codex(tmp_path, log, "--speed=4")
    with running_bridge(tmp_path / "again", CODEX_BIN=str(codex), PROXY_MODELS=MODEL) as bridge:
        assert together(bridge, [*range(7, -1, -1)]) == {n: f"answer {n}" for n in range(8)}
        assert talk(bridge) == ["one", "two", "three"]
        assert together(bridge, [*range(8)] * 2) == {n: f"answer {n}" for n in range(8)}
        refused = bridge.post("/responses", ask({"text": "answer 8", "chunk": 2}, PAUSE)).json()["error"]["message"]
    assert "thread/inject_items differs from the nearest recording (req_" in refused
    assert "content.0.text: recorded " in refused
    assert refused.count("answer 8") == 1


@pytest.mark.deep
@pytest.mark.parametrize(("step", "code"), [({"exit": 3}, 3), ({"signal": 9}, -9)], ids=["exit", "killed"])
def test_a_recorded_crash_is_a_crash(tmp_path: Path, step: dict[str, int], code: int) -> None:
    """After what it had said, and with the code that it ended with."""
    log = EventLog(tmp_path / "log.ndjson")
    codex = scripted_codex(tmp_path, turns([{"deltas": ["a", "b"]}, {"sleep": 0.1}, step]))
    with running_bridge(tmp_path, f"--log-events={log.path}", CODEX_BIN=str(codex), PROXY_MODELS=MODEL) as bridge:
        assert send(bridge, "/responses", {"model": MODEL, "input": "hi"})[0] == 502
        wait_for(lambda: any(record["kind"] == "backend_exit" for record in log.records()), "the end is on record")
    with playing(log.path, code=code) as wire:
        for record in log.records():
            if record["kind"] == "backend_exit":
                break
            if record["kind"] == "rpc_request":
                wire.call(record["method"], **record["payload"]["params"])
        said = [message["params"].get("delta") for message in wire.rest()]
    assert said == [None, "a", "b"]


ENDS = ("turn/completed", "codex/event/task_complete", "codex/event/turn_aborted")


def threads_of(log: Path) -> list[list[dict[str, Any]]]:
    """The records of each thread that came to its end: calls, replies, and what it was told."""
    threads: dict[str, list[dict[str, Any]]] = {}
    begun: dict[tuple[str, int], list[dict[str, Any]]] = {}
    calls: dict[tuple[str, int], list[dict[str, Any]]] = {}
    early: dict[str, list[dict[str, Any]]] = {}
    for line in log.read_bytes().splitlines():
        record = json.loads(line)
        call = (record.get("req_id") or "", record.get("rpc_id", -1))
        key = record.get("conversation_id")
        if record["kind"] == "rpc_request" and record["method"] in ("thread/start", "newConversation"):
            begun[call] = calls[call] = [record]
        elif record["kind"] == "rpc_request" and key in threads:
            threads[key].append(record)
            calls[call] = threads[key]
        elif record["kind"] in ("rpc_response", "rpc_error") and call in calls:
            if call in begun and "result" in record["payload"]:
                result = record["payload"]["result"]
                name = result.get("conversationId") or result["thread"]["id"]
                threads[name] = begun.pop(call)
                threads[name] += early.pop(name, [])
            calls.pop(call).append(record)
        elif key in threads and record["kind"] in ("rpc_notification", "server_request", "server_reply"):
            threads[key].append(record)
        elif key is not None:
            early.setdefault(key, []).append(record)
    ended = [thread for thread in threads.values() if any(record.get("method") in ENDS for record in thread)]
    # Equal ones are given out in the order in which they were asked, which is not that in which they began.
    return sorted(ended, key=lambda thread: [each["seq"] for each in thread if each["kind"] == "rpc_request"][1:])


@pytest.mark.parametrize("log", sorted((ROOT / "fixtures/logs").glob("*.ndjson")), ids=lambda path: path.stem)
def test_every_turn_of_a_real_recording_is_played(log: Path) -> None:
    """All that Codex said in each thread comes again, in its order, when the same calls are made."""
    recordings = threads_of(log)
    assert recordings
    with playing(log) as wire:
        wire.call("initialize")
        for records in recordings:
            names: dict[str, str] = {}
            asked: dict[Any, int] = {}
            for record in records:
                recorded = record["payload"]
                if record["kind"] == "rpc_request":
                    params = {name: names.get(str(value), value) for name, value in recorded["params"].items()}
                    asked[wire.send(recorded["method"], **params)] = recorded["id"]
                elif record["kind"] == "server_reply":
                    wire.write(json.dumps(recorded | {"id": int(names[f"ask {recorded['id']}"])}).encode())
                else:
                    played = read_of_thread(wire)
                    if "method" not in played:
                        played["id"] = asked[played["id"]]
                    elif "id" in played:
                        names[f"ask {recorded['id']}"] = str(played["id"])
                        played["id"] = recorded["id"]
                    same_but_for_ids(recorded, played, names)


def read_of_thread(wire: Wire) -> dict[str, Any]:
    """The next message that is about a thread; others may come at any time."""
    while True:
        message = wire.read()
        params = message.get("params") or {}
        if "method" not in message or "threadId" in params or "conversationId" in params:
            return message


def same_but_for_ids(recorded: Any, played: Any, names: dict[str, str]) -> None:
    """Texts that differ are ids, each of which stands for one; numbers, the times of another turn that begins alike."""
    if isinstance(recorded, dict):
        assert recorded.keys() == played.keys()
        for name, value in recorded.items():
            same_but_for_ids(value, played[name], names)
    elif isinstance(recorded, list):
        assert len(recorded) == len(played)
        for one, other in zip(recorded, played, strict=True):
            same_but_for_ids(one, other, names)
    elif recorded != played and isinstance(recorded, int):
        assert min(recorded, played) > 1_000_000_000
    elif recorded != played:
        assert isinstance(recorded, str)
        assert names.setdefault(recorded, played) == played
    elif isinstance(recorded, str):
        names.setdefault(recorded, recorded)


def test_a_log_of_many_files_and_options_of_codex(tmp_path: Path) -> None:
    """A directory of transcripts is one log; overrides are taken, as Codex takes them."""
    (tmp_path / "logs").mkdir()
    for number, word in enumerate(("one", "two"), 1):
        transcript(tmp_path, whole_turn(word, f"said {word}", number)).rename(tmp_path / f"logs/{number}.ndjson")
    (tmp_path / "logs/2.ndjson").write_bytes(
        (tmp_path / "logs/2.ndjson").read_bytes() + b'not a record\n{"t": 9, "dir"'
    )
    errors = tmp_path / "stderr"
    with playing(tmp_path / "logs", "-c", "features.x=false", "-c", 'model="y"', stderr=errors) as wire:
        assert wire.turn("two", model="gpt-5.2") == "said two"
        assert wire.turn("one", model="gpt-5.2") == "said one"
    assert "1 line(s) are not event log records" in errors.read_text()
    assert "the last line of 1 file(s) is torn" in errors.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--replay=missing.ndjson",), "does not exist"),
        (("--replay=empty.ndjson",), "contains no turn of an app-server"),
        (("--replay=good.ndjson", "--speed=-1"), "--speed -1"),
        (("--replay=good.ndjson", "--speed=nan"), "--speed nan"),
        (("--replay=good.ndjson", "--on-miss=forward"), "Choose one of error, nearest"),
        (("--replay=good.ndjson", "--script=s.json"), "either --replay or --script"),
    ],
)
def test_an_unplayable_log_is_reported_in_one_line(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """With exit code 2."""
    transcript(tmp_path, whole_turn("a", "b", 1)).rename(tmp_path / "good.ndjson")
    (tmp_path / "empty.ndjson").write_bytes(b'{"t": 0, "dir": "in", "msg": {"id": 1, "result": {}}}\n')
    done = run_warm("app-server", *arguments, cwd=tmp_path, env={}, text=True, timeout=20)
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
