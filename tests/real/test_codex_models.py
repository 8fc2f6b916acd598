"""A real Codex behind the bridge: which models a request may name."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
from cli.running import run_command
from harness import running_bridge
from real import codex_binaries
from real.provider import DEFAULT_TEXT, Provider
from real.rig import CHAT, CURRENT, HOUSE_MODEL, LEGACY, RESPONSES, Api, Rig, UseRig, start_rig
from warm import run_warm

NO_MODEL = "The model `o1` does not exist or you do not have access to it."
NOT_WITH_CHATGPT = "The 'gpt-4.1' model is not supported when using Codex with a ChatGPT account."


@pytest.fixture(scope="module", params=[CURRENT, LEGACY], ids=str)
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A rig whose config.toml defines no provider: Codex uses its own, OpenAI's, which is the scripted one here."""
    directory = tmp_path_factory.mktemp("plain")
    program = directory / "codex"

    def fill_home(home: Path) -> None:
        scripted = tomllib.loads((home / "config.toml").read_text())["model_providers"]["scripted"]["base_url"]
        (home / "config.toml").write_text(f'openai_base_url = "{scripted}"\n[features]\nplugins = false\n')
        (home / "auth.json").write_text('{"OPENAI_API_KEY": "sk-canary-0123456789"}')
        # The older Codex reads the address from the environment alone, of which the bridge passes on little.
        binary = codex_binaries.find(request.param.version)
        program.write_text(f'#!/bin/sh\nOPENAI_BASE_URL={scripted} exec {quote(str(binary))} "$@"\n')
        program.chmod(0o755)

    with start_rig(directory, request.param, fill_home=fill_home, CODEX_BIN=str(program)) as rig:
        yield rig


@pytest.mark.parametrize("name", ["o1", "gpt-4.1", "o3-mini", "codex-mini-latest", "gpt-nonesuch"])
def test_a_name_like_one_of_codexs_goes_to_codex(plain: Rig, api: Api, stream: bool, name: str) -> None:
    """Codex does not list it, but its provider may have it."""
    plain.since = len(plain.provider.requests)
    assert name not in [entry["id"] for entry in plain.client.get("models").json()["data"]]
    answer = plain.ask(api, "hi", model=name, stream=stream)
    assert (answer.status, answer.text) == (200, DEFAULT_TEXT)
    assert [post.body["model"] for post in plain.posts] == [name]
    assert plain.client.get(f"models/{name}").json()["id"] == name


def test_the_providers_answer_to_an_unknown_model_is_passed_on(plain: Rig, api: Api) -> None:
    """404 model_not_found, as in all backends; ChatGPT's is a 400 of another form."""
    missing = {"do": "error", "status": 404, "code": "model_not_found", "message": NO_MODEL}
    answer = plain.ask(api, missing, model="o1")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert answer.error["message"].endswith(NO_MODEL)
    refused = plain.ask(api, {"do": "error", "status": 400, "detail": NOT_WITH_CHATGPT}, model="gpt-4.1")
    assert (refused.status, refused.error["code"]) == (400, "upstream_rejected")
    assert refused.error["message"] == NOT_WITH_CHATGPT


def test_an_unlisted_model_may_have_an_effort_at_its_end(plain: Rig) -> None:
    """As with those that Codex lists. Where Codex knows nothing of a model, the older one sends no effort."""
    sent = plain.prompt_of(RESPONSES, RESPONSES.body("hi", model="gpt-nonesuch-high"))
    assert sent["model"] == "gpt-nonesuch"
    if plain.target is CURRENT:
        assert sent["reasoning"]["effort"] == "high"


@pytest.mark.parametrize("name", ["llama-3", "mistral-medium", "nobody/gpt-5.5", "house"])
def test_a_name_that_leads_nowhere_is_refused(plain: Rig, api: Api, stream: bool, name: str) -> None:
    """400 with models that exist, the rule for others, and what to do; nothing in it says that the name would work."""
    plain.since = len(plain.provider.requests)
    answer = plain.ask(api, "hi", model=name, stream=stream)
    assert answer.status == 400
    assert (answer.error["code"], answer.error["param"]) == ("model_not_found", "model")
    message = answer.error["message"]
    listed = [entry["id"] for entry in plain.client.get("models").json()["data"]]
    assert any(f"{each}," in message for each in listed)
    prefixes = message.split("must begin with or match one of ")[1].split(". ")[0].split(", ")
    assert {"gpt-", "o1", "o3", "codex-"} <= set(prefixes)
    assert not name.startswith(tuple(prefixes))
    assert "PROXY_MODEL_ALIASES" in message
    assert plain.posts == []
    assert plain.client.get(f"models/{name}").status_code == 404


@pytest.mark.parametrize("name", ["llama-3", "mistral-medium", "meta/llama", "claude-opus", "gpt-nonesuch"])
def test_a_provider_of_config_toml_takes_any_name(codex: Rig, api: Api, stream: bool, name: str) -> None:
    """The name arrives as it was written, and the provider's refusal comes back."""
    assert codex.ask(api, "hi", model=name, stream=stream).status == 200
    action = {"do": "error", "status": 404, "code": "model_not_found", "message": f"no model {name}"}
    answer = codex.ask(api, action, model=name, stream=stream)
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert f"no model {name}" in answer.error["message"]
    assert {post.body["model"] for post in codex.posts} == {name}


def test_a_pattern_may_lead_any_name_to_codex(plain: Rig, tmp_path: Path) -> None:
    """The operator's word is enough, whatever the name begins with."""
    config = tmp_path / "bridge.toml"
    config.write_text('[routing.patterns]\napp-server = ["llama-*"]\n')
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text("[features]\nplugins = false\n")
    binary = str(codex_binaries.find(plain.target.version))
    settings = {"PROXY_CONFIG": str(config), "CODEX_BIN": binary, "CODEX_HOME": str(home)}
    with running_bridge(tmp_path, **settings) as bridge, bridge.client() as client:
        asked = client.post("responses", json={"model": "llama-3", "input": "hi"})
        assert asked.json()["error"]["code"] == "codex_not_logged_in"
        assert client.post("responses", json={"model": "qwen", "input": "hi"}).status_code == 400


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
    assert {"id": name, "object": "model", "owned_by": "turnbridge"}.items() <= entry.items()
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
    assert codex.ask(api, "hi", model="nobody/model", stream=stream).status == 200
    assert codex.provider.requests[-1].body["model"] == "nobody/model"


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


def test_a_key_for_some_models_is_passed_on_no_other_name(plain: Rig, tmp_path: Path) -> None:
    """A name that nobody lists is held to the key's patterns, too, with or without an effort at its end."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": str(plain.bridge.state)}
    made = run_warm("keys", "add", "fours", "--models", "gpt-4*", env=env, text=True)
    key = next(word for word in made.stdout.split() if word.startswith("cb-"))
    before = len(plain.provider.requests)
    with plain.bridge.client(key=key) as client:
        for name, status in {"gpt-4.1": 200, "gpt-4.1-high": 200, "o1": 400, "gpt-3": 400, "llama-3": 400}.items():
            answer = client.post("responses", json={"model": name, "input": "hi"})
            assert answer.status_code == status
            if status == 400:
                assert "gpt-," not in answer.json()["error"]["message"]
    assert [post.body["model"] for post in plain.provider.requests[before:]] == ["gpt-4.1", "gpt-4.1"]
