"""A script-like harness for every protocol: the HTTP application in the test's own trio loop, over a scripted model.

    async with open_desk() as desk:
        call = desk.post("/v1/chat/completions", {"model": MODEL, "stream": True, "messages": [...]})
        play = await desk.model.play()
        play.say("Hel", "lo")
        await call.until("lo")
        play.finish()
        assert (await call.whole()).status == 200

No sockets and no processes: with an autojump clock, every wait costs nothing. A `Call` is one connection.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import trio
from harness import KEY, OTHER_KEY

from bridge.app.keys import Keyring
from bridge.app.service import Service
from bridge.core.backend import Backend, EventStream
from bridge.core.events import Finished, TextDelta, TurnEvent, Usage, UsageUpdate
from bridge.core.items import Message
from bridge.core.models import ModelChoice, Target
from bridge.core.turn import Turn
from bridge.errors import BridgeError, PayloadTooLarge
from bridge.http.head import Head
from bridge.http.request import ClientGone, Headers, Request
from bridge.routing.router import Router, Served
from bridge.server.gate import Gate
from bridge.server.routes import build_app
from bridge.store.sqlite import SqliteStore

Json = dict[str, Any]
MODEL = "told"
SSE, NDJSON, JSON = "text/event-stream", "application/x-ndjson", "application/json"

# The model


class Play:
    """One turn of the model: an EventStream for the bridge, which the test fills."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.closed = trio.Event()
        """The bridge has closed the stream."""
        self.taken = 0
        """The number of batches that the bridge has read."""
        self._send, self._receive = trio.open_memory_channel[list[TurnEvent]](float("inf"))

    async def next(self) -> list[TurnEvent]:
        events = await self._receive.receive()
        self.taken += 1
        return events

    def close(self) -> None:
        self.closed.set()

    def say(self, *pieces: str) -> None:
        """Send text; each piece is a delta."""
        self.tell(TextDelta("msg_1", list(pieces)))

    def tell(self, *events: TurnEvent) -> None:
        """Send a batch of events."""
        self._send.send_nowait(list(events))

    def finish(self, outcome: Any = "completed", reason: str | None = None) -> None:
        """Send the usage and the end."""
        self.tell(UsageUpdate(Usage(5, 0, 2)), Finished(outcome, reason))

    def fail(self, error: BridgeError) -> None:
        """Send a failure as the end."""
        self.tell(Finished("failed", error=error))

    def history(self) -> list[str]:
        """The texts that the model was given."""
        return [item.text for item in self.turn.items if isinstance(item, Message)]


class Model(Backend):
    """Answers with what the test sends. `opening` blocks every turn before it begins; `refuses` is raised there."""

    def __init__(self, name: str = "telling", model: str = MODEL) -> None:
        self.name = name
        self.model = model
        self.plays: list[Play] = []
        self.opening: trio.Event | None = None
        self.refuses: BridgeError | None = None
        self.waiting = 0
        self._asked = trio.Condition()

    async def start(self, turn: Turn, req_id: str) -> EventStream:
        self.waiting += 1
        async with self._asked:
            self._asked.notify_all()
        try:
            if self.opening is not None:
                await self.opening.wait()
        finally:
            self.waiting -= 1
        if self.refuses is not None:
            raise self.refuses
        play = Play(turn)
        self.plays.append(play)
        with trio.CancelScope(shield=True):  # from here on it runs, and the bridge has to close it
            async with self._asked:
                self._asked.notify_all()
        return play

    async def play(self, number: int = 1) -> Play:
        """The n-th turn, once it has begun."""
        await self.until(lambda: len(self.plays) >= number)
        return self.plays[number - 1]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition about the turns that are requested."""
        async with self._asked:
            while not condition():
                await self._asked.wait()

    def models(self) -> list[str]:
        return [self.model]

    def resolve(self, name: str) -> ModelChoice:
        return ModelChoice(name, name)


# A connection


class Call:
    """One request over HTTP and its answer so far. With `slow`, each piece waits for `take`."""

    def __init__(self, head: Head, body: bytes = b"", *, slow: bool = False) -> None:
        self._head = head
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.done = trio.Event()
        """The answer is complete, or the connection is closed."""
        self._request = body
        self._is_gone = False
        self._on_gone: Callable[[], None] | None = None
        self._news = trio.Condition()
        self._taking = trio.Semaphore(0)
        self._slow = slow

    async def run(self, app: Any) -> None:
        """Serve the connection until it ends."""
        try:
            await app(Request(self._head, self))
        finally:
            self.done.set()
            with trio.CancelScope(shield=True):
                async with self._news:
                    self._news.notify_all()

    def leave(self) -> None:
        """The client hangs up."""
        self._is_gone = True
        if self._on_gone is not None:
            self._on_gone()

    def take(self) -> None:
        """Let one piece of the answer through."""
        self._taking.release()

    async def until(self, text: str) -> None:
        """Wait until the answer contains this text; fail if the answer ends without it."""
        async with self._news:
            while text.encode() not in self.body:
                assert not self.done.is_set(), self.body
                await self._news.wait()

    async def begun(self) -> None:
        """Wait for the status."""
        async with self._news:
            while self.status is None:
                assert not self.done.is_set()
                await self._news.wait()

    async def whole(self) -> Self:
        """Wait for the end."""
        await self.done.wait()
        return self

    @property
    def json(self) -> Any:
        """The body of an answer that is not a stream."""
        return json.loads(self.body)

    @property
    def ids(self) -> list[int]:
        """The numbers at the end of the ids of server-sent events."""
        return [int(line.rpartition(b":")[2]) for line in self.body.split(b"\n") if line.startswith(b"id: ")]

    @property
    def events(self) -> list[Json]:
        """The JSON of each event or line of a stream, so far; `[DONE]` is left out."""
        lines = self.body.split(b"\n")
        if self.headers["content-type"].startswith(SSE):
            lines = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line and line != b"[DONE]"]

    # The channel of the request

    async def read_body(self, limit: int) -> bytes:
        if len(self._request) > limit:
            raise PayloadTooLarge(f"The request body is larger than {limit:,} bytes.")
        return self._request

    def on_gone(self, callback: Callable[[], None] | None) -> None:
        self._on_gone = callback
        if self._is_gone and callback is not None:
            callback()

    def start(self, status: int, given: Headers) -> None:
        self._started = status, {name.decode(): value.decode() for name, value in given}

    async def send(self, data: bytes, *, last: bool = False) -> None:
        self.status, self.headers = self._started
        if self._slow:
            async with self._news:
                self._news.notify_all()
            await self._taking.acquire()
        self.body += data
        async with self._news:
            self._news.notify_all()


class Socket:
    """One WebSocket: the messages that the bridge sent, and its close code."""

    def __init__(self, path: str, *messages: str | bytes) -> None:
        self.path = path
        self.messages: list[str] = []
        self.code: int | None = None
        self.done = trio.Event()
        self._news = trio.Condition()
        self._send_in, self._incoming = trio.open_memory_channel[bytes](float("inf"))
        for message in messages:
            self.say(message)

    def say(self, message: str | bytes) -> None:
        """Send a message to the bridge."""
        self._send_in.send_nowait(message.encode() if isinstance(message, str) else message)

    def leave(self) -> None:
        """The client hangs up."""
        self._send_in.close()

    async def run(self, app: Any) -> None:
        """Serve the connection until it ends."""
        head = Head("GET", self.path, b"", b"1.1", headers())
        try:
            await app(Request(head, Call(head), socket=self))  # type: ignore[arg-type]
        finally:
            self.done.set()

    async def until(self, text: str) -> None:
        """Wait until the messages contain this text."""
        async with self._news:
            while text not in "".join(self.messages):
                await self._news.wait()

    # The WebSocket of the request

    async def accept(self, subprotocol: str | None = None) -> None:
        pass

    async def receive(self) -> bytes:
        try:
            return await self._incoming.receive()
        except trio.EndOfChannel:
            raise ClientGone from None

    async def send(self, text: str) -> None:
        self.messages.append(text)
        async with self._news:
            self._news.notify_all()

    async def close(self, code: int, reason: str | None = None) -> None:
        self.code = code
        async with self._news:
            self._news.notify_all()


def headers(key: str = KEY, **more: str) -> list[tuple[bytes, bytes]]:
    """The headers of a request with a key; `last_event_id` is a name for `last-event-id`."""
    named = {"host": "localhost", "authorization": f"Bearer {key}", **more}
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


# The application

CallT = TypeVar("CallT", bound=Call)
SocketT = TypeVar("SocketT", bound=Socket)


@dataclass
class Desk(Generic[CallT, SocketT]):
    """The application and its model. A protocol may subclass `Call` and `Socket` to read its own format."""

    model: Model
    service: Service
    app: Any
    nursery: trio.Nursery
    call_type: type[CallT]
    socket_type: type[SocketT]
    fault: list[str] = field(default_factory=list)

    def post(
        self, path: str, body: Any, accept: str | None = None, *, key: str = KEY, slow: bool = False, **more: str
    ) -> CallT:
        """POST JSON, or any bytes. `more` are headers."""
        given = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content_type": "application/json", "content_length": str(len(given)), **more}
        if accept is not None:
            named["accept"] = accept
        return self.call("POST", path, given, headers(key, **named), slow=slow)

    def call(
        self, method: str, path: str, body: bytes, head: list[tuple[bytes, bytes]], *, slow: bool = False
    ) -> CallT:
        """Any request."""
        call = self.call_type(Head(method, path, b"", b"1.1", head), body, slow=slow)
        self.nursery.start_soon(call.run, self.app)
        return call

    def page(self, path: str, method: str = "GET") -> CallT:
        """A request without a body."""
        return self.call(method, path, b"", headers())

    def connect(self, path: str, *messages: Any) -> SocketT:
        """A WebSocket that begins with these messages."""
        opened = self.socket_type(
            path, *(each if isinstance(each, str | bytes) else json.dumps(each) for each in messages)
        )
        self.nursery.start_soon(opened.run, self.app)
        return opened


def make_store(kind: type[SqliteStore] = SqliteStore) -> SqliteStore:
    """A store in memory whose task does not run: nothing may wait until it has written."""
    return kind(None, ttl=3600, max_bytes=1 << 24, now=lambda: 0.0, max_waiting=sys.maxsize)


DeskT = TypeVar("DeskT", bound="Desk[Any, Any]")


@asynccontextmanager
async def open_desk_of(
    kind: Callable[..., DeskT],
    call_type: type[Call],
    socket_type: type[Socket],
    *,
    background: bool = True,
    keyring: Keyring | None = None,
    **service: Any,
) -> AsyncIterator[DeskT]:
    """A desk of this kind. `service` are settings of the Service."""
    model = Model()
    ids = iter(range(1, 1_000_000))
    given = {"max_body": 1024 * 1024, "keepalive": 15.0, **service}
    store = given.pop("store", None) or make_store()
    made = Service(
        Router(Model("mock", "mock"), [Served(model, Target(model.name))], default=model.name),
        lambda prefix: f"{prefix}_{next(ids)}",
        store=store,
        now=lambda: 1_700_000_000 + trio.current_time() % 86400,
        **given,
    )
    faults: list[str] = []
    app = build_app(made, fault=lambda: faults[-1] if faults else None, started_at=0)
    gate = Gate(app, keys=keyring or Keyring((KEY, OTHER_KEY)), check_host=True)
    async with trio.open_nursery() as nursery:
        if background:
            made.background = nursery
        yield kind(model, made, gate, nursery, call_type, socket_type, faults)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_desk(**options: Any) -> AsyncIterator[Desk[Call, Socket]]:
    """The application over a scripted model, for a protocol without a desk of its own."""
    async with open_desk_of(Desk[Call, Socket], Call, Socket, **options) as desk:
        yield desk
