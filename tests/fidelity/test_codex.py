"""Real Codex, in a full CODEX_HOME: the provider receives what the client sent, all of it, and nothing else.

Each request is one model call, no program runs, and what comes with the conversation is Codex's own metadata, at most
2 kB. The oldest version gets the conversation as one text, and adds tools and texts of its own that cannot be switched
off; what it is held to stands at the end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fidelity import pictures
from fidelity.canonical import Entry, as_it_is, message, of_chat, of_responses, parts_of, without_written_calls
from fidelity.home import MARK, fill
from fidelity.requests import TOOLS, as_items, chats
from hypothesis import HealthCheck, given, settings
from real.rig import (
    CHAT,
    CURRENT,
    NEWEST,
    RESPONSES,
    TEXT_HISTORY,
    Answer,
    Api,
    Rig,
    Target,
    processes,
    said,
    start_rig,
)

from bridge.core.items import FunctionTool, ToolChoice
from bridge.tools.instructions import build_instructions
from bridge.tools.payload import neutralise

Json = dict[str, Any]
METADATA = 2048
LISTED = "gpt-5.5"
INJECTED = build_instructions([FunctionTool(**tool) for tool in TOOLS], ToolChoice())


@dataclass
class House:
    """A bridge in front of a Codex in a full home."""

    rig: Rig
    mode: str
    ran: Path

    @property
    def native(self) -> bool:
        return self.mode == "native"

    def sent(self, answer: Answer) -> Json:
        """What the provider got for a request that was answered; there is one model call for each."""
        assert answer.status == 200, answer
        (post,) = self.rig.posts
        self.rig.since += 1
        return post.body

    def check_quiet(self) -> None:
        """No program of the home has run, and Codex has no child. The oldest version asks git about its directory."""
        assert not self.ran.exists(), self.ran.read_text()
        codex = self.rig.child()
        assert not self.rig.target.injects or [pid for pid, parent, _ in processes() if parent == codex] == []


@pytest.fixture(scope="module", params=[CURRENT, NEWEST], ids=str)
def target(request: pytest.FixtureRequest) -> Target:
    """The pinned and the newest version."""
    chosen: Target = request.param
    return chosen


@pytest.fixture(scope="module", params=["text", "native"])
def house(request: pytest.FixtureRequest, target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One bridge for all tests of a version and a tool mode."""
    yield from opened(tmp_path_factory.mktemp("fidelity"), target, request.param)


def opened(directory: Path, target: Target, mode: str, **more: Any) -> Iterator[House]:
    """A bridge with a full home; at its end nothing may have run."""
    found: list[Path] = []

    def before(home: Path) -> None:
        found.append(fill(home))

    with start_rig(directory, target, fill_home=before, PROXY_TOOL_MODE=mode, **more) as rig:
        house = House(rig, mode, found[0])
        yield house
        house.check_quiet()


def request(api: Api, conversation: list[Json], *, tools: bool = False, **more: Any) -> Json:
    """A request with these items or messages."""
    body = api.body("", tools=TOOLS if tools else None, **more)
    return body | {"messages" if api is CHAT else "input": conversation}


def written(api: Api, messages: list[Json]) -> list[Json]:
    """A chat's messages in the words of an API."""
    return messages if api is CHAT else as_items(messages)


def expected(house: House, api: Api, conversation: list[Json], *, tools: bool = False) -> list[Entry]:
    """What the provider should get: in text mode the injected text comes first, and live tags are escaped."""
    in_text = tools and not house.native
    shown = neutralise if in_text else as_it_is
    entries = of_chat(conversation, shown) if api is CHAT else of_responses(conversation, shown)
    return [message("developer", [("text", INJECTED)]), *entries] if in_text else entries


def check_body(house: House, body: Json, *, tools: bool = False) -> None:
    """Nothing but the conversation, the client's tools, and Codex's metadata."""
    offered = [tool["name"] for tool in body["tools"]]
    assert offered == ([tool["name"] for tool in TOOLS] if tools and house.native else [])
    assert body.get("instructions", "") == ""
    assert MARK not in json.dumps(body)
    rest = {name: value for name, value in body.items() if name not in ("input", "tools")}
    assert len(json.dumps(rest)) <= METADATA, rest
    assert "service_tier" not in body
    assert "verbosity" not in body.get("text", {})


def received(body: Json) -> list[Entry]:
    """The conversation in a request to the provider."""
    return of_responses(body["input"])


# Any conversation


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=chats())
def test_any_conversation(house: House, api: Api, tools: bool, messages: list[Json]) -> None:
    """Item by item and byte for byte: roles, parts, calls, arguments, outputs, any character, tags."""
    conversation = written(api, messages)
    body = house.sent(house.rig.send(api, request(api, conversation, tools=tools)))
    assert received(body) == expected(house, api, conversation, tools=tools)
    check_body(house, body, tools=tools)


@pytest.mark.parametrize("model", ["gpt-5.2", LISTED, "guest-model", "house-model"])
@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
def test_whatever_the_model(house: House, api: Api, model: str) -> None:
    """One of the catalog, one that is not in it any more, the operator's and that of config.toml."""
    conversation = written(api, [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}])
    body = house.sent(house.rig.send(api, request(api, conversation, model=model, tools=True)))
    assert received(body) == expected(house, api, conversation, tools=True)
    assert body["model"] == model
    check_body(house, body, tools=True)


# Large ones


@pytest.mark.parametrize("model", [LISTED, "house-model"])
@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
def test_an_output_of_a_megabyte(house: House, api: Api, model: str) -> None:
    """Codex cuts it at 48 kB, or at 12, unless it is told otherwise."""
    output = "".join(f"{number:07} é\n" for number in range(100_000))
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages: list[Json] = [
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": output},
    ]
    conversation = written(api, messages)
    body = house.sent(house.rig.send(api, request(api, conversation, model=model, tools=True)))
    assert received(body) == expected(house, api, conversation, tools=True)


@pytest.mark.parametrize("model", [LISTED, "house-model"])
def test_a_conversation_of_300_000_tokens(house: House, model: str) -> None:
    """At the first request and at those that continue it: Codex would answer from a summary."""
    messages: list[Json] = [{"role": "system", "content": "The word is kiwi."}]
    for number in range(200):
        messages += [
            {"role": "user", "content": f"message {number} " + "word " * 1200},
            {"role": "assistant", "content": f"answer {number}"},
        ]
    for number in range(3):
        messages.append({"role": "user", "content": f"question {number}"})
        answer = house.rig.send(CHAT, request(CHAT, messages, model=model))
        assert received(house.sent(answer)) == expected(house, CHAT, messages)
        messages.append({"role": "assistant", "content": answer.text})


def test_a_tool_loop_with_large_outputs(house: House) -> None:
    """An agent that reads files of 100 kB: all that it has read so far is there in every step."""
    call = {"do": "calls", "calls": [{"name": "look", "arguments": '{"q":"x"}'}]}
    messages: list[Json] = [{"role": "user", "content": said({**call, "then": {**call, "then": call}})}]
    for step in range(3):
        answer = house.rig.send(CHAT, request(CHAT, messages, model=LISTED, tools=True))
        body = house.sent(answer)
        assert without_written_calls(received(body)) == expected(house, CHAT, messages, tools=True)
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, (name, arguments) in zip(answer.call_ids, answer.calls, strict=True)
        ]
        messages.append({"role": "assistant", "content": answer.text or None, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": each["id"], "content": f"file {step} " + "line\n" * 20_000}
            for each in calls
        ]


# Images


@pytest.mark.parametrize("detail", [None, "auto", "high"])
@pytest.mark.parametrize("picture", [pictures.PNG, pictures.JPEG, pictures.WEBP], ids=["png", "jpeg", "webp"])
@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
def test_images(house: House, api: Api, picture: str, detail: str | None) -> None:
    """As they are, with the detail that was asked for, between the texts where they stood."""
    asked = {} if detail is None else {"detail": detail}
    image = {"type": "image_url", "image_url": {"url": picture, **asked}}
    if api is RESPONSES:
        image = {"type": "input_image", "image_url": picture, **asked}
    kind = "text" if api is CHAT else "input_text"
    parts = [{"type": kind, "text": "before"}, image, {"type": kind, "text": "after"}]
    conversation = [{"role": "user", "content": parts}]
    answer = house.rig.send(api, request(api, conversation, model=LISTED))
    assert received(house.sent(answer)) == expected(house, api, conversation)
    assert "x-bridge-dropped" not in answer.headers


@pytest.mark.parametrize(
    ("picture", "detail", "arrives", "dropped"),
    [
        (pictures.PNG, "low", None, "detail:low"),
        (pictures.PNG, "original", "high", "detail:original"),
        (pictures.large(2049, 4), None, None, "image size"),
        (pictures.large(1700, 1700), "high", "high", "image size"),
    ],
    ids=["low", "original", "too wide", "too many patches"],
)
def test_what_codex_changes_of_an_image_is_named(
    house: House, picture: str, detail: str | None, arrives: str | None, dropped: str
) -> None:
    """It has no low detail, and makes large images smaller."""
    image = {"type": "input_image", "image_url": picture, "detail": detail or "auto"}
    answer = house.rig.send(RESPONSES, request(RESPONSES, [{"role": "user", "content": [image]}], model=LISTED))
    (entry,) = received(house.sent(answer))
    ((kind, url, shown),) = parts_of(entry)
    assert (kind, shown, url == picture) == ("image", arrives, "size" not in dropped)
    assert answer.headers["x-bridge-dropped"] == dropped


def test_a_gif_arrives_as_a_png(house: House) -> None:
    """Codex converts it."""
    image = {"type": "input_image", "image_url": pictures.GIF}
    answer = house.rig.send(RESPONSES, request(RESPONSES, [{"role": "user", "content": [image]}]))
    (entry,) = received(house.sent(answer))
    assert str(parts_of(entry)[0][1]).startswith("data:image/png;base64,")


@pytest.mark.parametrize("picture", [pictures.BMP, pictures.SVG, pictures.BROKEN], ids=["bmp", "svg", "broken"])
@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
def test_an_image_that_codex_would_replace_by_a_sentence_is_refused(house: House, api: Api, picture: str) -> None:
    """The model is not asked."""
    image = {"type": "image_url", "image_url": {"url": picture}}
    if api is RESPONSES:
        image = {"type": "input_image", "image_url": picture}
    answer = house.rig.send(api, request(api, [{"role": "user", "content": [image]}]))
    assert (answer.status, answer.error["code"]) == (400, "invalid_image")
    assert house.rig.posts == []


# Parameters


@pytest.mark.parametrize("tier", ["priority", "flex"])
@pytest.mark.parametrize("model", [LISTED, "house-model"])
def test_the_service_tier(house: House, model: str, tier: str) -> None:
    """The client's, for any model; that of config.toml is the operator's own."""
    answer = house.rig.ask(RESPONSES, "hi", model=model, service_tier=tier)
    assert house.sent(answer)["service_tier"] == tier
    assert answer.raw["service_tier"] == tier
    assert "x-bridge-dropped" not in answer.headers


def test_a_service_tier_that_codex_does_not_know_is_named(house: House) -> None:
    """The answer comes all the same."""
    answer = house.rig.ask(RESPONSES, "hi", service_tier="scale")
    assert "service_tier" not in house.sent(answer)
    assert answer.headers["x-bridge-dropped"] == "service_tier"


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"])
def test_efforts(house: House, effort: str) -> None:
    """Each of them; `ultra` is `max` with Codex's own subagents, which are off."""
    answer = house.rig.ask(RESPONSES, "hi", model=LISTED, reasoning={"effort": effort})
    assert house.sent(answer)["reasoning"]["effort"] == ("max" if effort == "ultra" else effort)


def test_tokens_written_to_the_cache_are_counted(house: House) -> None:
    """As the provider says."""
    answer = house.rig.ask(RESPONSES, {"do": "text", "usage": {"input": 400, "cached": 50, "written": 300}})
    house.sent(answer)
    details = answer.raw["usage"]["input_tokens_details"]
    assert (details["cached_tokens"], details["cache_write_tokens"]) == (50, 300)


@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
def test_the_limit_of_tokens(house: House, api: Api) -> None:
    """Codex has none, so the bridge ends the answer there, and the model's work with it."""
    limit: Json = {"max_completion_tokens": 20} if api is CHAT else {"max_output_tokens": 20}
    answer = house.rig.ask(api, {"do": "slow", "n": 200, "seconds": 20}, **limit)
    house.sent(answer)
    assert answer.end == api.cut
    assert 10 <= len(answer.text.split()) <= 21
    assert "x-bridge-dropped" not in answer.headers
    house.rig.provider.wait_idle(timeout=10)


@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
def test_an_answer_within_its_limit_is_whole(house: House, api: Api) -> None:
    """A limit that the answer does not reach changes nothing."""
    limit: Json = {"max_completion_tokens": 400} if api is CHAT else {"max_output_tokens": 400}
    answer = house.rig.ask(api, {"do": "text", "pieces": ["word "] * 150}, **limit)
    house.sent(answer)
    assert (answer.end, answer.text) == (api.done, "word " * 150)


SEARCH = {
    "type": "web_search",
    "filters": {"allowed_domains": ["example.com"]},
    "user_location": {"type": "approximate", "country": "CH", "city": "Bern"},
    "search_context_size": "high",
}


def test_the_options_of_a_web_search(target: Target, tmp_path: Path) -> None:
    """Where the operator allows it, the provider gets the client's restrictions, and no tool of Codex's beside it."""
    for house in opened(tmp_path, target, "text", PROXY_WEB_SEARCH="live"):
        answer = house.rig.send(RESPONSES, RESPONSES.body("hi", model=LISTED) | {"tools": [SEARCH]})
        (tool,) = house.sent(answer)["tools"]
        assert {name: tool[name] for name in SEARCH} == SEARCH


# The home


@pytest.mark.parametrize("mode", ["text"])
def test_codex_with_its_own_tools_uses_the_home_as_it_is(target: Target, mode: str, tmp_path: Path) -> None:
    """--native-tools switches all of it on; this shows that the home above would be noticed."""
    settings: Json = {"PROXY_NATIVE_TOOLS": "true", "PROXY_TOOL_MODE": mode}
    found: list[Path] = []
    with start_rig(tmp_path, target, fill_home=lambda home: found.append(fill(home)), **settings) as rig:
        assert rig.ask(RESPONSES, "hi").status == 200
        assert MARK in json.dumps(rig.posts[-1].body)
    assert "mcp" in found[0].read_text()


def test_a_home_that_codex_must_use_itself(target: Target, tmp_path: Path) -> None:
    """For a login in the system's keyring. All but its AGENTS.md can be switched off there."""
    found: list[Path] = []

    def before(home: Path) -> None:
        found.append(fill(home))
        for name in ("AGENTS.md", "AGENTS.override.md"):
            (home / name).unlink()
        config = (home / "config.toml").read_text().replace(f"[mcp_servers.{MARK.lower()}]", '[mcp_servers."a.b"]')
        (home / "config.toml").write_text(f'cli_auth_credentials_store = "keyring"\n{config}')

    with start_rig(tmp_path, target, fill_home=before) as rig:
        house = House(rig, "text", found[0])
        body = house.sent(rig.ask(RESPONSES, "hi"))
        assert received(body) == [message("user", [("text", "hi")])]
        assert (body["tools"], body.get("instructions", "")) == ([], "")
        assert "service_tier" not in body
        assert body["text"] == {"verbosity": "medium"}, "the API's own default"
        house.check_quiet()


# The oldest version


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The oldest version, in the current dialect."""
    yield from opened(tmp_path_factory.mktemp("old"), TEXT_HISTORY, "text")


@pytest.mark.parametrize("api", [RESPONSES, CHAT], ids=str)
def test_the_oldest_version_gets_every_word(old: House, api: Api) -> None:
    """In order and once, an output of 900 kB among them; nothing of the home."""
    output = "".join(f"{number:07}\n" for number in range(110_000))
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"q": 1}'}}
    messages: list[Json] = [
        {"role": "user", "content": "read it"},
        {"role": "assistant", "content": "One moment.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": output},
    ]
    body = old.sent(old.rig.send(api, request(api, written(api, messages), tools=True)))
    text = body["input"][-1]["content"][0]["text"]
    assert text == (
        "[user] read it\n[assistant] One moment.\n"
        '[function_call call_id=call_1 name=look arguments={"q": 1}]\n'
        f"[function_call_output call_id=call_1 output={output}]"
    )
    assert MARK not in json.dumps(body)


def test_the_oldest_version_says_when_a_conversation_is_too_long(old: House) -> None:
    """It takes a million characters. More is an error that agents understand, and never a summary."""
    messages = [{"role": "user", "content": "word " * 210_000}]
    answer = old.rig.send(CHAT, request(CHAT, messages))
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert old.rig.posts == []
