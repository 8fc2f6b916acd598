"""Twenty clients with habits of their own. Each knows what has to come of what it asks, and keeps what it has seen."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import h11
import trio
from plans import Plan, any_plan, crash, fail, flood, hang, long, noise, nothing, say, think
from seen import LEFT, Seen, read_body, read_events
from wire import Answer, Socket, ask, connect, request_bytes, reset

MODEL = "soak"
PATHS = {"responses": "/v1/responses", "chat": "/v1/chat/completions"}
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}
MAX_BODY = 1024 * 1024
CRASH_EVERY = 25.0
"""Seconds between two crashes of a child: more would leave no child at all (docs/promises.md, fault 20)."""
CANARIES = (
    "sk-proj-CANARYcanary0123456789abcdefghijklmnop",
    "CANARY-provider-key-0123456789abcdef",
    "ghp_CANARYcanary0123456789abcdefghijkl",
)
"""Secrets that clients bring, and that nothing may keep."""


@dataclass
class Office:
    """What all clients share."""

    port: int
    chaos: bool
    seed: int
    seen: list[Seen] = field(default_factory=list)
    running: int = 0
    stopping: bool = False
    next_crash: float = 0.0

    def may_crash(self) -> bool:
        """Whether it is time for a child to die."""
        if not self.chaos or time.monotonic() < self.next_crash:
            return False
        self.next_crash = time.monotonic() + CRASH_EVERY
        return True


class Client:
    """One client: asks, waits a little, asks again."""

    def __init__(self, office: Office, name: str) -> None:
        self.office = office
        self.name = name
        self.dice = random.Random(f"{office.seed}/{name}")
        self._count = 0
        self.token = ""

    async def run(self, habit: Callable[[Client], Awaitable[None]]) -> None:
        """Until the office closes."""
        while not self.office.stopping:
            await habit(self)
            await trio.sleep(self.dice.expovariate(1 / 0.2))

    def plan(self, make: Callable[[str, random.Random], Plan] = any_plan) -> tuple[str, Plan]:
        """A token of its own, and a plan that holds it."""
        self._count += 1
        token = self.token = f"{self.name}-{self._count}"
        return token, (crash if make is any_plan and self.office.may_crash() else make)(token, self.dice)

    def look_for(self, token: str, plan: Plan, path: str, *, stream: bool, leaves: bool = False) -> Seen:
        """A sheet for what will be seen of a request."""
        allowed = plan.allowed(stream=stream) | ({LEFT} if leaves else set())
        return Seen(self.name, plan.name, token, allowed, path, stream, wanted_text=plan.text, wanted_calls=plan.calls)

    def keep(self, seen: Seen) -> None:
        """The request is over for its client."""
        seen.ended = time.monotonic()
        self.office.seen.append(seen)

    def body(self, token: str, plan: Plan, path: str, *, stream: bool, **members: Any) -> bytes:
        """The request; the child finds its steps in the message."""
        message = json.dumps({"mark": token, "steps": plan.steps}, ensure_ascii=False)
        data: dict[str, Any] = {"model": MODEL, "stream": stream, **members}
        if path == "responses":
            data |= {"input": message}
            tools: list[Any] = [{"type": "function", **LOOK}]
        else:
            data |= {"messages": [{"role": "user", "content": message}]}
            tools = [{"type": "function", "function": LOOK}]
        if plan.calls:
            data["tools"] = tools
        return json.dumps(data, ensure_ascii=False).encode()

    async def receive(self, seen: Seen, answer: Answer | None) -> None:
        """Read an answer to its end."""
        if answer is None:
            return
        seen.status, seen.request_id = answer.status, answer.headers.get("x-request-id")
        try:
            data = await answer.read()
        except h11.RemoteProtocolError:  # the stream was cut off: the plan cannot excuse a missing end
            return
        if "event-stream" in answer.headers.get("content-type", ""):
            read_events(seen, sse(data))
        else:
            read_body(seen, data)


def sse(data: bytes) -> list[dict[str, Any] | None]:
    """The events of a stream; None is `[DONE]`."""
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: ")]
    return [None if line == b"[DONE]" else json.loads(line) for line in lines]


# Habits


async def plain(client: Client) -> None:
    """Asks for anything in any way, several times on one connection."""
    stream = await connect(client.office.port)
    async with stream:
        for _ in range(client.dice.randint(1, 4)):
            path, streamed = client.dice.choice(("responses", "chat")), client.dice.random() < 0.6
            token, plan = client.plan()
            seen = client.look_for(token, plan, path, stream=streamed)
            body = client.body(token, plan, path, stream=streamed, **secrets_for(client))
            try:
                await client.receive(seen, await ask(stream, request_bytes("POST", PATHS[path], body)))
            finally:
                client.keep(seen)


def secrets_for(client: Client) -> dict[str, Any]:
    """What some requests hold besides: members and values that must stay secret."""
    if client.dice.random() < 0.8:
        return {}
    return {"metadata": {"api_key": CANARIES[0], "note": f"my token is {CANARIES[2]}"}}


async def keyed(client: Client) -> None:
    """Brings a key for a provider that takes none."""
    token, plan = client.plan(say)
    seen = client.look_for(token, plan, "responses", stream=False)
    body = client.body(token, plan, "responses", stream=False)
    try:
        async with await connect(client.office.port) as stream:
            data = request_bytes("POST", PATHS["responses"], body, {"x-provider-key": CANARIES[1]})
            await client.receive(seen, await ask(stream, data))
    finally:
        client.keep(seen)


async def leaving(client: Client) -> None:
    """Leaves at any point: within the request, before the answer, in its middle; politely or with a reset."""
    path, streamed = client.dice.choice(("responses", "chat")), client.dice.random() < 0.7
    token, plan = client.plan(client.dice.choice((long, long, hang, say)))
    seen = client.look_for(token, plan, path, stream=streamed, leaves=True)
    data = request_bytes("POST", PATHS[path], client.body(token, plan, path, stream=streamed))
    stream = await connect(client.office.port)
    patience = client.dice.choice((0.0, 0.01, 0.1, 0.5, 1.5, 3.0))
    try:
        if client.dice.random() < 0.15:
            seen.plan, seen.token = "half", ""  # the bridge cannot have read it
            await stream.send_all(data[: client.dice.randrange(10, len(data) - 5)])
            await trio.sleep(patience)
            seen.outcome = LEFT
            return
        with trio.move_on_after(patience):
            await client.receive(seen, await ask(stream, data))
            return
        seen.outcome = LEFT
    finally:
        if client.dice.random() < 0.5:
            reset(stream)
        else:
            await trio.aclose_forcefully(stream)
        client.keep(seen)


async def slow(client: Client) -> None:
    """Reads little at a time, with a small buffer."""
    path = client.dice.choice(("responses", "chat"))
    token, plan = client.plan(client.dice.choice((flood, say)))
    seen = client.look_for(token, plan, path, stream=True)
    data = request_bytes("POST", PATHS[path], client.body(token, plan, path, stream=True))
    try:
        async with await connect(client.office.port, buffer=4096) as stream:
            await client.receive(seen, await ask(stream, data, chunk=8192, pause=0.01))
    finally:
        client.keep(seen)


async def patient(client: Client) -> None:
    """Asks for what never comes, and waits for the bridge to say so."""
    path, streamed = client.dice.choice(("responses", "chat")), client.dice.random() < 0.5
    token, plan = client.plan(hang)
    seen = client.look_for(token, plan, path, stream=streamed)
    body = client.body(token, plan, path, stream=streamed)
    try:
        async with await connect(client.office.port) as stream:
            await client.receive(seen, await ask(stream, request_bytes("POST", PATHS[path], body)))
    finally:
        client.keep(seen)


async def careless(client: Client) -> None:
    """Sends requests that cannot be served, and expects the right error."""
    deep = b'{"model":"soak","input":' + b"[" * 100 + b"]" * 100 + b"}"
    headers: dict[str, str] = {}
    method, path = "POST", PATHS[client.dice.choice(("responses", "chat"))]
    kind, body, code = client.dice.choice(
        (
            ("no json", b"{nope", "invalid_json"),
            ("empty", b" ", "invalid_json"),
            ("a list", b"[]", "invalid_json"),
            ("deep", deep, "nesting_too_deep"),
            ("no model", b'{"model":"unknown-model","input":"x","messages":[]}', "model_not_found"),
            ("too large", b'{"model":"' + b"x" * MAX_BODY + b'"}', "request_too_large"),
            ("no key", b"{}", "invalid_api_key"),
            ("nowhere", b"{}", "not_found"),
            ("wrong type", b'{"model":"soak","input":5,"messages":"x"}', "invalid_request"),
        )
    )
    if kind == "no key":
        headers["authorization"] = ""
    elif kind == "nowhere":
        path = "/v1/nowhere"
    elif kind == "no model":
        path, body = PATHS["responses"], b'{"model":"unknown-model","input":"x"}'
    elif kind == "wrong type":
        path, body = PATHS["responses"], b'{"model":"soak","input":5}'
    seen = Seen(client.name, kind, "", {code}, "responses")
    try:
        async with await connect(client.office.port) as stream:
            await client.receive(seen, await ask(stream, request_bytes(method, path, body, headers)))
    finally:
        client.keep(seen)


async def storing(client: Client) -> None:
    """Continues a response, asks for it again, deletes it; or lets one be made in the background."""
    previous: str | None = None
    for _ in range(client.dice.randint(1, 3)):
        token, plan = client.plan(say)
        seen = client.look_for(token, plan, "responses", stream=False)
        background = client.dice.random() < 0.3
        body = client.body(token, plan, "responses", stream=False, background=background, previous_response_id=previous)
        try:
            found = await _page(client, "POST", PATHS["responses"], body, seen)
            while found and found.get("status") in ("queued", "in_progress"):
                await trio.sleep(0.1)
                found = await _page(client, "GET", f"{PATHS['responses']}/{found['id']}", b"", seen)
            if found is None:
                return
            read_body(seen, json.dumps(found).encode())
            if seen.outcome != "completed":
                return
            previous = found["id"]
            again = await _page(client, "GET", f"{PATHS['responses']}/{previous}", b"", None)
            if again is None or again.get("id") != previous:
                seen.faults.append("the stored response was not found")
        finally:
            client.keep(seen)
    if client.dice.random() < 0.5:
        await _page(client, "DELETE", f"{PATHS['responses']}/{previous}", b"", None)


async def _page(client: Client, method: str, path: str, body: bytes, seen: Seen | None) -> dict[str, Any] | None:
    """The JSON of an answer, or None without one."""
    async with await connect(client.office.port) as stream:
        answer = await ask(stream, request_bytes(method, path, body))
        if answer is None:
            return None
        data = await answer.read()
    if seen is not None:
        seen.status = answer.status
        if method == "POST":
            seen.request_id = answer.headers.get("x-request-id")
        if answer.status != 200:
            read_body(seen, data)
            return None
    found: dict[str, Any] = json.loads(data)
    return found


async def assisting(client: Client) -> None:
    """Speaks CAP, in packets or in one object; leaves now and then."""
    streamed, leaves = client.dice.random() < 0.6, client.dice.random() < 0.2
    token, plan = client.plan(long if leaves else client.dice.choice((say, think, fail, nothing, noise, flood)))
    seen = client.look_for(token, plan, "assist", stream=streamed, leaves=leaves)
    message = json.dumps({"mark": token, "steps": plan.steps}, ensure_ascii=False)
    request = {
        "request_id": str(UUID(int=client.dice.getrandbits(128), version=4)),
        "context": {"session_id": client.name, "user": {"id": client.name, "name": client.name}},
        "payload": {"query": message, "meta": {"model": MODEL}},
    }
    accept = {"accept": "text/event-stream" if streamed else "application/json"}
    data = request_bytes("POST", "/v1/assist", json.dumps(request, ensure_ascii=False).encode(), accept)
    stream = await connect(client.office.port)
    try:
        with trio.move_on_after(client.dice.random() * 2 if leaves else float("inf")):
            await client.receive(seen, await ask(stream, data))
            return
        seen.outcome = LEFT
    finally:
        await trio.aclose_forcefully(stream)
        client.keep(seen)


async def talking(client: Client) -> None:
    """A WebSocket with several requests on it, one of which it may leave in the middle."""
    stream = await connect(client.office.port)
    try:
        socket = Socket(stream)
        if not await socket.open():
            return
        for _ in range(client.dice.randint(1, 5)):
            if client.dice.random() < 0.1:
                await socket.send("{nope")
                message = await socket.next()
                assert message is not None
                assert message["type"] == "error", message
                continue
            leaves = client.dice.random() < 0.15
            token, plan = client.plan(long if leaves else any_plan)
            seen = client.look_for(token, plan, "responses", stream=True, leaves=leaves)
            data = json.loads(client.body(token, plan, "responses", stream=True))
            try:
                with trio.move_on_after(client.dice.random() * 2 if leaves else float("inf")):
                    await socket.send(json.dumps({"type": "response.create", **data}))
                    await _listen(socket, seen)
                    continue
                seen.outcome = LEFT
                return
            finally:
                client.keep(seen)
    finally:
        await trio.aclose_forcefully(stream)


async def _listen(socket: Socket, seen: Seen) -> None:
    events: list[dict[str, Any]] = []
    while (message := await socket.next()) is not None:
        if message["type"] == "error":
            seen.status = message["status"]
            seen.outcome = str(message["error"]["code"])
            return
        events.append(message)
        if message["type"] in ("response.completed", "response.failed", "response.incomplete"):
            read_events(seen, events)
            return


HABITS: Sequence[Callable[[Client], Awaitable[None]]] = (
    [plain] * 7 + [assisting] + [leaving] * 4 + [slow] * 2 + [talking] * 2 + [patient, careless, storing, keyed]
)
