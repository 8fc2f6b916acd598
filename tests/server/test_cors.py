"""Web pages: those of listed origins can use the bridge as their browser lets them, all others get nowhere."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from harness import KEY, ROOT, RunningBridge, running_bridge
from hypothesis import given
from hypothesis import strategies as st
from openai import OpenAI

from bridge.errors import ConfigError
from bridge.http.head import Head
from bridge.http.request import Request
from bridge.server.gate import EXPOSED, HEADERS, answer_preflight
from bridge.settings import load_settings

OBSIDIAN = "app://obsidian.md"
RESPONSES, CHAT, MODELS = "/v1/responses", "/v1/chat/completions", "/v1/models"
BODY = json.dumps({"model": "mock-echo", "input": "hi"}).encode()

Headers = list[tuple[str, str]]


class Answer(NamedTuple):
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def cors(self) -> dict[str, str]:
        """The headers that are meant for a browser."""
        return {name: value for name, value in self.headers.items() if name.startswith("access-control-")}

    @property
    def code(self) -> str:
        return str(json.loads(self.body)["error"]["code"])


def send(bridge: RunningBridge, method: str, path: str, headers: Headers, body: bytes = b"", host: str = "") -> Answer:
    """One exchange with exactly these headers. No header of the answer may come twice."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{bridge.port}'}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    with socket.create_connection(("127.0.0.1", bridge.port), timeout=10) as client:
        client.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        response = HTTPResponse(client, method=method)
        response.begin()
        found = [(name.lower(), value) for name, value in response.headers.items()]
        assert len(dict(found)) == len(found), found
        return Answer(response.status, dict(found), response.read())


def page_headers(origin: str, key: str | None = KEY, **more: str) -> Headers:
    """What a page sends with a request, and its browser adds."""
    keyed = [] if key is None else [("Authorization", f"Bearer {key}")]
    return [
        ("Origin", origin),
        ("Sec-Fetch-Site", "cross-site"),
        *keyed,
        ("Content-Type", "application/json"),
        *more.items(),
    ]


def preflight_headers(origin: str, method: str = "POST", asked: str | None = "authorization,content-type") -> Headers:
    """What a browser asks before."""
    named = [] if asked is None else [("Access-Control-Request-Headers", asked)]
    return [("Origin", origin), ("Sec-Fetch-Site", "cross-site"), ("Access-Control-Request-Method", method), *named]


SETTINGS = {
    "default": (None, [OBSIDIAN]),
    "none": ("none", []),
    "several": (
        "https://chat.example:8443, HTTP://LocalHost:3000/ ,https://plain.example:443,http://[::1]:5173",
        ["https://chat.example:8443", "http://localhost:3000", "https://plain.example", "http://[::1]:5173"],
    ),
}
EVERY_LISTED = [origin for _, origins in SETTINGS.values() for origin in origins]


class Configured(NamedTuple):
    """A bridge, and the origins that its setting lists."""

    bridge: RunningBridge
    listed: list[str]


@pytest.fixture(scope="module", params=SETTINGS)
def configured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configured]:
    """A bridge for each of the settings."""
    text, listed = SETTINGS[request.param]
    environment = {} if text is None else {"PROXY_ALLOWED_ORIGINS": text}
    with running_bridge(tmp_path_factory.mktemp("cors"), "--mock-only", **environment) as bridge:
        yield Configured(bridge, listed)
        assert "Traceback" not in bridge.stderr.read_text()


# Which origins

HOSTILE = [
    "null",
    "",
    "*",
    "http://evil.example",
    "app://obsidian.md.evil.example",
    "app://evil.obsidian.md",
    "app://obsidian.md:80",
    "app://obsidian.md/",
    "app://obsidian.md/x",
    "app://obsidian.md?",
    "app://obsidian.md@evil.example",
    "app://obsidian.md, http://evil.example",
    "app://obsidian.md http://evil.example",
    "app:obsidian.md",
    "obsidian.md",
    "https://obsidian.md",
    "app://obsidian.m\xe4d",
    "http://127.0.0.1.evil.example",
    "http://127.0.0.1",
    "http://127.0.0.1:1",
    "http://localhost",
    "https://localhost:3000",
    "http://localhost:30000",
    "http://localhost:3000.evil.example",
    "http://chat.example:8443",
    "https://chat.example",
    "https://plain.example:443",
    "http://[::1]",
    "file://",
    "app://" + "obsidian.md" * 4000,
]


@pytest.mark.parametrize("origin", [*EVERY_LISTED, *HOSTILE], ids=lambda origin: origin[:60])
def test_only_listed_origins_are_allowed(configured: Configured, origin: str) -> None:
    """Every method and path: a listed origin is served and may read it; any other gets 403 and no header to read it."""
    bridge, listed = configured
    for path in (RESPONSES, CHAT, MODELS, "/healthz", "/nothing"):
        asked = send(bridge, "OPTIONS", path, preflight_headers(origin))
        if origin in listed:
            assert (asked.status, asked.body) == (204, b"")
            assert asked.headers["access-control-allow-origin"] == origin
        else:
            assert (asked.status, asked.code, asked.cors) == (403, "origin_not_allowed", {})
        for method in ("GET", "POST", "DELETE", "OPTIONS", "PUT", "HEAD"):
            body = BODY if method == "POST" else b""
            answer = send(bridge, method, path, page_headers(origin), body)
            if origin in listed:
                assert answer.status in (200, 400, 404, 405)
                assert answer.headers["access-control-allow-origin"] == origin
                assert answer.headers["vary"] == "Origin"
            else:
                assert (answer.status, answer.cors) == (403, {})
                assert method == "HEAD" or answer.code == "origin_not_allowed"


@pytest.mark.parametrize("origin", ["APP://OBSIDIAN.MD", "App://Obsidian.md"])
def test_the_case_of_an_origin_is_ignored(mock_bridge: RunningBridge, origin: str) -> None:
    """Neither in the scheme nor in the host; the browser gets its own spelling back, which it compares exactly."""
    assert send(mock_bridge, "GET", MODELS, page_headers(origin)).headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("second", [OBSIDIAN, "http://evil.example", "null", ""])
@pytest.mark.parametrize("listed_first", [True, False])
def test_two_origins_are_refused(mock_bridge: RunningBridge, second: str, listed_first: bool) -> None:
    """No browser sends two."""
    origins = [OBSIDIAN, second] if listed_first else [second, OBSIDIAN]
    headers = [("Origin", origin) for origin in origins]
    for answer in (
        send(mock_bridge, "POST", RESPONSES, [*headers, *page_headers("x")[2:]], BODY),
        send(mock_bridge, "OPTIONS", RESPONSES, [*headers, *preflight_headers("x")[1:]]),
    ):
        assert (answer.status, answer.code, answer.cors) == (403, "origin_not_allowed", {})


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "obsidian.md", ""])
def test_the_host_is_checked_first(mock_bridge: RunningBridge, host: str) -> None:
    """A listed origin does not bypass the protection from DNS rebinding."""
    host = host or " "
    for answer in (
        send(mock_bridge, "POST", RESPONSES, page_headers(OBSIDIAN), BODY, host=host),
        send(mock_bridge, "OPTIONS", RESPONSES, preflight_headers(OBSIDIAN), host=host),
        send(mock_bridge, "GET", MODELS, page_headers(f"http://{host}"), host=host),
    ):
        assert (answer.status, answer.code) == (403, "host_not_allowed")
        assert "access-control-allow-methods" not in answer.headers


def test_a_page_s_request_without_an_origin_is_refused(mock_bridge: RunningBridge) -> None:
    """An image or a link of another site: no Origin, but the browser says where it comes from."""
    for path in (MODELS, "/healthz"):
        headers = [("Sec-Fetch-Site", "Cross-Site"), ("Authorization", f"Bearer {KEY}")]
        answer = send(mock_bridge, "GET", path, headers)
        assert (answer.status, answer.code, answer.cors) == (403, "origin_not_allowed", {})


@pytest.mark.parametrize("site", ["none", "same-origin", "same-site", None])
def test_a_request_without_an_origin_gets_no_cors_headers(mock_bridge: RunningBridge, site: str | None) -> None:
    """Programs, and an address that a person types: no header of all this is in the answer."""
    headers = [("Authorization", f"Bearer {KEY}"), *([("Sec-Fetch-Site", site)] if site else [])]
    answer = send(mock_bridge, "GET", MODELS, headers)
    assert (answer.status, answer.cors, answer.headers.get("vary")) == (200, {}, None)
    options = send(mock_bridge, "OPTIONS", MODELS, [*headers, ("Access-Control-Request-Method", "GET")])
    assert (options.status, options.code) == (405, "method_not_allowed")


# The bridge's own page


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "[::1]"])
def test_the_bridge_s_own_page_is_allowed(configured: Configured, host: str) -> None:
    """GET and POST of a page that came from here, under the name that it came by; with a key like all others."""
    bridge = configured.bridge
    place = f"{host}:{bridge.port}"
    headers = page_headers(f"http://{place.lower()}")[2:]
    own: Headers = [("Origin", f"http://{place.lower()}"), ("Sec-Fetch-Site", "same-origin")]
    assert send(bridge, "GET", MODELS, [*own, *headers], host=place).status == 200
    answer = send(bridge, "POST", RESPONSES, [*own, *headers], BODY, host=place)
    assert (answer.status, answer.cors) == (200, {})
    assert send(bridge, "POST", RESPONSES, [*own, ("Content-Type", "application/json")], BODY, host=place).status == 401
    for method in ("PUT", "DELETE", "OPTIONS"):
        assert send(bridge, method, RESPONSES, [*own, *headers], host=place).status == 403


def test_a_similar_origin_is_not_the_bridge_s_own(mock_bridge: RunningBridge) -> None:
    """Another name of this machine, another port, another scheme, or a browser that says otherwise."""
    port = mock_bridge.port
    headers = page_headers("x")[2:]
    for origin in (
        f"http://localhost:{port}",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port + 1}",
        "http://127.0.0.1",
        f"http://127.0.0.1:{port}/",
        f"http://127.0.0.1:{port}.evil.example",
        f"http://evil.example@127.0.0.1:{port}",
    ):
        assert send(mock_bridge, "POST", RESPONSES, [("Origin", origin), *headers], BODY).status == 403
    lying = [("Origin", f"http://127.0.0.1:{port}"), ("Sec-Fetch-Site", "cross-site"), *headers]
    assert send(mock_bridge, "POST", RESPONSES, lying, BODY).status == 403


# Preflights

SDK_HEADERS = {
    "node": "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-package-version,"
    "x-stainless-retry-count,x-stainless-runtime,x-stainless-runtime-version,x-stainless-timeout",
    "node_stream_helper": "authorization,content-type,x-stainless-helper-method,x-stainless-retry-count",
    "node_with_organization": "authorization,content-type,openai-beta,openai-organization,openai-project,user-agent",
    "flag": "authorization,content-type,dangerously-allow-browser",
    "x_api_key": "content-type,x-api-key",
    "plugin": "authorization,content-type,http-referer,x-title",
    "spaces": "Authorization, Content-Type",
    "unknown": "authorization,x-something-new",
    "one": "content-type",
}


@pytest.mark.parametrize("asked", SDK_HEADERS.values(), ids=SDK_HEADERS)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("path", [RESPONSES, CHAT, MODELS, "/v1/responses/resp_1", "/v1/embeddings"])
def test_a_preflight_of_an_sdk_is_granted(mock_bridge: RunningBridge, asked: str, method: str, path: str) -> None:
    """Without a key, for every header that the client will send."""
    answer = send(mock_bridge, "OPTIONS", path, preflight_headers(OBSIDIAN, method, asked))
    assert (answer.status, answer.body) == (204, b"")
    assert answer.cors == {
        "access-control-allow-origin": OBSIDIAN,
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": ", ".join(re.split(", ?", asked.lower())),
        "access-control-max-age": "7200",
    }
    assert answer.headers["vary"] == "Origin"


def test_the_answers_to_preflights_leave_the_connection_open(mock_bridge: RunningBridge) -> None:
    """A browser sends the request itself on the same connection."""
    with httpx2.Client(base_url=mock_bridge.root, trust_env=False) as client:
        for _ in range(3):
            answer = client.options(RESPONSES, headers=preflight_headers(OBSIDIAN))
            assert answer.status_code == 204
            assert "connection" not in answer.headers
            assert client.post(RESPONSES, headers=page_headers(OBSIDIAN), content=BODY).status_code == 200


@pytest.mark.parametrize("value", ["true", "True", "false", "1", ""])
def test_a_private_network_is_allowed_when_it_is_asked_for(mock_bridge: RunningBridge, value: str) -> None:
    """Browsers ask so before a public page reaches a loopback address."""
    asked = [("Access-Control-Request-Private-Network", value)]
    answer = send(mock_bridge, "OPTIONS", RESPONSES, [*preflight_headers(OBSIDIAN), *asked])
    allowed = answer.headers.get("access-control-allow-private-network")
    assert allowed == ("true" if value.lower() == "true" else None)
    refused = send(mock_bridge, "OPTIONS", RESPONSES, [*preflight_headers("http://evil.example"), *asked])
    assert (refused.status, refused.cors) == (403, {})


BAD_HEADER_LISTS = {
    "missing": None,
    "empty": "",
    "commas": ",,,",
    "hole": "authorization,,content-type",
    "colon": "authorization,set-cookie: a=b",
    "blank_inside": "authorization,x y",
    "quotes": 'authorization,"x"',
    "not_ascii": "authorization,x-\xe4",
    "tab_inside": "a\tb",
    "bare_return": "authorization,x\rset-cookie:a=b",
    "many": ",".join(f"x-{number}" for number in range(65)),
    "long": "x-" + "y" * 3000,
}


@pytest.mark.parametrize("asked", BAD_HEADER_LISTS.values(), ids=BAD_HEADER_LISTS)
def test_an_invalid_list_of_headers_is_not_sent_back(mock_bridge: RunningBridge, asked: str | None) -> None:
    """Our own list instead; and nothing of it becomes a header of the answer."""
    answer = send(mock_bridge, "OPTIONS", RESPONSES, preflight_headers(OBSIDIAN, asked=asked))
    assert answer.status in (204, 400)
    assert answer.headers.get("access-control-allow-headers", HEADERS.decode()) == HEADERS.decode()
    assert "set-cookie" not in answer.headers


def test_a_line_break_in_a_list_of_headers_is_the_end_of_it(mock_bridge: RunningBridge) -> None:
    """What follows is another header of the request, and none of the answer."""
    asked = "authorization\r\nX-Injected: yes"
    answer = send(mock_bridge, "OPTIONS", RESPONSES, preflight_headers(OBSIDIAN, asked=asked))
    assert answer.headers["access-control-allow-headers"] == "authorization"
    assert "x-injected" not in answer.headers


@given(st.lists(st.binary(max_size=100), max_size=3))
async def test_the_answer_to_a_preflight_is_always_a_list_of_names(asked: list[bytes]) -> None:
    """Also for a connection that would let anything through."""
    sent: dict[bytes, bytes] = {}

    class Kept:
        def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
            sent.update(headers)

        async def send(self, data: bytes, *, last: bool = False) -> None:
            assert last

    named = [(b"access-control-request-headers", value) for value in asked]
    request = Request(Head("OPTIONS", "/", b"", b"1.1", named), Kept())  # type: ignore[arg-type]
    await answer_preflight(request, OBSIDIAN.encode())
    allowed = sent[b"access-control-allow-headers"]
    assert re.fullmatch(rb"[!#$%&'*+.^_`|~0-9a-z-]+(, [!#$%&'*+.^_`|~0-9a-z-]+)*", allowed)


def test_other_options_requests_need_a_key(mock_bridge: RunningBridge) -> None:
    """OPTIONS without the question, or with a body."""
    plain = [("Origin", OBSIDIAN)]
    with_body = preflight_headers(OBSIDIAN)
    for answer in (
        send(mock_bridge, "OPTIONS", RESPONSES, plain),
        send(mock_bridge, "OPTIONS", RESPONSES, with_body, b"{}"),
        send(mock_bridge, "GET", MODELS, preflight_headers(OBSIDIAN)),
    ):
        assert (answer.status, answer.code) == (401, "invalid_api_key")


# Answers that a page can read

ASKED: dict[str, tuple[str, str, str | None, bytes, int]] = {
    "models": ("GET", MODELS, KEY, b"", 200),
    "response": ("POST", RESPONSES, KEY, BODY, 200),
    "stream": ("POST", RESPONSES, KEY, BODY[:-1] + b',"stream":true}', 200),
    "chat_stream": (
        "POST",
        CHAT,
        KEY,
        b'{"model":"mock-echo","messages":[{"role":"user","content":"hi"}],"stream":true}',
        200,
    ),
    "probe": ("GET", "/healthz", None, b"", 200),
    "bad_json": ("POST", RESPONSES, KEY, b"{", 400),
    "unknown_model": ("POST", CHAT, KEY, b'{"model":"x","messages":[{"role":"user","content":"hi"}]}', 400),
    "no_key": ("POST", RESPONSES, None, BODY, 401),
    "wrong_key": ("GET", MODELS, "wrong", b"", 401),
    "no_such_path": ("GET", "/v1/nothing", KEY, b"", 404),
    "no_such_path_with_body": ("POST", "/v1/nothing", KEY, BODY, 404),
    "wrong_method": ("DELETE", MODELS, KEY, b"", 405),
    "too_large": ("POST", RESPONSES, KEY, b"x" * (21 * 1024 * 1024), 413),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_every_answer_can_be_read_by_a_listed_page(
    mock_bridge: RunningBridge, asked: tuple[str, str, str | None, bytes, int]
) -> None:
    """Errors and streams too, else a page would see nothing but `Failed to fetch`. Cookies are never allowed."""
    method, path, key, body, status = asked
    answer = send(mock_bridge, method, path, page_headers(OBSIDIAN, key), body)
    assert answer.status == status
    assert answer.cors == {
        "access-control-allow-origin": OBSIDIAN,
        "access-control-expose-headers": EXPOSED.decode(),
    }
    assert answer.headers["vary"] == "Origin"
    if status == 200:
        assert b"hi" in answer.body or method == "GET"
    else:
        assert answer.code


def test_a_wrong_content_type_can_be_read_too(mock_bridge: RunningBridge) -> None:
    """415 is what a page gets that sends without a preflight: the body is never looked at."""
    headers = [("Origin", OBSIDIAN), ("Authorization", f"Bearer {KEY}"), ("Content-Type", "text/plain")]
    answer = send(mock_bridge, "POST", RESPONSES, headers, BODY)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (415, OBSIDIAN)


# A browser


class Blocked(Exception):
    """What a page sees as `Failed to fetch`."""


class Browser:
    """A page in a browser: what the Fetch standard says about CORS, as far as it concerns programs' requests."""

    SIMPLE = frozenset({"accept", "accept-language", "content-language"})
    READABLE = frozenset(
        {"cache-control", "content-language", "content-length", "content-type", "expires", "last-modified", "pragma"}
    )

    def __init__(self, bridge: RunningBridge, origin: str) -> None:
        self._bridge = bridge
        self._origin = origin
        self.requests: list[str] = []

    def fetch(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answer:
        """The answer as far as the page can read it."""
        needed = sorted(name.lower() for name in headers if name.lower() not in self.SIMPLE)
        if needed or method not in ("GET", "HEAD", "POST"):
            self._ask(method, path, needed)
        answer = self._send(method, path, [("Origin", self._origin), *headers.items()], body)
        self._check(answer)
        exposed = re.split(", *", answer.headers.get("access-control-expose-headers", "").lower())
        visible = {name: value for name, value in answer.headers.items() if name in self.READABLE or name in exposed}
        return Answer(answer.status, visible, answer.body)

    def _ask(self, method: str, path: str, needed: list[str]) -> None:
        answer = self._send("OPTIONS", path, preflight_headers(self._origin, method, ",".join(needed) or None))
        self._check(answer)
        methods = re.split(", *", answer.headers.get("access-control-allow-methods", ""))
        allowed = re.split(", *", answer.headers.get("access-control-allow-headers", "").lower())
        if not 200 <= answer.status < 300 or not {*needed} <= {*allowed} or method not in (*methods, "GET", "POST"):
            raise Blocked(answer)

    def _check(self, answer: Answer) -> None:
        if answer.headers.get("access-control-allow-origin") != self._origin:
            raise Blocked(answer)

    def _send(self, method: str, path: str, headers: Headers, body: bytes = b"") -> Answer:
        self.requests.append(method)
        return send(self._bridge, method, path, [("Sec-Fetch-Site", "cross-site"), *headers], body)


class Recorder(httpx2.BaseTransport):
    """Keeps the request that a client would send."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.headers = {name: value for name, value in request.headers.items() if name not in OF_THE_BROWSER}
        return httpx2.Response(500)


OF_THE_BROWSER = ("host", "connection", "content-length", "accept-encoding", "user-agent")


def sdk_headers() -> dict[str, str]:
    """The headers of OpenAI's client for a request, as it makes them today."""
    recorder = Recorder()
    with httpx2.Client(transport=recorder) as transport:
        options: dict[str, Any] = {"organization": "org", "project": "proj", "max_retries": 0, "http_client": transport}
        client = OpenAI(base_url="http://127.0.0.1:1/v1", api_key=KEY, **options)
        with pytest.raises(Exception, match="500"):
            client.responses.create(model="mock-echo", input="hi")
    assert {"authorization", "x-stainless-lang", "openai-organization"} <= set(recorder.headers)
    return recorder.headers


def test_a_listed_page_with_openai_s_client_gets_its_answer(mock_bridge: RunningBridge) -> None:
    """Question, request, answer; and the headers that help."""
    page = Browser(mock_bridge, OBSIDIAN)
    body = BODY[:-1] + b',"temperature":1}'
    answer = page.fetch("POST", RESPONSES, sdk_headers() | {"dangerously-allow-browser": "true"}, body)
    assert page.requests == ["OPTIONS", "POST"]
    assert (answer.status, json.loads(answer.body)["status"]) == (200, "completed")
    assert answer.headers["x-request-id"].startswith("req_")
    assert "temperature" in answer.headers["x-bridge-dropped"]


def test_a_listed_page_reads_why_it_failed(mock_bridge: RunningBridge) -> None:
    """The error, not `Failed to fetch`."""
    page = Browser(mock_bridge, OBSIDIAN)
    headers = {"Authorization": "Bearer wrong", "Content-Type": "application/json"}
    assert page.fetch("POST", RESPONSES, headers, BODY).code == "invalid_api_key"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:3000", "app://obsidian.md.evil"])
def test_another_page_is_stopped_by_its_browser(mock_bridge: RunningBridge, origin: str) -> None:
    """With a stolen key too: its request is not even sent; and what needs no question cannot be read."""
    page = Browser(mock_bridge, origin)
    with pytest.raises(Blocked):
        page.fetch("POST", RESPONSES, {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}, BODY)
    assert page.requests == ["OPTIONS"]
    with pytest.raises(Blocked):
        page.fetch("GET", "/healthz", {})


# The setting


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", (OBSIDIAN,)),
        ("none", ()),
        (" None ", ()),
        ("app://obsidian.md", (OBSIDIAN,)),
        ("https://a.example,http://b.example:8080", ("https://a.example", "http://b.example:8080")),
        ("HTTPS://A.Example/", ("https://a.example",)),
        ("http://a.example:80, https://b.example:443", ("http://a.example", "https://b.example")),
        ("https://a.example:80", ("https://a.example:80",)),
        ("http://[::1]:5173", ("http://[::1]:5173",)),
        ("chrome-extension://abcdef,capacitor://localhost", ("chrome-extension://abcdef", "capacitor://localhost")),
    ],
)
def test_origins_are_written_as_browsers_write_them(text: str, origins: tuple[str, ...]) -> None:
    """Lower case, no usual port, no last slash: what people copy from an address bar works."""
    assert load_settings({"PROXY_ALLOWED_ORIGINS": text}).allowed_origins == origins


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("*", "name each origin"),
        ("https://*.example", "name each origin"),
        ("app://obsidian.md,*", "name each origin"),
        ("null", "sandboxed"),
        ("NULL", "sandboxed"),
        ("none,app://obsidian.md", "scheme://host"),
        ("obsidian.md", "scheme://host"),
        ("//obsidian.md", "scheme://host"),
        ("https://a.example/chat", "scheme://host"),
        ("https://a.example//", "scheme://host"),
        ("https://a.example?x", "scheme://host"),
        ("https://me@a.example", "scheme://host"),
        ("https://a.example:", "scheme://host"),
        ("https://a.example:0x50", "scheme://host"),
        ("https://a.example:65536", "scheme://host"),
        ("https://a..example", "scheme://host"),
        ("https://b\xfccher.example", "scheme://host"),
        ("https://a.example\r\nX: y", "scheme://host"),
        ("file://", "scheme://host"),
    ],
)
def test_an_inexact_origin_in_the_settings_is_refused_at_start(text: str, why: str) -> None:
    """With the setting's name and the reason, in one line."""
    with pytest.raises(ConfigError) as refused:
        load_settings({"PROXY_ALLOWED_ORIGINS": text})
    assert refused.value.message.startswith("PROXY_ALLOWED_ORIGINS: ")
    assert why in refused.value.message
    assert len(refused.value.message.splitlines()) == 1


def test_a_wildcard_origin_is_refused_at_start(tmp_path: Path) -> None:
    """`*` is what one tries first; the answer says what to write instead."""
    environment = {"PROXY_ALLOWED_ORIGINS": "*", "PROXY_API_KEY": KEY, "HOME": str(tmp_path), "PORT": "0"}
    command = [sys.executable, "-m", "bridge", "serve", "--mock-only"]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert ended.returncode != 0
    assert "PROXY_ALLOWED_ORIGINS" in ended.stderr
    assert "name each origin" in ended.stderr
