"""The models that a provider lists: how long a list is good for, and what a provider that is ill does to the others."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from backends.upstream.rig import LEAVES_GENERATORS
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock
from upstream.answers import CUT, RESET, Answer, Gate, Plain, Stream, html, plain_json, refusal
from upstream.chatgpt import ChatGPT
from upstream.connection import Request

from bridge.core.backend import Backend
from bridge.core.items import Message, Text
from bridge.core.turn import Turn
from bridge.routing.build import build_backend
from bridge.routing.mock import MockBackend
from bridge.routing.router import Router, Served
from bridge.routing.setup import plan_backends
from bridge.settings import Settings
from bridge.settings.file import FileConfig
from bridge.upstream.backend import FRESH, MAX_LIST, MAX_MODELS, PATIENCE, ModelList, read_models
from bridge.upstream.client import Patience, Upstream

KEY = "sk-canary-discovery"


class Lister(ChatGPT):
    """A provider that gives these answers to requests for its list, one after the other, then the last again."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: deque[Answer] = deque()
        self.lists: list[Request] = []

    def reply_to(self, request: Request) -> Answer:
        if not request.path.startswith("GET "):
            self.requests.append(request)
            return refusal(400, None, "only lists here")
        self.lists.append(request)
        self.note()
        return self.answers.popleft() if len(self.answers) > 1 else self.answers[0]


def listed(*names: str) -> Plain:
    """A list as OpenAI writes it."""
    return plain_json(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]})


@asynccontextmanager
async def listing(*answers: Answer) -> AsyncIterator[Lister]:
    """A provider with these lists."""
    server = Lister()
    server.answers.extend(answers or [listed("a")])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield server
        nursery.cancel_scope.cancel()


async def no_headers() -> dict[str, str]:
    return {}


@asynccontextmanager
async def asking(
    server: Lister, headers: Callable[[], Awaitable[dict[str, str]]] = no_headers
) -> AsyncIterator[ModelList]:
    """The list of that provider, kept."""
    upstream = Upstream(server.url, Patience(), jitter=lambda: 0.5)
    async with trio.open_nursery() as nursery:
        await nursery.start(upstream.run)
        yield ModelList("there", upstream, f"{server.url}/v1/models", headers)
        nursery.cancel_scope.cancel()


async def refreshed(server: Lister, models: ModelList, count: int) -> None:
    """Until the provider has been asked so often, and its answer has been taken in."""
    await server.until(lambda: len(server.lists) == count)
    before = models.models()
    with trio.move_on_after(1):
        while models.models() == before:
            await trio.sleep(0.01)


# When it is asked


async def test_a_list_is_good_for_five_minutes(autojump_clock: MockClock) -> None:
    """Then the old one is given out while the new one is fetched."""
    gate = Gate()
    async with (
        listing(listed("old"), Plain(200, listed("new").body, {}, gate)) as server,
        asking(server) as models,
    ):
        assert models.models() == ()
        await models.wait()
        assert models.models() == ("old",)
        await trio.sleep(FRESH - 1)
        assert [models.models() for _ in range(20)] == [("old",)] * 20
        assert len(server.lists) == 1
        await trio.sleep(2)
        before = trio.current_time()
        assert models.models() == ("old",)
        await models.wait()  # nobody waits but the first
        assert trio.current_time() == before
        await server.until(lambda: len(server.lists) == 2)
        assert [models.models() for _ in range(20)] == [("old",)] * 20
        assert len(server.lists) == 2
        gate.open()
        await refreshed(server, models, 2)
        assert models.models() == ("new",)
        assert FRESH == 300


async def test_many_who_ask_first_ask_once(autojump_clock: MockClock) -> None:
    """All of them wait for the same answer."""
    async with listing(listed("a", "b")) as server, asking(server) as models:
        async with trio.open_nursery() as nursery:
            for _ in range(50):
                nursery.start_soon(models.wait)
        assert models.models() == ("a", "b")
        assert len(server.lists) == 1
        assert repr(models) == "<ModelList there models=2>"


@pytest.mark.parametrize("stuck", ["before the headers", "in the middle"])
async def test_the_first_wait_has_an_end(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, stuck: str
) -> None:
    """A provider that hangs costs ten seconds, once."""
    hanging = Plain(200, b"", {}, Gate()) if stuck == "before the headers" else Stream([b'{"data": [', Gate()])
    async with listing(hanging) as server, asking(server) as models:
        before = trio.current_time()
        await models.wait()
        assert trio.current_time() - before == pytest.approx(PATIENCE, abs=0.5)
        await models.wait()
        assert trio.current_time() - before == pytest.approx(PATIENCE, abs=0.5)
        assert models.models() == ()
    assert "there did not list its models within 10 s" in caplog.text


FAILURES: dict[str, Answer] = {
    "401": refusal(401, "invalid_api_key", f"wrong key {KEY}"),
    "403": refusal(403),
    "404": refusal(404),
    "429": refusal(429, retry_after="1000"),
    "500": refusal(500),
    "a page": html(200),
    "a page of an error": html(502),
    "a redirect": Plain(302, b"", {"location": "http://127.0.0.1:1/v1/models"}),
    "reset": RESET,
    "cut": CUT,
    "no JSON": Plain(200, b"{", {}),
    "nothing": Plain(200, b"", {}),
    "a list of the wrong kind": Plain(200, b"[]", {}),
    "a number": plain_json(200, {"data": 7}),
    "not UTF-8": Plain(200, b'{"data": [{"id": "\xff"}]}', {}),
    "nested": Plain(200, b"[" * 100_000, {}),
    "huge": Plain(200, b'{"data": [' + b" " * (MAX_LIST + 1) + b"]}", {}),
    "a lie about its encoding": Plain(200, b"{}", {"content-encoding": "gzip"}),
}


@LEAVES_GENERATORS
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failure_keeps_the_last_list(
    patient_clock: MockClock, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """It is told once, without what the provider said, and asked again five minutes later."""
    async with listing(listed("a"), FAILURES[name], listed("b")) as server, asking(server) as models:
        await models.wait()
        await trio.sleep(FRESH)
        assert models.models() == ("a",)
        await server.until(lambda: len(server.lists) == 2)
        await trio.sleep(20)
        assert models.models() == ("a",)
        assert caplog.text.count("there did not list its models") == 1
        assert KEY not in caplog.text
        await trio.sleep(FRESH)
        models.models()
        await refreshed(server, models, 3)
        assert models.models() == ("b",)


async def test_a_login_that_is_gone_is_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is sent without it."""

    async def headers() -> dict[str, str]:
        raise OSError(f"no login {KEY}")

    async with listing() as server, asking(server, headers) as models:
        await models.wait()
        assert (models.models(), server.lists) == ((), [])
    assert KEY not in caplog.text


async def test_a_list_that_is_asked_for_too_early_is_fetched_later(autojump_clock: MockClock) -> None:
    """Once there is somebody to do it."""
    async with listing(listed("a")) as server, trio.open_nursery() as nursery:
        upstream = Upstream(server.url, Patience(), jitter=lambda: 0.5)
        models = ModelList("there", upstream, f"{server.url}/v1/models", no_headers)
        assert models.models() == ()
        await nursery.start(upstream.run)
        with trio.move_on_after(60):
            await models.wait()
        found = models.models()
        nursery.cancel_scope.cancel()
    assert found == ("a",)


# Several together


@asynccontextmanager
async def routed(
    backends: dict[str, dict[str, Any]], default: str | None = None, **environment: str
) -> AsyncIterator[tuple[Router, dict[str, Backend]]]:
    """A router over these backends, as `serve` makes it."""
    file = FileConfig.model_validate({"backends": backends})
    served: list[Served] = []
    async with trio.open_nursery() as nursery:
        for plan in plan_backends(file, environment, Path("/nowhere")):
            if not plan.implied:
                backend, upstream = build_backend(plan, Settings())
                assert upstream is not None
                await nursery.start(upstream.run)
                served.append(Served(backend, plan.target))
        yield Router(MockBackend("echo"), served, default=default), {each.backend.name: each.backend for each in served}
        nursery.cancel_scope.cancel()


def over(server: Lister, **more: Any) -> dict[str, Any]:
    return {"type": "openai", "base_url": f"{server.url}/v1", "discovery": True, **more}


@LEAVES_GENERATORS
async def test_one_that_hangs_or_fails_does_not_hide_the_others(patient_clock: MockClock) -> None:
    """Nor do they wait for each other: all are asked at once, and whoever is late comes later."""
    gate = Gate()
    async with (
        listing(listed("good-model")) as good,
        listing(Plain(200, listed("late-model").body, {}, gate)) as late,
        listing(html(200)) as ill,
        listing(FAILURES["huge"]) as huge,
        listing(RESET) as dead,
    ):
        backends = {"late": over(late), "ill": over(ill), "huge": over(huge), "dead": over(dead), "good": over(good)}
        async with routed(backends) as (router, _):
            before = trio.current_time()
            await router.wait_until_known(2)
            assert trio.current_time() - before <= 2.5
            assert "good-model" in router.models()
            assert router.resolve("good-model").backend == "good"
            assert "late-model" not in router.models()
            gate.open()
            while "late-model" not in router.models():
                await trio.sleep(0.1)
            assert router.resolve("late-model").backend == "late"
            assert trio.current_time() - before < PATIENCE


async def test_the_list_is_asked_for_with_the_key_and_headers_of_the_backend() -> None:
    """In the way of its own API."""
    async with listing(listed("a")) as chat, listing(listed("b")) as claude:
        backends = {
            "chat": over(chat, key_env="MINE", headers={"x-team": "t"}, models=["own"]),
            "claude": {"type": "anthropic", "base_url": claude.url, "key": KEY, "discovery": True},
        }
        async with routed(backends, MINE=KEY) as (router, named):
            await router.wait_until_known(5)
            assert named["chat"].models() == ["own", "a"]
            assert named["claude"].models() == ["b"]
        assert [request.path for request in chat.lists] == ["GET /v1/models"]
        assert chat.lists[0].headers["authorization"] == f"Bearer {KEY}"
        assert chat.lists[0].headers["x-team"] == "t"
        assert [request.path for request in claude.lists] == ["GET /v1/models?limit=1000"]
        assert claude.lists[0].headers["x-api-key"] == KEY


async def test_the_key_of_a_request_is_never_used_for_a_list() -> None:
    """A list is shared by all; whoever brings a key must not pay for it, nor be seen in it."""
    own = "sk-canary-of-a-client"
    async with listing(listed("a")) as server, routed({"chat": over(server, key=KEY)}) as (router, named):
        turn = Turn("m", "m", (Message("user", (Text("hi"),)),), provider_key=own, stream=True)
        stream = await named["chat"].start(turn, "req_1")
        await stream.next()
        stream.close()
        await router.wait_until_known(5)
        router.models()
        assert own in server.requests[0].headers["authorization"]
        assert [request.headers["authorization"] for request in server.lists] == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    "default",
    [None, pytest.param("chat")],
)
async def test_a_backend_without_its_key_is_not_asked_for_its_list(default: str | None) -> None:
    """Neither in its own name nor in nobody's."""
    async with listing(listed("a")) as server:
        async with routed({"chat": over(server, key_env="MINE")}, default=default) as (router, _):
            await router.wait_until_known(5)
            await router.wait_for("anything")
            assert "a" not in router.models()
        assert server.lists == []


# What a list says


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"object": "list", "data": [{"id": "gpt-5", "object": "model"}]}, ("gpt-5",)),
        ({"data": [{"type": "model", "id": "claude-x", "display_name": "X"}], "has_more": False}, ("claude-x",)),
        ({"object": "list", "data": [{"id": "models/gemini-2.5-pro"}]}, ("gemini-2.5-pro",)),
        ({"models": [{"name": "models/gemini-2.5-pro", "displayName": "G"}]}, ("gemini-2.5-pro",)),
        ({"models": [{"name": "qwen3:8b", "model": "qwen3:8b"}]}, ("qwen3:8b",)),
        ({"data": [{"id": "b"}, {"id": "a"}, {"id": "b"}]}, ("b", "a")),
        ({"data": [{"id": ""}, {"id": None}, {"id": 7}, {}, "x", None, ["y"], {"id": "a"}]}, ("a",)),
        ({"data": [{"id": "x" * 257}, {"id": "y" * 256}]}, ("y" * 256,)),
        ({"data": [{"id": f"m{n}"} for n in range(MAX_MODELS + 5)]}, tuple(f"m{n}" for n in range(MAX_MODELS))),
        ({"data": []}, ()),
        ({"data": None}, ()),
        ({}, ()),
    ],
)  # fmt: skip
def test_lists_of_all_kinds(body: dict[str, Any], names: tuple[str, ...]) -> None:
    """As OpenAI, Anthropic, Gemini and Ollama write them; what makes no sense is left out."""
    assert read_models(json.dumps(body).encode()) == names


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=10)))
def test_a_name_is_never_empty_and_never_twice(names: list[str]) -> None:
    """And the order is the provider's."""
    found = read_models(json.dumps({"data": [{"id": name} for name in names]}).encode())
    assert len(set(found)) == len(found)
    kept = [name for name in names if name and name.isprintable() and not name.startswith("models/")]
    assert list(found) == list(dict.fromkeys(kept))


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "a\x00b", "\u202egpt", "models/"])
def test_a_name_that_cannot_be_shown_is_left_out(name: str) -> None:
    """`turnbridge models` prints them."""
    assert read_models(json.dumps({"data": [{"id": name}, {"id": "good"}]}).encode()) == ("good",)
