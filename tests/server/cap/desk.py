"""The HTTP application in the test's own trio loop, with a model that says what the test says, when it says it.

No sockets and no processes: with an autojump clock, every wait costs nothing. A `Call` is one connection to it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import trio
from harness import KEY, OTHER_KEY

from bridge.api.cap.fold import TurnFold
from bridge.api.cap.stream import PACKET, read_packet
from bridge.backends.base import EventStream, PlainBackend
from bridge.backends.router import Router, Served
from bridge.errors import BridgeError, PayloadTooLarge
from bridge.http.head import Head
from bridge.http.request import ClientGone, Headers, Request
from bridge.server.app import build_app
from bridge.server.cap.options import CapOptions
from bridge.server.gate import Gate
from bridge.server.keys import Keyring
from bridge.server.service import Service
from bridge.store.memory import MemoryStore
from bridge.turn.events import Finished, TextDelta, TurnEvent, Usage, UsageUpdate
from bridge.turn.items import Message
from bridge.turn.models import ModelChoice
from bridge.turn.turn import Turn

Json = dict[str, Any]
MODEL = "told"
SSE, NDJSON, JSON = "text/event-stream", "application/x-ndjson", "application/json"
REQUEST_ID = "550e8400-e29b-41d4-a716-446655440000"


def request(query: str = "Hello", *, number: int = 0, user: str = "u1", session: str = "s1", **payload: Any) -> Json:
    """A ServiceRequest; `number` makes its id another one."""
    agent = payload.pop("agent", None)
    context: Json = {"session_id": session, "user": {"id": user, "name": "Ada"}}
    if agent is not None:
        context["agent"] = {"id": agent, "name": agent}
    return {
        "request_id": str(UUID(int=UUID(REQUEST_ID).int + number)),
        "context": context,
        "payload": {"query": query, **payload},
    }


# The model


class Play:
    """A turn that the model was asked for: an EventStream for the bridge, and what is said in it for the test."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.closed = trio.Event()
        """The bridge has let go of it."""
        self.taken = 0
        """Batches that the bridge has taken."""
        self._send, self._receive = trio.open_memory_channel[list[TurnEvent]](float("inf"))

    async def next(self) -> list[TurnEvent]:
        events = await self._receive.receive()
        self.taken += 1
        return events

    def close(self) -> None:
        self.closed.set()

    def say(self, *pieces: str) -> None:
        """Each piece is a delta."""
        self.tell(TextDelta("msg_1", list(pieces)))

    def tell(self, *events: TurnEvent) -> None:
        """A batch of events."""
        self._send.send_nowait(list(events))

    def finish(self, outcome: Any = "completed", reason: str | None = None) -> None:
        """The end."""
        self.tell(UsageUpdate(Usage(5, 0, 2)), Finished(outcome, reason))

    def fail(self, error: BridgeError) -> None:
        """Another end."""
        self.tell(Finished("failed", error=error))

    def history(self) -> list[str]:
        """The texts that the model was given."""
        return [item.text for item in self.turn.items if isinstance(item, Message)]


class Model(PlainBackend):
    """Answers with what the test says. `opening` holds every turn up before it begins; `refuses` is raised there."""

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
        with trio.CancelScope(shield=True):  # from here on it runs, and whoever asked for it has to close it
            async with self._asked:
                self._asked.notify_all()
        return play

    async def play(self, number: int = 1) -> Play:
        """The n-th turn, when it has begun."""
        await self.until(lambda: len(self.plays) >= number)
        return self.plays[number - 1]

    async def until(self, condition: Callable[[], object]) -> None:
        """Until something is so, about what the model is asked."""
        async with self._asked:
            while not condition():
                await self._asked.wait()

    def models(self) -> list[str]:
        return [self.model]

    def resolve(self, name: str) -> ModelChoice:
        return ModelChoice(name, name)


# A connection


class Call:
    """One request over HTTP, and what has come of its answer so far. With `slow` each piece waits for `take`."""

    def __init__(self, head: Head, body: bytes = b"", *, slow: bool = False) -> None:
        self._head = head
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = b""
        self.done = trio.Event()
        """The answer is whole, or the connection gone."""
        self._request = body
        self._is_gone = False
        self._on_gone: Callable[[], None] | None = None
        self._news = trio.Condition()
        self._taking = trio.Semaphore(0)
        self._slow = slow

    async def run(self, app: Any) -> None:
        """The life of the connection."""
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
        """Read one piece."""
        self._taking.release()

    async def until(self, text: str) -> None:
        """Until the answer holds this, which it does before its end."""
        async with self._news:
            while text.encode() not in self.body:
                assert not self.done.is_set(), self.body
                await self._news.wait()

    async def begun(self) -> None:
        """Until there is a status."""
        async with self._news:
            while self.status is None:
                assert not self.done.is_set()
                await self._news.wait()

    async def whole(self) -> Call:
        """Until the end."""
        await self.done.wait()
        return self

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int | None, str]:
        """(status, code) of an answer that is a StreamError."""
        told = self.json
        assert set(told) <= {"code", "message", "severity", "details"}, told
        return self.status, told["code"]

    @property
    def ids(self) -> list[int]:
        """The numbers of the packets of an event stream."""
        return [int(line.rpartition(b":")[2]) for line in self.body.split(b"\n") if line.startswith(b"id: ")]

    @property
    def packets(self) -> list[Json]:
        """The packets of a stream, so far."""
        lines = self.body.split(b"\n")
        if self.headers["content-type"].startswith(SSE):
            lines = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line]

    @property
    def text(self) -> str:
        """What a stream has said so far."""
        return said(self.packets)

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


def said(packets: list[Json]) -> str:
    """The text of packets; they are in the order of the grammar."""
    fold = TurnFold()
    for packet in packets:
        fold.add(PACKET.validate_python(packet))
    return fold.text


class Socket:
    """One WebSocket: the messages that came, and the code that it was closed with."""

    def __init__(self, *messages: str | bytes) -> None:
        self.messages: list[str] = []
        self.code: int | None = None
        self.done = trio.Event()
        self._news = trio.Condition()
        self._send_in, self._incoming = trio.open_memory_channel[bytes](float("inf"))
        for message in messages:
            self.say(message)

    def say(self, message: str | bytes) -> None:
        """Another message of the client."""
        self._send_in.send_nowait(message.encode() if isinstance(message, str) else message)

    def leave(self) -> None:
        """The client hangs up."""
        self._send_in.close()

    async def run(self, app: Any) -> None:
        """The life of the connection."""
        head = Head("GET", "/v1/assist/ws", b"", b"1.1", headers())
        try:
            await app(Request(head, Call(head), socket=self))  # type: ignore[arg-type]
        finally:
            self.done.set()

    async def until(self, text: str) -> None:
        """Until a message holds this."""
        async with self._news:
            while text not in "".join(self.messages):
                await self._news.wait()

    @property
    def packets(self) -> list[Json]:
        """The packets so far; each is valid."""
        for message in self.messages:
            read_packet(message)
        return [json.loads(message) for message in self.messages]

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


@dataclass
class Desk:
    """The application. `service` can be looked into."""

    model: Model
    service: Service
    app: Any
    nursery: trio.Nursery
    fault: list[str] = field(default_factory=list)

    def post(
        self,
        body: Any,
        accept: str | None = SSE,
        *,
        key: str = KEY,
        slow: bool = False,
        path: str = "/v1/assist",
        **more: str,
    ) -> Call:
        """POST of a request, or of any bytes."""
        given = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {"content_type": "application/json", "content_length": str(len(given)), **more}
        if accept is not None:
            named["accept"] = accept
        return self._call("POST", path, given, headers(key, **named), slow=slow)

    def get(self, request_id: str = REQUEST_ID, last: str | int | None = None, *, key: str = KEY, **more: str) -> Call:
        """GET of a stream after a packet."""
        named = dict(more)
        if last is not None:
            named["last_event_id"] = last if isinstance(last, str) else f"{request_id}:{last}"
        return self._call("GET", f"/v1/assist/{request_id}", b"", headers(key, **named))

    def delete(self, request_id: str = REQUEST_ID, *, key: str = KEY) -> Call:
        """DELETE of a turn."""
        return self._call("DELETE", f"/v1/assist/{request_id}", b"", headers(key))

    def page(self, path: str, method: str = "GET") -> Call:
        """Any other page."""
        return self._call(method, path, b"", headers())

    def socket(self, *messages: Any) -> Socket:
        """A WebSocket that begins with these messages."""
        opened = Socket(*(each if isinstance(each, str | bytes) else json.dumps(each) for each in messages))
        self.nursery.start_soon(opened.run, self.app)
        return opened

    def _call(
        self, method: str, path: str, body: bytes, head: list[tuple[bytes, bytes]], *, slow: bool = False
    ) -> Call:
        call = Call(Head(method, path, b"", b"1.1", head), body, slow=slow)
        self.nursery.start_soon(call.run, self.app)
        return call


def make_store(kind: type[MemoryStore] = MemoryStore) -> MemoryStore:
    """A store, or a kind of it that a test needs."""
    return kind(ttl=3600, max_bytes=1 << 24, now=lambda: 0.0)


@asynccontextmanager
async def open_desk(
    *, options: CapOptions | None = None, background: bool = True, keyring: Keyring | None = None, **service: Any
) -> AsyncIterator[Desk]:
    """The application, over a model that the test speaks for."""
    model = Model()
    ids = iter(range(1, 1_000_000))
    given = {"max_body": 1024 * 1024, "keepalive": 15.0, **service}
    store = given.pop("store", None) or make_store()
    made = Service(
        Router(Model("mock", "mock"), [Served(model)], default=model.name),
        lambda prefix: f"{prefix}_{next(ids)}",
        store=store,
        now=lambda: 1_700_000_000 + trio.current_time() % 86400,
        cap=options or CapOptions(),
        **given,
    )
    faults: list[str] = []
    app = build_app(made, fault=lambda: faults[-1] if faults else None, started_at=0)
    gate = Gate(app, keys=keyring or Keyring((KEY, OTHER_KEY)), check_host=True)
    async with trio.open_nursery() as nursery:
        if background:
            made.background = nursery
        yield Desk(model, made, gate, nursery, faults)
        nursery.cancel_scope.cancel()
