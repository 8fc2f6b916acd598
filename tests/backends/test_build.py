"""Backends as the configuration file asks for them, in front of scripted providers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from upstream import anthropic_server, chatgpt, openai_chat
from upstream.answers import Answer, Gate, Stream, refusal
from upstream.chatgpt import ChatGPT
from upstream.connection import Request
from upstream.events import answer, text

from bridge.core.backend import Backend
from bridge.core.collect import Result
from bridge.core.items import FunctionTool, Message, Text
from bridge.core.turn import Turn
from bridge.errors import BackendTimeout, BridgeError
from bridge.routing.build import build_backend
from bridge.routing.setup import plan_backends
from bridge.settings import Settings
from bridge.settings.file import FileConfig

TYPES = ["anthropic", "openai", "responses"]
KEY = "sk-canary-build-0123456789"
OWN = "sk-canary-own-0123456789"
"""Comes with a request."""


@pytest.fixture
def autojump_clock() -> MockClock:
    """Jumps when nothing has happened for a moment: there are sockets in between."""
    return MockClock(autojump_threshold=0.01)


class PlainResponses(ChatGPT):
    """The Responses API without Codex's own demands."""

    def reply_to(self, request: Request) -> Answer:
        self.requests.append(request)
        if request.path != "/v1/responses":
            return self._wrong([f"no such path: {request.path}"], status=404)
        given = request.headers.get("authorization")
        if given not in (f"Bearer {KEY}", f"Bearer {OWN}"):
            return refusal(401, "invalid_api_key", f"wrong: {request.headers}")
        return self.script.popleft() if self.script else Stream(answer(text("hello")))  # type: ignore[return-value]


@dataclass
class Provider:
    """A scripted provider, and what must be configured for it."""

    server: Any
    base_url: str


@asynccontextmanager
async def provider(kind: str) -> AsyncIterator[Provider]:
    """One that takes KEY and OWN; nothing wrong may be sent to it."""
    if kind == "anthropic":
        async with anthropic_server.serving() as api:
            api.logins.keys = {KEY, OWN}
            yield Provider(api, api.url)
            assert api.faults == []
        return
    server = openai_chat.ChatServer() if kind == "openai" else PlainResponses()
    if isinstance(server, openai_chat.ChatServer):
        server.key = KEY
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield Provider(server, f"{server.url}/v1")
        assert server.faults == []
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def built(
    config: dict[str, Any], environment: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Backend]:
    """The backend of this table, running."""
    file = FileConfig.model_validate({"backends": {"a": config}})
    plan = plan_backends(file, environment or {}, Path("/nowhere"))[0]
    backend, upstream = build_backend(plan, Settings(**settings))
    async with trio.open_nursery() as nursery:
        if upstream is not None:
            await nursery.start(upstream.run)
        yield backend
        nursery.cancel_scope.cancel()


def turn(**more: Any) -> Turn:
    return Turn("some-model", "some-model", (Message("user", (Text("hi"),)),), **{"stream": True, **more})


async def ask(backend: Backend, **more: Any) -> Result:
    """One turn to its end."""
    stream = await backend.start(turn(**more), "req_1")
    result = Result()
    while result.end is None:
        result.add(await stream.next())
    stream.close()
    return result


async def error_of(backend: Backend, **more: Any) -> BridgeError:
    """The error of a turn that must fail."""
    result = await ask(backend, **more)
    assert result.end is not None
    assert result.end.error is not None, result
    return result.end.error


@pytest.mark.parametrize("kind", TYPES)
async def test_each_type_answers_with_its_key_and_headers(kind: str) -> None:
    """The key of `key_env`, each configured header once, and a trailing slash that does not matter."""
    async with provider(kind) as there:
        config = {
            "type": kind,
            "base_url": f"{there.base_url}/",
            "key_env": "MINE",
            "headers": {"X-Team": "a", "x-other": "b c"},
            "models": ["m"],
        }
        async with built(config, {"MINE": KEY}) as backend:
            assert (backend.name, backend.models(), backend.takes.sampling) == ("a", ["m"], True)
            result = await ask(backend)
            assert result.end is not None
            assert result.end.outcome == "completed", result.end
            assert result.text.startswith("hello")
        sent = there.server.requests[-1]
        assert [value for name, value in sent.header_list if name == "x-team"] == ["a"]
        assert sent.headers["x-other"] == "b c"
        keys = [value for name, value in sent.header_list if name in ("authorization", "x-api-key")]
        assert keys == ([KEY] if kind == "anthropic" else [f"Bearer {KEY}"])


@pytest.mark.parametrize("kind", TYPES)
async def test_the_key_of_a_request_is_used_for_it_alone(kind: str) -> None:
    """Also where the backend has none of its own."""
    async with provider(kind) as there:
        there.server.key = None
        for environment in ({"MINE": KEY}, {}):
            async with built({"type": kind, "base_url": there.base_url, "key_env": "MINE"}, environment) as backend:
                await ask(backend, provider_key=OWN)
                sent = [value for name, value in there.server.requests[-1].header_list if "canary" in value]
                assert [value.removeprefix("Bearer ") for value in sent] == [OWN]
                if environment:
                    await ask(backend)
                    sent = [value for name, value in there.server.requests[-1].header_list if "canary" in value]
                    assert [value.removeprefix("Bearer ") for value in sent] == [KEY]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("timeout", [7, None])
async def test_the_timeout_is_the_limit_of_silence(kind: str, timeout: int | None, autojump_clock: MockClock) -> None:
    """Before the first event; without one of its own a backend has that of all."""
    async with provider(kind) as there:
        there.server.will(Stream([b": wait\n\n", gate := Gate()]))
        config = {"type": kind, "base_url": there.base_url, "key": KEY}
        async with built(config | ({"timeout": timeout} if timeout else {}), first_event_timeout=21) as backend:
            before = trio.current_time()
            error = await error_of(backend)
            assert isinstance(error, BackendTimeout)
            assert trio.current_time() - before == pytest.approx(timeout or 21, abs=0.5)
        assert gate.held == 1


async def test_the_timeout_counts_between_events_too(autojump_clock: MockClock) -> None:
    """A turn may take far longer than it, as long as it goes on."""
    async with provider("responses") as there:
        first, second = Gate(), Gate()
        told = answer(text("a", "b"))
        there.server.will(Stream([*told[:4], first, *told[4:6], second, *told[6:]]))
        config = {"type": "responses", "base_url": there.base_url, "key": KEY, "timeout": 7}
        async with built(config, idle_timeout=300) as backend, trio.open_nursery() as nursery:

            async def open_after(gate: Gate, seconds: float) -> None:
                await trio.sleep(seconds)
                gate.open()

            nursery.start_soon(open_after, first, 6)
            before = trio.current_time()
            assert isinstance(await error_of(backend), BackendTimeout)
            assert trio.current_time() - before == pytest.approx(13, abs=1)


async def test_a_responses_server_gets_only_what_was_asked_for() -> None:
    """None of Codex's own members; but a temperature, which Codex does not take."""
    async with provider("responses") as there:
        async with built({"type": "responses", "base_url": there.base_url, "key": KEY}) as backend:
            await ask(backend)
            plain = there.server.requests[-1]
            tool = FunctionTool("add", "Adds.", {"type": "object", "properties": {}})
            await ask(
                backend,
                temperature=0.5,
                top_p=0.25,
                max_output_tokens=99,
                effort="low",
                verbosity="high",
                encrypted_reasoning=True,
                tools=(tool,),
            )
            rich = there.server.requests[-1]
        assert plain.body.keys() <= {"model", "input", "instructions", "store", "stream", "prompt_cache_key"}
        assert (plain.body["stream"], plain.body["store"], plain.body["model"]) == (True, False, "some-model")
        assert {"originator", "session_id", "chatgpt-account-id"}.isdisjoint(plain.headers)
        assert (rich.body["temperature"], rich.body["top_p"], rich.body["max_output_tokens"]) == (0.5, 0.25, 99)
        assert rich.body["reasoning"] == {"effort": "low"}
        assert rich.body["text"] == {"verbosity": "high"}
        assert rich.body["include"] == ["reasoning.encrypted_content"]
        assert [tool["name"] for tool in rich.body["tools"]] == ["add"]


async def test_codex_is_asked_with_its_login(tmp_path: Path) -> None:
    """At `base_url` and `token_url` of the file, which win over the settings."""
    async with chatgpt.serving() as server:
        home = server.home(tmp_path)
        elsewhere: dict[str, Any] = {
            "codex_base_url": "http://127.0.0.1:1/x",
            "codex_token_url": "http://127.0.0.1:1/t",
        }
        config = {"type": "codex", "base_url": server.base_url, "token_url": server.token_url, "models": ["m"]}
        async with built(config, codex_home=home, **elsewhere) as backend:
            assert (backend.name, backend.models()) == ("a", ["m"])
            assert (await ask(backend)).text == chatgpt.DEFAULT_TEXT
            server.logins.access.clear()  # it has run out
            assert (await ask(backend)).text == chatgpt.DEFAULT_TEXT
        assert len(server.token_requests) == 1
        assert server.faults == []


async def test_a_mock_answers_at_once() -> None:
    """It echoes what it is asked, under any name, as mock-echo does."""
    async with built({"type": "mock"}) as backend:
        assert (await ask(backend)).text == "hi"


async def test_the_claude_login_of_a_file_is_used(tmp_path: Path) -> None:
    """And refreshed at `token_url`, once it has run out."""
    async with anthropic_server.serving() as api:
        content = anthropic_server.credentials(api.logins, expires_at=1.0)
        path = anthropic_server.write_credentials(tmp_path, content)
        config = {"type": "anthropic", "base_url": api.url, "credentials": str(path), "token_url": api.token_url}
        async with built(config) as backend:
            assert (await ask(backend)).text == anthropic_server.DEFAULT_TEXT
        assert len(api.token_requests) == 1
        assert api.faults == []


@pytest.mark.parametrize("kind", ["openai", "responses"])
async def test_a_header_of_the_same_name_does_not_double_the_key(kind: str) -> None:
    """The key wins, or the header does; two of them are refused by many servers, or the wrong one is taken."""
    async with provider(kind) as there:
        config = {"type": kind, "base_url": there.base_url, "key": KEY, "headers": {"Authorization": f"Bearer {KEY}"}}
        async with built(config) as backend:
            await ask(backend, provider_key=OWN)
        sent = [value for name, value in there.server.requests[-1].header_list if name == "authorization"]
        assert sent == [f"Bearer {OWN}"]


async def test_a_configured_header_is_not_repeated_to_the_client() -> None:
    """It may hold a key, and some servers repeat what they refuse."""
    async with provider("openai") as there:
        secret = "canary-header-0123456789"
        there.server.will(lambda request: refusal(400, None, f"bad header {request.headers['x-secret']}"))
        config = {"type": "openai", "base_url": there.base_url, "key": KEY, "headers": {"x-secret": secret}}
        async with built(config) as backend:
            error = await error_of(backend)
        assert secret not in error.message


@pytest.mark.parametrize("kind", ["anthropic", pytest.param("openai"), pytest.param("responses")])
async def test_a_backend_that_is_off_is_never_asked_without_a_key(kind: str) -> None:
    """Whoever starts a turn on it."""
    async with provider(kind) as there:
        async with built({"type": kind, "base_url": there.base_url, "key_env": "MINE"}) as backend:
            with suppress(BridgeError):
                await ask(backend)
        assert there.server.requests == []
