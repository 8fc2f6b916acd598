"""A real Codex behind the bridge: which models a request may name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.running import run_command
from real.provider import DEFAULT_TEXT, Provider
from real.rig import CHAT, CURRENT, HOUSE_MODEL, LEGACY, RESPONSES, Api, Rig, UseRig, start_rig
from warm import run_warm


def test_an_unknown_model_is_refused(codex: Rig, api: Api, stream: bool) -> None:
    """A model that nobody knows is a 400 that names some that exist; the model is not called."""
    answer = codex.ask(api, "hi", model="gpt-nonesuch", stream=stream)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")
    listed = [entry["id"] for entry in codex.client.get("models").json()["data"]]
    assert any(f"{name}," in answer.error["message"] for name in listed)
    assert codex.posts == []


@pytest.mark.parametrize(
    ("name", "effective"),
    [
        (HOUSE_MODEL, HOUSE_MODEL),
        ("HOUSE-Model", HOUSE_MODEL),
        (f"{HOUSE_MODEL}-high", HOUSE_MODEL),
        ("codex-5", HOUSE_MODEL),
        ("guest-model", "guest-model"),
        ("gpt-5.2-codex", "gpt-5.2-codex"),
    ],
)
def test_models_that_work(codex: Rig, name: str, effective: str) -> None:
    """The model of config.toml, those of PROXY_MODELS and the aliases work, on the provider that config.toml names."""
    answer = codex.ask(RESPONSES, "hi", model=name)
    assert (answer.status, answer.end, answer.raw["model"]) == (200, "completed", name)
    (post,) = codex.posts
    assert post.body["model"] == effective
    assert codex.client.get(f"models/{name}").json()["id"] == name


def test_models_are_listed(codex: Rig) -> None:
    """GET /v1/models lists the child's models, the configured ones, the mock ones, and aliases of these alone."""
    listed = {entry["id"] for entry in codex.client.get("models").json()["data"]}
    own = "gpt-6.1-sol" if codex.target is CURRENT else "gpt-5.3-codex"
    assert {own, f"{own}-xhigh", HOUSE_MODEL, "guest-model", "codex-5", "mock-echo"} <= listed
    assert ("gpt-5.2-codev-l" in listed) == ("gpt-5.2" in listed)


@pytest.mark.parametrize("name", ["gpt-6.1-sol", "gpt-6.1-sol-max"])
def test_a_models_entry_says_what_codex_knows_of_it(use: UseRig, name: str) -> None:
    """Its name, window, efforts and modalities, beside the members of OpenAI's; of a configured model nothing."""
    codex = use(CURRENT)
    entries = {entry["id"]: entry for entry in codex.client.get("models").json()["data"]}
    entry = entries[name]
    assert entry == codex.client.get(f"models/{name}").json()
    assert {"id": name, "object": "model", "owned_by": "codex-bridge"}.items() <= entry.items()
    assert (entry["name"], entry["context_length"], entry["max_model_len"]) == ("GPT-6.1-Sol", 272_000, 272_000)
    assert entry["reasoning_efforts"] == ["low", "medium", "high", "xhigh", "max", "ultra"]
    assert entry["default_reasoning_effort"] == ("max" if name.endswith("max") else "low")
    assert entry["architecture"] == {"input_modalities": ["text", "image"], "output_modalities": ["text"]}
    assert entry["description"]
    assert list(entries[HOUSE_MODEL]) == ["id", "object", "created", "owned_by"]


@pytest.mark.parametrize("effort", ["max", "ultra"])
def test_every_listed_effort_is_an_ending(use: UseRig, effort: str) -> None:
    """It reaches the provider as it would in `reasoning.effort`."""
    codex = use(CURRENT)
    by_name = codex.prompt_of(RESPONSES, RESPONSES.body("hi", model=f"gpt-6.1-sol-{effort}"))
    explicit = codex.prompt_of(RESPONSES, RESPONSES.body("hi", model="gpt-6.1-sol", reasoning={"effort": effort}))
    assert by_name["model"] == "gpt-6.1-sol"
    assert by_name["reasoning"]["effort"] == explicit["reasoning"]["effort"]


def test_a_model_that_is_replaced_by_another_is_told(tmp_path: Path, api: Api, stream: bool) -> None:
    """A header, a warning and a member of turn_end; `model` of the answer stays what was asked for."""
    log = tmp_path / "log.jsonl"
    with start_rig(tmp_path, CURRENT, PROXY_LOG_EVENTS=str(log)) as codex:
        action = {"do": "text", "headers": {"openai_model": "gpt-safe"}}
        answer = codex.ask(api, action, model="gpt-6.1-sol", stream=stream)
        assert (answer.status, answer.text) == (200, DEFAULT_TEXT)
        assert answer.headers["x-bridge-model-rerouted"] == "gpt-safe"
        if not stream:
            assert answer.raw["model"] == "gpt-6.1-sol"
        plain = codex.ask(api, "hi", model="gpt-6.1-sol", stream=stream)
        assert "x-bridge-model-rerouted" not in plain.headers
        assert codex.bridge.stop() == 0
        assert "'gpt-safe' answers instead of 'gpt-6.1-sol'" in codex.bridge.stderr.read_text()
    ends = [json.loads(line) for line in log.read_text().splitlines() if '"turn_end"' in line]
    assert [end["payload"].get("rerouted_to") for end in ends] == ["gpt-safe", None]
    verified = run_command("replay", log, "--verify")
    assert verified.returncode == 0, verified.stdout


@pytest.fixture(scope="module", params=[CURRENT, LEGACY], ids=str)
def two_providers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Rig, Provider]]:
    """A rig whose config.toml has a second provider, and that provider."""
    with Provider() as other:
        table = f'[model_providers.House-2]\nname = "other"\nbase_url = "{other.base_url}"\nwire_api = "responses"\n'
        with start_rig(tmp_path_factory.mktemp("two"), request.param, extra=table) as rig:
            yield rig, other


def test_a_name_may_choose_the_provider(two_providers: tuple[Rig, Provider], api: Api, stream: bool) -> None:
    """`provider/model` goes to that provider of config.toml, whatever the model is called; others as before."""
    codex, other = two_providers
    before = len(codex.provider.requests), len(other.requests)
    answer = codex.ask(api, "hi", model="house-2/any/thing-high", stream=stream)
    assert (answer.status, answer.text) == (200, DEFAULT_TEXT)
    if not stream:
        assert answer.raw["model"] == "house-2/any/thing-high"
    assert codex.ask(api, "hi", model=HOUSE_MODEL, stream=stream).status == 200
    assert [post.body["model"] for post in other.requests[before[1] :]] == ["any/thing-high"]
    assert [post.body["model"] for post in codex.provider.requests[before[0] :]] == [HOUSE_MODEL]
    assert codex.client.get("models/house-2/any/thing").status_code == 200
    assert codex.client.get("models/nobody/thing").status_code == 404
    assert codex.ask(api, "hi", model="nobody/model", stream=stream).status == 400
    assert codex.ask(api, "hi", model="House-2/", stream=stream).status == 400


def test_conversations_of_two_providers_are_kept_apart(two_providers: tuple[Rig, Provider]) -> None:
    """The same words to the same model of another provider never continue this one's thread."""
    codex, other = two_providers
    chat = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": DEFAULT_TEXT},
        {"role": "user", "content": "and"},
    ]
    before = len(codex.provider.requests), len(other.requests)
    for model in ("scripted/same", "House-2/same", "scripted/same", "House-2/same"):
        for messages in (chat[:1], chat):
            assert codex.send(CHAT, {"model": model, "messages": messages}).status == 200
    assert (len(codex.provider.requests), len(other.requests)) == (before[0] + 4, before[1] + 4)


def test_a_key_for_some_models_has_no_other_providers(tmp_path: Path) -> None:
    """A provider's model may be called like one that the key allows."""
    with Provider() as other:
        table = f'[model_providers.other]\nname = "other"\nbase_url = "{other.base_url}"\nwire_api = "responses"\n'
        with start_rig(tmp_path, CURRENT, extra=table) as codex:
            env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": str(codex.bridge.state)}
            made = run_warm("keys", "add", "narrow", "--models", HOUSE_MODEL, env=env, text=True)
            key = next(word for word in made.stdout.split() if word.startswith("cb-"))
            with codex.bridge.client(key=key) as client:
                allowed = client.post("responses", json={"model": HOUSE_MODEL, "input": "hi"})
                refused = client.post("responses", json={"model": f"other/{HOUSE_MODEL}", "input": "hi"})
            assert (allowed.status_code, refused.status_code) == (200, 400)
            assert other.requests == []
