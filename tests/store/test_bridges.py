"""Several bridges, as real processes, on one PostgreSQL."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from cli.running import run_command
from harness import KEY, RunningBridge, read_sse, running_bridge
from server.answers import create, create_streamed, ok, refusal, text_of
from server.prompted import MODEL, ask, prompted_codex, wait_for
from store.postgresql import PASSWORD, Postgresql

Start = Callable[..., RunningBridge]
BODY = {"model": "mock-echo", "input": "x"}


@pytest.fixture
def url(postgresql: Postgresql) -> str:
    return postgresql.empty_database()


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    """Starts another bridge on the database, with a directory of its own."""
    with ExitStack() as stack:
        started: list[Path] = []

        def another(*arguments: str, **settings: str) -> RunningBridge:
            directory = tmp_path / f"bridge{len(started)}"
            directory.mkdir()
            started.append(directory)
            flags = arguments or ("--mock-only",)
            return stack.enter_context(running_bridge(directory, *flags, PROXY_STORE=url, **settings))

        yield another
    for directory in started:
        for file in directory.rglob("*"):
            if file.is_file():
                assert PASSWORD.encode() not in file.read_bytes(), f"the password is in {file}"


def health(bridge: RunningBridge) -> tuple[str, str, int]:
    """(status and reason of /healthz, HTTP status of /readyz)."""
    told = httpx2.get(f"{bridge.root}/healthz", trust_env=False).json()
    return told["status"], told["reason"], httpx2.get(f"{bridge.root}/readyz", trust_env=False).status_code


def test_a_conversation_continues_at_any_bridge(start: Start) -> None:
    """As soon as the client has the end of an answer, streamed or not."""
    with start().client() as one, start().client() as two, start().client() as three:
        continue_at_any(one, two, three)


def continue_at_any(*clients: httpx2.Client) -> None:
    chain: list[dict[str, Any]] = []
    for number in range(12):
        make = create if number % 2 else create_streamed
        previous = {"previous_response_id": chain[-1]["id"]} if chain else {}
        chain.append(make(clients[number % 3], f"step {number}", **previous))
        assert chain[-1]["store"] is True
        assert ok(clients[(number + 1) % 3].get(f"/responses/{chain[-1]['id']}")) == chain[-1]
    listed = ok(clients[0].get(f"/responses/{chain[-1]['id']}/input_items", params={"limit": 100, "order": "asc"}))
    assert [item["content"][0]["text"] for item in listed["data"] if item.get("role") == "user"] == [
        f"step {number}" for number in range(12)
    ]
    conversation = ok(clients[0].post("/conversations", json={"metadata": {"a": "1"}}))
    for number, client in enumerate(clients):
        create(client, f"turn {number}", conversation=conversation["id"])
    items = ok(clients[0].get(f"/conversations/{conversation['id']}/items"))["data"]
    assert len(items) == 6
    assert ok(clients[1].delete(f"/responses/{chain[-1]['id']}"))["deleted"]
    assert refusal(clients[2].get(f"/responses/{chain[-1]['id']}"), 404)[0] == "response_not_found"
    # Usage is written a moment later.
    wait_for(lambda: ok(clients[2].get("/usage"))["total"]["requests"] == 15, "the usage of all bridges")


def test_what_a_client_has_heard_the_end_of_survives_its_bridge(start: Start) -> None:
    """Killed without a warning, under load."""
    doomed, other = start(), start()
    ended: list[str] = []

    def load(name: int) -> None:
        with doomed.client() as client:
            for number in range(10_000):
                body = {"model": "mock-echo", "input": f"{name} {number}", "stream": True}
                try:
                    with client.stream("POST", "/responses", json=body) as response:
                        events = list(read_sse(response.iter_lines()))
                except httpx2.TransportError:
                    return
                if events and events[-1]["type"] == "response.completed":
                    ended.append(events[-1]["response"]["id"])

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load, name) for name in range(4)]
        wait_for(lambda: len(ended) > 50, "some answers")
        doomed.process.send_signal(signal.SIGKILL)
        for each in loads:
            each.result()
    doomed.process.wait(30)
    with other.client() as client:
        missing = [id for id in ended if client.get(f"/responses/{id}").status_code != 200]
    assert missing == []


def test_answers_continue_while_the_database_is_gone(start: Start, postgresql: Postgresql, tmp_path: Path) -> None:
    """They say that they are not stored, and health says why; later they are."""
    log = tmp_path / "events.ndjson"
    one, other = start("--mock-only", f"--log-events={log}"), start()
    with one.client() as client, other.client() as elsewhere:
        first = create(client, "before")
        postgresql.stop(signal.SIGKILL)
        try:
            unstored = [create(client, "whole"), create_streamed(client, "streamed")]
            assert [text_of(each) for each in unstored] == ["whole", "streamed"]
            assert [(each["status"], each["store"]) for each in unstored] == [("completed", False)] * 2
            assert health(one) == ("degraded", "store_failing", 200)
            follower = create(client, "again", previous_response_id=unstored[1]["id"])
            assert follower["store"] is False
            answer = elsewhere.post(
                "/responses", json={"model": "mock-echo", "input": "x", "previous_response_id": "r"}
            )
            assert refusal(answer, 503)[0] == "store_unavailable"
            answer = client.post("/conversations", json={})
            assert refusal(answer, 503)[0] == "store_unavailable"
        finally:
            postgresql.start()
        for bridge in (one, other):
            wait_for(lambda bridge=bridge: health(bridge)[0] == "ok", "health")  # type: ignore[misc]
        for response in (first, *unstored, follower):
            # They are written in one batch or two.
            path = f"/responses/{response['id']}"
            wait_for(lambda path=path: elsewhere.get(path).status_code == 200, "the response")  # type: ignore[misc]
            assert text_of(ok(elsewhere.get(f"/responses/{response['id']}"))) == text_of(response)
    assert json.loads(log.read_text().partition("\n")[0])["settings"]["store"] == "postgresql"
    assert PASSWORD not in log.read_text()
    stderr = one.stderr.read_text()
    assert "store: cannot write" in stderr
    assert "store: writing again" in stderr


def test_a_bridge_starts_without_its_database(start: Start, postgresql: Postgresql) -> None:
    """It serves, and uses the database when it is there."""
    postgresql.stop()
    try:
        bridge = start()
        assert health(bridge)[0] == "degraded"
        with bridge.client() as client:
            assert create(client, "early")["store"] is False
    finally:
        postgresql.start()
    wait_for(lambda: health(bridge)[0] == "ok", "health")
    with bridge.client() as client:
        assert create(client, "late")["store"] is True


def test_a_key_is_valid_at_every_bridge_until_it_is_revoked(start: Start, url: str) -> None:
    """No bridge is told, and running answers of a revoked key end at all of them."""
    bridges = [start(), start()]
    made = run_command("keys", "add", "laptop", "--json", PROXY_STORE=url)
    assert made.returncode == 0, made.stderr
    key = json.loads(made.stdout)["key"]
    assert "laptop" in run_command("keys", "list", PROXY_STORE=url).stdout
    for bridge in bridges:
        with bridge.client(key=key) as client:
            create(client, "hello")
    wait_for(lambda: shown_usage(url) == [("laptop", 2)], "the usage of both")
    revoked = run_command("keys", "revoke", "laptop", PROXY_STORE=url)
    assert revoked.stdout.startswith("revoked laptop")
    for bridge in bridges:
        with bridge.client(key=key) as client:
            wait_for(lambda client=client: is_refused(client), "the end of the key", 3)  # type: ignore[misc]


def shown_usage(url: str) -> list[tuple[str, int]]:
    """What `turnbridge usage` shows: keys by their names, and their requests."""
    lines = map(json.loads, run_command("usage", "--json", PROXY_STORE=url).stdout.splitlines())
    return [(line["name"], line["requests"]) for line in lines]


def is_refused(client: httpx2.Client) -> bool:
    return client.post("/responses", json=BODY).status_code == 401


def test_a_background_response_is_in_progress_at_every_bridge(start: Start, tmp_path: Path) -> None:
    """It has not failed because another bridge runs it."""
    codex = {"CODEX_BIN": str(prompted_codex(tmp_path)), "PROXY_MODELS": MODEL}
    one, other = (start("-v", **codex) for _ in range(2))
    with one.client() as client, other.client() as elsewhere:
        begun = ok(client.post("/responses", json=ask({"text": "one"}, {"hang": True}, background=True)))
        assert ok(elsewhere.get(f"/responses/{begun['id']}"))["status"] == "in_progress"
        assert ok(client.post(f"/responses/{begun['id']}/cancel"))["status"] == "cancelled"
        assert ok(elsewhere.get(f"/responses/{begun['id']}"))["status"] == "cancelled"


def test_the_store_commands(url: str, tmp_path: Path, start: Start) -> None:
    """Copy the file of one bridge into the database, check it, and serve from it."""
    with running_bridge(tmp_path, "--mock-only") as alone, alone.client() as client:
        kept = create(client, "kept")
    variables = {"XDG_STATE_HOME": str(tmp_path / "state"), "PROXY_STORE": url}
    assert run_command("store", "migrate", **variables).stdout.startswith("schema 1: ")
    checked = run_command("store", "check", **variables)
    assert checked.stdout == "ok  The PostgreSQL database: 0 responses, 0 conversations, 0 rows of usage, 0 keys\n"
    copied = run_command("store", "copy", "sqlite", "configured", **variables)
    assert copied.stdout == "copied 1 responses, 0 conversations, 1 rows of usage, 0 keys\n", copied.stderr
    again = run_command("store", "copy", "sqlite", "configured", **variables)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "--replace" in again.stderr
    assert run_command("store", "copy", "sqlite", "configured", "--replace", **variables).returncode == 0
    with start().client() as client:
        assert ok(client.get(f"/responses/{kept['id']}")) == kept
    back = run_command("store", "copy", "configured", str(tmp_path / "back.sqlite3"), **variables)
    assert back.stdout.startswith("copied 1 responses")
    assert (tmp_path / "back.sqlite3").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "store",
    [
        f"postgresql://bridge:{PASSWORD}@h@ost/db",
        f"postgresql://bridge:{PASSWORD}/x@host/db",
        f"postgresql://bridge:{PASSWORD}#@host/db",
        f"postgresql://bridge:{PASSWORD}@host",
        f"postgresql://bridge:{PASSWORD}@host:port/db",
        f"postgresq://bridge:{PASSWORD}@host/db",
        f"postgresql://bridge:{PASSWORD}@127.0.0.1:1/db",
    ],
)
def test_no_message_contains_the_password(store: str, tmp_path: Path) -> None:
    variables = {"PROXY_STORE": store, "XDG_STATE_HOME": str(tmp_path)}
    for words in (["store", "check"], ["keys", "list"], ["usage"], ["serve", "--check"]):
        done = run_command(*words, **variables)
        assert done.returncode != 0 or words[0] == "serve", words
        assert PASSWORD not in done.stdout + done.stderr
    checked = run_command("store", "check", **variables)
    assert "PROXY_STORE" in checked.stderr or "refused" in checked.stderr


def test_a_missing_driver_is_named(tmp_path: Path) -> None:
    """It is an extra, and nothing else needs it."""
    program = "import sys; sys.modules['psycopg'] = None; from bridge.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "store", "check"],
        env={"PROXY_STORE": "postgresql://u:p@127.0.0.1:1/db", "XDG_STATE_HOME": str(tmp_path), "PROXY_API_KEY": KEY},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.strip() == (
        "error: PROXY_STORE=postgresql://… needs PostgreSQL's driver. "
        "Install it with: pip install 'turnbridge[postgres]'."
    )


def test_a_frozen_bridge_holds_no_other_up(start: Start) -> None:
    """Whatever it was doing in the database."""
    frozen, other = start(), start()
    with frozen.client() as client, other.client() as elsewhere:
        first = create(client, "one")
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            for number in range(20):
                assert create(elsewhere, f"{number}", previous_response_id=first["id"])["store"] is True
            assert time.monotonic() - started < 20
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        assert create(client, "two", previous_response_id=first["id"])["store"] is True


def test_bridges_share_budgets(start: Start, url: str) -> None:
    """What one has written, the others count; a killed one takes nothing of that with it."""
    bridges = [start(), start()]
    made = run_command("keys", "add", "ci", "--budget", "1tokens/hour", "--json", PROXY_STORE=url)
    key = json.loads(made.stdout)["key"]

    def spent(bridge: RunningBridge) -> int:
        with bridge.client(key=key) as client:
            return int(ok(client.get("/usage"))["budgets"][0]["spent"])

    with bridges[0].client(key=key) as client:
        used = create(client, "hello")["usage"]["total_tokens"]
    wait_for(lambda: spent(bridges[1]) == used, "the usage of the other bridge")
    bridges[0].stop(signal.SIGKILL)
    with bridges[1].client(key=key) as client:
        assert refusal(client.post("/responses", json=BODY), 429)[0] == "budget_exceeded"
    assert spent(bridges[1]) == used
