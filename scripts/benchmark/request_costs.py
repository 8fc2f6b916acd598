"""What a request costs the bridge, many at once and one at a time, and when its answer begins."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bridge_process import DIRECTORY, Bridge, bridges
from clients import Kind, ask_many, http, websocket
from side_by_side import Run, Unsupported, Values, percentile
from table import Part, time_at_most

SHORT = {"model": "bench-short", "input": "hi"}
MODELS_PAGE = http("GET", "/v1/models")
TURN = http("POST", "/v1/responses", SHORT)
STREAMED = http("POST", "/v1/responses", SHORT | {"stream": True})
CHAT = http("POST", "/v1/chat/completions", {"model": "bench-short", "messages": [{"role": "user", "content": "hi"}]})
SOCKET = websocket("/v1/responses", {"type": "response.create", **SHORT})


def cost(bridge: Bridge, kind: Kind, total: int = 800) -> float:
    """CPU µs per request, 16 at once."""
    before = bridge.settled_cpu()
    ask_many(bridge, kind, total)
    return (bridge.settled_cpu() - before) / total * 1e6


def row(name: str, kind: Kind) -> Callable[[Bridge], Values]:
    """Measures one row."""
    return lambda bridge: {name: cost(bridge, kind)}


def warm(running: list[Bridge | None], *kinds: Kind) -> None:
    """Import, cache and start all that the first requests do."""
    for bridge in filter(None, running):
        for kind in kinds:
            with suppress(Unsupported):  # which is reported when it is measured
                ask_many(bridge, kind, 200)


def at_once(run: Run) -> list[Values]:
    kinds = dict(zip(AT_ONCE.rows, (MODELS_PAGE, TURN, STREAMED, CHAT, SOCKET), strict=True))
    with bridges(run) as running:
        warm(running, MODELS_PAGE, TURN)
        return run.medians(running, *[row(name, kind) for name, kind in kinds.items()])


AT_ONCE = Part(
    "requests, 16 at once",
    {
        "GET /v1/models, CPU µs": time_at_most(160),
        "short turn, CPU µs": time_at_most(500),
        "short turn streamed, CPU µs": time_at_most(500),
        "short turn, chat, CPU µs": time_at_most(500),
        "short turn, WebSocket, CPU µs": None,
    },
    at_once,
)


@contextmanager
def provider() -> Iterator[int]:
    """The port of provider.py, in a process of its own."""
    process = subprocess.Popen([sys.executable, "-S", DIRECTORY / "provider.py"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def over_http(run: Run) -> list[Values]:
    """The same turn as `bench-short`, answered by a provider over HTTP instead of the child."""
    types = dict(zip(OVER_HTTP.rows, ("openai", "responses"), strict=True))
    with provider() as port, tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config.toml"
        config.write_text(
            "".join(
                f'[backends.bench-{type_}]\ntype = "{type_}"\nbase_url = "http://127.0.0.1:{port}/v1"\n'
                f'key = "none"\nmodels = ["bench-{type_}"]\n'
                for type_ in types.values()
            )
        )
        with bridges(run, PROXY_CONFIG=str(config)) as running:
            kinds = {
                name: http("POST", "/v1/responses", {"model": f"bench-{type_}", "input": "hi"})
                for name, type_ in types.items()
            }
            warm(running, *kinds.values())
            return run.medians(running, *[row(name, kind) for name, kind in kinds.items()])


OVER_HTTP = Part(
    "requests to an HTTP backend, 16 at once",
    {"short turn, backend type=openai, CPU µs": None, "short turn, backend type=responses, CPU µs": None},
    over_http,
)


def ask(connection: socket.socket, kind: Kind) -> float:
    """One request on a connection, its answer read to the end: seconds to the first byte."""
    began = time.perf_counter()
    connection.sendall(kind.request)
    data = connection.recv(1 << 16)
    first = time.perf_counter() - began
    while not kind.is_whole(data):
        piece = connection.recv(1 << 16)
        if not piece:
            raise ConnectionError("the bridge has closed a connection in the middle of an answer")
        data += piece
    return first


def kept(bridge: Bridge, count: int = 500) -> Values:
    """One request after the other on one connection."""
    with STREAMED.connect(bridge) as connection:
        for _ in range(20):
            ask(connection, STREAMED)
        before = bridge.settled_cpu()
        times = [1000 * ask(connection, STREAMED) for _ in range(count)]
        used = bridge.settled_cpu() - before
    cpu, p50, p99 = list(ONE_AT_A_TIME.rows)[:3]
    return {cpu: used / count * 1e6, p50: percentile(times, 0.5), p99: percentile(times, 0.99)}


def on_new_connections(bridge: Bridge, count: int = 200) -> Values:
    """Each request on a connection of its own, whose making counts."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        with STREAMED.connect(bridge) as connection:
            connected = time.perf_counter() - began
            times.append(1000 * (connected + ask(connection, STREAMED)))
    return {list(ONE_AT_A_TIME.rows)[3]: percentile(times, 0.5)}


def one_at_a_time(run: Run) -> list[Values]:
    with bridges(run) as running:
        warm(running, STREAMED)
        return run.medians(running, kept, on_new_connections)


ONE_AT_A_TIME = Part(
    "requests, one at a time",
    {
        "short turn streamed, one at a time, CPU µs": None,
        "first byte p50, kept connection, ms": time_at_most(0.75),
        "first byte p99, kept connection, ms": None,
        "first byte p50, new connection, ms": None,
    },
    one_at_a_time,
)
