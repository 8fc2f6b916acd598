"""What the bridge tells about itself: models, usage, rate limits, health."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from harness import KEY, OTHER_KEY, ROOT, TWO_KEYS, RunningBridge, python_program, running_bridge
from real.rig import CURRENT, HOUSE_MODEL, RESPONSES, Rig, start_rig
from server.answers import Json, create, create_streamed, ok, refusal
from server.conftest import LoggedBridge
from server.prompted import MODEL, ask, ask_chat, children_of, open_response, prompted_codex, wait_for
from server.talk import talking

from bridge.app.admission import Admission
from bridge.app.keys import Keyring
from bridge.app.service import Service
from bridge.core.backend import Backend, EventStream
from bridge.core.models import Target
from bridge.core.turn import Turn
from bridge.http.pages import PageRequest
from bridge.ids import new_id
from bridge.routing.router import Router, Served
from bridge.server.pages import Pages
from bridge.store.key_store import KeyFile
from bridge.store.sqlite import SqliteStore

# Models


class Growing(Backend):
    """A backend whose list of models changes."""

    name = "growing"
    listed: tuple[str, ...] = ("one",)

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        raise NotImplementedError

    def models(self) -> list[str]:
        return list(self.listed)

    def lists(self) -> tuple[object, ...] | None:
        return (self.listed,)


async def test_the_list_of_models_is_built_once_for_each_change_and_kind_of_key(tmp_path: Path) -> None:
    """Two keys with the same models share a page; a key with others never gets it."""
    file = tmp_path / "keys.json"
    given: dict[str, tuple[str, ...]] = {"a": (), "b": (), "c": ("o*",)}
    now = datetime(2026, 1, 1, tzinfo=UTC)
    labels = [KeyFile(file).add(name, now=now, models=models)[1].label for name, models in given.items()]
    backend, mock = Growing(), Growing()
    mock.name, mock.listed = "mock", ()
    router = Router(mock, [Served(backend, Target(backend.name))], default="growing")
    store = SqliteStore(None, ttl=60, max_bytes=1024, now=lambda: 0.0)
    service = Service(router, new_id, 1000, 15, store, admission=Admission(Keyring((), KeyFile(file))))
    pages = Pages(service, lambda: None, 0, lambda: 0.0)

    async def shown(label: str) -> tuple[bytes, list[str]]:
        page = await pages.models(PageRequest("/v1/models", {}, {}, label))
        return page.body, [entry["id"] for entry in json.loads(page.body)["data"]]

    (first, all_names), (second, _), (other, few) = [await shown(label) for label in labels]
    assert first is second
    assert (await shown(labels[2]))[0] is other
    assert "one" in all_names
    assert "mock-echo" in all_names
    assert few == ["one"]
    backend.listed = ("one", "other", "two")
    assert {"other", "two"} <= set((await shown(labels[0]))[1])
    assert (await shown(labels[2]))[1] == ["one", "other"]


def names(client: httpx2.Client) -> list[str]:
    """The ids of the models that are listed."""
    listed = ok(client.get("/models"))
    assert listed["object"] == "list"
    for entry in listed["data"]:
        assert list(entry)[:4] == ["id", "object", "created", "owned_by"]
        assert (entry["object"], entry["owned_by"]) == ("model", "turnbridge")
    return [entry["id"] for entry in listed["data"]]


def test_every_listed_model_can_be_looked_at_and_asked(client: httpx2.Client) -> None:
    """The mock ones here."""
    listed = names(client)
    assert listed == ["mock-echo", "mock-text", "mock-tool-call", "mock-tool-loop"]
    for name in listed:
        assert ok(client.get(f"/models/{name}"))["id"] == name
        assert client.post("/responses", json={"model": name, "input": "hi"}).status_code == 200


def test_codexs_models_are_listed(rig: Rig) -> None:
    """Its own, the configured ones, aliases, names with an effort, and the mock models; none twice."""
    expected = {"gpt-6.1-sol", "gpt-6.1-sol-max", HOUSE_MODEL, "guest-model", "mock-echo", "codex-5"}
    wait_for(lambda: expected <= set(names(rig.client)), "Codex has told its models")
    listed = names(rig.client)
    assert len(set(listed)) == len(listed)
    for name in listed:
        assert ok(rig.client.get(f"/models/{name}"))["id"] == name
        assert rig.client.post("/responses/input_tokens", json={"model": name, "input": "hi"}).status_code == 200


@pytest.mark.parametrize("name", ["gpt-4", "mock", "a/b", "%00", "%ff", "x" * 3000, "💥", "mock-echo//", "..%2fusage"])
def test_an_unknown_model_is_not_found(client: httpx2.Client, name: str) -> None:
    """404 with some that exist."""
    answer = client.get(f"/models/{name}")
    assert refusal(answer, 404) == ("model_not_found", "model")
    assert "mock-echo" in answer.json()["error"]["message"]
    assert len(answer.text) < 1000


LISTING = """import sys

sys.path.insert(0, {root!r})
import orjson
import trio
from jsonrpcserver import Success
from bridge.appserver.standin.server import Standin


class Listing(Standin):
    def _call(self, method, /, **params):
        if method != "model/list":
            return super()._call(method, **params)
        models = [{{"id": name, "isDefault": False}} for name in open({models!r}).read().split()]
        return Success({{"data": models, "nextCursor": None}})


trio.run(Listing().run)
"""


def test_the_list_is_that_of_the_child_that_runs(tmp_path: Path) -> None:
    """A child that is replaced may know other models: the list and the requests follow."""
    program, models = tmp_path / "listing-codex", tmp_path / "models.txt"
    python_program(program, LISTING.format(root=str(ROOT), models=str(models)))
    models.write_text("model-a model-b")
    with running_bridge(tmp_path, CODEX_BIN=str(program)) as bridge, bridge.client() as client:
        wait_for(lambda: {"model-a", "model-b"} <= set(names(client)), "the first child's models")
        assert create(client, "hi", model="model-a")["model"] == "model-a"
        models.write_text("model-b model-c")
        for pid in children_of(bridge.process.pid):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "model-c" in names(client), "the new child's models")
        assert "model-a" not in names(client)
        assert client.get("/models/model-a").status_code == 404
        assert create(client, "hi", model="model-c")["model"] == "model-c"
        answer = client.post("/responses", json={"model": "model-a", "input": "hi"})
        assert refusal(answer, 400)[0] == "model_not_found"


# Usage


def rows(client: httpx2.Client, **query: Any) -> dict[tuple[str, str], Json]:
    """This key's rows, by day and model; their sum must be the total."""
    page = ok(client.get("/usage", params=query))
    assert page["object"] == "list"
    for name, total in page["total"].items():
        counts = [row[name] for row in page["data"]]
        assert total == (None if name == "cost" else sum(counts)), "no model has a price here"
    return {(row["day"], row["model"]): row for row in page["data"]}


def today() -> str:
    return datetime.now(UTC).date().isoformat()


COUNTED = {"usage": {"input": 10, "output": 5, "cached": 4, "reasoning": 2}}


@contextmanager
def counting(directory: Path) -> Iterator[RunningBridge]:
    """A bridge with two keys over the prompted child."""
    with running_bridge(
        directory, CODEX_BIN=str(prompted_codex(directory)), PROXY_MODELS=MODEL, PROXY_API_KEY=TWO_KEYS
    ) as bridge:
        yield bridge


def test_usage_is_counted(tmp_path: Path) -> None:
    """By key, model and day; whichever way a request came, failed ones too; and it outlives the bridge."""
    day = today()
    with counting(tmp_path) as bridge, bridge.client() as client, bridge.client(key=OTHER_KEY) as other:
        assert rows(client) == {}
        good = {"text": "hi"}, COUNTED
        ok(client.post("/responses", json=ask(*good)))
        bridge.events("/responses", ask(*good))
        ok(client.post("/chat/completions", json=ask_chat(*good, n=2)))
        with talking(bridge) as talk:
            talk.ask(ask(*good))
        begun = ok(client.post("/responses", json=ask(*good, background=True)))
        wait_for(lambda: ok(client.get(f"/responses/{begun['id']}"))["status"] == "completed", "the response")
        assert client.post("/responses", json=ask({"error": {"message": "boom"}})).status_code == 502
        assert client.post("/responses", json=ask(stream="x")).status_code == 400
        create(client, "hi")
        ok(other.post("/responses", json=ask(*good)))
        wait_for(lambda: rows(client)[day, MODEL]["requests"] == 6, "all of them")
        mine = rows(client)
        assert set(mine) == {(day, MODEL), (day, "mock-echo")} or today() != day
        row = mine[day, MODEL]
        assert row["key"].startswith("key-")
        assert KEY not in json.dumps(row)
        assert (row["requests"], row["failed"]) == (6, 1)
        assert (row["input_tokens"], row["output_tokens"], row["total_tokens"]) == (60, 30, 90)
        assert (row["cached_tokens"], row["reasoning_tokens"]) == (24, 12)
        theirs = rows(other)[day, MODEL]
        assert (theirs["requests"], theirs["input_tokens"]) == (1, 10)
        assert theirs["key"] != row["key"]
    with counting(tmp_path) as bridge, bridge.client() as client, bridge.client(key=OTHER_KEY) as other:
        assert rows(client) == mine
        create_streamed(client, "hi")
        wait_for(lambda: rows(client)[day, "mock-echo"]["requests"] == 2 or today() != day, "one more")
        assert rows(other)[day, MODEL] == theirs


def test_a_client_that_leaves_is_counted(prompted: LoggedBridge) -> None:
    """As a request, not as a failure."""
    with prompted.bridge.client() as client:
        before = rows(client).get((today(), MODEL), {"requests": 0, "failed": 0})
        connection, response = open_response(
            prompted.bridge, "/v1/responses", ask({"text": "one"}, {"hang": "counted-leaver"}, stream=True)
        )
        with closing(connection):
            request = prompted.log.running("counted-leaver")
            response.close()
        wait_for(lambda: prompted.log.turn_end(request), "turn_end")
        after = rows(client)[today(), MODEL]
        assert (after["requests"], after["failed"]) == (before["requests"] + 1, before["failed"])


def test_real_tokens_are_counted(rig: Rig) -> None:
    """What the provider says."""
    before = rows(rig.client).get((today(), "gpt-5.2"), {"input_tokens": 0, "output_tokens": 0})
    assert rig.ask(RESPONSES, {"do": "text", "usage": {"input": 1000, "output": 50}}).usage == (1000, 3, 50, 2)
    after = rows(rig.client)[today(), "gpt-5.2"]
    assert after["input_tokens"] - before["input_tokens"] == 1000
    assert after["output_tokens"] - before["output_tokens"] == 50


def test_usage_of_some_days(client: httpx2.Client) -> None:
    """`days` counts back from today."""
    create(client, "hi")
    assert ok(client.get("/usage", params={"days": 1}))["since"] == today()
    assert (today(), "mock-echo") in rows(client, days=1)
    assert rows(client, days=400) == rows(client)


@pytest.mark.parametrize("days", ["0", "401", "-1", "x", "1.5", "", "²", "9" * 5000])
def test_days_that_make_no_sense_are_refused(client: httpx2.Client, days: str) -> None:
    """1 to 400. (An empty value is none.)"""
    answer = client.get("/usage", params={"days": days})
    if days:
        assert refusal(answer, 400)[1] == "days"
    else:
        assert answer.status_code == 200


# Rate limits


def limits_of(client: httpx2.Client) -> Json:
    """GET /v1/rate-limits."""
    page = ok(client.get("/rate-limits"))
    assert page["object"] == "rate_limits"
    return page


def test_unknown_rate_limits(client: httpx2.Client) -> None:
    """Without an account nothing is known, and that is what is said."""
    page = limits_of(client)
    assert [page[name] for name in ("known", "primary", "secondary", "plan")] == [False, None, None, None]
    answer = client.post("/responses", json={"model": "mock-echo", "input": "hi"})
    assert not [name for name in answer.headers if name.startswith("x-codex-")]


def test_rate_limits_that_the_provider_tells(tmp_path: Path) -> None:
    """From the headers of its answer: in ours, and on the page."""
    headers = {
        "x-codex-primary-used-percent": "42.5",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": "4000000000",
    }
    with start_rig(tmp_path, CURRENT) as rig:
        assert limits_of(rig.client)["known"] is False
        assert rig.ask(RESPONSES, {"do": "text", "headers": headers}).status == 200
        page = wait_for(lambda: (now := limits_of(rig.client))["known"] and now, "the limits")
        assert (page["primary"]["window_minutes"], page["primary"]["resets_at"]) == (300, 4000000000)
        assert 42 <= page["primary"]["used_percent"] <= 43
        answer = rig.ask(RESPONSES, {"do": "text"})
        assert answer.headers["x-codex-primary-window-minutes"] == "300"
        for path in CODEX_PATHS:
            usage = ok(rig.client.get(f"{rig.bridge.root}{path}"))
            limit = usage["rate_limit"]
            assert (limit["allowed"], limit["limit_reached"], limit["secondary_window"]) == (True, False, None)
            window = limit["primary_window"]
            assert (window["limit_window_seconds"], window["reset_at"]) == (18000, 2**31 - 1)
            assert window["used_percent"] in (42, 43)
            assert 0 < window["reset_after_seconds"] < 2**31


CODEX_PATHS = ("/api/codex/usage", "/backend-api/wham/usage")


@pytest.mark.parametrize("path", CODEX_PATHS)
def test_the_limits_in_the_form_of_codex_need_a_key(mock_bridge: RunningBridge, path: str) -> None:
    with mock_bridge.client() as client:
        page = ok(client.get(f"{mock_bridge.root}{path}"))
    assert page == {"plan_type": "guest", "rate_limit": None, "credits": None}
    assert httpx2.get(f"{mock_bridge.root}{path}", trust_env=False).status_code == 401


# Health


def health(bridge: RunningBridge) -> Json:
    """GET /healthz, without a key."""
    return ok(httpx2.get(f"{bridge.root}/healthz", trust_env=False))


FAILING = {"status": "degraded", "reason": "store_failing"}


@contextmanager
def something_in_the_way(bridge: RunningBridge) -> Iterator[None]:
    """A directory where the store's file should be."""
    file = bridge.state / "turnbridge" / "bridge.sqlite3"
    for part in file.parent.glob("bridge.sqlite3*"):
        part.unlink()
    file.mkdir()
    yield
    file.rmdir()


@contextmanager
def a_full_disk(bridge: RunningBridge) -> Iterator[None]:
    """No file of the bridge's can grow beyond a little."""
    log = bridge.state / "turnbridge" / "bridge.sqlite3-wal"
    pid, before = bridge.process.pid, resource.prlimit(bridge.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (max(4096, log.stat().st_size), before[1]))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("trouble", [something_in_the_way, a_full_disk])
def test_a_store_that_cannot_be_written(tmp_path: Path, trouble: Any) -> None:
    """/healthz says so, everything goes on in memory, and when the trouble is over nothing is lost."""
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        wait_for(lambda: health(bridge)["status"] == "ok", "a healthy bridge")
        create(client, "x" * 10_000, model="mock-text")
        with trouble(bridge):
            made = []

            def failing() -> bool:
                made.append(create(client, "x" * 10_000, model="mock-text"))
                return health(bridge) == FAILING

            wait_for(failing, "store_failing")
            assert httpx2.get(f"{bridge.root}/readyz", trust_env=False).status_code == 200
            assert httpx2.get(f"{bridge.root}/livez", trust_env=False).status_code == 200
            first = create(client, "one")
            assert ok(client.get(f"/responses/{first['id']}")) == first
            last = create(client, "two", previous_response_id=first["id"])
        wait_for(lambda: health(bridge)["status"] == "ok", "a healthy bridge again")
        file = bridge.state / "turnbridge" / "bridge.sqlite3"
        wait_for(lambda: any(last["id"].encode() in each.read_bytes() for each in file.parent.iterdir()), "the disk")
        assert "Traceback" not in bridge.stderr.read_text()
    with running_bridge(tmp_path, "--mock-only") as bridge, bridge.client() as client:
        for response in (*made[-1:], first, last):
            assert ok(client.get(f"/responses/{response['id']}")) == response


def test_a_store_in_memory_is_always_well(tmp_path: Path) -> None:
    """There is no file that could fail."""
    with running_bridge(tmp_path, "--mock-only", PROXY_STORE="memory") as bridge, bridge.client() as client:
        create(client, "hi")
        wait_for(lambda: health(bridge)["status"] == "ok", "a healthy bridge")


def test_a_state_directory_that_can_never_be_used(tmp_path: Path) -> None:
    """A file where the directory should be: the program says so and does not start."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "turnbridge").write_text("in the way")
    with pytest.raises(AssertionError) as refused, running_bridge(tmp_path, "--mock-only"):
        pass
    assert "Traceback" not in str(refused.value)
    assert "turnbridge" in str(refused.value)
