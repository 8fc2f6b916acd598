"""The settings that Codex is started with."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from bridge.appserver.codex_home import build_overrides
from bridge.appserver.launch import shrink_catalog


def as_toml(arguments: list[str]) -> dict[str, Any]:
    """The overrides as Codex reads them: each `-c key=value` is a line of TOML."""
    flags, values = arguments[::2], arguments[1::2]
    assert set(flags) == {"-c"}
    return tomllib.loads("\n".join(values))


def test_its_own_tools_and_prompts_are_off() -> None:
    """Without native tools the model sees the client's messages and nothing of Codex's own."""
    settings = as_toml(build_overrides(native_tools=False))
    features = settings["features"]
    assert not any(features.values())
    assert {"shell_tool", "unified_exec", "view_image", "plugins", "apps", "shell_snapshot"} <= features.keys()
    assert settings["web_search"] == "disabled"
    assert settings["project_doc_max_bytes"] == 0
    assert settings["include_environment_context"] is False
    assert settings["skills"]["include_instructions"] is False


@pytest.mark.parametrize("native_tools", [True, False])
def test_it_never_phones_home_for_updates(native_tools: bool) -> None:
    """Updates and analytics are off, and threads are unloaded soon, in every case."""
    settings = as_toml(build_overrides(native_tools=native_tools))
    assert settings["check_for_update_on_startup"] is False
    assert settings["analytics"]["enabled"] is False
    assert 0 < settings["thread_unload_delay_secs"] < 60


def test_native_tools_leave_codex_as_it_is() -> None:
    """With native tools nothing of tools, prompts and models is overridden."""
    settings = as_toml(build_overrides(native_tools=True, catalog=Path("/c.json"), base_instructions=Path("/b")))
    assert settings.keys() == {"check_for_update_on_startup", "analytics", "thread_unload_delay_secs"}


@pytest.mark.parametrize("name", ["/tmp/catalog.json", '/tmp/a "b" \\c.json', "/tmp/ä ö.json"])
def test_paths_are_toml_strings(name: str) -> None:
    """A path arrives whole, with blanks, quotes and backslashes."""
    settings = as_toml(build_overrides(native_tools=False, catalog=Path(name), base_instructions=Path(name)))
    assert settings["model_catalog_json"] == name
    assert settings["model_instructions_file"] == name


def test_without_paths_there_are_no_path_settings() -> None:
    """What was not made is not named."""
    settings = as_toml(build_overrides(native_tools=False))
    assert "model_catalog_json" not in settings
    assert "model_instructions_file" not in settings


def test_the_catalog_keeps_its_models_but_not_their_prompts_and_limits() -> None:
    """Every model stays under its name, with direct tools and no text; the original is left as it was."""
    entry = {
        "slug": "gpt-x",
        "kept": 5,
        "context_window": 272_000,
        "auto_compact_token_limit": 200_000,
        "base_instructions": "long",
        "tool_mode": "code_mode_only",
        "apply_patch_tool_type": "freeform",
        "model_messages": {"a": 1},
        "default_verbosity": "low",
        "supports_image_detail_original": True,
    }
    catalog = {"models": [entry, {"slug": "gpt-y"}], "etag": "e"}
    shrunk = shrink_catalog(catalog)
    assert shrunk["etag"] == "e"
    assert [model["slug"] for model in shrunk["models"]] == ["gpt-x", "gpt-y", ""]
    for model in shrunk["models"]:
        assert model["base_instructions"] == ""
        assert model["tool_mode"] == "direct"
        assert model["apply_patch_tool_type"] is None
        assert model["model_messages"] is None
        assert model["context_window"] == model["max_context_window"] == 10**9
        assert model["auto_compact_token_limit"] is None
        assert model["default_verbosity"] is None
        assert model["supports_image_detail_original"] is False
    assert shrunk["models"][0]["kept"] == 5
    assert entry["base_instructions"] == "long"


def test_the_last_entry_of_the_catalog_is_for_any_other_model() -> None:
    """Its slug is the beginning of every name. It is not listed, and promises nothing about an unknown model."""
    entry = {"slug": "gpt-x", "visibility": "list", "supported_reasoning_levels": [{"effort": "low"}], "kept": 5}
    other = shrink_catalog({"models": [entry]})["models"][-1]
    assert (other["slug"], other["visibility"]) == ("", "none")
    assert (other["default_reasoning_level"], other["supported_reasoning_levels"]) == (None, [])
    assert other["kept"] == 5, "members that only later versions know are those of a real entry"
