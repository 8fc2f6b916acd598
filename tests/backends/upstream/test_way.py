"""The way to the provider: no proxy to this machine, no cookies, and whatever comes back instead of HTTP."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from backends.upstream.rig import LEAVES_GENERATORS, NOW, SESSION, Rig, rigged, turn
from trio.testing import MockClock
from upstream.answers import RESET, Stream, refusal
from upstream.chatgpt import serving
from upstream.events import answer, text
from upstream.tokens import assert_no_secrets

from bridge.errors import ConfigError
from bridge.upstream.backend import ResponsesApi, UpstreamBackend
from bridge.upstream.client import Patience, Upstream
from bridge.upstream.codex import CodexCredentials, CodexLogin
from bridge.upstream.credentials import Request

FAR_AWAY = "https://upstream.invalid/backend-api/codex"


class Raw:
    """A server that answers each connection with bytes made of the first that it reads."""

    def __init__(self, reply: Callable[[bytes], bytes]) -> None:
        self.url = ""
        self.heard: list[bytes] = []
        self._reply = reply

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        task_status.started()
        await trio.serve_listeners(self._connected, [listener])

    async def _connected(self, stream: trio.SocketStream) -> None:
        heard = bytes(await stream.receive_some())
        self.heard.append(heard)
        with suppress(trio.BrokenResourceError):
            await stream.send_all(self._reply(heard))
        await stream.aclose()


@asynccontextmanager
async def raw_server(reply: Callable[[bytes], bytes]) -> AsyncIterator[Raw]:
    async with trio.open_nursery() as nursery:
        raw = Raw(reply)
        await nursery.start(raw.run)
        yield raw
        nursery.cancel_scope.cancel()


def authorization(heard: bytes) -> bytes:
    """The line with the token in it."""
    return next(line for line in heard.split(b"\r\n") if line.lower().startswith(b"authorization"))


# Cookies and headers


async def test_cookies_are_not_sent_back(tmp_path: Path) -> None:
    """One user's cookie would go with the next user's request."""
    async with rigged(tmp_path) as rig:
        cookie = {"set-cookie": "session=canary; Path=/"}
        rig.chatgpt.will(Stream(answer(text("a")), headers=cookie), refusal(503, None, "busy", set_cookie="b=c"))
        await rig.answered()
        await rig.answered()
        assert rig.statuses == [200, 503, 200]
        assert [request.headers.get("cookie") for request in rig.chatgpt.requests] == [None] * 3


async def test_nothing_but_the_documented_headers_is_sent(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.answered()
        assert {name for name, _ in rig.chatgpt.requests[0].header_list} == {
            "host",
            "accept-encoding",
            "connection",
            "content-length",
            "content-type",
            "accept",
            "authorization",
            "originator",
            "user-agent",
            "session_id",
            "chatgpt-account-id",
        }


# Proxies

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in (*PROXIES, "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("variable", PROXIES)
async def test_no_proxy_is_used_to_reach_this_machine(
    tmp_path: Path, no_proxies: pytest.MonkeyPatch, variable: str
) -> None:
    async with raw_server(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as proxy:
        no_proxies.setenv(variable, proxy.url)
        async with rigged(tmp_path) as rig:
            rig.chatgpt.logins.expire_access()
            await rig.answered()
        assert proxy.heard == []


async def test_no_proxy_is_used_to_reach_this_machine_when_another_url_is_far_away(
    tmp_path: Path, no_proxies: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Over plain http, which is allowed here alone, a proxy would read the key."""
    async with raw_server(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as proxy, serving() as chatgpt:
        no_proxies.setenv("HTTP_PROXY", proxy.url)
        home = chatgpt.home(tmp_path, "apikey")
        async with trio.open_nursery() as nursery:
            upstream = Upstream(FAR_AWAY, Patience(), jitter=lambda: 0.5)
            await nursery.start(upstream.run)
            login = CodexLogin(
                home, token_url=chatgpt.token_url, client=upstream.client_to(chatgpt.token_url), now=lambda: NOW
            )
            credentials = CodexCredentials(login, chatgpt_url=FAR_AWAY, api_url=chatgpt.api_base_url)
            backend = UpstreamBackend("codex", upstream, ResponsesApi(), credentials, new_session=lambda: SESSION)
            await Rig(chatgpt, home, upstream, backend).ask(turn())
            nursery.cancel_scope.cancel()
        assert proxy.heard == []
        assert len(chatgpt.requests) == 1


async def test_a_proxy_is_used_to_reach_others(no_proxies: pytest.MonkeyPatch) -> None:
    async with raw_server(lambda _: b"HTTP/1.1 502 No\r\ncontent-length: 0\r\n\r\n") as proxy:
        no_proxies.setenv("HTTPS_PROXY", proxy.url)
        async with Upstream(FAR_AWAY, Patience(), jitter=lambda: 0.5).client_to(FAR_AWAY) as client:
            with pytest.raises(Exception, match="502"):
                await client.post(FAR_AWAY, headers={"authorization": "Bearer canary"})
        (heard,) = proxy.heard
        assert heard.startswith(b"CONNECT upstream.invalid:443")
        assert b"canary" not in heard


async def test_a_proxy_that_cannot_be_used_does_not_concern_this_machine(
    tmp_path: Path, no_proxies: pytest.MonkeyPatch
) -> None:
    """It is reported for what is elsewhere alone."""
    no_proxies.setenv("ALL_PROXY", "foo://127.0.0.1:9")
    async with rigged(tmp_path) as rig:
        await rig.answered()
        with pytest.raises(ConfigError, match="ALL_PROXY"):
            rig.upstream.client_to(FAR_AWAY)
    with pytest.raises(ConfigError, match="ALL_PROXY"):
        Upstream(FAR_AWAY, Patience(), jitter=lambda: 0.5)


# What is no HTTP


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(lambda heard: authorization(heard) + b"\r\n\r\n", id="status line"),
        pytest.param(
            lambda heard: b"HTTP/1.1 200 OK\r\n" + authorization(heard).replace(b":", b" ") + b"\r\n\r\n",
            id="header line",
        ),
        pytest.param(
            lambda heard: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + authorization(heard) + b"\r\n",
            id="chunk",
        ),
        pytest.param(
            lambda heard: b"HTTP/1.1 200 OK\r\ncontent-length: " + authorization(heard) + b"\r\n\r\n",
            id="content-length",
        ),
        pytest.param(
            lambda heard: b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + authorization(heard), id="gzip"
        ),
        pytest.param(
            lambda heard: b"HTTP/1.1 403 " + authorization(heard) + b"\r\ncontent-length: 0\r\n\r\n", id="reason"
        ),
        pytest.param(
            lambda heard: b"HTTP/1.1 302 Found\r\nlocation: /?" + authorization(heard) + b"\r\n\r\n", id="location"
        ),
        pytest.param(
            lambda heard: b"HTTP/1.1 429 No\r\nretry-after: " + authorization(heard) + b"\r\ncontent-length: 0\r\n\r\n",
            id="retry-after",
        ),
        pytest.param(
            lambda heard: b"HTTP/1.1 200 OK\r\ncontent-type: text/html; " + authorization(heard) + b"\r\n\r\n",
            id="content-type",
        ),
        pytest.param(lambda heard: b"HTTP/1.1 400 No\r\n\r\n" + heard, id="body"),
        pytest.param(lambda heard: b"HTTP/1.1 200 OK\r\nx: " + heard * 100, id="endless header"),
        pytest.param(lambda _: b"", id="nothing"),
        pytest.param(lambda _: b"\x15\x03\x01\x00\x02\x02\x28", id="tls alert"),
        pytest.param(lambda _: b"HTTP/2 200\r\n\r\n", id="http 2"),
        pytest.param(lambda _: b"SSH-2.0-OpenSSH_9.6\r\n", id="ssh"),
    ],
)
@LEAVES_GENERATORS
async def test_what_comes_back_is_not_repeated_with_our_token(
    tmp_path: Path, autojump_clock: MockClock, reply: Callable[[bytes], bytes]
) -> None:
    async with raw_server(reply) as raw, rigged(tmp_path, base_url=raw.url) as rig:
        failure, _ = await rig.failed()
        assert failure.code != "internal_error"
        assert failure.message.isprintable()
        assert len(failure.message) < 500
        assert b"canary" in raw.heard[0]


async def test_a_key_that_is_written_differently_in_json_is_not_repeated(tmp_path: Path) -> None:
    """A key may have characters that JSON escapes."""
    key = 'canary"key\\with/odd-characters'
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.keys = {key}
        rig.chatgpt.will(refusal(400, "x", f"Incorrect: {key}"), Stream(answer(text(f"your key is {key}"))))
        failure, _ = await rig.failed(turn(provider_key=key))
        assert "odd-characters" not in failure.message
        result = await rig.answered(turn(provider_key=key))
        assert "odd-characters" not in result.text


@pytest.mark.parametrize("key", ["x", "test", "EMPTY", "response"])
async def test_a_key_that_is_no_secret_does_not_spoil_the_answer(tmp_path: Path, key: str) -> None:
    """Servers on this machine take any key, and people give them such ones."""
    said = "this is a test, EMPTY of text: a response"
    async with rigged(tmp_path) as rig:
        rig.chatgpt.logins.keys = {key}
        rig.chatgpt.will(Stream(answer(text(said))))
        assert (await rig.answered(turn(provider_key=key))).text == said


async def test_tls_to_a_server_that_has_none_is_unreachable(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with serving() as plain, rigged(tmp_path, base_url=plain.base_url.replace("http:", "https:")) as rig:
        failure, _ = await rig.failed()
        assert (failure.code, failure.severity) == ("upstream_unreachable", "transient")


# Logs


async def test_the_logs_of_the_libraries_hold_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    caplog.set_level(logging.DEBUG)
    async with rigged(tmp_path) as rig:
        await rig.answered()
        rig.chatgpt.logins.expire_access()
        await rig.answered()
        rig.chatgpt.will(RESET, Stream([RESET]), refusal(400), refusal(401))
        await rig.ask()
        await rig.ask()
        await rig.ask(turn(provider_key=rig.chatgpt.logins.key))
        assert len(rig.chatgpt.token_requests) == 2
    assert not any(record.name.startswith("httpcore2") for record in caplog.records)
    for record in caplog.records:
        assert_no_secrets(record.getMessage(), record.args)


async def test_the_logs_of_the_libraries_hold_no_secret_that_is_sent_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with rigged(tmp_path) as rig:
        rig.chatgpt.will(lambda request: Stream(answer(text("a")), headers={"x": request.headers["authorization"]}))
        await rig.answered()
    for record in caplog.records:
        assert_no_secrets(record.getMessage())


def test_a_request_shows_nothing_of_itself() -> None:
    request = Request("https://host/path", {"authorization": "canary"}, b"canary", ("canary",))
    assert_no_secrets(request)
