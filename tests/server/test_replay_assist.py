"""`serve --replay` in CAP: the client of a replaying bridge gets what the recorded one got, under its own ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import RunningBridge
from log.replayed import play_log
from server.assisted import LINES, OBJECT, SSE, Json, asked, asked_over_socket, assist
from server.prompted import MODEL, ask, prompted_codex
from server.recorded import ended, recording, replaying

EVERYTHING = {"events": ["tool_call", "metrics", "reasoning_stream", "reasoning_raw"]}
THINKING = ({"reasoning": ["First.", "Then."], "raw_reasoning": ["hm"]}, {"deltas": ["so ", "it ", "is"]})


def talk(bridge: RunningBridge) -> dict[str, Any]:
    """What a client gets for one request after the other."""
    got: dict[str, Any] = {}
    for accept in (SSE, LINES, OBJECT):
        got[f"text as {accept}"] = asked(bridge, assist({"deltas": ["Good ", "morning ☕"]}), accept)
        got[f"thoughts as {accept}"] = asked(bridge, assist(*THINKING, meta=EVERYTHING), accept)
        got[f"failure as {accept}"] = asked(bridge, assist({"text": "half"}, {"error": {"message": "broke"}}), accept)
        refused = assist({"error": {"message": "too many", "info": "rateLimitExceeded"}})
        got[f"refusal as {accept}"] = asked(bridge, refused, accept)
    got["over a socket"] = asked_over_socket(bridge, assist(*THINKING))
    got["an older place"] = asked(bridge, assist({"text": "here too"}), path=f"{bridge.root}/assist")
    begun = asked(bridge, assist({"text": "I remember."}))
    more = {"conversation_id": begun[1]["x-conversation-id"]}
    got["a conversation"] = [begun, asked(bridge, assist({"text": "Still."}, **more), OBJECT)]
    got["the same again"] = [asked(bridge, assist({"text": "again"}), OBJECT) for _ in range(3)]
    got["no such model"] = asked(bridge, assist({"text": "x"}, meta={"model": "no-such-model"}))
    got["no question"] = asked(bridge, assist() | {"payload": {"query": " "}})
    return got


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A log, and what the client got while it was written."""
    with recording(tmp_path_factory.mktemp("recorded")) as bridge:
        got = talk(bridge)
        return ended(bridge), got


@pytest.fixture(scope="module")
def player(session: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge that plays it."""
    with replaying(tmp_path_factory.mktemp("replaying"), session[0]) as bridge:
        yield bridge


def test_the_client_cannot_tell_it_from_the_recorded_bridge(session: tuple[Path, Any], player: RunningBridge) -> None:
    """Every byte is equal, conversations and times too, but for the ids that are made of the new request's."""
    now = talk(player)
    assert set(now) == set(session[1])
    for name, got in now.items():
        assert got == session[1][name], name


def test_the_log_gives_the_same_again(session: tuple[Path, Any]) -> None:
    """Times too: nothing had to be made anew."""
    found = play_log(session[0])
    assert [each.lines for each in found if each.lines] == []
    assert {each.recording.path for each in found} == {"/v1/assist", "/assist", "/v1/assist/ws"}


def test_the_form_is_the_clients_choice(session: tuple[Path, Any], player: RunningBridge) -> None:
    """What was recorded in one form can be had in the others."""
    streamed = asked(player, assist({"text": "here too"}), LINES)
    assert "".join(packet["p"] for packet in map(json.loads, streamed[2].splitlines()[:-1])) == "here too"
    whole = asked(player, assist({"text": "here too"}), OBJECT)
    assert json.loads(whole[2])["output"]["text"] == "here too"


def test_a_client_may_request_other_events(tmp_path: Path) -> None:
    """Who asks, in which session, for how long, and which events they want to hear of makes no other question."""
    with recording(tmp_path) as bridge:
        asked(bridge, assist(*THINKING))
        log = ended(bridge)
    with replaying(tmp_path / "replaying", log) as player:
        body = assist(*THINKING, meta={**EVERYTHING, "timeout_ms": 600, "trace": "abc"})
        body["context"]["user"] = {"id": "somebody", "name": "Else"}
        packets = [json.loads(line) for line in asked(player, body, LINES)[2].splitlines()]
    told = [packet["p"]["data"] for packet in packets if packet["op"] == "event"]
    assert [data.get("kind") for data in told if "thought" in data and data["final"]] == ["summary", "summary", "raw"]
    assert "duration_ms" in told[-1]


def test_twenty_clients_at_once_ask_the_same(session: tuple[Path, Any], player: RunningBridge) -> None:
    """A recorded conversation's name goes to one at a time; nobody is told that a turn runs in it."""
    with ThreadPoolExecutor(20) as pool:
        body = assist({"text": "here too"})["payload"]
        asking = [assist() | {"payload": body} for _ in range(20)]
        now = list(pool.map(lambda each: asked(player, each), asking))
    assert {(status, answer) for status, _, answer in now} == {(200, session[1]["an older place"][2])}


def missed(bridge: RunningBridge, body: Json) -> str:
    status, _, answer = asked(bridge, body)
    error = json.loads(answer)
    assert (status, error["code"], error["severity"]) == (404, "no_recording", "fatal")
    return str(error["message"])


def test_a_miss_reports_the_differences(player: RunningBridge) -> None:
    """The place, what is there and what was."""
    told = missed(player, assist({"text": "I remember."}, meta={"instructions": "Be brief."}))
    assert 'payload.meta.instructions: recorded nothing, received "Be brief."' in told
    told = missed(player, assist({"text": "here too"}, conversation_id="mine"))
    assert 'payload.conversation_id: recorded nothing, received "mine"' in told


def test_ignore_and_forward_work_for_cap(session: tuple[Path, Any], tmp_path: Path) -> None:
    """--ignore and --on-miss work as for every protocol; what was played and what was new is one log."""
    log = tmp_path / "new.ndjson"
    options = ("--on-miss", "forward", "--mock-only", "--log-events", str(log))
    with replaying(tmp_path / "a", session[0], "--ignore", "payload.meta.instructions", *options) as player:
        played = asked(player, assist({"text": "here too"}, meta={"instructions": "Be kind."}))
        live = asked(player, assist() | {"payload": {"query": "new", "meta": {"model": "mock-echo"}}}, OBJECT)
    assert played == session[1]["an older place"]
    assert json.loads(live[2])["output"]["text"] == "new"
    assert len(play_log(log)) == 2


def test_a_strict_bridge_plays_a_request_that_continues_an_unknown_one(tmp_path: Path) -> None:
    """The conversation was there when it was recorded."""
    body = assist({"text": "Still."}, conversation_id="mine")
    with recording(tmp_path) as bridge:
        then = asked(bridge, body)
        log = ended(bridge)
    with replaying(tmp_path / "replaying", log, PROXY_CAP_STRICT="true") as player:
        assert asked(player, body) == then


def test_a_forwarded_request_has_its_time_limit(session: tuple[Path, Any], tmp_path: Path) -> None:
    """What is played ends when it did; what is not in the log may not take longer than it says."""
    codex = prompted_codex(tmp_path)
    live = {"CODEX_BIN": str(codex), "PROXY_MODELS": MODEL}
    with replaying(tmp_path / "replaying", session[0], "--on-miss", "forward", **live) as player:
        status, _, answer = asked(player, assist({"text": "slow"}, {"sleep": 60}, meta={"timeout_ms": 50}), OBJECT)
    assert (status, json.loads(answer)["code"]) == (504, "deadline_exceeded")


def test_one_log_answers_in_all_protocols(tmp_path: Path) -> None:
    """Each request is looked for among its like."""
    with recording(tmp_path) as bridge:
        then = asked(bridge, assist({"text": "same words"}))
        other = bridge.post("/responses", ask({"text": "same words"})).json()
        log = ended(bridge)
    with replaying(tmp_path / "replaying", log) as player:
        assert asked(player, assist({"text": "same words"})) == then
        assert player.post("/responses", ask({"text": "same words"})).json() == other
