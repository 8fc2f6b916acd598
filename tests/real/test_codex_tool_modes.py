"""A real Codex behind the bridge: text and native tools side by side, by key, by model and by request."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from real.rig import CURRENT, LOOK, RESPONSES, Rig, start_rig

CONFIG = """
[tool_modes.models]
"guest-*" = "native"

[tool_modes.keys]
"key-*" = "text"
"""


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A bridge whose file has a choice for a model."""
    directory = tmp_path_factory.mktemp("modes")
    config = directory / "bridge.toml"
    config.write_text(CONFIG.partition("[tool_modes.keys]")[0])
    with start_rig(directory, CURRENT, PROXY_CONFIG=str(config)) as started:
        yield started


def mode(rig: Rig, model: str = "gpt-5.2", **headers: str) -> str:
    """How the tools of a request reached the provider."""
    body = RESPONSES.body("hi", model=model, tools=[LOOK])
    response = rig.client.post("responses", json=body, headers=headers)
    assert response.status_code == 200, response.text
    return "native" if rig.provider.requests[-1].body["tools"] else "text"


def test_by_model(rig: Rig) -> None:
    """Text is for the others, by default."""
    assert (mode(rig), mode(rig, "guest-model")) == ("text", "native")


def test_by_request(rig: Rig) -> None:
    """The header wins."""
    assert mode(rig, **{"x-bridge-tool-mode": "native"}) == "native"
    assert mode(rig, "guest-model", **{"x-bridge-tool-mode": "text"}) == "text"


def test_an_unknown_mode(rig: Rig) -> None:
    """400, and the model is not asked."""
    before = len(rig.provider.requests)
    body = RESPONSES.body("hi", tools=[LOOK])
    response: httpx2.Response = rig.client.post("responses", json=body, headers={"x-bridge-tool-mode": "json"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_tool_mode")
    assert len(rig.provider.requests) == before


def test_by_key(tmp_path: Path) -> None:
    """A key's choice wins over a model's."""
    config = tmp_path / "bridge.toml"
    config.write_text(CONFIG)
    with start_rig(tmp_path, CURRENT, PROXY_CONFIG=str(config)) as started:
        assert mode(started, "guest-model") == "text"
