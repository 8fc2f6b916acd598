"""Clients that leave at any moment, and races for one response: afterwards no task, turn or registry entry is left.

The bridge runs in the test's own loop, so that the test can look inside; clients run in threads, children are real.
"""

from __future__ import annotations

import functools
import json
import random
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
import trio
from harness import KEY
from server.inprocess import Served, served, until
from server.prompted import ask, ask_chat, raw_request, request_headers, send_request
from server.talk import talking

pytestmark = pytest.mark.deep  # each test starts several processes, or waits for real time

STEPS: list[dict[str, Any]] = [{"text": "one", "chunk": 1}, {"sleep": 0.03}, {"text": "two", "chunk": 1}]

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "whole": ("/v1/responses", ask(*STEPS)),
    "streamed": ("/v1/responses", ask(*STEPS, stream=True)),
    "chat": ("/v1/chat/completions", ask_chat(*STEPS)),
    "choices": ("/v1/chat/completions", ask_chat(*STEPS, n=3, stream=True)),
    "stopped": ("/v1/chat/completions", ask_chat(*STEPS, stop="tw", stream=True)),
    "background": ("/v1/responses", ask(*STEPS, background=True)),
    "compaction": ("/v1/responses/compact", ask(*STEPS)),
}


def post(bridge: Served, path: str, body: Any) -> httpx2.Response:
    """One request, from a thread."""
    with client_of(bridge) as client:
        return client.post(path, json=body)


def client_of(bridge: Served) -> httpx2.Client:
    """A client with the key."""
    return httpx2.Client(
        base_url=f"http://127.0.0.1:{bridge.port}/v1",
        headers={"authorization": f"Bearer {KEY}"},
        timeout=20,
        trust_env=False,
    )


async def in_threads(work: Callable[[int], None], times: int, at_once: int = 8) -> None:
    """`work(0)`, `work(1)`, … in threads, some at a time."""
    limiter = trio.CapacityLimiter(at_once)
    async with trio.open_nursery() as nursery:
        for number in range(times):
            nursery.start_soon(functools.partial(trio.to_thread.run_sync, work, number, limiter=limiter))


async def warm_up(bridge: Served) -> int:
    """Wait until the bridge has answered, and is idle again; how many tasks there are then."""
    response = await trio.to_thread.run_sync(post, bridge, "/responses", ask({"text": "hi"}))
    assert response.status_code == 200, response.text
    return await settle(bridge)


async def settle(bridge: Served, expected: int | None = None) -> int:
    """Wait until nothing runs, and until there are no more tasks than `expected`; how many there are."""

    def living() -> int:
        return trio.lowlevel.current_statistics().tasks_living

    await until(lambda: bridge.is_idle, f"an idle bridge: {bridge.service.running}")
    if expected is not None:
        await until(lambda: living() <= expected, f"no more than {expected} tasks")
    else:
        await trio.sleep(0.3)
    return living()


def statuses(bridge: Served) -> set[str]:
    """In which states the stored responses are."""
    store: Any = bridge.service.store
    return {orjson.loads(kept.response.body)["status"] for kept in store._responses.values()}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_client_that_leaves_at_any_moment(tmp_path: Path, kind: str) -> None:
    """Before the answer, in it and after it, by hanging up or by a reset."""
    path, body = REQUESTS[kind]

    def leave(number: int) -> None:
        with send_request(bridge, path, body) as client:  # type: ignore[arg-type]
            if number % 2:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            time.sleep(0.004 * number)

    async with served(tmp_path) as bridge:
        before = await warm_up(bridge)
        await in_threads(leave, 24)
        await settle(bridge, before)
        assert statuses(bridge) <= {"completed"}
        assert await warm_up(bridge) <= before


async def test_a_client_that_leaves_within_its_request(tmp_path: Path) -> None:
    """At every place of the head and the body: nothing begins."""
    whole = raw_request("POST", "/v1/responses", json.dumps(ask({"text": "never"})).encode(), request_headers())

    def leave(number: int) -> None:
        with socket.create_connection(("127.0.0.1", bridge.port)) as client:
            client.sendall(whole[: 1 + number * len(whole) // 24])

    async with served(tmp_path) as bridge:
        before = await warm_up(bridge)
        await in_threads(leave, 24)
        await settle(bridge, before)


@pytest.mark.parametrize("lanes", [False, True], ids=["one-lane", "lanes"])
async def test_a_websocket_that_ends_at_any_moment(tmp_path: Path, lanes: bool) -> None:
    """With requests that run, wait and are being answered."""

    def leave(number: int) -> None:
        with talking(bridge) as talk:  # type: ignore[arg-type]
            for request in range(4):
                talk.send(ask(*STEPS, store=bool(request % 2)), **({"stream_id": str(request)} if lanes else {}))
            time.sleep(0.006 * number)
            if number % 2:
                talk.socket.socket.shutdown(socket.SHUT_RDWR)

    async with served(tmp_path) as bridge:
        before = await warm_up(bridge)
        await in_threads(leave, 24)
        await settle(bridge, before)
        assert statuses(bridge) <= {"completed"}


async def test_a_race_for_one_response(tmp_path: Path) -> None:
    """Somebody cancels it, deletes it, lists, retrieves and continues it, all at once and at any moment of its life."""
    deleted: list[str] = []

    def race(number: int) -> None:
        chance = random.Random(number)
        with client_of(bridge) as client:
            begun = client.post("/responses", json=ask(*STEPS, background=True)).json()
            url = f"/responses/{begun['id']}"
            acts: list[Callable[[], httpx2.Response]] = [
                lambda: client.get(url),
                lambda: client.get(f"{url}/input_items"),
                lambda: client.post(f"{url}/cancel"),
                lambda: client.post("/responses", json=ask({"text": "x"}, previous_response_id=begun["id"])),
                lambda: client.delete(url),
            ]
            chance.shuffle(acts)
            gone = False
            for act in acts:
                time.sleep(chance.random() * 0.03)
                response = act()
                assert response.status_code in ((404, 400) if gone else (200, 400)), response.text
                gone = gone or response.request.method == "DELETE"
            deleted.append(begun["id"])

    async with served(tmp_path) as bridge:
        before = await warm_up(bridge)
        await in_threads(race, 32)
        await settle(bridge, before)
        store: Any = bridge.service.store
        kept = {id for _, id in store._responses}
        assert not kept & set(deleted)


async def test_a_crowd_that_cancels_and_polls(tmp_path: Path) -> None:
    """Several who cancel one stream while its client reads, leaves, or does not read at all."""

    def one(number: int) -> None:
        body = ask({"text": "one"}, {"hang": True}, stream=True)
        with send_request(bridge, "/v1/responses", body) as stream:  # type: ignore[arg-type]
            received = b""
            while b'"in_progress"' not in received:
                received += stream.recv(65536)
            name = received.partition(b'"id":"')[2].partition(b'"')[0].decode()
            if number % 3 == 0:
                stream.close()
            with client_of(bridge) as client:
                for _ in range(3):
                    response = client.post(f"/responses/{name}/cancel")
                    assert response.status_code == 200 or number % 3 == 0, response.text
            if number % 3 == 1:
                with suppress(TimeoutError):
                    while chunk := stream.recv(65536):
                        received += chunk
                        if b"response.incomplete" in received:
                            break
                assert b"response.incomplete" in received

    async with served(tmp_path) as bridge:
        before = await warm_up(bridge)
        await in_threads(one, 15)
        await settle(bridge, before)


async def test_requests_that_fail_leave_nothing(tmp_path: Path) -> None:
    """At their beginning, in the child, and by a child that dies."""
    bodies = [
        ask({"error": {"message": "boom"}}),
        ask({"text": "x"}, {"error": {"message": "boom"}}, stream=True),
        ask(),
        ask({"text": "x"}, model="none"),
        ask({"text": "x"}, previous_response_id="resp_unknown"),
        ask({"text": "x"}, tools=[{"type": "function"}]),
    ]
    deadly = [ask({"exit": 3}), ask({"text": "x"}, {"signal": 9}, stream=True)]

    def fail(number: int) -> None:
        response = post(bridge, "/responses", (bodies * 4 + deadly)[number])
        assert response.status_code != 500, response.text

    async with served(tmp_path) as bridge:
        before = await warm_up(bridge)
        await in_threads(fail, len(bodies) * 4 + len(deadly), at_once=2)
        await settle(bridge, before)
        assert await warm_up(bridge) <= before
