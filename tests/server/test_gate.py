"""The gate in front of a small application, over real sockets: which key was used, and WebSockets.

What a client of the whole bridge meets at the gate is in test_bad_input (keys, Host) and test_cors (web pages).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, TextMessage
from wsproto.events import Request as Handshake

from bridge.app.keys import Keyring
from bridge.errors import BridgeError
from bridge.http.listener import Listener
from bridge.http.pages import error_page, json_page, send_page
from bridge.http.request import ClientGone, Request
from bridge.http.sockets import open_sockets
from bridge.http.wire import Edge
from bridge.server.gate import KEY_PROTOCOL, Gate, label_of

KEYS = ("first-key-0123456789", "second-key-0123456789")
PAGE = "app://obsidian.md"


async def tell(request: Request) -> None:
    """A handler that tells what it was given, and echoes what a WebSocket says."""
    seen = {
        "type": "http" if request.socket is None else "websocket",
        "key": request.key or None,
        "subprotocols": request.subprotocols,
        "headers": [f"{name.decode()}: {value.decode('latin-1')}" for name, value in request.headers],
    }
    if request.path == "/busy":
        error = BridgeError("Later.", code="rate_limited", http_status=429, retry_after=2.5)
        await send_page(request, error_page(error))
    elif request.socket is None:
        await send_page(request, json_page(seen))
    elif request.path == "/never":
        await trio.sleep_forever()
    else:
        await request.socket.accept("chosen" if "chosen" in request.subprotocols else None)
        await request.socket.send(json.dumps(seen))
        with suppress(ClientGone):
            while True:
                await request.socket.send((await request.socket.receive()).decode())


class Guarded(NamedTuple):
    """`tell` behind a gate that listens."""

    port: int

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def ask(self, *headers: str, **options: Any) -> Answer:
        """The answer to a request with exactly these headers."""
        return await self._exchange("Connection: close", *headers, **options)

    async def open(self, *headers: str, **options: Any) -> Answer:
        """The answer to a WebSocket's handshake that is refused."""
        version, key = "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        return await self._exchange("Connection: Upgrade", "Upgrade: websocket", version, key, *headers, **options)

    async def _exchange(
        self, *headers: str, path: str = "/x", host: str | None = None, method: str = "GET", content: bytes = b""
    ) -> Answer:
        """Ask, and read until the connection is closed."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.host if host is None else host}", *headers]
        with trio.fail_after(10):
            async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
                await stream.send_all("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + content)
                received = b"".join([chunk async for chunk in stream])
        head, _, body = received.partition(b"\r\n\r\n")
        status, *fields = head.decode("latin-1").split("\r\n")
        pairs = [(name.lower(), value) for name, _, value in (field.partition(": ") for field in fields)]
        return Answer(int(status.split()[1]), dict(pairs), body)


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def seen(self) -> dict[str, Any]:
        assert self.status == 200, self
        value: dict[str, Any] = json.loads(self.body)
        return value

    @property
    def code(self) -> str:
        assert self.headers["content-length"] == str(len(self.body))
        return str(json.loads(self.body)["error"]["code"])


@asynccontextmanager
async def guarded(
    *,
    check_host: bool = True,
    origins: tuple[str, ...] = (PAGE,),
    hosts: tuple[str, ...] = (),
    keys: Keyring | None = None,
) -> AsyncIterator[Guarded]:
    """Listen on a free port, and stop at the end."""
    gate = Gate(tell, keys=keys or Keyring(KEYS), check_host=check_host, allowed_origins=origins, allowed_hosts=hosts)
    sockets = open_sockets("127.0.0.1", 0)
    listener = Listener(Edge(gate, write_timeout=5), sockets)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run, nursery)
        yield Guarded(sockets[0].getsockname()[1])
        listener.stop_accepting()
        listener.abort()
        nursery.cancel_scope.cancel()


# Keys

BY_HEADER = {
    "authorization": "Authorization: Bearer {key}",
    "lower": "authorization: bearer {key}",
    "x_api_key": "X-API-Key: {key}",
}


@pytest.mark.parametrize("header", BY_HEADER.values(), ids=BY_HEADER)
@pytest.mark.parametrize("key", KEYS)
async def test_the_handler_gets_the_label_of_the_key(header: str, key: str) -> None:
    """Its label, in one place for all; the label holds nothing of the key."""
    async with guarded() as gate:
        label = (await gate.ask(header.format(key=key))).seen["key"]
    assert label == label_of(key) == "key-" + hashlib.sha256(key.encode()).hexdigest()[:12]


async def test_a_probe_has_no_key() -> None:
    """Where none is looked at, none is named, also when one is sent."""
    async with guarded() as gate:
        for header in ("X: y", f"Authorization: Bearer {KEYS[0]}"):
            assert (await gate.ask(header, path="/healthz")).seen["key"] is None


# WebSockets that are refused

GOOD_KEY = f"Authorization: Bearer {KEYS[0]}"
GOOD_PROTOCOL = f"{KEY_PROTOCOL}{KEYS[0]}"

BAD_KEYS: dict[str, list[str]] = {
    "none": [],
    "wrong": ["Authorization: Bearer wrong"],
    "basic": [f"Authorization: Basic {KEYS[0]}"],
    "empty": ["Authorization: Bearer "],
    "wrong_protocol": [f"Sec-WebSocket-Protocol: realtime, {KEY_PROTOCOL}wrong"],
    "empty_protocol": [f"Sec-WebSocket-Protocol: realtime, {KEY_PROTOCOL}"],
    "two_protocols": [f"Sec-WebSocket-Protocol: {GOOD_PROTOCOL}, {KEY_PROTOCOL}{KEYS[1]}"],
    "bare_protocol": [f"Sec-WebSocket-Protocol: realtime, {KEYS[0]}"],
    "upper_protocol": [f"Sec-WebSocket-Protocol: realtime, {KEY_PROTOCOL.upper()}{KEYS[0]}"],
    "header_and_protocol_differ": [GOOD_KEY, f"Sec-WebSocket-Protocol: {KEY_PROTOCOL}{KEYS[1]}"],
    "protocol_in_another_header": [f"Sec-WebSocket-Extensions: {GOOD_PROTOCOL}"],
    "cookie": [f"Cookie: key={KEYS[0]}"],
}


@pytest.mark.parametrize("headers", BAD_KEYS.values(), ids=BAD_KEYS)
async def test_a_websocket_needs_one_right_key(headers: list[str]) -> None:
    """401 in OpenAI's form instead of the handshake, and the connection ends."""
    async with guarded() as gate:
        for path in ("/x", "/healthz", f"/x?key={KEYS[0]}&{GOOD_PROTOCOL}"):
            answer = await gate.open(*headers, path=path)
            assert (answer.status, answer.code) == (401, "invalid_api_key")
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["connection"] == "close"
            assert not any(key.encode() in answer.body for key in KEYS)


@pytest.mark.parametrize(
    "headers",
    [
        ["Origin: http://evil.example"],
        ["Origin: null"],
        ["Origin: "],
        ["Origin: http://127.0.0.1:1"],
        [f"Origin: {PAGE}.evil.example"],
        [f"Origin: {PAGE}", f"Origin: {PAGE}"],
        [f"Origin: {PAGE}", "Origin: http://evil.example"],
        ["Sec-Fetch-Site: cross-site"],
    ],
    ids=str,
)
async def test_a_websocket_of_another_page_is_refused(headers: list[str]) -> None:
    """Browsers let every page open WebSockets to everywhere: the Origin is all that tells them apart."""
    async with guarded() as gate:
        for key in (GOOD_KEY, f"Sec-WebSocket-Protocol: realtime, {GOOD_PROTOCOL}"):
            answer = await gate.open(key, *headers)
            assert (answer.status, answer.code) == (403, "origin_not_allowed")
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", [[], [f"Origin: {PAGE}"], ["Origin: http://evil.example"]], ids=str)
async def test_a_websocket_to_a_foreign_host_is_refused(origin: list[str]) -> None:
    """The Host is looked at first, with the right key and from a listed page too."""
    async with guarded() as gate:
        answer = await gate.open(GOOD_KEY, *origin, host="evil.example")
        assert (answer.status, answer.code) == (403, "host_not_allowed")


async def test_the_application_may_refuse_a_websocket_as_it_refuses_a_request() -> None:
    """The same error object and headers; the client sees an HTTP answer and no handshake."""
    async with guarded() as gate:
        answer = await gate.open(GOOD_KEY, path="/busy")
        assert (answer.status, answer.code) == (429, "rate_limited")
        assert (answer.headers["retry-after"], answer.headers["connection"]) == ("3", "close")


# WebSockets that are let in


class Conversation:
    """A WebSocket as a client has it."""

    def __init__(self, stream: trio.SocketStream, client: WSConnection) -> None:
        self._stream = stream
        self._client = client

    async def next(self) -> Any:
        """The next event from the server."""
        while (event := next(iter(self._client.events()), None)) is None:
            self._client.receive_data(await self._stream.receive_some())
        return event

    async def send(self, event: Any) -> None:
        await self._stream.send_all(self._client.send(event))


@asynccontextmanager
async def conversation(
    gate: Guarded, *headers: str, subprotocols: tuple[str, ...] = ()
) -> AsyncIterator[tuple[Conversation, AcceptConnection]]:
    """Open a WebSocket that is accepted, and close it politely."""
    extra = [(name.encode(), value.strip().encode()) for name, _, value in (each.partition(":") for each in headers)]
    client = WSConnection(ConnectionType.CLIENT)
    with trio.fail_after(10):
        async with await trio.open_tcp_stream("127.0.0.1", gate.port) as stream:
            talk = Conversation(stream, client)
            await talk.send(Handshake(gate.host, "/x", subprotocols=list(subprotocols), extra_headers=extra))
            accepted = await talk.next()
            assert isinstance(accepted, AcceptConnection), accepted
            yield talk, accepted
            await talk.send(CloseConnection(1000))
            assert isinstance(await talk.next(), CloseConnection)


@pytest.mark.parametrize("origin", [[], [f"Origin: {PAGE}"], ["Origin: APP://Obsidian.MD"], ["own"]], ids=str)
@pytest.mark.parametrize("place", ["authorization", "x-api-key", "subprotocol"])
async def test_a_websocket_with_a_valid_key_is_accepted(origin: list[str], place: str) -> None:
    """From a program, a listed page or a page of the bridge itself; then it works in both directions."""
    headers = {"authorization": [GOOD_KEY], "x-api-key": [f"x-api-key: {KEYS[0]}"], "subprotocol": []}[place]
    subprotocols = ("realtime", GOOD_PROTOCOL) if place == "subprotocol" else ()
    async with guarded() as gate:
        named = [f"Origin: http://{gate.host}"] if origin == ["own"] else origin
        async with conversation(gate, *headers, *named, subprotocols=subprotocols) as (talk, _):
            assert json.loads((await talk.next()).data)["key"] == label_of(KEYS[0])
            await talk.send(TextMessage("hällo"))
            assert (await talk.next()).data == "hällo"


@pytest.mark.parametrize(
    ("offered", "seen", "answered"),
    [
        (("realtime", GOOD_PROTOCOL), ["realtime"], "realtime"),
        ((GOOD_PROTOCOL, "realtime"), ["realtime"], "realtime"),
        (("realtime", GOOD_PROTOCOL, "openai-beta.realtime-v1"), ["realtime", "openai-beta.realtime-v1"], "realtime"),
        (("a", "chosen", GOOD_PROTOCOL), ["a", "chosen"], "chosen"),
        ((GOOD_PROTOCOL,), [], GOOD_PROTOCOL),
    ],
    ids=["realtime", "key_first", "three", "chosen_by_the_application", "key_alone"],
)
async def test_a_key_among_the_subprotocols(offered: tuple[str, ...], seen: list[str], answered: str) -> None:
    """The application does not see it; and a browser, which insists on a subprotocol in the answer, gets one."""
    async with guarded() as gate, conversation(gate, subprotocols=offered) as (talk, accepted):
        assert accepted.subprotocol == answered
        told = json.loads((await talk.next()).data)
        assert told["subprotocols"] == seen
        assert KEYS[0] not in json.dumps(told)


async def test_a_websocket_that_was_not_accepted_when_its_key_ended_is_refused() -> None:
    """Its client still waits for an answer over HTTP: there is no WebSocket to close."""
    keys = Keyring(KEYS)
    async with guarded(keys=keys) as gate, trio.open_nursery() as nursery:

        async def revoke() -> None:
            await trio.testing.wait_all_tasks_blocked(0.2)
            for report in keys.on_gone:
                report(label_of(KEYS[0]))

        nursery.start_soon(revoke)
        answer = await gate.open(f"Authorization: Bearer {KEYS[0]}", path="/never")
    assert (answer.status, answer.code) == (401, "invalid_api_key")
    assert b"revoked" in answer.body


async def test_subprotocols_without_a_key_are_left_to_the_handler() -> None:
    """It names none here, and none is answered."""
    async with guarded() as gate, conversation(gate, GOOD_KEY, subprotocols=("realtime",)) as (talk, accepted):
        assert accepted.subprotocol is None
        assert json.loads((await talk.next()).data)["subprotocols"] == ["realtime"]


# Requests


@pytest.mark.parametrize("length", [[], ["Content-Length: 0"]], ids=str)
async def test_a_post_without_a_body_needs_no_content_type(length: list[str]) -> None:
    """Clients name the type of what they send; where they send nothing, they name none."""
    async with guarded() as gate:
        assert (await gate.ask(GOOD_KEY, *length, method="POST")).status == 200
        refused = await gate.ask(GOOD_KEY, "Content-Length: 2", method="POST", content=b"{}")
        assert refused.code == "unsupported_media_type"


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ("", 200),
        ("; charset=utf-8", 200),
        (';CHARSET="UTF-8"; v=1', 200),
        ("; charset=us-ascii", 200),
        ("; charset=latin-1", 415),
        ("; v=1; charset=utf-16", 415),
        ("; charset=", 415),
    ],
)
async def test_json_is_utf_8(parameters: str, status: int) -> None:
    """A body that calls itself something else is refused, and not misread."""
    async with guarded() as gate:
        kind = f"Content-Type: application/json{parameters}"
        answer = await gate.ask(GOOD_KEY, "Content-Length: 2", kind, method="POST", content=b"{}")
    assert answer.status == status
    if status != 200:
        assert answer.code == "unsupported_media_type"


async def test_an_error_of_the_application_can_be_read_by_the_page() -> None:
    """Status, reason and when to come again."""
    async with guarded() as gate:
        answer = await gate.ask(GOOD_KEY, f"Origin: {PAGE}", path="/busy")
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "rate_limited", "3")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "retry-after" in answer.headers["access-control-expose-headers"].split(", ")


@pytest.mark.parametrize("kind", ["request", "websocket"])
async def test_without_a_host_check_no_page_counts_as_the_bridge_s_own(kind: str) -> None:
    """Its Host is not checked, so an Origin that equals it says nothing: that is what DNS rebinding looks like."""
    async with guarded(check_host=False) as gate:
        ask = gate.ask if kind == "request" else gate.open
        for host in ("evil.example", gate.host):
            answer = await ask(GOOD_KEY, f"Origin: http://{host}", host=host)
            assert (answer.status, answer.code) == (403, "origin_not_allowed")


async def test_a_bridge_for_other_machines_serves_listed_pages() -> None:
    """Under any Host."""
    async with guarded(check_host=False) as gate:
        answer = await gate.ask(GOOD_KEY, f"Origin: {PAGE}", host="box.example")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.seen["key"] == label_of(KEYS[0])


# Names of the bridge's own

HOSTS = ("bridge.example", "10.0.0.5", "[fd00::5]")


@pytest.mark.parametrize(
    "host",
    [
        *("bridge.example", "bridge.example:8443", "BRIDGE.example", "bridge.example.", "bridge.example.:443"),
        *("10.0.0.5", "10.0.0.5:80", "[fd00::5]", "[FD00::5]:80"),
        *("localhost", "127.0.0.1:1", "[::1]"),
    ],
)
@pytest.mark.parametrize("kind", ["request", "websocket"])
async def test_configured_hosts_are_served(host: str, kind: str) -> None:
    """Under any port, as a reverse proxy may have another; and this machine's own names beside them."""
    async with guarded(hosts=HOSTS) as gate:
        if kind == "request":
            assert (await gate.ask(GOOD_KEY, host=host)).status == 200
        else:
            assert (await gate.open(GOOD_KEY, host=host, path="/busy")).code == "rate_limited"


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "x.bridge.example", "bridge.example.evil.example", "bridge.example..", "bridge"),
        *("bridge.example@evil.example", "evil.example#bridge.example", "bridge.example:", "bridge.example:x"),
        *("bridge.example, evil.example", "bridge.example evil.example", "10.0.0.50", "10.0.0.5.evil.example"),
        *(
            "fd00::5",
            "[fd00::5",
            "[fd00::6]",
            "10.0.0.5]",
            "[10.0.0.5]",
            "[bridge.example]",
            "0.0.0.0",
            "bridge.ex\xe4mple",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["request", "websocket"])
async def test_other_hosts_are_refused(host: str, kind: str) -> None:
    """Not with the right key, nor from a listed page."""
    async with guarded(hosts=HOSTS) as gate:
        ask = gate.ask if kind == "request" else gate.open
        for more in ([], [f"Origin: {PAGE}"]):
            answer = await ask(GOOD_KEY, *more, host=host)
            assert answer.status in (400, 403)
            assert answer.status == 400 or answer.code == "host_not_allowed"


async def test_a_configured_host_does_not_allow_its_pages() -> None:
    """A page under such a name is the bridge's own only when it came from the bridge: by the same scheme and port."""
    async with guarded(hosts=HOSTS) as gate:
        for origin in ("https://bridge.example", "http://bridge.example:81", "http://10.0.0.5"):
            answer = await gate.ask(GOOD_KEY, f"Origin: {origin}", host="bridge.example")
            assert (answer.status, answer.code) == (403, "origin_not_allowed")
