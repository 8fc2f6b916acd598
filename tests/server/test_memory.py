"""Above PROXY_MAX_RSS no turn is taken; what runs goes on, and the bridge says so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
from harness import KEY, running_bridge

from bridge.app.app import App
from bridge.errors import Overloaded
from bridge.http.sockets import open_sockets
from bridge.server.process import Stop
from bridge.server.run import Server
from bridge.settings import load_settings
from bridge.telemetry import MemoryLimit, resident_bytes

LIMIT = 1000


class Gauge:
    """A reader that reads what the test says."""

    used: int | None = LIMIT

    def __call__(self) -> int | None:
        return self.used


def test_the_limit_itself_is_allowed() -> None:
    """One byte more is refused, with when to come back; where nothing can be read, nothing is refused."""
    gauge = Gauge()
    limit = MemoryLimit(LIMIT, gauge)
    limit.check()
    gauge.used = LIMIT + 1
    with pytest.raises(Overloaded) as refused:
        limit.check()
    assert (refused.value.http_status, refused.value.code, refused.value.retry_after) == (503, "memory_pressure", 5)
    assert limit.shed == 1
    gauge.used = None
    limit.check()
    MemoryLimit(0, lambda: pytest.fail("without a limit nothing is read")).check()


def test_the_memory_in_use_is_what_the_system_says() -> None:
    """More than an interpreter, less than a computer."""
    used = resident_bytes()
    assert used is not None
    assert 10e6 < used < 100e9


@asynccontextmanager
async def served(gauge: Gauge) -> AsyncIterator[str]:
    """A bridge in this loop whose memory is what `gauge` says; its address."""
    settings = load_settings(
        {"PROXY_MOCK_ONLY": "true", "PROXY_STORE": "memory", "PROXY_MAX_RSS": str(LIMIT), "PORT": "0"}
    )
    sockets = open_sockets(settings.host, settings.port)
    server, stop = Server(App(settings, keys=(KEY,), memory=gauge)), Stop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run, sockets, stop)
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        stop.asked.set()
        stop.hurried.set()


async def test_a_bridge_sheds_turns_until_there_is_room() -> None:
    """503 with Retry-After for a turn, also in health and metrics; pages are served; then all is well again."""
    gauge = Gauge()
    async with served(gauge) as root:
        headers = {"authorization": f"Bearer {KEY}"}

        async def send(method: str, path: str, body: Any = None) -> httpx2.Response:
            asking = partial(
                httpx2.request, method, f"{root}{path}", json=body, headers=headers, timeout=30, trust_env=False
            )
            return await trio.to_thread.run_sync(asking)

        turn = partial(send, "POST", "/v1/responses", {"model": "mock-echo", "input": "hi"})
        assert (await turn()).status_code == 200
        gauge.used = LIMIT + 1
        refused = await turn()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        assert refused.json()["error"]["code"] == "memory_pressure"
        ready = await send("GET", "/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "memory_pressure")
        assert (await send("GET", "/healthz")).json() == {"status": "degraded", "reason": "memory_pressure"}
        assert (await send("GET", "/v1/models")).status_code == 200
        numbers = (await send("GET", "/metrics")).text
        assert "turnbridge_turns_shed_total 1.0" in numbers
        assert "turnbridge_ready 0.0" in numbers
        assert "turnbridge_turns_waiting 0.0" in numbers
        assert 'turnbridge_failures_total{code="memory_pressure",side="bridge"} 1.0' in numbers
        gauge.used = LIMIT
        assert (await turn()).status_code == 200
        assert (await send("GET", "/readyz")).status_code == 200


def test_a_real_process(tmp_path: Path) -> None:
    """With a limit that it exceeds from its start."""
    with running_bridge(tmp_path, "--mock-only", PROXY_MAX_RSS="1000000") as bridge:
        refused = bridge.post(
            "/chat/completions", {"model": "mock-echo", "messages": [{"role": "user", "content": "x"}]}
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "memory_pressure")
