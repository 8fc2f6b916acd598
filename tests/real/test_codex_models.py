"""A real Codex behind the bridge: which models a request may name."""

from __future__ import annotations

import pytest
from real.rig import CURRENT, HOUSE_MODEL, RESPONSES, Api, Rig


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


def test_models_are_listed(codex: Rig) -> None:
    """GET /v1/models lists the child's own models, the configured ones and the mock ones."""
    listed = {entry["id"] for entry in codex.client.get("models").json()["data"]}
    own = "gpt-6.1-sol" if codex.target is CURRENT else "gpt-5.3-codex"
    assert {own, HOUSE_MODEL, "guest-model", "gpt-5.2-codev-l", "mock-echo"} <= listed
