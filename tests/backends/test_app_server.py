"""Which model is served by whom, and when a turn is not even begun."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import Any

import pytest
from harness import ROOT, RunningBridge, python_program, running_bridge, scripted_codex, turns
from server.prompted import MODEL, EventLog, ask, prompted_codex, send_request, wait_for

from bridge.appserver.backend import AppServerBackend
from bridge.appserver.dialect import ChildInfo, Dialect
from bridge.appserver.turn import ChildSettings
from bridge.core.items import FunctionTool, Image, Message, OutputFormat, Text, WebSearchOptions
from bridge.core.models import ModelChoice
from bridge.core.turn import Turn
from bridge.protocols.chat.request import FORM
from bridge.routing.router import MOCK_MODELS

LISTING = """import sys

sys.path.insert(0, {root!r})
import trio
from bridge.appserver.standin import server
from jsonrpcserver import Success


class Listing(server.Standin):
    def _call(self, method, /, **params):
        if method == "account/read":
            return Success({{"account": None, "requiresOpenaiAuth": {needs_login}}})
        if method != "model/list":
            return super()._call(method, **params)
        efforts = [{{"reasoningEffort": "low"}}, {{"reasoningEffort": "high"}}, {{"reasoningEffort": "ultra"}}, 5, {{}}]
        entries = [
            {{"id": "gpt-9", "supportedReasoningEfforts": efforts}},
            {{"id": "gpt-9-plain", "supportedReasoningEfforts": None}},
            {{"id": "gpt-9-hidden", "hidden": True}},
            {{"id": 5}},
            {{}},
        ]
        return Success({{"data": entries}})


trio.run(Listing().run)
"""
"""A child that lists models, broken ones too."""


def listing_codex(directory: Path, *, needs_login: bool) -> Path:
    """That child as a program."""
    return python_program(directory / "codex", LISTING.format(root=str(ROOT), needs_login=needs_login))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    """A bridge for two turns at a time."""
    directory = tmp_path_factory.mktemp("small")
    home = directory / "home"
    home.mkdir()
    (home / "config.toml").write_text('model = "house-model"\n')
    with running_bridge(
        directory,
        CODEX_BIN=str(prompted_codex(directory)),
        CODEX_HOME=str(home),
        PROXY_MODELS=f"{MODEL},Another-Model",
        PROXY_MAX_TURNS="2",
        PROXY_MAX_QUEUE="0",
    ) as bridge:
        bridge.post("/responses", ask({"text": "hi"}))
        yield bridge


def test_models_are_listed_from_all_sources(small: RunningBridge) -> None:
    """The child's, CODEX_HOME's, PROXY_MODELS', the mock ones and the aliases of models that there are; each once."""
    with small.client() as client:
        listed = [model["id"] for model in client.get("/models").json()["data"]]
    assert {"house-model", MODEL, "Another-Model", "mock-echo", "mock-text", "codex-5"} <= set(listed)
    assert not [model for model in listed if model.startswith("gpt-5.2")]
    assert len(listed) == len(set(listed))


@pytest.mark.parametrize("model", ["house-model", "HOUSE-MODEL", "another-model", "codex-5", "gpt-5.2-codev-l"])
def test_a_model_of_any_source_is_served_under_the_name_that_was_asked_for(small: RunningBridge, model: str) -> None:
    """In any case; the answer echoes the client's spelling."""
    answer = small.post("/responses", ask({"text": "hi"}, model=model))
    assert answer.status_code == 200
    assert answer.json()["model"] == model


def test_mock_models_are_the_stand_in_s_beside_any_child(small: RunningBridge) -> None:
    """mock-echo echoes; it does not go to the child, which would do what the text says."""
    text = '[{"text": "performed"}]'
    answer = small.post("/responses", {"model": "Mock-Echo", "input": text}).json()
    assert answer["output"][0]["content"][0]["text"] == text


def test_an_unknown_model_is_told_some_that_exist(small: RunningBridge) -> None:
    """400 model_not_found."""
    refused = small.post("/responses", ask({"text": "hi"}, model="llama-4"))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "model_not_found"
    assert "house-model" in refused.json()["error"]["message"]


def test_more_turns_than_allowed_are_asked_to_come_back(small: RunningBridge) -> None:
    """503 overloaded with Retry-After while two run; a place that becomes free is taken."""
    body = ask({"text": "one"}, {"hang": True}, stream=True)
    with send_request(small, "/v1/responses", body) as one:
        with send_request(small, "/v1/responses", body) as two:
            assert one.recv(1)
            assert two.recv(1)
            refused = small.post("/responses", ask({"text": "hi"}))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "overloaded"
            assert int(refused.headers["retry-after"]) >= 1
        wait_for(lambda: small.post("/responses", ask({"text": "hi"})).status_code == 200, "a free place", 10)


def test_the_limit_holds_for_a_burst(small: RunningBridge) -> None:
    """Of twenty at once every one is either served or asked to come back."""

    def post(_: int) -> tuple[int, str]:
        answer = small.post("/responses", ask({"sleep": 0.1}, {"text": "hi"}))
        return answer.status_code, answer.text

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(post, range(20)))
    assert {status for status, _ in answers} == {200, 503}
    assert all("overloaded" in text for status, text in answers if status == 503)


def listed(bridge: RunningBridge) -> list[str]:
    """What GET /v1/models lists."""
    with bridge.client() as client:
        return [model["id"] for model in client.get("/models").json()["data"]]


def test_without_a_login_the_way_to_one_is_told(tmp_path: Path) -> None:
    """401 that says which command to run, for streams too; only the models that could answer are listed."""
    with running_bridge(tmp_path, CODEX_BIN=str(listing_codex(tmp_path, needs_login=True))) as bridge:
        for streamed in (False, True):
            refused = bridge.post("/responses", {"model": "gpt-9", "input": "hi", "stream": streamed})
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "codex_not_logged_in"
            assert "turnbridge auth login" in refused.json()["error"]["message"]
        assert bridge.post("/responses", {"model": "mock-echo", "input": "hi"}).status_code == 200
        assert listed(bridge) == list(MOCK_MODELS)
        with bridge.client() as client:
            assert client.get(f"{bridge.root}/readyz").status_code == 200


def test_listed_models_have_names_for_their_efforts(tmp_path: Path) -> None:
    """Those efforts that a name can carry; hidden and broken entries of the child's list are no models."""
    with running_bridge(tmp_path, CODEX_BIN=str(listing_codex(tmp_path, needs_login=False))) as bridge:
        # A list does not wait for long for a child that is just starting.
        wait_for(lambda: "gpt-9" in listed(bridge), "the child has told its models")
        models = listed(bridge)
        assert [model for model in models if model.startswith("gpt-9")] == [
            "gpt-9",
            "gpt-9-plain",
            "gpt-9-low",
            "gpt-9-high",
            "gpt-9-ultra",
        ]
        assert len(models) == len(set(models))
        for model in ("gpt-9", "gpt-9-low", "GPT-9-High", "GPT-9-Ultra", "gpt-9-plain-xh"):
            answer = bridge.post("/responses", {"model": model, "input": "hi"})
            assert (answer.status_code, answer.json()["model"]) == (200, model)
        with bridge.client() as client:
            for model in ("gpt-9", "gpt-9-low"):
                assert client.get(f"/models/{model}").json()["id"] == model
            assert client.get("/models/no-model").status_code == 404


def test_only_a_listed_effort_of_any_other_name_is_an_ending() -> None:
    """`-max` and its like may be the end of a model's name; `-high` may be that only of a model that is not Codex's."""
    found = backend("current", ("gpt-9",), efforts={"gpt-9": ["ultra"]})
    for name, (model, effort) in {
        "gpt-9-ultra": ("gpt-9", "ultra"),
        "gpt-9-max": ("gpt-9-max", None),
        "gpt-8-ultra": ("gpt-8-ultra", None),
        "GPT-8-high": ("GPT-8", "high"),
        "mistral-medium": ("mistral-medium", None),
    }.items():
        assert found.resolve(name) == ModelChoice(name, model, effort)
        assert found.knows(name) == (name == "gpt-9-ultra")


def test_the_list_can_leave_out_aliases_and_efforts(tmp_path: Path) -> None:
    """PROXY_LIST_MODELS=models: each model under its own name; the other names work all the same."""
    codex = listing_codex(tmp_path, needs_login=False)
    settings = {"PROXY_LIST_MODELS": "models", "PROXY_MODEL_ALIASES": "fast=gpt-9"}
    with running_bridge(tmp_path, CODEX_BIN=str(codex), **settings) as bridge:
        wait_for(lambda: "gpt-9" in listed(bridge), "the child has told its models")
        assert listed(bridge) == ["gpt-9", "gpt-9-plain", *MOCK_MODELS]
        for model in ("fast", "gpt-9-low"):
            assert bridge.post("/responses", {"model": model, "input": "hi"}).status_code == 200
            with bridge.client() as client:
                assert client.get(f"/models/{model}").json()["id"] == model


def test_aliases_may_be_patterns(tmp_path: Path) -> None:
    """Exact names win over patterns, longer patterns over shorter ones; a model is never hidden by one."""
    codex = listing_codex(tmp_path, needs_login=False)
    aliases = "gpt-4*=gpt-9, gpt-4o=gpt-9-plain, gpt-4-long*=gpt-9-low, *=mock-echo"
    with running_bridge(tmp_path, CODEX_BIN=str(codex), PROXY_MODEL_ALIASES=aliases) as bridge:
        wait_for(lambda: "gpt-9" in listed(bridge), "the child has told its models")
        assert not [model for model in listed(bridge) if "*" in model]
        with bridge.client() as client:
            for name, meant in {
                "gpt-4.1": ["low", "high", "ultra"],
                "GPT-4o": None,
                "gpt-4-longer": ["low", "high", "ultra"],
                "gpt-9": ["low", "high", "ultra"],
                "whatever": None,
            }.items():
                entry = client.get(f"/models/{name}").json()
                assert (entry["id"], entry.get("reasoning_efforts")) == (name, meant)
            assert client.get("/models/gpt-4-longer").json()["default_reasoning_effort"] == "low"
        echoed = bridge.post("/responses", {"model": "o3", "input": "hello"}).json()
        assert (echoed["model"], echoed["output"][0]["content"][0]["text"]) == ("o3", "hello")
        assert bridge.post("/responses", {"model": "gpt-4-turbo", "input": "hi"}).json()["model"] == "gpt-4-turbo"


def test_an_alias_that_leads_nowhere_is_warned_of(tmp_path: Path) -> None:
    """With its name and what to do; those that lead to a model are not."""
    codex = listing_codex(tmp_path, needs_login=False)
    aliases = "fast=gpt-9, slow=gpt-9-high, lost=gpt-8, gpt-3*=gpt-7, far=claude-x, echo=mock-echo"
    with running_bridge(tmp_path, CODEX_BIN=str(codex), PROXY_MODEL_ALIASES=aliases) as bridge:
        wait_for(lambda: "'far' leads to" in bridge.stderr.read_text(), "the warnings")
        warned = [line for line in bridge.stderr.read_text().splitlines() if "leads to" in line]
    assert [line.split("The alias ")[1].split()[0] for line in warned] == ["'lost'", "'gpt-3*'", "'far'"]
    assert "ANTHROPIC_API_KEY" in warned[-1]
    assert all("PROXY_MODEL_ALIASES" in line for line in warned)


def test_the_nearest_names_are_told(tmp_path: Path) -> None:
    """Instead of the rule for names that are not listed, where one is near."""
    with running_bridge(tmp_path, CODEX_BIN=str(listing_codex(tmp_path, needs_login=False))) as bridge:
        wait_for(lambda: "gpt-9" in listed(bridge), "the child has told its models")
        message = bridge.post("/responses", {"model": "GP-9-plain", "input": "hi"}).json()["error"]["message"]
        assert "Did you mean gpt-9-plain" in message
        assert "begin with" not in message
        far = bridge.post("/responses", {"model": "unlike-any", "input": "hi"}).json()["error"]["message"]
        assert "Some that do: gpt-9, " in far
        assert "must begin with or match one of gpt-, " in far


# What is left out


def backend(
    dialect: Dialect,
    models: tuple[str, ...] = ("listed",),
    efforts: Mapping[str, Sequence[str]] | None = None,
    *,
    is_codex: bool = True,
    **settings: Any,
) -> AppServerBackend:
    """A backend with a child of this dialect that lists these models; no turn can run in it."""
    info = ChildInfo("0.163.0", is_codex, dialect, frozenset({"thread/inject_items"}))
    listed = [{"id": model, "supportedReasoningEfforts": (efforts or {}).get(model)} for model in models]
    account = SimpleNamespace(models=listed, rate_limits={})
    child = SimpleNamespace(info=info, account=account)

    async def acquire(conversation: int) -> Any:
        return child

    pool: Any = SimpleNamespace(child=child, acquire=acquire)
    return AppServerBackend("test", pool, new_id=str, settings=ChildSettings(**settings))


PLAIN = Turn("listed", "listed", (Message("user", (Text("hi"),)),))
FORMS: dict[str, Any] = {"responses": {}, "chat": FORM}
JSON = OutputFormat("json_object", {"type": "json_object"})
SCHEMA = OutputFormat("json_schema", {"type": "json_schema"}, {"type": "object"})
SYSTEM = (Message("system", (Text("be kind"),)), *PLAIN.items)


@pytest.mark.parametrize("dialect", ["current", "legacy"])
@pytest.mark.parametrize("endpoint", ["responses", "chat"])
async def test_nothing_is_left_out_of_a_plain_turn(dialect: Dialect, endpoint: Any) -> None:
    """Nor of one with a schema, an effort and tools."""
    turn = replace(PLAIN, **FORMS[endpoint], effort="low", output_format=SCHEMA, tools=(FunctionTool("find"),))
    assert await backend(dialect).drops(turn) == []


SEARCH = WebSearchOptions()


def pictured(detail: str, width: int = 2048) -> tuple[Message, ...]:
    """A message with an image."""
    data = b"GIF89a" + width.to_bytes(2, "little") + b"\1\0" + b"\0" * 8
    return (Message("user", (Image(f"data:image/gif;base64,{b64encode(data).decode()}", detail),)),)


@pytest.mark.parametrize(
    ("dialect", "settings", "wish", "responses", "chat"),
    [
        ("current", {}, {"web_search": "live"}, "tools:web_search", "web_search_options"),
        ("current", {"web_search": "cached"}, {"web_search": SEARCH}, None, None),
        ("current", {"web_search": "live"}, {"web_search": SEARCH}, None, None),
        (
            "legacy",
            {"web_search": "live"},
            {"web_search": SEARCH},
            "tools:web_search",
            "web_search_options",
        ),
        ("current", {}, {"verbosity": "low"}, None, None),
        ("current", {}, {"verbosity": "low", "model": "other"}, None, None),
        ("current", {}, {"service_tier": "flex"}, None, None),
        ("current", {}, {"service_tier": "scale"}, "service_tier", "service_tier"),
        ("legacy", {}, {"service_tier": "flex"}, "service_tier", "service_tier"),
        ("current", {}, {"items": pictured("low")}, "detail:low", "detail:low"),
        ("current", {}, {"items": pictured("original")}, "detail:original", "detail:original"),
        ("current", {}, {"items": pictured("high")}, None, None),
        ("current", {}, {"items": pictured("high", 2049)}, "image size", "image size"),
        ("legacy", {}, {"verbosity": "low"}, "text.verbosity", "verbosity"),
        ("current", {}, {"output_format": JSON}, None, None),
        ("legacy", {}, {"output_format": JSON}, "text.format", "response_format"),
        ("current", {}, {"encrypted_reasoning": True}, None, None),
        (
            "legacy",
            {},
            {"encrypted_reasoning": True},
            "include:reasoning.encrypted_content",
            "include:reasoning.encrypted_content",
        ),
        ("current", {}, {"items": SYSTEM}, None, None),
        ("legacy", {}, {"items": SYSTEM}, None, "system messages (PROXY_IGNORE_CLIENT_SYSTEM_PROMPT)"),
        ("legacy", {"ignore_system_prompt": False}, {"items": SYSTEM}, None, None),
        (
            "current",
            {"ignore_system_prompt": True},
            {"items": SYSTEM},
            None,
            "system messages (PROXY_IGNORE_CLIENT_SYSTEM_PROMPT)",
        ),
        ("legacy", {"legacy_calls": "message"}, {"effort": "low"}, "reasoning.effort", "reasoning_effort"),
        ("legacy", {"legacy_calls": "message", "is_codex": False}, {"effort": "low"}, None, "reasoning_effort"),
        ("legacy", {"legacy_calls": "turn"}, {"effort": "low"}, None, None),
        ("legacy", {"legacy_calls": "both"}, {"effort": "low"}, "reasoning.effort", None),
        ("legacy", {"legacy_calls": "both", "is_codex": False}, {"effort": "low"}, None, None),
        ("legacy", {"skip_turn": True}, {"effort": "low"}, "reasoning.effort", None),
        ("legacy", {"skip_turn": True, "is_codex": False}, {"effort": "low"}, None, None),
        ("legacy", {"legacy_calls": "message"}, {"output_format": SCHEMA}, "text.format", "response_format"),
        ("legacy", {"legacy_calls": "message", "is_codex": False}, {"output_format": SCHEMA}, None, None),
        ("legacy", {"legacy_calls": "both"}, {"output_format": SCHEMA}, None, None),
        ("legacy", {"skip_turn": True}, {"output_format": SCHEMA}, "text.format", None),
        ("legacy", {"skip_turn": True}, {"summary": "detailed"}, "reasoning.summary", None),
        ("legacy", {"skip_turn": True, "is_codex": False}, {"summary": "detailed"}, "reasoning.summary", None),
        ("legacy", {}, {"summary": "detailed"}, None, None),
    ],
)
async def test_what_a_child_cannot_do_is_named_in_the_endpoints_own_words(
    dialect: Dialect, settings: dict[str, Any], wish: dict[str, Any], responses: str | None, chat: str | None
) -> None:
    """And nothing else is."""
    for endpoint, name in (("responses", responses), ("chat", chat)):
        turn = replace(PLAIN, **{**FORMS[endpoint], **wish})
        lost = await backend(dialect, **settings).drops(turn)
        assert turn.client_names(lost) == ([] if name is None else [name])


def test_before_the_child_is_known_nothing_speaks_against_it() -> None:
    nobody: Any = SimpleNamespace(child=None)
    early = AppServerBackend("test", nobody, new_id=str, settings=ChildSettings())
    assert early.rate_limits() is None
    assert early.can_answer


def test_what_a_request_before_the_handshake_loses_is_named(tmp_path: Path) -> None:
    """Whether the child speaks the legacy dialect is known later than the request arrives."""
    gate, program, log = tmp_path / "gate", tmp_path / "late-codex", EventLog(tmp_path / "events.ndjson")
    os.mkfifo(gate)
    codex = scripted_codex(tmp_path, turns([{"text": "hi"}]), dialect="legacy")
    program.write_text(f'#!/bin/sh\nread line < {quote(str(gate))}\nexec {quote(str(codex))} "$@"\n')
    program.chmod(0o755)
    system = {"role": "system", "content": "Be kind."}
    body = {"model": "m", "messages": [system, {"role": "user", "content": "hi"}]}
    settings = {"CODEX_BIN": str(program), "PROXY_MODELS": "m"}
    with running_bridge(tmp_path, f"--log-events={log.path}", **settings) as bridge, ThreadPoolExecutor() as pool:
        early = pool.submit(bridge.post, "/chat/completions", body)
        wait_for(lambda: log.request_of("Be kind."), "the request is there")
        gate.write_text("now\n")
        for answer in (early.result(), bridge.post("/chat/completions", body)):
            assert answer.status_code == 200
            assert answer.headers["x-bridge-dropped"] == "system messages (PROXY_IGNORE_CLIENT_SYSTEM_PROMPT)"
