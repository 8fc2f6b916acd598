"""The turns of a running bridge: the list, one turn, and what can be done with it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from harness import RunningBridge
from page.visiting import client_key, opened, prompted_bridge, row_with, rows, visitor
from server.prompted import LOOK, EventLog, ask, ask_chat, wait_for

from bridge.core.events import Finished
from bridge.core.observer import TurnFacts
from bridge.lab.suite import load_suite
from bridge.log.export import ExportedTurn
from bridge.log.export.html import conversation_block, list_row, wire_block
from bridge.log.read import RecordReader
from bridge.log.recording import read_recordings
from bridge.page.ring import Ring
from bridge.page.turns import Turns

CALL = '<tool_call>{"name":"look","arguments":{"q":"%s"}}</tool_call>'


def test_a_turn_is_listed_and_opened(bridge: RunningBridge, client: httpx2.Client) -> None:
    bridge.events("/responses", ask({"deltas": ["Hello ", "world"]}, instructions="greet-42"))
    row = row_with(client, "greet-42", running=False)
    assert (row["outcome"], row["path"], row["protocol"]) == ("completed", "/v1/responses", "responses")
    turn = opened(client, row["id"])
    assert [part[1:3] for part in turn["answers"][0]["parts"]] == [["text", "Hello world"]]
    assert turn["row"] == row
    wire = client.get(f"/page/api/turns/{row['id']}/wire").json()
    methods = [frame[3] for frame in wire["frames"]]
    assert methods.count("item/agentMessage/delta") == 2
    assert {"thread/start", "turn/start", "turn/completed"} <= set(methods)


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/responses", ask({"deltas": ["a ", "b ", "c"]}, stream=True)),
    "whole": ("/responses", ask({"text": "some text", "chunk": 3})),
    "thought": ("/chat/completions", ask_chat({"reasoning": ["hm"]}, {"text": "so"}, stream=True)),
    "call": ("/responses", ask({"text": f"look: {CALL % 'x'}", "chunk": 5}, tools=[LOOK], stream=True)),
    "broken call": (
        "/responses",
        ask({"text": '<tool_call>{"name":"look","arguments":{"q":1,}}</tool_call>'}, tools=[LOOK]),
    ),
    "no call": ("/responses", ask({"text": '<tool_call>{"name":"other"}</tool_call>'}, tools=[LOOK])),
    "retried": ("/responses", ask({"text": "first"}, {"retry": "again"}, {"text": "second"})),
    "asked": ("/responses", ask({"request": {"method": "item/tool/requestUserInput", "params": {}}}, {"text": "on"})),
    "failed": ("/responses", ask({"text": "half"}, {"error": {"message": "no", "info": "other"}}, stream=True)),
    "three choices": ("/chat/completions", ask_chat({"text": "one of them"}, n=3)),
    "no such model": ("/responses", {"model": "nothing-like-it", "input": "hi"}),
    "unreadable": ("/responses", {"model": 7}),
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A bridge with a ring and an event log."""
    directory = tmp_path_factory.mktemp("both")
    log = directory / "events.ndjson"
    with prompted_bridge(directory, f"--log-events={log}") as running:
        yield running, EventLog(log)


@pytest.mark.parametrize("kind", REQUESTS)
def test_the_ring_shows_what_the_event_log_shows(both: tuple[RunningBridge, EventLog], kind: str) -> None:
    """The same request, read from memory and from the log: conversation, messages and row are the same."""
    bridge, log = both
    path, body = REQUESTS[kind]
    with visitor(bridge) as client:
        name = bridge.post(path, body | {"metadata": {"test": kind}}).headers["x-request-id"]
        wait_for(lambda: log.turn_end(name), "the end is in the log")
        shown, wire = opened(client, name), client.get(f"/page/api/turns/{name}/wire").json()
    (recording,) = [each for each in read_recordings(RecordReader([log.path])) if each.id == name]
    exported = ExportedTurn(recording)
    expected, messages = json.loads(json.dumps([conversation_block(exported), wire_block(exported.recording)]))
    run = expected.pop("run")
    assert shown["run"]["program"] == run["program"]
    assert {each: shown[each] for each in expected} == expected
    row = list_row(exported)
    own = {"ts", "total_s"}  # each takes the time itself
    assert {each: shown["row"][each] for each in row.keys() - own} == {each: row[each] for each in row.keys() - own}
    # Without times and numbers of reads: each took its own.
    assert [[frame[1:4], frame[5:]] for frame in wire["frames"]] == [
        [frame[1:4], frame[5:]] for frame in messages["frames"]
    ]
    assert [piece[1:] for piece in wire["client"]] == [piece[1:] for piece in messages["client"]]


def test_running_turns_come_first_and_can_be_cancelled(bridge: RunningBridge, client: httpx2.Client) -> None:
    body = ask({"text": "a while "}, {"hang": True}, instructions="hang-17", stream=True)
    asking = threading.Thread(target=bridge.post, args=("/responses", body))
    asking.start()
    row = row_with(client, "hang-17", running=True)
    bridge.post("/responses", ask({"text": "short"}))
    assert rows(client)[0]["id"] == row["id"]
    assert client.post(f"/page/api/turns/{row['id']}/cancel", json={}).status_code == 204
    asking.join(30)
    assert row_with(client, "hang-17", running=False)["outcome"] == "cancelled"
    again = client.post(f"/page/api/turns/{row['id']}/cancel", json={})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "turn_over")
    assert client.post("/page/api/turns/req_none/cancel", json={}).status_code == 404


def test_filters_are_those_of_log_ls(bridge: RunningBridge, client: httpx2.Client) -> None:
    bridge.post("/responses", ask({"error": {"message": "no", "info": "other"}}, instructions="filter-5"))
    bridge.post("/responses", ask({"text": f"{CALL % 'y'}"}, tools=[LOOK], instructions="filter-5"))
    assert {row["outcome"] for row in rows(client, grep="filter-5")} == {"failed", "completed"}
    assert [row["outcome"] for row in rows(client, grep="filter-5", outcome="failed")] == ["failed"]
    assert [row["calls"] for row in rows(client, grep="filter-5", tool="lo*")] == [["look"]]
    assert rows(client, grep="filter-5", path="chat") == []
    assert rows(client, grep="filter-5", until="2020-01-01") == []
    for query, named in (({"outcome": "good"}, "Invalid outcome 'good'."), ({"since": "x"}, "Invalid since 'x'.")):
        refused = client.get("/page/api/turns", params=query)
        assert (refused.status_code, refused.json()["error"]["message"].startswith(named)) == (400, True)


def test_the_list_comes_in_pages(bridge: RunningBridge, client: httpx2.Client) -> None:
    for _ in range(5):
        bridge.post("/responses", ask({"text": "page"}, instructions="pages-3"))
    first = client.get("/page/api/turns", params={"grep": "pages-3", "limit": "2"}).json()
    seen = [row["id"] for row in first["turns"]]
    after = first["next"]
    while after is not None:
        answer = client.get("/page/api/turns", params={"grep": "pages-3", "limit": "2", "before": after}).json()
        seen += [row["id"] for row in answer["turns"]]
        after = answer["next"]
    assert seen == [row["id"] for row in rows(client, grep="pages-3")]
    assert len(seen) == 5
    assert client.get("/page/api/turns", params={"before": "x"}).status_code == 400


def test_a_request_is_sent_again_with_changes(bridge: RunningBridge, client: httpx2.Client) -> None:
    bridge.post("/chat/completions", ask_chat({"text": "first"}, user="again-9"))
    name = row_with(client, "again-9", running=False)["id"]
    sent = client.post(f"/page/api/turns/{name}/send", json={})
    assert sent.status_code == 200, sent.text
    assert texts_of(client, sent.json()["id"]) == ["first"]
    changed = client.post(
        f"/page/api/turns/{name}/send", json={"model": "mock-echo", "body": ask_chat({"text": "x"}, user="again-9")}
    ).json()["id"]
    assert wait_for(lambda: ended_row(client, changed), "it ends")["model"] == "mock-echo"
    refused = client.post(f"/page/api/turns/{name}/send", json={"modle": "x"})
    assert refused.status_code == 400
    assert client.post("/page/api/turns/req_none/send", json={}).status_code == 404


def test_a_crash_shows_the_childs_exit_and_its_stderr(bridge: RunningBridge, client: httpx2.Client) -> None:
    body = ask(
        {"text": "so far "}, {"stderr": "panicked at lib.rs:7"}, {"sleep": 0.2}, {"exit": 3}, instructions="oh-6"
    )
    assert bridge.post("/responses", body).status_code == 502
    name = row_with(client, "oh-6", running=False)["id"]
    turn = wait_for(lambda: found if (found := opened(client, name))["exit"] else None, "the exit is known")
    assert turn["error"]["code"] == "backend_crashed"
    assert turn["exit"][0] == "ended with exit code 3"
    assert "panicked at lib.rs:7" in turn["stderr"]


def test_turns_of_a_conversation_are_linked(bridge: RunningBridge, client: httpx2.Client) -> None:
    first = bridge.post("/responses", ask({"text": "one"})).json()
    second = bridge.post("/responses", ask({"text": "two"}, previous_response_id=first["id"], instructions=None))
    later = second.headers["x-request-id"]
    turn = opened(client, later)
    assert turn["thread"]["continued"] is True
    before = opened(client, turn["previous"])
    assert before["next"] == later
    assert before["answers"][0]["parts"][0][2] == "one"


def test_the_injected_text_for_tools_is_shown(bridge: RunningBridge, client: httpx2.Client) -> None:
    name = bridge.post("/responses", ask({"text": "hm"}, tools=[LOOK])).headers["x-request-id"]
    assert "<tool_call>" in opened(client, name)["instructions"]


def test_exports_are_those_of_log_export(bridge: RunningBridge, client: httpx2.Client) -> None:
    name = bridge.post("/responses", ask({"text": "exported text"})).headers["x-request-id"]
    for form, kind in (("html", "text/html"), ("har", "application/json"), ("jsonl", "application/x-ndjson")):
        answer = client.get(f"/page/api/turns/{name}/export", params={"format": form})
        assert answer.headers["content-type"].startswith(kind)
        assert answer.headers["content-disposition"] == f'attachment; filename="{name}.{form}"'
        assert "exported text" in answer.text
    assert client.get(f"/page/api/turns/{name}/export", params={"format": "pdf"}).status_code == 400


def test_a_turn_becomes_a_case_of_the_laboratory(bridge: RunningBridge, client: httpx2.Client, tmp_path: Path) -> None:
    """The lab reads it, and expects the calls that were made."""
    body = ask({"text": CALL % "NO"}, tools=[LOOK], instructions="Answer: yes\n# no", tool_choice="required")
    name = bridge.post("/responses", body).headers["x-request-id"]
    text = client.post(f"/page/api/turns/{name}/case", json={}).json()["yaml"]
    assert yaml.safe_load(text)["cases"][0]["expect"]["calls"] == [{"name": "look", "arguments": {"q": "NO"}}]
    file = tmp_path / "case.yaml"
    file.write_text(text)
    (case,) = load_suite(file).cases
    assert (case.instructions, case.tool_choice.mode) == ("Answer: yes\n# no", "required")
    assert case.expect.calls[0].arguments == {"q": "NO"}


def test_a_client_sees_its_own_turns_only(bridge: RunningBridge, client: httpx2.Client) -> None:
    own_key, other_key = client_key(bridge, "own"), client_key(bridge, "other")
    with bridge.client(key=own_key) as asking:
        own = asking.post("/responses", json=ask({"text": "mine"})).headers["x-request-id"]
    theirs = bridge.post("/responses", ask({"text": "not yours"})).headers["x-request-id"]
    with visitor(bridge, own_key) as owner, visitor(bridge, other_key) as stranger:
        assert [row["id"] for row in rows(owner)] == [own]
        assert rows(stranger) == []
        assert opened(owner, own)["answers"][0]["parts"][0][2] == "mine"
        for name in (own, theirs):
            for path in ("", "/wire", "/neighbours", "/events", "/export"):
                assert stranger.get(f"/page/api/turns/{name}{path}").status_code == 404, path
            for path in ("case", "send"):
                assert stranger.post(f"/page/api/turns/{name}/{path}", json={}).status_code == 404, path
            assert stranger.post(f"/page/api/turns/{name}/cancel", json={}).status_code == 403
        overview = owner.get("/page/api/overview").json()
        assert [row["name"] for row in overview["by"]["key"]] == [rows(owner)[0]["key"]]
        assert (overview["children"], overview["limits"]) == ([], [])
        assert stranger.get("/page/api/overview").json()["series"] == []
    assert {own, theirs} <= {row["id"] for row in rows(client)}


def test_a_client_does_not_see_what_passed_behind_the_bridge(bridge: RunningBridge) -> None:
    """Messages of a backend name directories of the operator, and so may a child's last words."""
    key = client_key(bridge, "outside")
    steps = ({"text": "half "}, {"stderr": "cannot open it"}, {"sleep": 0.2}, {"exit": 4})
    with visitor(bridge, key) as owner, bridge.client(key=key) as asking, visitor(bridge) as operator:
        name = asking.post("/responses", json=ask(*steps)).headers["x-request-id"]
        seen = wait_for(lambda: found if (found := opened(operator, name))["exit"] else None, "the exit is known")
        assert seen["stderr"] == ["cannot open it"]
        turn = opened(owner, name)
        assert (turn["exit"], turn["stderr"], turn["instructions"]) == (None, None, None)
        assert turn["error"]["code"] == "backend_crashed"
        assert not names_calls(owner, name)
        assert names_calls(operator, name)


def names_calls(client: httpx2.Client, name: str) -> bool:
    """Whether the page shows a call to the child anywhere in a turn."""
    paths = ("", "/wire", "/events", "/export?format=html", "/export?format=har", "/export?format=jsonl")
    shown = "".join(client.get(f"/page/api/turns/{name}{path}").text for path in paths)
    return "turn/start" in shown


def test_the_overview_names_children_models_and_numbers(bridge: RunningBridge, client: httpx2.Client) -> None:
    bridge.post("/responses", ask({"text": "counted"}))
    overview = client.get("/page/api/overview").json()
    assert sum(bucket["requests"] for bucket in overview["series"]) >= 1
    assert {child["backend"] for child in overview["children"]} == {"app-server", "mock"}
    (codex,) = [child for child in overview["children"] if child["backend"] == "app-server"]
    assert (codex["state"], codex["memory_bytes"] > 1e6) == ("handshake_complete", True)
    assert "mock-echo" in {model["name"] for model in overview["models"]}
    assert overview["health"]["page"]["turns"] >= 1
    assert client.get("/page/api/overview", params={"hours": "0"}).status_code == 400


def ended_row(client: httpx2.Client, name: str) -> dict[str, Any] | None:
    """The row of a turn that has ended."""
    answer = client.get(f"/page/api/turns/{name}")
    row: dict[str, Any] | None = answer.json()["row"] if answer.status_code == 200 else None
    return row if row is not None and not row["running"] else None


def texts_of(client: httpx2.Client, name: str) -> list[str]:
    """The texts of an answer, once it has ended."""
    wait_for(lambda: ended_row(client, name), "it ends")
    return [part[2] for part in opened(client, name)["answers"][0]["parts"]]


async def test_the_turn_that_was_opened_last_is_not_read_again() -> None:
    """Its messages are asked for next. A key sees its own side of it, and news are never missed."""
    ring = Ring(1 << 20)
    facts = TurnFacts("req_1", "key-a", 0.0)
    ring.arrived(facts, {"path": "/v1/responses", "body": {"model": "m", "input": "hi"}})
    turns = Turns(ring, None)
    assert await turns.find("req_1", None) is not await turns.find("req_1", None), "it runs"
    ring.ended(facts, Finished("completed"), None, 1.0)
    opened = await turns.find("req_1", None)
    assert opened.recording.complete
    assert await turns.find("req_1", None) is opened
    assert (await turns.find("req_1", "key-a")).recording.attempts == {}
    ring.client_json("req_1", b'{"id":"late"}')
    assert [piece.payload for piece in (await turns.find("req_1", None)).recording.client] == [{"id": "late"}]


def test_patterns_are_shown_as_people_write_them(client: httpx2.Client) -> None:
    models = client.get("/page/api/overview").json()["models"]
    assert {"gpt-*", "codex-*"} <= {each["name"] for each in models if each["route"] == "pattern"}, models


def test_costs_are_in_the_list_in_the_turn_and_in_the_overview(tmp_path: Path) -> None:
    config = tmp_path / "bridge.toml"
    config.write_text('[prices]\ncurrency = "EUR"\n[prices.models]\n"mock-e*" = { input = 1000000, output = 1000000 }')
    with prompted_bridge(tmp_path, "--config", str(config)) as bridge, visitor(bridge) as client:
        for model in ("mock-echo", "mock-text"):
            assert bridge.post("/responses", {"model": model, "input": "one two three"}).status_code == 200
        by_model = {row["model"]: row for row in rows(client)}
        echo = by_model["mock-echo"]
        cost = f"{echo['input_tokens'] + echo['output_tokens']} EUR"
        assert (echo["cost"], by_model["mock-text"]["cost"]) == (cost, None)
        assert opened(client, echo["id"])["row"]["cost"] == cost
        overview = client.get("/page/api/overview").json()
        assert {row["name"]: row["cost"] for row in overview["by"]["model"]} == {"mock-echo": cost, "mock-text": None}
        assert [bucket["cost"] for bucket in overview["series"]][-1] == cost
