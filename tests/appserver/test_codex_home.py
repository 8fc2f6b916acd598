"""What is read of a CODEX_HOME, and that nothing in it can stop the bridge."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.appserver.codex_home import CodexHome, read_codex_home

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
    assert home.providers == ("house", "other")


def test_a_missing_home_is_an_empty_one(tmp_path: Path) -> None:
    """A Codex that was never used has none."""
    assert read_codex_home(tmp_path / "none") == CodexHome(tmp_path / "none")


def test_a_login_is_a_file(tmp_path: Path) -> None:
    """auth.json tells that somebody has logged in; it is not opened."""
    assert not read_codex_home(tmp_path).has_login
    (tmp_path / "auth.json").write_text("{}")
    (tmp_path / "auth.json").chmod(0)
    assert read_codex_home(tmp_path).has_login


@pytest.mark.parametrize(
    "text", [b"model = ", b'model = "a"\nmodel = "b"', b"\xff\xfe", b"[model_providers\n"], ids=repr
)
def test_a_broken_config_is_a_fault_to_report(tmp_path: Path, text: bytes) -> None:
    """It is told to the operator, and the rest counts as not set."""
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
