"""Every setting: default, environment and flag, and the messages about invalid values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from bridge.errors import ConfigError
from bridge.settings import SETTINGS, Settings, load_settings, state_dir, unknown_variables
from bridge.settings.file import parse_config

SEED_003 = {
    "PROXY_CODEX_WORKDIR": Path("/tmp/codex-work"),
    "PROXY_APPROVAL_POLICY": "never",
    "PROXY_SANDBOX_MODE": "read-only",
    "PROXY_INCLUDE_APPLY_PATCH_TOOL": False,
    "PROXY_RESPONSES_SKIP_TURN": False,
    "PROXY_RESPONSES_OMIT_TOOL_MANIFEST": False,
    "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT": None,
    "PORT": 11435,
    "PROXY_HOST": "127.0.0.1",
    "PROXY_API_KEY": (),
    "CODEX_BIN": None,
    "CODEX_HOME": None,
    "PROXY_DIALECT": "auto",
    "PROXY_TOOL_MODE": "auto",
    "PROXY_LEGACY_CALLS": "auto",
    "PROXY_WORKERS": 1,
    "PROXY_MODELS": (),
    "PROXY_LOG_EVENTS": None,
}


OTHERS: dict[str, Any] = {
    "PROXY_ALLOWED_ORIGINS": ("app://obsidian.md",),
    "PROXY_ALLOWED_HOSTS": (),
    "PROXY_PAGE": None,
    "PROXY_PAGE_MEMORY": 16 * 1024**2,
    "PROXY_CONFIG": None,
    "PROXY_MOCK_ONLY": False,
    "PROXY_CODEX_BASE_URL": "https://chatgpt.com/backend-api/codex",
    "PROXY_CODEX_API_BASE_URL": "https://api.openai.com/v1",
    "PROXY_CODEX_TOKEN_URL": "https://auth.openai.com/oauth/token",
    "PROXY_WEB_SEARCH": "off",
    "PROXY_ENFORCE_MAX_TOKENS": True,
    "PROXY_KEPT_THREADS": 32,
    "PROXY_WARM_THREADS": 4,
    "PROXY_CHILD_CA": "small",
    "PROXY_NATIVE_TOOLS": False,
    "PROXY_STREAM_DEFAULT": False,
    "PROXY_MODEL_ALIASES": {},
    "PROXY_UNSUPPORTED": "drop",
    "PROXY_LIST_MODELS": "all",
    "PROXY_REASONING": "content",
    "PROXY_CAP_MODEL": None,
    "PROXY_CAP_AGENTS": {},
    "PROXY_CAP_USERS": {},
    "PROXY_CAP_GRACE": 30,
    "PROXY_CAP_STREAM_DEFAULT": False,
    "PROXY_CAP_STRICT": False,
    "PROXY_CAP_AGENT_ID": None,
    "PROXY_LOG_FORMAT": "console",
    "PROXY_LOG_LEVEL": "info",
    "OTEL_EXPORTER_OTLP_ENDPOINT": None,
    "PROXY_MAX_RSS": 0,
    "PROXY_STORE": "sqlite",
    "PROXY_SHARED": None,
    "PROXY_STORE_TTL": 30 * 24 * 3600,
    "PROXY_STORE_MAX_BYTES": 1024**3,
    "PROXY_LOG_MAX_BYTES": None,
    "PROXY_LOG_MAX_AGE": 0,
    "PROXY_LOG_KEEP": 0,
    "PROXY_LOG_ON_ERROR": "drop",
    "PROXY_REPLAY": None,
    "PROXY_ON_MISS": "error",
    "PROXY_REPLAY_SPEED": 0,
    "PROXY_REPLAY_IGNORE": (),
    "PROXY_MAX_BODY": 20 * 1024**2,
    "PROXY_MAX_CONNECTIONS": 900,
    "PROXY_MAX_TURNS": 256,
    "PROXY_MAX_QUEUE": 64,
    "PROXY_QUEUE_TIMEOUT": 10,
    "PROXY_RPC_TIMEOUT": 30,
    "PROXY_FIRST_EVENT_TIMEOUT": 120,
    "PROXY_IDLE_TIMEOUT": 300,
    "PROXY_TURN_TIMEOUT": 3600,
    "PROXY_STATUS_HOLD": 2,
    "PROXY_WRITE_TIMEOUT": 60,
    "PROXY_KEEPALIVE": 15,
    "PROXY_GRACE": 20,
    "PROXY_DRAIN_DELAY": 0,
    "PROXY_TLS_CERT": None,
    "PROXY_TLS_KEY": None,
}


def by_variable(settings: Settings) -> dict[str, Any]:
    """The values by the names of their variables."""
    return {setting.variable: getattr(settings, name) for name, setting in SETTINGS.items()}


def test_the_documented_names_have_the_documented_defaults() -> None:
    """With nothing set, they are those of the seeds and of docs/settings.md."""
    values = by_variable(load_settings({}))
    assert {name: values[name] for name in SEED_003} == SEED_003
    assert values == SEED_003 | OTHERS


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("PORT", "0", 0),
        ("PROXY_HOST", "::1", "::1"),
        ("PROXY_API_KEY", "one", ("one",)),
        ("PROXY_API_KEY", " one , two ,,", ("one", "two")),
        ("PROXY_MODELS", "a,b", ("a", "b")),
        ("PROXY_ALLOWED_HOSTS", "Bridge.Example., [::1],10.0.0.5", ("bridge.example", "[::1]", "10.0.0.5")),
        ("CODEX_BIN", "my-codex", "my-codex"),
        ("CODEX_HOME", "/home", Path("/home")),
        ("PROXY_DIALECT", "legacy", "legacy"),
        ("PROXY_LEGACY_CALLS", "message", "message"),
        ("PROXY_WORKERS", "4", 4),
        ("PROXY_SANDBOX_MODE", "workspace-write", "workspace-write"),
        ("PROXY_APPROVAL_POLICY", "on-request", "on-request"),
        ("PROXY_INCLUDE_APPLY_PATCH_TOOL", "true", True),
        ("PROXY_RESPONSES_SKIP_TURN", "1", True),
        ("PROXY_RESPONSES_OMIT_TOOL_MANIFEST", "yes", True),
        ("PROXY_IGNORE_CLIENT_SYSTEM_PROMPT", "false", False),
        ("PROXY_NATIVE_TOOLS", "on", True),
        ("PROXY_MOCK_ONLY", "TRUE", True),
        ("PROXY_LOG_EVENTS", "/tmp/x/", "/tmp/x/"),
        ("PROXY_LOG_MAX_BYTES", "0", 0),
        ("PROXY_LOG_ON_ERROR", "stop", "stop"),
        ("PROXY_REPLAY", "/tmp/x", Path("/tmp/x")),
        ("PROXY_REPLAY_IGNORE", "user,input.*.id", ("user", "input.*.id")),
        ("PROXY_REPLAY_SPEED", "2.5", 2.5),
        ("PROXY_GRACE", "0", 0.0),
        ("PROXY_KEEPALIVE", "0.5", 0.5),
        ("PROXY_RPC_TIMEOUT", "3", 3.0),
        ("PROXY_TOOL_MODE", "native", "native"),
        ("PROXY_TOOL_MODE", "text", "text"),
        ("PROXY_WEB_SEARCH", "cached", "cached"),
        ("PROXY_KEPT_THREADS", "0", 0),
        ("PROXY_WARM_THREADS", "0", 0),
        ("PROXY_CHILD_CA", "system", "system"),
        ("PROXY_ENFORCE_MAX_TOKENS", "false", False),
        ("PROXY_STREAM_DEFAULT", "true", True),
        ("PROXY_MODEL_ALIASES", "fast=gpt-5.5, smart = gpt-6", {"fast": "gpt-5.5", "smart": "gpt-6"}),
        ("PROXY_UNSUPPORTED", "reject", "reject"),
        ("PROXY_LIST_MODELS", "models", "models"),
        ("PROXY_REASONING", "think", "think"),
        ("PROXY_REASONING", "hidden", "hidden"),
        ("PROXY_STORE", "memory", "memory"),
        ("PROXY_STORE", "off", "off"),
        ("PROXY_STORE", "postgresql://a:%40@db/x?sslmode=require", "postgresql://a:%40@db/x?sslmode=require"),
        ("PROXY_STORE", "postgres://a@db-1:5432,[::1]:5433/x", "postgres://a@db-1:5432,[::1]:5433/x"),
        ("PROXY_STORE_TTL", "0.5", 0.5),
        ("PROXY_STORE_MAX_BYTES", "1048576", 1024**2),
        ("PROXY_ALLOWED_ORIGINS", "none", ()),
        ("PROXY_ALLOWED_ORIGINS", "HTTPS://App.Example:443/, app://x", ("https://app.example", "app://x")),
    ],
)
def test_the_environment_sets(variable: str, text: str, value: Any) -> None:
    """Under the setting's variable, in the usual spellings."""
    assert by_variable(load_settings({variable: text}))[variable] == value


def test_an_empty_variable_is_not_set() -> None:
    """`PROXY_API_KEY= turnbridge serve` must not mean an empty key."""
    assert load_settings({setting.variable: "" for setting in SETTINGS.values()}) == load_settings({})


def test_a_flag_wins_over_the_environment() -> None:
    """Default < environment < flag; a flag that is not given changes nothing."""
    environment = {"PORT": "1", "PROXY_DIALECT": "legacy", "PROXY_API_KEY": "env"}
    settings = load_settings(environment, port=2, dialect=None, api_keys=("a", "b"))
    assert (settings.port, settings.dialect, settings.api_keys) == (2, "legacy", ("a", "b"))


@pytest.mark.parametrize("keys", [("",), ("good", ""), ("  ",)], ids=repr)
def test_an_empty_key_is_refused(keys: tuple[str, ...]) -> None:
    """`--api-key "$UNSET"` would accept clients that send no key at all."""
    with pytest.raises(ConfigError, match="--api-key: an API key must not be empty"):
        load_settings({}, api_keys=keys)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("PORT", "x"),
        ("PORT", "-1"),
        ("PORT", "65536"),
        ("PROXY_SANDBOX_MODE", "bogus"),
        ("PROXY_SANDBOX_MODE", "Read-Only"),
        ("PROXY_APPROVAL_POLICY", "always"),
        ("PROXY_DIALECT", "latin"),
        ("PROXY_TOOL_MODE", "magic"),
        ("PROXY_WEB_SEARCH", "on"),
        ("PROXY_KEPT_THREADS", "-1"),
        ("PROXY_KEPT_THREADS", "1025"),
        ("PROXY_WARM_THREADS", "65"),
        ("PROXY_CHILD_CA", "/etc/ssl/certs"),
        ("PROXY_MODEL_ALIASES", "fast"),
        ("PROXY_MODEL_ALIASES", "=gpt-5.5"),
        ("PROXY_UNSUPPORTED", "ignore"),
        ("PROXY_LIST_MODELS", "none"),
        ("PROXY_REASONING", "true"),
        ("PROXY_STORE", "redis"),
        ("PROXY_STORE_TTL", "0"),
        ("PROXY_STORE_TTL", "nan"),
        ("PROXY_STORE_MAX_BYTES", "1"),
        ("PROXY_ALLOWED_ORIGINS", "*"),
        ("PROXY_ALLOWED_ORIGINS", "null"),
        ("PROXY_ALLOWED_ORIGINS", "example.org"),
        ("PROXY_LEGACY_CALLS", "none"),
        ("PROXY_WORKERS", "0"),
        ("PROXY_WORKERS", "many"),
        ("PROXY_RESPONSES_SKIP_TURN", "perhaps"),
        ("PROXY_IGNORE_CLIENT_SYSTEM_PROMPT", "sometimes"),
        ("PROXY_MAX_BODY", "5"),
        ("PROXY_MAX_TURNS", "0"),
        ("PROXY_MAX_CONNECTIONS", "0"),
        ("PROXY_MAX_QUEUE", "-1"),
        ("PROXY_QUEUE_TIMEOUT", "-1"),
        ("PROXY_QUEUE_TIMEOUT", "nan"),
        ("PROXY_ALLOWED_HOSTS", "*.example"),
        ("PROXY_ALLOWED_HOSTS", "https://bridge.example"),
        ("PROXY_ALLOWED_HOSTS", "bridge.example:443"),
        ("PROXY_ALLOWED_HOSTS", "bridge.example/v1"),
        ("PROXY_ALLOWED_HOSTS", "bridge example"),
        ("PROXY_ALLOWED_HOSTS", "."),
        ("PROXY_KEEPALIVE", "0"),
        ("PROXY_RPC_TIMEOUT", "-1"),
        ("PROXY_IDLE_TIMEOUT", "soon"),
        ("PROXY_GRACE", "-1"),
        ("PROXY_GRACE", "nan"),
        ("PROXY_WRITE_TIMEOUT", "nan"),
    ],
)
def test_an_invalid_value_is_named_and_never_guessed(variable: str, text: str) -> None:
    """One line that begins with the name of the setting."""
    with pytest.raises(ConfigError) as refused:
        load_settings({variable: text})
    assert refused.value.message.startswith(f"{variable}")
    assert len(refused.value.message.splitlines()) == 1


def test_all_invalid_values_are_reported_at_once() -> None:
    """One line each."""
    with pytest.raises(ConfigError) as refused:
        load_settings({"PORT": "x", "PROXY_DIALECT": "y"}, workers=0)
    assert sorted(refused.value.message.splitlines()) == [
        "--workers 0: use a whole number from 1 to 64",
        "PORT=x: use a whole number from 0 to 65535",
        "PROXY_DIALECT=y: choose one of auto, current, legacy",
    ]


RULES = [
    ("dialect", "klingon", "choose one of auto, current, legacy"),
    ("approval_policy", "always", "choose one of untrusted, on-failure, on-request, never"),
    ("on_miss", "guess", "choose one of error, forward, nearest"),
    ("mock_only", "perhaps", "choose one of true, false"),
    ("ignore_client_system_prompt", "perhaps", "choose one of true, false"),
    ("workers", "0", "use a whole number from 1 to 64"),
    ("workers", "many", "use a whole number from 1 to 64"),
    ("workers", "1.5", "use a whole number from 1 to 64"),
    ("log_max_bytes", "-1", "use a whole number, 0 or more"),
    ("keepalive", "0", "use a number above 0"),
    ("cap_grace", "nan", "use a number from 0 to 3600"),
    ("grace", "-1", "use a number, 0 or more"),
]


@pytest.mark.parametrize(("name", "value", "rule"), RULES)
def test_an_invalid_value_is_reported_with_its_source_and_its_rule(name: str, value: str, rule: str) -> None:
    """From a flag, the environment or the file, for all settings with choices or limits."""
    variable = SETTINGS[name].variable
    flag = f"--{name.replace('_', '-')}"
    sources: list[tuple[dict[str, str], dict[str, Any], str]] = [
        ({variable: value}, {}, f"{variable}="),
        ({}, {name: value}, f"{flag} "),
    ]
    for environment, flags, where in sources:
        with pytest.raises(ConfigError) as refused:
            load_settings(environment, **flags)
        assert refused.value.message == f"{where}{value}: {rule}"
    with pytest.raises(ConfigError) as refused:
        parse_config({"settings": {name: value}}, f"[settings]\n{name} = {value!r}\n", "bridge.toml")
    assert refused.value.message == f"bridge.toml:2: settings.{name}: {rule}"


def test_no_message_is_in_the_words_of_pydantic() -> None:
    """For each setting with choices or limits."""
    for name, field in Settings.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        if get_origin(field.annotation) is Literal or {bool, int, float} & set(kinds):
            with pytest.raises(ConfigError, match=r": (choose one of|use a (whole )?number)"):
                load_settings({SETTINGS[name].variable: "klingon"})


def test_a_message_is_one_line() -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings({"PROXY_DIALECT": "a\nb" + "c" * 100})
    assert refused.value.message.splitlines() == [refused.value.message]
    assert "c" * 50 not in refused.value.message


def test_keys_are_not_shown() -> None:
    """Neither in a traceback nor in a log of the settings."""
    assert "s3cret" not in repr(load_settings({"PROXY_API_KEY": "s3cret-key"}))
    assert "s3cret" not in str(load_settings({"PROXY_API_KEY": "s3cret-key"}))


def test_codex_home_has_codex_s_own_default() -> None:
    """~/.codex, as Codex itself has it."""
    assert load_settings({}).codex_home_path == Path.home() / ".codex"
    assert load_settings({"CODEX_HOME": "/elsewhere"}).codex_home_path == Path("/elsewhere")


def test_a_misspelt_variable_is_noticed() -> None:
    """Only variables that begin with PROXY_."""
    environment = {"PROXY_STOER": "off", "PROXY_STORE": "off", "PORT": "0", "HTTP_PROXY": "x", "PROXY_": ""}
    assert unknown_variables(environment) == ["PROXY_", "PROXY_STOER"]


def test_paths_of_codex_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the environment, a flag or the file; `~` is the home directory, and a bare name is left for PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ada")
    settings = load_settings({"CODEX_HOME": "home", "PROXY_CODEX_WORKDIR": "~/work"}, codex_bin="./bin/codex")
    assert settings.codex_home == tmp_path / "home"
    assert settings.workdir == Path("/home/ada/work")
    assert settings.codex_bin == str(tmp_path / "bin/codex")
    assert load_settings({"CODEX_BIN": "~/bin/codex"}).codex_bin == "/home/ada/bin/codex"
    assert load_settings({}, {"codex_home": "~/other", "codex_bin": "codex"}).codex_home == Path("/home/ada/other")
    assert load_settings({"CODEX_BIN": "codex"}).codex_bin == "codex"


def test_a_state_directory_of_the_former_name_is_renamed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    former = tmp_path / "codex-bridge"
    former.mkdir()
    (former / "api-key").write_text("key")
    assert (state_dir() / "api-key").read_text() == "key"
    assert state_dir() == tmp_path / "turnbridge"
    assert not former.exists()


def test_a_state_directory_of_the_former_name_does_not_replace_a_newer_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("codex-bridge", "turnbridge"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "api-key").write_text(name)
    assert (state_dir() / "api-key").read_text() == "turnbridge"
    assert (tmp_path / "codex-bridge" / "api-key").read_text() == "codex-bridge"
