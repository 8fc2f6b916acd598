"""Two clients with keys of their own, at once over every backend: nothing of one is ever seen by the other.

And backends beside each other: one that is dead, hangs or is slow costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import pytest
from fault.providers import HELLO, KINDS, Providers, labelled, marked, providers_in_thread
from fault.rig import CODEX_MODEL, ENDPOINTS, LIMIT, Rig, rigged
from harness import KEY, OTHER_KEY, TWO_KEYS
from upstream.connection import Request

SAID = "".join(HELLO)
TENANTS = {"alpha": KEY, "beta": OTHER_KEY}
KIND = pytest.mark.parametrize("kind", KINDS)
SESSIONS = ("codex", "responses")
"""Kinds of providers that are told which conversation a request belongs to."""


def discovering(providers: Providers) -> str:
    """A backend for each list of models: one that answers, one that hangs, one that is not there."""
    places = {"listed": providers.openai.url, "hanging": providers.hanging.url, "absent": providers.unbound.url}
    return "".join(
        f'[backends.{name}]\ntype = "openai"\nbase_url = "{url}/v1"\nkey = "{providers.openai.key}"\n'
        f'timeout = {LIMIT}\ndiscovery = true\nmodels = ["by-{name}"]\n'
        for name, url in places.items()
    )


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("isolation"), PROXY_API_KEY=TWO_KEYS) as ready:
        yield ready


def session_of(kind: str, request: Request) -> str:
    """What a provider knows the conversation of a request by."""
    session = request.body["prompt_cache_key"]
    if kind == "codex":
        assert request.headers["session_id"] == session
    return str(session)


# Two clients


@KIND
def test_what_one_client_says_is_said_for_him_alone(rig: Rig, kind: str) -> None:
    """Twenty requests of each at once, with instructions, a past and a cache key: each is sent and answered its own."""

    def ask(tenant: str, number: int) -> None:
        label = f"mixed.{tenant}.{number}"
        past: list[dict[str, Any]] = [
            {"role": "user", "content": f"canary-question-{tenant}"},
            {"role": "assistant", "content": f"canary-answer-{tenant}"},
            {"role": "user", "content": marked("say", label)},
        ]
        members = {"messages": past} if number % 2 else {"input": past, "instructions": f"canary-words-{tenant}"}
        body = {"model": f"to-{kind}", "stream": number % 4 > 1, "prompt_cache_key": "same", **members}
        path = "/v1/chat/completions" if number % 2 else "/v1/responses"
        outcome = rig.send("POST", path, body, key=TENANTS[tenant])
        assert (outcome.status, outcome.text) == (200, label), outcome.raw
        (request,) = labelled(rig.providers.of(kind), label)
        other = "beta" if tenant == "alpha" else "alpha"
        sent = request.raw.decode() + str(request.header_list)
        assert f"canary-answer-{tenant}" in sent
        assert other not in sent
        assert other not in outcome.raw
        assert TENANTS["alpha"] not in sent
        assert TENANTS["beta"] not in sent

    with ThreadPoolExecutor(16) as pool:
        for future in [pool.submit(ask, tenant, number) for number in range(20) for tenant in TENANTS]:
            future.result()
    if kind in SESSIONS:
        sessions = {
            tenant: {
                session_of(kind, request)
                for number in range(20)
                for request in labelled(rig.providers.of(kind), f"mixed.{tenant}.{number}")
            }
            for tenant in TENANTS
        }
        assert {len(names) for names in sessions.values()} == {1}
        assert sessions["alpha"] != sessions["beta"]
    rig.providers.assert_well_asked()


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("named", [None, "the same name"])
def test_a_conversation_keeps_its_session_and_shares_it_with_nobody(rig: Rig, kind: str, named: str | None) -> None:
    """The same words of another client are another conversation, and so are other words of the same one."""
    members: dict[str, Any] = {} if named is None else {"prompt_cache_key": named}
    found: dict[str, list[str]] = {}
    for tenant, key in TENANTS.items():
        label = f"session.{tenant}.{named is None}"
        first = rig.ask(f"to-{kind}", "hello there", key=key, **members)
        rig.ask(f"to-{kind}", marked("hello", label), key=key, previous_response_id=first.body["id"], **members)
        rig.ask(f"to-{kind}", marked("hello", f"{label}.other"), key=key)
        server = rig.providers.of(kind)
        before = [request for request in server.requests if b"hello there" in request.raw][-2]
        (goes_on,) = labelled(server, label)
        (other,) = labelled(server, f"{label}.other")
        assert session_of(kind, before) == session_of(kind, goes_on) != session_of(kind, other)
        found[tenant] = [session_of(kind, before), session_of(kind, other)]
    assert not set(found["alpha"]) & set(found["beta"])
    assert "the same name" not in str(found)


@KIND
def test_what_is_stored_is_found_by_its_owner_alone(rig: Rig, kind: str) -> None:
    """Another client is told that there is no such thing, and no provider is asked."""
    made = rig.ask(f"to-{kind}", "canary-of-alpha " + marked("hello", "stored")).body["id"]
    conversation = rig.send("POST", "/v1/conversations", {}).body["id"]
    rig.ask(f"to-{kind}", "canary-of-alpha", conversation=conversation)
    for method, path in [
        ("GET", f"/v1/responses/{made}"),
        ("GET", f"/v1/responses/{made}/input_items"),
        ("POST", f"/v1/responses/{made}/cancel"),
        ("DELETE", f"/v1/responses/{made}"),
        ("GET", f"/v1/conversations/{conversation}"),
        ("GET", f"/v1/conversations/{conversation}/items"),
        ("DELETE", f"/v1/conversations/{conversation}"),
    ]:
        seen = rig.send(method, path, key=OTHER_KEY)
        assert seen.status == 404, (method, path)
        assert "canary" not in seen.raw
    for members in ({"previous_response_id": made}, {"conversation": conversation}):
        for body in (
            {"model": f"to-{kind}", "input": marked("hello", "thief"), **members},
            {"model": f"to-{kind}", "input": marked("hello", "thief"), "background": True, **members},
        ):
            assert rig.send("POST", "/v1/responses", body, key=OTHER_KEY).status in (400, 404)
    assert labelled(rig.providers.of(kind), "thief") == []
    assert rig.send("GET", f"/v1/responses/{made}").text == SAID


@KIND
def test_a_running_response_is_its_owners_alone(rig: Rig, kind: str) -> None:
    made = rig.ask(f"to-{kind}", marked("held", "running"), background=True).body["id"]
    gate = rig.kept_waiting(kind, "running")
    for method, path in [("GET", ""), ("POST", "/cancel"), ("DELETE", "")]:
        assert rig.send(method, f"/v1/responses/{made}{path}", key=OTHER_KEY).status == 404
    assert rig.send("GET", f"/v1/responses/{made}").body["status"] == "in_progress"
    gate.open()


@KIND
def test_a_cookie_is_given_to_nobody(rig: Rig, kind: str) -> None:
    for tenant, key in TENANTS.items():
        assert rig.ask(f"to-{kind}", marked("cookie", f"cookie.{tenant}"), key=key).text == SAID
    for tenant, key in TENANTS.items():
        rig.ask(f"to-{kind}", marked("hello", f"cookie-after.{tenant}"), key=key)
    assert not [request for request in rig.providers.of(kind).requests if "cookie" in request.headers]


def test_a_client_is_shown_what_it_used_itself(rig: Rig) -> None:
    """By the names of the models that it asked for."""
    for kind in KINDS:
        rig.ask(f"to-{kind}-of-alpha", key=KEY)
        rig.ask(f"to-{kind}-of-beta", key=OTHER_KEY)
    for tenant, key in TENANTS.items():
        models = {row["model"] for row in rig.send("GET", "/v1/usage", key=key).body["data"]}
        for other in TENANTS:
            assert (f"to-openai-of-{other}" in models) == (other == tenant)


def test_a_header_of_one_client_is_passed_on_to_no_provider(rig: Rig) -> None:
    """Only what a provider needs is sent: nothing that a client's own headers say."""
    headers = {
        "cookie": "canary=1",
        "x-forwarded-for": "canary",
        "openai-organization": "canary",
        "session_id": "canary",
    }
    for kind in KINDS:
        label = "headers"
        assert rig.ask(f"to-{kind}", marked("hello", label), headers=headers).status == 200
        (request,) = labelled(rig.providers.of(kind), label)
        assert not [name for name, value in request.header_list if value in ("canary", "canary=1")]


# Backends beside each other


def healthy(rig: Rig, kinds: tuple[str, ...], times: int = 20) -> float:
    """Seconds that so many requests to each of these take: the median of whichever of them is the slowest.

    A busy machine may hold up one or two requests; a backend that is in the way would hold up all.
    """
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(times):
        for kind in kinds:
            outcome = rig.ask(f"to-{kind}", endpoint=ENDPOINTS[number % 2], stream=number % 4 > 1)
            assert (outcome.status, outcome.text) == (200, SAID)
            taken[kind].append(outcome.seconds)
    return max(median(each) for each in taken.values())


@KIND
def test_a_backend_that_hangs_slows_no_other_down(rig: Rig, kind: str) -> None:
    """Eight turns of it hang; twenty requests to each of the others are as quick as ever."""
    others = tuple(other for other in KINDS if other != kind)
    with ThreadPoolExecutor(8) as pool:
        hung = [pool.submit(rig.ask, f"to-{kind}", marked("early", f"hung.{number}")) for number in range(8)]
        gates = [rig.kept_waiting(kind, f"hung.{number}") for number in range(8)]
        assert healthy(rig, others) < LIMIT
        assert rig.ask(CODEX_MODEL).text == "from the child"
        assert not any(future.done() for future in hung)
        for gate in gates:
            gate.open()
        assert {future.result().status for future in hung} == {200}


@pytest.fixture(scope="module")
def lonely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A bridge whose child dies whenever it is started, beside providers that do not tell their models."""
    directory = tmp_path_factory.mktemp("lonely")
    dead = directory / "dead"
    dead.write_text("#!/bin/sh\nexit 1\n")
    dead.chmod(0o755)
    with (
        providers_in_thread(directory) as providers,
        rigged(directory, providers, more=discovering(providers), CODEX_BIN=str(dead), PROXY_MODELS="") as ready,
    ):
        yield ready


def test_the_list_of_models_waits_for_nobody_for_long(lonely: Rig) -> None:
    """Two seconds at most; those that have answered are in it, and those that are named in the configuration."""
    listed = lonely.send("GET", "/v1/models")
    assert listed.seconds < 2 + 3
    names = {model["id"] for model in listed.body["data"]}
    assert {"some-model", "other-model", "by-listed", "by-hanging", "by-absent"} <= names
    assert lonely.providers.hanging.connections == 1


def test_a_dead_child_slows_no_provider_down(lonely: Rig) -> None:
    """Nor do a list of models that hangs, and addresses where nobody is."""
    with ThreadPoolExecutor(8) as pool:
        failing = [pool.submit(lonely.ask, name) for name in ("to-openai.refused", "by-absent", "by-hanging")] * 2
        assert healthy(lonely, KINDS, 5) < LIMIT
        assert lonely.ask("by-listed").text == SAID
        assert {future.result().status for future in failing} == {502, 504}
    ready = lonely.send("GET", "/readyz")
    assert ready.status == 503
    assert "Traceback" not in lonely.bridge.stderr.read_text()


def test_a_model_that_a_provider_lists_does_not_wait_for_the_child(lonely: Rig) -> None:
    """It is known whose it is."""
    lonely.send("GET", "/v1/models")
    outcomes = [lonely.ask("some-model") for _ in range(3)]
    for outcome in outcomes:
        assert (outcome.status, outcome.text) == (200, SAID), outcome.raw
    assert min(outcome.seconds for outcome in outcomes) < LIMIT


def test_the_child_that_is_dead_is_told_as_that(lonely: Rig) -> None:
    """Quickly, with a status that says: later."""
    outcome = lonely.ask("gpt-5.2-codex")
    assert outcome.status in (502, 503), outcome.raw
    assert str(lonely.directory) not in outcome.raw
    assert outcome.seconds < 10
