"""Children, supervisors and whole bridges in the test's own trio loop, to look inside. The children are processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import trio
from harness import KEY
from server.prompted import MODEL, prompted_codex

from bridge.app.app import App
from bridge.app.service import Service
from bridge.appserver.launch import Command
from bridge.appserver.stream import TurnStream
from bridge.appserver.supervisor import Pool, RestartPolicy, Supervisor
from bridge.core.backend import EventStream
from bridge.core.collect import Result
from bridge.core.events import Finished, TurnEvent
from bridge.core.items import Message, Text
from bridge.core.turn import Turn
from bridge.http.sockets import open_sockets
from bridge.log.record import Recorder
from bridge.protocols.chat.request import FORM
from bridge.redact import Redactor
from bridge.server.process import Stop
from bridge.server.run import Server
from bridge.settings import load_settings

QUICK = RestartPolicy(first_delay=0.01, max_delay=0.01, max_deaths=1000)
"""For tests in which a child dies and its successor is wanted at once."""


class Program:
    """A launcher of one command line."""

    name = "test"

    def __init__(self, *argv: str | Path) -> None:
        self.argv = [str(argument) for argument in argv]
        self.starts: list[float] = []

    async def command(self) -> Command:
        self.starts.append(trio.current_time())
        return Command(self.argv, dict(os.environ))

    async def learn(self, info: Any, command: Any) -> bool:
        return False

    async def lacks_roots(self, command: Any) -> bool:
        return False


def python(source: str, *arguments: str) -> Program:
    """A child that is a small Python program."""
    return Program(sys.executable, "-S", "-E", "-c", source, *arguments)


class Tape:
    """A tap that keeps what it sees, as records."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self.recorder = Recorder(self._lines.append, lambda: ("", 0.0), Redactor(), "run")

    @property
    def records(self) -> list[dict[str, Any]]:
        """What the log would hold."""
        return [json.loads(line) for line in b"".join(self._lines).splitlines()]

    def calls(self) -> list[str]:
        """The methods that were called, without the handshake's."""
        methods = [record["method"] for record in self.records if record["kind"] == "rpc_request"]
        around = ("initialize", "bridge/probe", "model/list", "account/read")
        return [method for method in methods if method not in around]


@asynccontextmanager
async def supervised(program: Any, settings: Any = None, **options: Any) -> AsyncIterator[Supervisor]:
    """A supervisor that runs."""
    from bridge.appserver.turn import ChildSettings

    options.setdefault("policy", QUICK)
    supervisor = Supervisor(program, settings or ChildSettings(), **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        yield supervisor
        nursery.cancel_scope.cancel()


def turn(*steps: dict[str, Any], endpoint: Literal["responses", "chat"] = "responses", text: str | None = None) -> Turn:
    """A turn for the prompted child, or with any other text."""
    said = json.dumps(list(steps)) if text is None else text
    form: Any = FORM if endpoint == "chat" else {}
    return Turn(MODEL, MODEL, (Message("user", (Text(said),)),), **form)


async def finish(stream: EventStream) -> Result:
    """All events of a turn, collected; then it is let go."""
    result = Result()
    while result.end is None:
        result.add(await stream.next())
    stream.close()
    return result


async def first_text(stream: TurnStream) -> list[TurnEvent]:
    """The first batch of events; the turn goes on."""
    events = await stream.next()
    assert not any(isinstance(event, Finished) for event in events)
    return events


async def until(condition: Callable[[], object], what: str, seconds: float = 10) -> None:
    """Look again and again until `condition` is true."""
    with trio.move_on_after(seconds) as limit:
        while not condition():
            await trio.sleep(0.005)
    assert not limit.cancelled_caught, f"not within {seconds:g} s: {what}"


# A whole bridge


@dataclass
class Served:
    """A bridge that serves a port from this loop. `service` can be looked into."""

    port: int
    service: Service
    pools: list[Pool]

    @property
    def is_idle(self) -> bool:
        """Nothing is being answered, here or in a child."""
        return not self.service.running and not sum(pool.turns for pool in self.pools)


@asynccontextmanager
async def served(directory: Path, **environment: str) -> AsyncIterator[Served]:
    """A bridge over the prompted child, in this loop; clients are best run in threads."""
    settings = load_settings(
        {
            "CODEX_BIN": str(prompted_codex(directory)),
            "CODEX_HOME": str(directory),
            "PROXY_MODELS": MODEL,
            "PROXY_CODEX_WORKDIR": str(directory / "work"),
            "PROXY_STORE": "memory",
            "PROXY_GRACE": "0",
            "PORT": "0",
            **environment,
        }
    )
    settings.workdir.mkdir(mode=0o700, exist_ok=True)
    sockets = open_sockets(settings.host, settings.port)
    app, stop = App(settings, keys=(KEY,)), Stop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Server(app).run, sockets, stop)
        yield Served(sockets[0].getsockname()[1], app.service, [each for each in app.runners if isinstance(each, Pool)])
        stop.asked.set()
        stop.hurried.set()
