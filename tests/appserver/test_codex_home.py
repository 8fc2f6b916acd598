"""What is read of a CODEX_HOME, and that nothing in it can stop the bridge."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.appserver.codex_home import CodexHome, build_switches, read_codex_home, system_off, write_toml

CONFIG = """
model = "house-model"
model_provider = "house"

[model_providers.house]
base_url = "http://127.0.0.1:1/v1"
env_key = "HOUSE_KEY"
env_http_headers = { "X-Org" = "HOUSE_ORG", "X-Empty" = "" }

[model_providers.other]
env_key = "OTHER_KEY"
"""


def test_model_provider_and_variables_are_read(tmp_path: Path) -> None:
    """The model and provider by name, and every variable that a provider reads a secret from."""
    (tmp_path / "config.toml").write_text(CONFIG)
    home = read_codex_home(tmp_path)
    assert (home.model, home.provider, home.fault) == ("house-model", "house", None)
    assert home.variables == {"HOUSE_KEY", "HOUSE_ORG", "OTHER_KEY"}
    assert home.env_key == "HOUSE_KEY"
    assert home.providers == ("house", "other")


@pytest.mark.parametrize(
    ("config", "any_model"),
    [
        ("", False),
        ('model_provider = "openai"', False),
        ('openai_base_url = "http://127.0.0.1:1/v1"', False),
        ("[model_providers.house]\nname = 'House'", False),
        ('model_provider = "house"', True),
        ('model_provider = "ollama"', True),
        ('profile = "p"\n[profiles.p]\nmodel_provider = "house"', True),
    ],
)
def test_a_provider_other_than_openai_takes_any_model(tmp_path: Path, config: str, any_model: bool) -> None:
    """If it is chosen; one that is only defined is asked for by its name."""
    (tmp_path / "config.toml").write_text(config)
    assert read_codex_home(tmp_path).any_model is any_model


@pytest.mark.parametrize(
    "config",
    [
        'model_provider = "nope"',
        'model_providers = "none"',
        "[model_providers.p]\nenv_key = 'A'",
        "model_provider = 'p'\n[model_providers]\np = 1",
    ],
)
def test_no_key_is_needed_where_no_provider_names_one(tmp_path: Path, config: str) -> None:
    """The key of a provider that is not used does not matter."""
    (tmp_path / "config.toml").write_text(config)
    home = read_codex_home(tmp_path)
    assert (home.env_key, home.fault) == (None, None)


def test_a_missing_home_is_an_empty_one(tmp_path: Path) -> None:
    """A Codex that was never used has none."""
    assert read_codex_home(tmp_path / "none") == CodexHome(tmp_path / "none")


def test_a_login_is_a_file(tmp_path: Path) -> None:
    """auth.json shows that there is a login; it is not opened."""
    assert not read_codex_home(tmp_path).has_login
    (tmp_path / "auth.json").write_text("{}")
    (tmp_path / "auth.json").chmod(0)
    assert read_codex_home(tmp_path).has_login


@pytest.mark.parametrize(
    "text", [b"model = ", b'model = "a"\nmodel = "b"', b"\xff\xfe", b"[model_providers\n"], ids=repr
)
def test_a_broken_config_is_a_fault_to_report(tmp_path: Path, text: bytes) -> None:
    """The fault is reported to the operator, and the rest counts as not set."""
    (tmp_path / "config.toml").write_bytes(text)
    home = read_codex_home(tmp_path)
    assert home.fault
    assert (home.model, home.provider, home.variables) == (None, None, frozenset())


def test_a_config_that_is_a_directory_is_a_fault_to_report(tmp_path: Path) -> None:
    """No surprise of the file system is an exception."""
    (tmp_path / "config.toml").mkdir()
    assert read_codex_home(tmp_path).fault


@pytest.mark.parametrize(
    "text",
    [
        "model = 5\nmodel_provider = []",
        'model = ""',
        "model_providers = 5",
        "[model_providers]\nhouse = 5",
        "[model_providers.house]\nenv_key = 5\nenv_http_headers = 5",
        "[model_providers.house]\nenv_http_headers = { X = 5 }",
    ],
)
def test_values_of_the_wrong_type_are_as_if_not_there(tmp_path: Path, text: str) -> None:
    """Codex itself will complain about them; the bridge does not stumble."""
    (tmp_path / "config.toml").write_text(text)
    home = read_codex_home(tmp_path)
    assert (home.model, home.provider, home.variables, home.fault) == (None, None, frozenset(), None)


FULL = r"""
model = "plain"
model_provider = "house"
profile = "work"
developer_instructions = "be rude"
notify = ["run-me"]
service_tier = "fast"
model_reasoning_effort = "high"
openai_base_url = "http://127.0.0.1:1/v1"

[profiles.work]
model = "chosen"
sandbox_mode = "danger-full-access"

[model_providers.house]
name = "House"
http_headers = { "X-A" = "\u00e9\u007f\"" }

[mcp_servers.tools]
command = "run-me"

[features]
respect_system_proxy = true
memories = true
"""


def test_only_login_providers_and_models_pass(tmp_path: Path) -> None:
    """A list of what passes: instructions, programs, tiers and profiles do not, but for the model that one chooses."""
    (tmp_path / "config.toml").write_text(FULL)
    home = read_codex_home(tmp_path)
    assert home.config == {
        "model": "chosen",
        "model_provider": "house",
        "openai_base_url": "http://127.0.0.1:1/v1",
        "model_providers": {"house": {"name": "House", "http_headers": {"X-A": 'é\x7f"'}}},
        "features": {"respect_system_proxy": True},
    }
    assert home.model == "chosen"
    assert tomllib.loads(write_toml(home.config)) == home.config


def test_what_must_be_switched_off_by_name(tmp_path: Path) -> None:
    """For a home that the child must use itself, and for the system's configuration: what is there, nothing else."""
    (tmp_path / "config.toml").write_text(FULL)
    off = {
        "developer_instructions": "",
        "notify": [],
        "mcp_servers": {"tools": {"enabled": False}},
        "service_tier": "default",
    }
    assert read_codex_home(tmp_path).off == off
    assert system_off(tmp_path / "config.toml") == off
    assert system_off(tmp_path / "none.toml") == {}


def test_all_servers_are_switched_off_whatever_their_names(tmp_path: Path) -> None:
    """The system's and the user's, in one value: a second one for the same key would replace the first."""
    (tmp_path / "system.toml").write_text('notify = ["x"]\n[mcp_servers.plain]\ncommand = "x"\n')
    (tmp_path / "config.toml").write_text('[mcp_servers."a.b=c \\"d"]\ncommand = "x"\n')
    switches = build_switches(system_off(tmp_path / "system.toml"), read_codex_home(tmp_path).off)
    assert tomllib.loads(write_toml(switches)) == {
        "notify": [],
        "mcp_servers": {"plain": {"enabled": False}, 'a.b=c "d': {"enabled": False}},
    }
    assert build_switches({}, {}) == {}


@pytest.mark.parametrize(
    ("store", "has_login", "keyring"),
    [("file", True, False), ("keyring", False, True), ("auto", False, True), ("auto", True, False)],
)
def test_a_login_in_the_keyring_is_noticed(tmp_path: Path, store: str, has_login: bool, keyring: bool) -> None:
    """Codex files it under the path of its home."""
    (tmp_path / "config.toml").write_text(f'cli_auth_credentials_store = "{store}"')
    if has_login:
        (tmp_path / "auth.json").write_text("{}")
    assert read_codex_home(tmp_path).login_in_keyring is keyring


def values(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arrays and tables of these."""
    return st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = (
    TEXTS | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.datetimes() | st.dates()
)


@given(st.dictionaries(TEXTS, st.recursive(PLAIN, values, max_leaves=12), max_size=5))
def test_a_table_survives_as_toml(table: dict[str, Any]) -> None:
    """Whatever tomllib can read is written so that it reads the same."""
    assert tomllib.loads(write_toml(table)) == table
