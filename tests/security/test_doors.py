"""Every route with every kind of header: who has no key, or comes by a wrong name or from a web page, gets nowhere.

The table is made from the bridge's own list of routes.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import KEY, RunningBridge
from security.doors import OPEN, Door, doors

from bridge.server.gate import KEY_PROTOCOL, OPEN_PATHS

DOORS = doors(Path("/nonexistent"))
PLACES = [door for door in DOORS if not door.is_socket]
SOCKETS = [door for door in DOORS if door.is_socket]
GOOD = ("Authorization", f"Bearer {KEY}")
HANDSHAKE = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
]
Headers = list[tuple[str, str]]


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Visitor:
    """A client that sends exactly what it is told, over one connection as long as that lasts."""

    def __init__(self, bridge: RunningBridge, connection: HTTPConnection) -> None:
        self.bridge = bridge
        self._connection = connection

    def ask(self, method: str, url: str, headers: Headers, host: str | None = None) -> Answer:
        """One request without a body. No answer may let a browser in or set a cookie."""
        self._connection.putrequest(method, url, skip_host=True, skip_accept_encoding=True)
        self._connection.putheader("Host", f"127.0.0.1:{self.bridge.port}" if host is None else host)
        for name, value in headers:
            self._connection.putheader(name, value.encode("latin-1"))
        self._connection.endheaders()
        return self._checked(self._connection.getresponse())

    def open(self, url: str, headers: Headers, host: str | None = None) -> Answer:
        """The answer to a WebSocket's handshake."""
        lines = [f"GET {url} HTTP/1.1", f"Host: {host or f'127.0.0.1:{self.bridge.port}'}"]
        lines += [f"{name}: {value}" for name, value in [*HANDSHAKE, *headers]]
        with socket.create_connection(("127.0.0.1", self.bridge.port), timeout=20) as client:
            client.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
            response = HTTPResponse(client)
            response.begin()
            if response.status == 101:
                return Answer(101, {}, b"")
            return self._checked(response)

    def _checked(self, response: HTTPResponse) -> Answer:
        headers = {name.lower(): value for name, value in response.getheaders()}
        assert not [name for name in headers if name.startswith("access-control-") or name == "set-cookie"]
        body = response.read()
        assert KEY.encode() not in body
        assert b"Traceback" not in body
        return Answer(response.status, headers, body)


@pytest.fixture
def visitor(mock_bridge: RunningBridge) -> Iterator[Visitor]:
    with closing(HTTPConnection("127.0.0.1", mock_bridge.port, timeout=20)) as connection:
        yield Visitor(mock_bridge, connection)


def everywhere(door: Door) -> list[str]:
    """The methods to be tried at a place: its own, and one that none has."""
    return [*door.methods, "OPTIONS"]


# Keys

NO_KEY: dict[str, Headers] = {
    "none": [],
    "empty": [("Authorization", "")],
    "scheme_alone": [("Authorization", "Bearer")],
    "empty_key": [("Authorization", "Bearer ")],
    "wrong": [("Authorization", "Bearer wrong")],
    "beginning": [("Authorization", f"Bearer {KEY[:-1]}")],
    "longer": [("Authorization", f"Bearer {KEY}x")],
    "other_case": [("Authorization", f"Bearer {KEY.upper()}")],
    "quoted": [("Authorization", f'Bearer "{KEY}"')],
    "not_ascii": [("Authorization", "Bearer \xe9\xff")],
    "nul_like": [("Authorization", f"Bearer {KEY}%00")],
    "long": [("Authorization", "Bearer " + "k" * 20_000)],
    "basic": [("Authorization", f"Basic {KEY}")],
    "digest": [("Authorization", f"Digest {KEY}")],
    "no_scheme": [("Authorization", KEY)],
    "list": [("Authorization", f"Bearer wrong, Bearer {KEY}")],
    "doubled": [GOOD, GOOD],
    "good_then_wrong": [GOOD, ("Authorization", "Bearer wrong")],
    "wrong_then_good": [("Authorization", "Bearer wrong"), GOOD],
    "both_kinds_differ": [GOOD, ("x-api-key", "wrong")],
    "both_kinds_wrong": [("Authorization", "Bearer wrong"), ("x-api-key", "wrong")],
    "x_doubled": [("x-api-key", KEY), ("x-api-key", KEY)],
    "x_empty": [("x-api-key", "")],
    "x_wrong": [("x-api-key", "wrong")],
    "x_scheme": [("x-api-key", f"Bearer {KEY}")],
    "azure": [("api-key", KEY)],
    "proxy": [("Proxy-Authorization", f"Bearer {KEY}")],
    "forwarded": [("X-Forwarded-Authorization", f"Bearer {KEY}"), ("X-Forwarded-For", "127.0.0.1")],
    "cookie": [("Cookie", f"key={KEY}; authorization=Bearer {KEY}")],
    "provider_key": [("X-Provider-Key", KEY)],
    "other_method": [("X-HTTP-Method-Override", "GET")],
    "protocol": [("Sec-WebSocket-Protocol", f"{KEY_PROTOCOL}{KEY}")],
}


def test_the_places_without_a_key_are_these() -> None:
    """And each of them is a page that is only looked at."""
    assert OPEN_PATHS == OPEN
    assert {door.path for door in PLACES} >= OPEN
    for door in PLACES:
        assert not door.is_open or door.methods == ("GET",)


@pytest.mark.parametrize("headers", NO_KEY.values(), ids=NO_KEY)
def test_no_route_is_served_without_the_one_right_key(visitor: Visitor, headers: Headers) -> None:
    """401 everywhere but at the probes, whatever the method; also for a WebSocket, where none is open."""
    for door in PLACES:
        for method in everywhere(door):
            status = visitor.ask(method, door.url, headers).status
            expected = 401 if not door.is_open else 200 if method == "GET" else 405
            assert status == expected, (method, door)
    if "Sec-WebSocket-Protocol" not in dict(headers):  # which is a place for a WebSocket's key
        for door in DOORS:
            if door.is_open or door.is_socket:
                assert visitor.open(door.url, headers).status == 401, door


def test_the_right_key_opens_every_route(visitor: Visitor) -> None:
    """So that what is refused above is refused for its key."""
    for headers in ([GOOD], [("x-api-key", KEY)], [GOOD, ("x-api-key", KEY)]):
        for door in PLACES:
            for method in door.methods:
                answer = visitor.ask(method, door.url, headers)
                assert answer.status not in (401, 403, 405), (method, door)
        for door in SOCKETS:
            assert visitor.open(door.url, headers).status == 101, door


@pytest.mark.parametrize(
    "url",
    [
        "/healthz/../v1/models",
        "/healthz/..%2fv1/models",
        "/v1/models/../../healthz",
        "/healthz%00/v1/models",
        "/healthz/",
        "//healthz",
        "/HEALTHZ",
        "/healthz;/v1/models",
        "/v1/models?/healthz",
        "/v1/models?path=/healthz",
        f"/v1/models?key={KEY}",
        f"/v1/models?api_key={KEY}&access_token={KEY}",
        "/v1/models%3f/healthz",
        "/v1%2fmodels",
        "/%76%31/models",
        "/v1/models/%2e%2e/%2e%2e/healthz",
    ],
)
def test_no_spelling_of_a_path_avoids_the_key(visitor: Visitor, url: str) -> None:
    """The gate and the routes look at the same path."""
    assert visitor.ask("GET", url, []).status == 401


def test_what_is_open_tells_nothing(visitor: Visitor, mock_bridge: RunningBridge) -> None:
    """Neither where the bridge lives nor what is asked of it."""
    hostname = socket.gethostname().encode()
    for path in sorted(OPEN):
        body = visitor.ask("GET", path, []).body
        for secret in (str(mock_bridge.state).encode(), b"/home/", b"/tmp/", hostname, str(mock_bridge.port).encode()):
            assert secret not in body, (path, secret)


# Host

FOREIGN = [
    "",
    "evil.example",
    "evil.example:80",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1.nip.io",
    "evil.example#localhost",
    "localhost@evil.example",
    "127.1",
    "127.0.0.01",
    "2130706433",
    "0x7f.1",
    "0",
    "0.0.0.0",
    "[::]",
    "[::ffff:192.168.1.1]",
    "192.168.1.1",
    "169.254.169.254",
    "[::1].evil.example",
    "[::1",
    "::1]",
    "localhost evil.example",
    "localhost:80:80",
    "localhost:x",
    "localhost:123456",
    "\xe9",
]
OURS = ["localhost", "LOCALHOST", "localhost.", "localhost:1", "127.0.0.1", "127.0.0.1:65535", "127.9.9.9"]
OURS += ["[::1]", "[::1]:9", "[0:0:0:0:0:0:0:1]"]


@pytest.mark.parametrize("host", FOREIGN)
def test_no_route_is_served_under_a_foreign_name(visitor: Visitor, host: str) -> None:
    """With the right key and without one, on the probes too: else a web page could reach them by DNS rebinding."""
    for door in PLACES:
        for headers in ([], [GOOD]):
            assert visitor.ask("GET", door.url, headers, host).status == 403, door
    for door in SOCKETS:
        assert visitor.open(door.url, [GOOD], host or "evil").status == 403, door


@pytest.mark.parametrize("host", OURS)
def test_every_spelling_of_this_machine_is_served(visitor: Visitor, host: str) -> None:
    """Each of them is an address that no resolver is asked for."""
    assert visitor.ask("GET", "/v1/models", [GOOD], host).status == 200


# Web pages

PAGES: dict[str, Headers] = {
    "origin": [("Origin", "http://evil.example")],
    "null": [("Origin", "null")],
    "empty": [("Origin", "")],
    "other_port": [("Origin", "http://127.0.0.1:1")],
    "localhost": [("Origin", "http://localhost:3000")],
    "https": [("Origin", "https://127.0.0.1")],
    "file": [("Origin", "file://")],
    "extension": [("Origin", "chrome-extension://abcdefghijklmnop")],
    "two": [("Origin", "http://evil.example"), ("Origin", "http://127.0.0.1")],
    "cross_site": [("Sec-Fetch-Site", "cross-site")],
    "cross_site_in_capitals": [("Sec-Fetch-Site", "CROSS-SITE")],
    "image": [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")],
    "preflight": [("Origin", "http://evil.example"), ("Access-Control-Request-Method", "POST")],
    "private_network": [
        ("Origin", "http://evil.example"),
        ("Access-Control-Request-Method", "GET"),
        ("Access-Control-Request-Private-Network", "true"),
    ],
}


@pytest.mark.parametrize("headers", PAGES.values(), ids=PAGES)
def test_no_route_is_served_to_a_page_that_is_not_listed(visitor: Visitor, headers: Headers) -> None:
    """403 even with the right key, for every method, and nothing that lets the page read even that."""
    for door in PLACES:
        for method in everywhere(door):
            assert visitor.ask(method, door.url, [GOOD, *headers]).status == 403, (method, door)
    for door in SOCKETS:
        assert visitor.open(door.url, [GOOD, *headers]).status == 403, door


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json"]
)
def test_a_form_cannot_post(mock_bridge: RunningBridge, kind: str) -> None:
    """What a page may send without asking first is no JSON; and JSON is sent as such, on every route with a body."""
    headers = {"content-type": kind} if kind else {}
    with mock_bridge.client() as client:
        for door in PLACES:
            if "POST" in door.methods:
                answer = client.post(f"{mock_bridge.root}{door.url}", content=b"{}", headers=headers)
                assert answer.status_code == 415, door
