"""The other backends: what their providers receive is what the client sent, in the words of their API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fidelity import pictures
from fidelity.canonical import Atom, atoms, of_anthropic, of_chat, of_responses, with_one_text
from fidelity.requests import TOOLS, as_items, chats
from hypothesis import HealthCheck, assume, given, settings
from matrix.rig import Rig, start_rig
from matrix.upstreams import HttpProvider
from real.rig import CHAT, RESPONSES, Api

Json = dict[str, Any]
BACKENDS = ["codex", "responses", "anthropic", "openai"]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One bridge with all of them."""
    with start_rig(tmp_path_factory.mktemp("backends")) as started:
        yield started


@pytest.fixture(params=[RESPONSES, CHAT], ids=str)
def api(request: pytest.FixtureRequest) -> Api:
    """Both endpoints."""
    chosen: Api = request.param
    return chosen


def received(backend: str, body: Json) -> list[Atom]:
    """What is said in a request to a provider."""
    if backend == "anthropic":
        return of_anthropic(body)
    return atoms(of_chat(body["messages"]) if backend == "openai" else of_responses(body["input"]))


def ask(rig: Rig, backend: str, api: Api, conversation: list[Json], **more: Any) -> Json:
    """Send a request; what the provider got for it. Where the API has a place for instructions, they are empty."""
    provider = rig.providers[backend]
    assert isinstance(provider, HttpProvider)
    before = len(provider.server.requests)
    body = api.body("", model=provider.model, tools=TOOLS, **more)
    response = rig.bridge.post(f"/{api.path}", body | {"messages" if api is CHAT else "input": conversation})
    assert response.status_code == 200, response.text
    assert len(provider.server.requests) == before + 1
    provider.settle()
    assert not provider.sent.get("instructions")
    return provider.sent


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=chats())
def test_any_conversation(rig: Rig, backend: str, api: Api, messages: list[Json]) -> None:
    """Every text, call, argument and output, in order and whole, and nothing else."""
    conversation = messages if api is CHAT else as_items(messages)
    entries = of_chat(conversation) if api is CHAT else of_responses(conversation)
    if backend == "anthropic":
        # It refuses a text of nothing but white space.
        assume(all(atom[-1].strip() for atom in atoms(entries)))
    sent = ask(rig, backend, api, conversation)
    assert received(backend, sent) == atoms(with_one_text(entries) if backend == "openai" else entries)
    assert len(sent["tools"]) == len(TOOLS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_output_of_a_megabyte_and_an_image(rig: Rig, backend: str, api: Api) -> None:
    """Nothing is cut, and no image is changed."""
    output = "".join(f"{number:07} é\n" for number in range(100_000))
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"q": "x"}'}}
    messages: list[Json] = [
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": "One moment.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": output},
    ]
    picture: Json = {"type": "image_url", "image_url": {"url": pictures.PNG}}
    if api is RESPONSES:
        messages = as_items(messages)
        picture = {"type": "input_image", "image_url": pictures.PNG}
    conversation = [*messages, {"role": "user", "content": [picture]}]
    expected = of_chat(conversation) if api is CHAT else of_responses(conversation)
    assert received(backend, ask(rig, backend, api, conversation)) == atoms(expected)


@pytest.mark.parametrize(("backend", "tier"), [("codex", "flex"), ("codex", "priority"), ("responses", "scale")])
def test_a_service_tier(rig: Rig, backend: str, tier: str, api: Api) -> None:
    """It reaches those that have them."""
    conversation = [{"role": "user", "content": "hi"}]
    assert ask(rig, backend, api, conversation, service_tier=tier)["service_tier"] == tier
