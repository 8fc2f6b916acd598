"""Which backends there are, and why one is off."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from bridge.protocols.chat.presets import PRESETS
from bridge.routing.setup import Plan, plan_backends, plan_named, route
from bridge.settings import Settings
from bridge.settings.file import FileConfig, PresetName
from bridge.urls import is_header_safe

SECRET = "canary-secret"
NOWHERE = Path("/nowhere")
OFF = "The backend {} is off: {} is not set."


def config(routing: dict[str, Any] | None = None, **backends: dict[str, Any]) -> FileConfig:
    """A configuration with these backends."""
    named = {name.replace("_", "-"): backend for name, backend in backends.items()}
    return FileConfig.model_validate({"backends": named, "routing": routing or {}})


def planned(file: FileConfig | None = None, home: Path = NOWHERE, **environment: str) -> dict[str, Plan]:
    return {plan.name: plan for plan in plan_backends(file or FileConfig(), environment, home)}


def one(home: Path = NOWHERE, environment: dict[str, str] | None = None, **backend: Any) -> Plan:
    """The plan of a backend `a`."""
    return planned(config(a=backend), home, **(environment or {}))["a"]


def logged_in(home: Path) -> Path:
    """Claude Code has a login in this home."""
    path = home / ".claude" / ".credentials.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    return path


# What nobody asked for


def test_without_a_file_the_environment_decides(tmp_path: Path) -> None:
    """Both are planned in any case, so that it can be told what is missing."""
    nothing = planned()
    assert [(plan.name, plan.implied, plan.key) for plan in nothing.values()] == [
        ("anthropic", True, None),
        ("gemini", True, None),
    ]
    assert nothing["anthropic"].disabled_reason == OFF.format("anthropic", "ANTHROPIC_API_KEY")
    assert nothing["gemini"].disabled_reason == OFF.format("gemini", "GEMINI_API_KEY")
    keyed = planned(ANTHROPIC_API_KEY="a", GEMINI_API_KEY="g")
    assert [(plan.disabled_reason, plan.key) for plan in keyed.values()] == [(None, "a"), (None, "g")]
    empty = planned(ANTHROPIC_API_KEY="", GEMINI_API_KEY="")
    assert all(plan.disabled_reason for plan in empty.values())


def test_the_login_of_claude_code_is_used_without_a_key(tmp_path: Path) -> None:
    """A key wins over it, and so does `key_env`, which asks for another one; a directory is no login."""
    (tmp_path / "other" / ".claude" / ".credentials.json").mkdir(parents=True)
    assert planned(home=tmp_path / "other")["anthropic"].disabled_reason
    path = logged_in(tmp_path)
    assert planned(home=tmp_path)["anthropic"].credentials == path
    assert planned(home=tmp_path)["anthropic"].disabled_reason is None
    assert planned(home=tmp_path, ANTHROPIC_API_KEY="a")["anthropic"].credentials is None
    asked = one(tmp_path, type="anthropic", key_env="TEAM_KEY")
    assert (asked.credentials, asked.disabled_reason) == (None, OFF.format("a", "TEAM_KEY"))
    assert one(tmp_path, type="anthropic").credentials == path
    insecure = one(tmp_path, type="anthropic", base_url="http://10.0.0.1", insecure_http=True)
    assert (insecure.credentials, insecure.disabled_reason) == (None, OFF.format("a", "ANTHROPIC_API_KEY"))


@pytest.mark.parametrize(
    ("name", "backend", "implied"),
    [
        ("claude", {"type": "anthropic", "key": "k"}, {"gemini"}),
        ("google", {"type": "openai", "preset": "gemini"}, {"anthropic"}),
        ("anthropic", {"type": "mock"}, {"gemini"}),
        ("gemini", {"type": "openai", "base_url": "https://x/v1"}, {"anthropic"}),
        ("groq", {"type": "openai", "preset": "groq"}, {"anthropic", "gemini"}),
    ],
)
def test_what_is_configured_is_not_implied_again(name: str, backend: dict[str, Any], implied: set[str]) -> None:
    """By its kind or by its name; those of the file come first."""
    plans = planned(config(**{name: backend}), ANTHROPIC_API_KEY="a", GEMINI_API_KEY="g")
    assert next(iter(plans)) == name
    assert {plan.name for plan in plans.values() if plan.implied} == implied


def test_the_app_server_is_not_planned() -> None:
    """It is a child, not a provider."""
    assert "main" not in planned(config(main={"type": "app-server"}, x={"type": "mock"}))


# Keys


@pytest.mark.parametrize(
    ("backend", "variable"),
    [
        ({"type": "anthropic"}, "ANTHROPIC_API_KEY"),
        ({"type": "anthropic", "key_env": "MINE"}, "MINE"),
        ({"type": "openai", "base_url": "https://x/v1", "key_env": "MINE"}, "MINE"),
        ({"type": "responses", "base_url": "https://x/v1", "key_env": "MINE"}, "MINE"),
        ({"type": "openai", "preset": "groq"}, "GROQ_API_KEY"),
        ({"type": "openai", "preset": "groq", "key_env": "MINE"}, "MINE"),
        ({"type": "openai", "preset": "groq", "base_url": "https://x/v1"}, "GROQ_API_KEY"),
        ({"type": "openai", "preset": "openai"}, "OPENAI_API_KEY"),
        ({"type": "openai", "preset": "ollama", "key_env": "MINE"}, "MINE"),
    ],
)
def test_a_missing_key_turns_a_backend_off_by_the_name_of_its_variable(backend: dict[str, Any], variable: str) -> None:
    """Also an empty one; with it, the backend is on and has that key."""
    for environment in ({}, {variable: ""}, {"OTHER": SECRET}):
        plan = one(environment=environment, **backend)
        assert (plan.disabled_reason, plan.key) == (OFF.format("a", variable), None)
    plan = one(environment={variable: SECRET}, **backend)
    assert (plan.disabled_reason, plan.key) == (None, SECRET)
    assert SECRET not in repr(plan)


@pytest.mark.parametrize(
    "backend",
    [
        {"type": "openai", "base_url": "http://127.0.0.1:1/v1"},
        {"type": "responses", "base_url": "http://127.0.0.1:1/v1"},
        {"type": "openai", "preset": "ollama"},
        {"type": "openai", "preset": "vllm"},
        {"type": "openai", "preset": "lmstudio"},
        {"type": "mock"},
        {"type": "codex"},
    ],
)
def test_some_need_no_key(backend: dict[str, Any]) -> None:
    """Servers of one's own, and Codex, which has a login."""
    plan = one(environment={"OPENAI_API_KEY": SECRET}, **backend)
    assert (plan.disabled_reason, plan.key) == (None, None)


@pytest.mark.parametrize("backend", [{"type": "anthropic"}, {"type": "openai", "preset": "groq"}])
def test_a_key_in_the_file_wins(backend: dict[str, Any]) -> None:
    """Over the variable that would be looked at otherwise; it does not show."""
    environment = {"ANTHROPIC_API_KEY": "other", "GROQ_API_KEY": "other"}
    plan = one(environment=environment, key=SECRET, **backend)
    assert (plan.disabled_reason, plan.key) == (None, SECRET)
    assert SECRET not in repr(plan)


def test_credentials_may_lie_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`~` is the home; whether they are there is seen when they are used, since another program writes them."""
    monkeypatch.setenv("HOME", str(tmp_path))
    plan = one(type="anthropic", credentials="~/c.json")
    assert (plan.credentials, plan.disabled_reason, plan.key) == (tmp_path / "c.json", None, None)


@pytest.mark.parametrize("value", ["sk-1\n", "sk 1", "sk-é"])
@pytest.mark.parametrize("backend", [{"type": "anthropic"}, {"type": "openai", "preset": "groq"}])
def test_a_key_that_cannot_be_sent_turns_a_backend_off(backend: dict[str, Any], value: str) -> None:
    """Or it is mended; a key with the end of its line in it is the usual slip."""
    plan = one(environment={"ANTHROPIC_API_KEY": value, "GROQ_API_KEY": value}, **backend)
    reason = plan.disabled_reason
    assert is_header_safe(plan.key or "") or (reason is not None and "_API_KEY" in reason and value not in reason)


# Presets


def test_every_preset_can_be_named() -> None:
    """In the file, or by `exec --backend`."""
    for name, preset in PRESETS.items():
        plan = one(type="openai", preset=name)
        assert (plan.preset, plan.kind) == (preset, name)
        named = plan_named(name, {preset.key_env: "k"} if preset.key_env else {})
        assert named is not None
        assert (named.preset, named.disabled_reason, named.implied) == (preset, None, False)
    codex = plan_named("codex", {})
    assert codex is not None
    assert codex.kind == "codex"
    assert plan_named("nobody", {}) is None


def test_the_configuration_knows_every_preset() -> None:
    """Their names are written twice, because the file is read before any backend is loaded."""
    assert set(get_args(PresetName)) == set(PRESETS)


# Routing, before anything runs

CLAUDE = {"type": "anthropic", "key_env": "CLAUDE_KEY", "models": ["own-model"]}
CHAT = {"type": "openai", "base_url": "https://x/v1", "key_env": "CHAT_KEY"}


@pytest.mark.parametrize(
    ("model", "backend", "name"),
    [
        ("claude-x", "claude", None),
        ("Claude-X", "claude", None),
        ("sonnet", "claude", "claude-mine"),
        ("opus", "claude", "claude-opus-4-5-20251101"),
        ("own-model", "claude", None),
        ("llama-3", "chat", None),
        ("fast", "chat", "llama-3"),
        ("from-env", "chat", "llama-4"),
        ("gpt-5", None, None),
        ("o3", None, None),
        ("nobody", None, None),
        ("gemini-2.5-pro", "gemini", None),
    ],
)
def test_a_name_leads_to_a_backend_before_any_is_asked(model: str, backend: str | None, name: str | None) -> None:
    """None: the default must know. The environment's aliases win over those of the file."""
    routing = {
        "patterns": {"chat": ["llama-"]},
        "aliases": {"sonnet": "claude-mine", "fast": "llama-3", "from-env": "claude-x"},
    }
    file = config(routing, claude=CLAUDE, chat=CHAT)
    settings = Settings(aliases={"from-env": "llama-4"})
    every: dict[str, Any] = {"CLAUDE_KEY": "k", "CHAT_KEY": "k", "GEMINI_API_KEY": "k"}
    for keys in (every, {}):
        plans = list(planned(file, **keys).values())
        assert route(model, file, settings, plans) == (backend, name)


def test_a_backend_that_is_off_comes_last() -> None:
    """A shorter pattern of one that is on goes before it."""
    routing = {"patterns": {"claude": ["claude-opus"], "chat": ["claude-"]}}
    file = config(routing, claude=CLAUDE, chat=CHAT)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"CLAUDE_KEY": "k", "CHAT_KEY": "k"}, "claude"),
        ({"CHAT_KEY": "k"}, "chat"),
        ({"CLAUDE_KEY": "k"}, "claude"),
        ({}, "claude"),
    ]
    for keys, backend in cases:
        assert route("claude-opus-4", file, Settings(), list(planned(file, **keys).values())) == (backend, None)


@pytest.mark.parametrize(
    "name",
    [
        "app-server",
        pytest.param(
            "main",
        ),
    ],
)
def test_a_pattern_may_lead_to_the_app_server(name: str) -> None:
    """Whatever it is called."""
    file = config({"default": "chat", "patterns": {name: ["own-"]}}, chat=CHAT, **{name: {"type": "app-server"}})
    assert route("own-1", file, Settings(), list(planned(file, CHAT_KEY="k").values()))[0] is not None
