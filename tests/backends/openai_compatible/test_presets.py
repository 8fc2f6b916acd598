"""The servers that are known by name."""

from __future__ import annotations

import dataclasses
from urllib.parse import urlsplit

import pytest
from backends.openai_compatible.rig import WEATHER, body_of, turn

from bridge.protocols.chat.presets import CUSTOM, PRESETS
from bridge.upstream.backend import chat_url
from bridge.urls import leads_here

LOCAL = {"ollama", "lmstudio", "vllm"}


def test_all_that_were_promised_are_there() -> None:
    assert PRESETS.keys() == {"gemini", "groq", "openrouter", "openai"} | LOCAL
    assert (CUSTOM.base_url, CUSTOM.key_env) == (None, None)


@pytest.mark.parametrize("name", PRESETS)
def test_each_has_an_address_and_needs_a_key_unless_it_is_here(name: str) -> None:
    preset = PRESETS[name]
    assert preset.base_url is not None
    assert urlsplit(preset.base_url).scheme == ("http" if name in LOCAL else "https")
    assert leads_here(preset.base_url) == (name in LOCAL)
    assert not preset.base_url.endswith("/")
    assert (preset.key_env is None) == (name in LOCAL)
    with pytest.raises(dataclasses.FrozenInstanceError):
        preset.base_url = "http://elsewhere"  # type: ignore[misc]


@pytest.mark.parametrize("name", PRESETS)
def test_each_makes_a_body_that_the_official_types_know(name: str) -> None:
    asked = turn(
        tools=(WEATHER,),
        parallel=False,
        effort="high",
        verbosity="low",
        temperature=1.0,
        top_p=1.0,
        max_output_tokens=5,
    )
    assert body_of(asked, PRESETS[name])["tools"]


def test_the_path_is_put_behind_the_base_url() -> None:
    gemini = PRESETS["gemini"].base_url
    assert gemini is not None
    assert chat_url(gemini) == "https://generativelanguage.googleapis.com/v1beta/openai/chat/completions"
    assert chat_url("http://127.0.0.1:8080/v1/") == "http://127.0.0.1:8080/v1/chat/completions"
