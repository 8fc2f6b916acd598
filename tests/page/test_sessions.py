"""Who may look at the page: tokens, keys and cookies, and which requests are refused."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import httpx2
import pytest
import trio
from harness import KEY, OTHER_KEY, RunningBridge
from page.visiting import (
    JSON,
    browser,
    client_key,
    following,
    printed_token,
    prompted_bridge,
    row_with,
    rows,
    until,
    visitor,
)
from server.prompted import ask, wait_for

from bridge.app.keys import Keyring
from bridge.errors import Unauthorized
from bridge.http.head import parse_head
from bridge.http.request import Request
from bridge.page.live import KEEPALIVE, MAX_OF_CLIENT, Watcher
from bridge.page.ring import Ring
from bridge.page.sessions import MAX_SESSIONS, MAX_TOKENS, SESSION_SECONDS, TOKEN_SECONDS, Sessions
from bridge.page.site import Site, routes_of
from bridge.page.turns import Turns
from bridge.store.key_store import KeyFile

CHANNEL = SimpleNamespace()
"""No test here reads a body or answers."""


class Clock:
    """Seconds since 1970."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC).timestamp()

    def __call__(self) -> float:
        return self.now


def with_cookie(header: str) -> Request:
    """A request with the cookie of a Set-Cookie header."""
    cookie = header.partition(";")[0].encode()
    head = parse_head(b"GET /page/api/about HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: a=b; %b; c=d\r\n\r\n" % cookie)
    return Request(head, CHANNEL)


def with_cookies(*cookies: str) -> Request:
    """A request with several cookies in one header."""
    sent = "; ".join(cookies).encode()
    return Request(parse_head(b"GET /page/api/about HTTP/1.1\r\nhost: 127.0.0.1\r\ncookie: %b\r\n\r\n" % sent), CHANNEL)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(Keyring((KEY,)), 11435, secure=False, now=clock)


async def test_a_token_works_once(sessions: Sessions) -> None:
    token = sessions.new_token()
    key = await sessions.key_of(with_cookie(await sessions.begin(token=token, key=None)))
    assert key is not None
    assert sessions.is_operator(key.label)
    with pytest.raises(Unauthorized, match="works once"):
        await sessions.begin(token=token, key=None)


async def test_a_token_expires(sessions: Sessions, clock: Clock) -> None:
    late, in_time = sessions.new_token(), sessions.new_token()
    clock.now += TOKEN_SECONDS - 1
    await sessions.begin(token=in_time, key=None)
    clock.now += 1
    with pytest.raises(Unauthorized, match="has expired"):
        await sessions.begin(token=late, key=None)


async def test_a_session_expires(sessions: Sessions, clock: Clock) -> None:
    cookie = await sessions.begin(token=None, key=KEY)
    clock.now += SESSION_SECONDS - 1
    assert await sessions.key_of(with_cookie(cookie)) is not None
    clock.now += 1
    assert await sessions.key_of(with_cookie(cookie)) is None


async def test_tokens_and_sessions_are_bounded(sessions: Sessions) -> None:
    """The oldest go first."""
    tokens = [sessions.new_token() for _ in range(MAX_TOKENS + 1)]
    with pytest.raises(Unauthorized):
        await sessions.begin(token=tokens[0], key=None)
    cookies = [await sessions.begin(token=None, key=KEY) for _ in range(MAX_SESSIONS + 1)]
    assert await sessions.key_of(with_cookie(cookies[0])) is None
    assert await sessions.key_of(with_cookie(cookies[1])) is not None


async def test_only_its_own_cookie_counts(sessions: Sessions) -> None:
    for cookie in ("turnbridge-11435=", "turnbridge-11435=guess", f"turnbridge-11435={'x' * 10_000}", "turnbridge-1=x"):
        assert await sessions.key_of(with_cookie(cookie)) is None


async def test_the_cookie_is_for_the_page_alone() -> None:
    """No script reads it, no other site sends it, and under https it goes over https alone."""
    for secure in (False, True):
        header = await Sessions(Keyring((KEY,)), 11435, secure=secure).begin(token=None, key=KEY)
        assert header.startswith("turnbridge-11435=")
        attributes = set(header.split("; ")[1:])
        assert attributes - {"Secure"} == {"Path=/page", f"Max-Age={SESSION_SECONDS}", "HttpOnly", "SameSite=Strict"}
        assert ("Secure" in attributes) is secure


def test_the_printed_address_opens_the_page(tmp_path: Path) -> None:
    with prompted_bridge(tmp_path) as bridge, browser(bridge.root) as client:
        token = printed_token(bridge)
        assert client.get("/").headers["content-type"] == "text/html; charset=utf-8"
        assert client.get("/page/api/about").status_code == 401
        assert client.post("/page/session", json={"token": f"{token}x"}).status_code == 401
        assert client.post("/page/session", json={"token": token}).status_code == 204
        assert client.get("/page/api/about").json()["operator"] is True
        reused = client.post("/page/session", json={"token": token})
        assert (reused.status_code, reused.json()["error"]["code"]) == (401, "invalid_token")
        assert client.delete("/page/session").status_code == 204
        assert client.get("/page/api/about").status_code == 401


def test_signing_in_again_ends_the_session_before(bridge: RunningBridge) -> None:
    with visitor(bridge) as client:
        before = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        assert client.post("/page/session", json={"key": KEY}).status_code == 204
        assert client.get("/page/api/about").status_code == 200
        with browser(bridge.root) as other:
            assert other.get("/page/api/about", headers={"cookie": before}).status_code == 401


def test_a_wrong_key_begins_no_session(bridge: RunningBridge) -> None:
    with browser(bridge.root) as client:
        for body in ({"key": "wrong-key-0123456789"}, {"key": ""}, {"token": ""}):
            assert client.post("/page/session", json=body).status_code == 401, body
        for body in ({}, {"key": KEY, "token": "x"}, {"key": 7}, []):  # type: ignore[assignment]
            assert client.post("/page/session", json=body).status_code == 400, body
        assert not client.cookies


def test_revoking_a_key_ends_its_sessions_and_what_they_watch(bridge: RunningBridge) -> None:
    key = client_key(bridge, "laptop")
    with visitor(bridge, key) as client, following(client, "events") as events:
        assert rows(client) == []
        KeyFile(bridge.state / "turnbridge" / "keys.json").revoke("laptop")
        assert [event.name for event in events] == ["bye"]
        wait_for(lambda: client.get("/page/api/about").status_code == 401, "the session has ended")


def test_a_cookie_opens_nothing_but_the_page(client: httpx2.Client) -> None:
    assert client.get("/page/api/about").status_code == 200
    cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/responses"), ("GET", "/metrics"), ("GET", "/v1/usage")):
        answer = client.request(method, path, headers={"cookie": cookie}, content=b"{}" if method == "POST" else b"")
        assert answer.status_code == 401, path


def paths() -> list[tuple[str, str]]:
    """Every route of the page that shows or does something, with a name in place of its parameters."""
    site = Site(turns=None, sessions=None, watchers=None, name="", live=True)  # type: ignore[arg-type]
    found = [(route.method, route.pattern.replace("{id}", "req_x")) for route in routes_of(site, 1) if route.needs_key]
    assert len(found) > 10
    return found


@pytest.mark.parametrize(("method", "path"), paths())
def test_every_route_needs_a_session_and_its_own_page(
    bridge: RunningBridge, client: httpx2.Client, method: str, path: str
) -> None:
    def status(headers: dict[str, str], by: httpx2.Client = client) -> int:
        request = by.build_request(method, f"{bridge.root}{path}", headers=headers)
        answer = by.send(request, stream=True)
        answer.close()
        return answer.status_code

    with browser(bridge.root) as stranger:
        assert status({}, stranger) == 401
        assert status({"authorization": "Bearer wrong-key-0123456789"}, stranger) == 401
    assert status({"origin": "https://evil.example"}) == 403
    assert status({"origin": "http://127.0.0.1:1"}) == 403
    assert status({"origin": "null"}) == 403
    assert status({"host": "evil.example"}) == 403
    for site in ("cross-site", "same-site"):
        assert status({"sec-fetch-site": site}) == 403
    assert status({"sec-fetch-site": "same-origin"}) not in (401, 403)
    if method == "POST":
        del client.headers["origin"]
        assert status({}) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_can_neither_sign_in_nor_out(bridge: RunningBridge, client: httpx2.Client, site: str) -> None:
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": site}):
        assert client.post("/page/session", json={"key": KEY}, headers=headers).status_code == 403
        assert client.delete("/page/session", headers=headers).status_code == 403
    assert client.get("/page/api/about").status_code == 200
    with httpx2.Client(base_url=bridge.root, trust_env=False, verify=False) as plain:
        assert plain.post("/page/session", json={"key": KEY}, headers=JSON).status_code == 403


def test_every_answer_has_the_policy(bridge: RunningBridge, client: httpx2.Client) -> None:
    for path in ("/", "/page/static/page.css", "/page/static/nothing.js", "/page/api/about", "/page/api/turns/none"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"], path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_files_are_sent_once(client: httpx2.Client) -> None:
    first = client.get("/page/static/page.css")
    assert first.headers["content-type"] == "text/css; charset=utf-8"
    assert client.get("/page/static/page.css", headers={"if-none-match": first.headers["etag"]}).status_code == 304
    for name in ("..%2fsite.py", "site.py", ".hidden.js", "%2e%2e", "__init__.py"):
        assert client.get(f"/page/static/{name}").status_code == 404, name


def test_the_page_can_be_switched_off(tmp_path: Path) -> None:
    with prompted_bridge(tmp_path, "--no-page") as bridge, browser(bridge.root) as client:
        assert client.get("/").status_code in (401, 404)
        assert client.get("/page/static/page.css").status_code in (401, 404)
        assert client.post("/page/session", json={"key": KEY}).status_code in (401, 404)
        with bridge.client() as keyed:
            assert keyed.get(f"{bridge.root}/page/api/turns").status_code == 404


def test_on_other_addresses_there_is_no_page_unless_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "off").mkdir()
    with prompted_bridge(tmp_path / "off", "--host", "0.0.0.0", PROXY_API_KEY=KEY) as bridge:
        address = f"http://127.0.0.1:{bridge.port}"
        assert httpx2.get(f"{address}/", trust_env=False, verify=False).status_code == 401
    (tmp_path / "on").mkdir()
    hosts = {"PROXY_ALLOWED_HOSTS": "127.0.0.1", "PROXY_API_KEY": KEY, "PROXY_PAGE": "on"}
    with (
        prompted_bridge(tmp_path / "on", "--host", "0.0.0.0", **hosts) as bridge,
        browser(f"http://127.0.0.1:{bridge.port}") as client,
    ):
        assert client.post("/page/session", json={"key": KEY}).status_code == 204
        assert client.get("/page/api/about").status_code == 200


def test_a_key_of_a_client_expires_with_its_session(bridge: RunningBridge) -> None:
    """A session never outlives its key."""
    now = datetime.now(UTC)
    path = bridge.state / "turnbridge" / "keys.json"
    key, _ = KeyFile(path).add("brief", now=now, expires=now + timedelta(seconds=3))
    with visitor(bridge, key) as client:
        assert client.get("/page/api/about").json()["operator"] is False
        wait_for(lambda: client.get("/page/api/about").status_code == 401, "the key has expired")


async def test_no_key_ends_the_sessions_of_another(clock: Clock) -> None:
    """Of too many, the oldest of the key that has most of them ends."""
    sessions = Sessions(Keyring((KEY, OTHER_KEY)), 11435, secure=False, now=clock)
    first = await sessions.begin(token=None, key=KEY)
    many = [await sessions.begin(token=None, key=OTHER_KEY) for _ in range(2 * MAX_SESSIONS)]
    assert await sessions.key_of(with_cookie(first)) is not None
    assert await sessions.key_of(with_cookie(many[0])) is None
    assert await sessions.key_of(with_cookie(many[-1])) is not None


async def test_two_sessions_at_once_open_nothing(sessions: Sessions) -> None:
    """Another program on this host may have set a cookie of the same name: it must not choose whose session it is."""
    one, two = [(await sessions.begin(token=None, key=KEY)).partition(";")[0] for _ in range(2)]
    assert await sessions.key_of(with_cookies(one, two)) is None
    assert await sessions.key_of(with_cookies("turnbridge-11435=unknown", two)) is not None


def test_signing_out_ends_what_the_session_watches(bridge: RunningBridge) -> None:
    """At once, the list and a turn that runs; another session of the same key goes on."""
    body = ask({"text": "a while "}, {"hang": True}, instructions="signing-out", stream=True)
    asking = threading.Thread(target=bridge.post, args=("/responses", body))
    asking.start()
    with visitor(bridge) as client, visitor(bridge) as other, following(other, "events") as going_on:
        name = row_with(client, "signing-out", running=True)["id"]
        with following(client, "events") as events, following(client, f"turns/{name}/events") as turn:
            until(turn, "text")
            began = time.monotonic()
            assert client.delete("/page/session").status_code == 204
            assert until(events, "bye")
            assert until(turn, "bye")
            assert time.monotonic() - began < KEEPALIVE / 2, "and not only when it next has something to say"
        assert other.post(f"/page/api/turns/{name}/cancel", json={}).status_code == 204
        assert until(going_on, "turn")
    asking.join(30)


async def test_an_expired_session_watches_nothing(autojump_clock: object) -> None:
    """The stream ends when the session does, also while nothing happens."""
    watcher = Watcher("key-a", None, seconds=40)
    began = trio.current_time()
    events = [batch async for batch in watcher.batches(Turns(Ring(1 << 20), None))]
    assert events[-1].startswith(b"event: bye")
    assert trio.current_time() - began == pytest.approx(40, abs=0.01)


def test_a_client_cannot_take_all_windows(bridge: RunningBridge) -> None:
    key = client_key(bridge, "greedy")
    with ExitStack() as stack:
        client = stack.enter_context(visitor(bridge, key))
        for _ in range(MAX_OF_CLIENT):
            stack.enter_context(following(client, "events"))
        assert client.get("/page/api/events").status_code == 503
        operator = stack.enter_context(visitor(bridge))
        stack.enter_context(following(operator, "events"))
