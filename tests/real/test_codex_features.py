"""A real Codex behind the bridge: reasoning to give back, web search, verbosity, forms of answers, limits, models."""

from __future__ import annotations

import json
from pathlib import Path
from time import time
from typing import Any

import pytest
from real.rig import CHAT, CURRENT, LEGACY, LOOK, RESPONSES, Api, Rig, Target, UseRig, said, start_rig

LISTED = "gpt-5.5"
"""A model of the catalog that the bridge gives to Codex."""


@pytest.fixture(params=["native", "text"])
def current(request: pytest.FixtureRequest, use: UseRig) -> Rig:
    """0.163, with either way to offer tools: what else it can do does not depend on that."""
    return use(CURRENT, PROXY_TOOL_MODE=request.param)


@pytest.fixture
def legacy(use: UseRig) -> Rig:
    """0.107 in its own dialect."""
    return use(LEGACY)


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without the ids that Codex gives them."""
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def developer_text(rig: Rig) -> str:
    """What the model was told as its developer's words in the last request."""
    items = [item for item in rig.posts[-1].body["input"] if item.get("role") == "developer"]
    texts = [part["text"] for item in items for part in item["content"]]
    return "\n".join(text for text in texts if not text.startswith("<permissions instructions>"))


def dropped(answer: Any) -> list[str]:
    """What the answer says was left out."""
    header = answer.headers.get("x-bridge-dropped")
    return header.split(",") if header else []


# Reasoning that the client gives back

ENCRYPTED: dict[str, Any] = {"include": ["reasoning.encrypted_content"]}
THINK = {"do": "reasoning", "summary": ["I see."], "pieces": ["42"]}


def unmarked(thought: dict[str, Any]) -> str:
    """What the provider made, without the bridge's mark of whose it is."""
    mark, _, content = thought["encrypted_content"].partition(":")
    assert mark.startswith("bridge.thought.1.")
    return str(content)


@pytest.mark.parametrize("summary", [["I see.", "Yes."], []], ids=["summary", "no summary"])
@pytest.mark.parametrize("tools", [None, [LOOK]], ids=["no tools", "tools"])
def test_encrypted_reasoning(current: Rig, stream: bool, tools: Any, summary: list[str]) -> None:
    """Asked for, it stands in the item under the id that the provider gave it, before the message."""
    answer = current.ask(RESPONSES, THINK | {"summary": summary}, stream=stream, tools=tools, **ENCRYPTED)
    thought, message = answer.raw["output"]
    assert (thought["type"], unmarked(thought)) == ("reasoning", "c2VjcmV0")
    assert thought["id"] == f"rs_{len(current.provider.requests) - 1}"
    assert [part["text"] for part in thought["summary"]] == summary
    assert message["content"][0]["text"] == "42"
    assert dropped(answer) == []


def test_encrypted_reasoning_is_for_those_who_ask(current: Rig, stream: bool) -> None:
    """Others get the summary alone; a thought without one is not shown at all."""
    answer = current.ask(RESPONSES, THINK, stream=stream, tools=[LOOK])
    thought, _ = answer.raw["output"]
    assert thought["summary"]
    assert "encrypted_content" not in thought
    answer = current.ask(RESPONSES, THINK | {"summary": []}, stream=stream, tools=[LOOK])
    assert [item["type"] for item in answer.raw["output"]] == ["message"]


def test_encrypted_reasoning_finds_its_way_back(current: Rig) -> None:
    """Sent back with the rest of the conversation, it reaches the provider as it was, once, in its place."""
    first = current.ask(RESPONSES, THINK, **ENCRYPTED)
    thought = first.raw["output"][0]
    history = [{"role": "user", "content": said(THINK)}, *first.raw["output"], {"role": "user", "content": "and then?"}]
    body = current.prompt_of(RESPONSES, {"model": "gpt-5.2", "input": history, **ENCRYPTED})
    shown = [item for item in body["input"] if item["type"] in ("message", "reasoning")]
    assert [item.get("role", item["type"]) for item in shown] == ["user", "reasoning", "assistant", "user"]
    assert shown[1]["encrypted_content"] == unmarked(thought)
    assert shown[1]["id"] == thought["id"]
    assert shown[1]["summary"] == thought["summary"]


def test_reasoning_of_another_conversation_is_passed_on(current: Rig) -> None:
    """The client may have got it elsewhere: every member that the provider made arrives."""
    thought = {
        "type": "reasoning",
        "id": "rs_elsewhere",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "Z2VoZWlt",
    }
    history = [{"role": "user", "content": "why?"}, thought, {"role": "assistant", "content": "So."}]
    body = current.prompt_of(RESPONSES, {"model": "gpt-5.2", "input": [*history, {"role": "user", "content": "and?"}]})
    (shown,) = [item for item in body["input"] if item["type"] == "reasoning"]
    assert {name: shown[name] for name in thought} == thought


def test_reasoning_before_a_call_finds_its_way_back(use: UseRig) -> None:
    """Natively the provider sees the thought, the call and its output, in this order."""
    rig = use(CURRENT, PROXY_TOOL_MODE="native")
    action = {"do": "calls", "calls": [{"name": "look", "arguments": "{}"}], "summary": ["Look first."]}
    first = rig.ask(RESPONSES, action, tools=[LOOK], **ENCRYPTED)
    thought, call = first.raw["output"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "seen"}
    body = RESPONSES.body("", tools=[LOOK], **ENCRYPTED)
    history = [{"role": "user", "content": said(action)}, thought, call, output]
    second = rig.send(RESPONSES, body | {"input": history})
    assert second.text == "result: seen"
    kinds = [item["type"] for item in rig.posts[-1].body["input"]]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output"]
    assert rig.posts[-1].body["input"][1]["encrypted_content"] == unmarked(thought)


def test_a_thought_stays_with_its_provider(current: Rig) -> None:
    """Claude's, Gemini's and another backend's do not reach this one; the call that they led to does."""
    foreign = [
        'anthropic.thinking.1:{"model":"claude-sonnet-4-5","block":{"type":"thinking","thinking":"a","signature":"b"}}',
        'gemini-signatures:{"call_1":"c"}',
        "bridge.thought.1.0123456789abcdef:gAAAA",
    ]
    thoughts = [{"type": "reasoning", "summary": [], "encrypted_content": content} for content in foreign]
    history = [
        {"role": "user", "content": "look"},
        *thoughts,
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "seen"},
    ]
    body = current.prompt_of(RESPONSES, RESPONSES.body("", tools=[LOOK], **ENCRYPTED) | {"input": history})
    kinds = [item["type"] for item in body["input"] if item.get("role") != "developer"]
    assert kinds == ["message", "function_call", "function_call_output"]
    assert not any(content in json.dumps(body) for content in ("anthropic", "gemini", "gAAAA"))


def test_a_legacy_codex_cannot_tell_it(legacy: Rig) -> None:
    """0.107: the answer comes without it, and a header says so."""
    answer = legacy.ask(RESPONSES, THINK, **ENCRYPTED)
    assert "encrypted_content" not in answer.raw["output"][0]
    assert dropped(answer) == ["include:reasoning.encrypted_content"]


# Web search

SEARCH = {"do": "search", "query": "tea", "pieces": ["Green."]}


def searching(api: Api, **tool: Any) -> dict[str, Any]:
    """What a client adds to its request so that the model may search the web."""
    return {"web_search_options": {}} if api is CHAT else {"tools": [{"type": "web_search", **tool}]}


@pytest.mark.parametrize(
    ("allowed", "wanted", "live"),
    [("live", {}, True), ("cached", {}, False), ("live", {"external_web_access": False}, False)],
)
def test_web_search_where_it_is_allowed(use: UseRig, stream: bool, allowed: str, wanted: Any, live: bool) -> None:
    """The provider's own tool is offered, no further than both sides want; a search is an item of the answer."""
    rig = use(CURRENT, PROXY_WEB_SEARCH=allowed)
    answer = rig.send(RESPONSES, RESPONSES.body(said(SEARCH)) | searching(RESPONSES, **wanted), stream=stream)
    (tool,) = rig.posts[-1].body["tools"]
    assert (tool["type"], tool["external_web_access"]) == ("web_search", live)
    search, message = answer.raw["output"]
    assert (search["type"], search["status"]) == ("web_search_call", "completed")
    assert search["action"] == {"type": "search", "query": "tea", "queries": ["tea"]}
    assert message["content"][0]["text"] == "Green."
    assert dropped(answer) == []


def test_web_search_on_chat(use: UseRig, stream: bool) -> None:
    """The text of the answer is all that there is to see."""
    rig = use(CURRENT, PROXY_WEB_SEARCH="live")
    answer = rig.send(CHAT, CHAT.body(said(SEARCH)) | searching(CHAT), stream=stream)
    assert (answer.text, answer.end, dropped(answer)) == ("Green.", "stop", [])
    assert [tool["type"] for tool in rig.posts[-1].body["tools"]] == ["web_search"]


def test_web_search_beside_native_functions(use: UseRig) -> None:
    """Both are offered; a client's own function `web_search` is another thing."""
    rig = use(CURRENT, PROXY_WEB_SEARCH="live", PROXY_TOOL_MODE="native")
    own = {"type": "function", "name": "web_search", "parameters": {"type": "object", "properties": {}}}
    action = {"do": "calls", "calls": [{"name": "client_web_search", "arguments": "{}"}]}
    answer = rig.send(RESPONSES, RESPONSES.body(said(action)) | {"tools": [own, {"type": "web_search"}]})
    assert answer.calls == (("web_search", "{}"),)
    kinds = sorted((tool["type"], tool.get("name")) for tool in rig.posts[-1].body["tools"])
    assert kinds == [("function", "client_web_search"), ("web_search", None)]


def test_a_search_finds_its_way_back(use: UseRig) -> None:
    """Sent back with the conversation, the provider sees that it was made."""
    rig = use(CURRENT, PROXY_WEB_SEARCH="live")
    search = {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "tea"},
    }
    history = [{"role": "user", "content": "tea?"}, search, {"role": "assistant", "content": "Green."}]
    body = rig.prompt_of(RESPONSES, {"model": "gpt-5.2", "input": [*history, {"role": "user", "content": "more"}]})
    (shown,) = [item for item in body["input"] if item["type"] == "web_search_call"]
    assert shown["action"] == search["action"]


def test_nobody_searches_who_did_not_ask(use: UseRig, api: Api) -> None:
    """What is allowed is not yet wanted."""
    assert use(CURRENT, PROXY_WEB_SEARCH="live").prompt_of(api, api.body("hi"))["tools"] == []


@pytest.mark.parametrize(("target", "settings"), [(CURRENT, {}), (LEGACY, {"PROXY_WEB_SEARCH": "live"})], ids=str)
def test_web_search_where_it_cannot_be(use: UseRig, api: Api, target: Any, settings: dict[str, str]) -> None:
    """By default, and with a legacy Codex: it is not offered, the answer comes, and a header says so."""
    rig = use(target, **settings)
    answer = rig.send(api, api.body("hi") | searching(api))
    assert (answer.status, answer.text) == (200, "hello from the provider")
    assert dropped(answer) == ["web_search_options" if api is CHAT else "tools:web_search"]
    assert "web_search" not in [tool["type"] for tool in rig.posts[-1].body["tools"]]


# Verbosity


def verbosity(api: Api, level: str) -> dict[str, Any]:
    return {"verbosity": level} if api is CHAT else {"text": {"verbosity": level}}


@pytest.mark.parametrize("level", ["medium", "high"])
def test_verbosity_of_a_listed_model(current: Rig, api: Api, level: str) -> None:
    """It reaches the provider, for this request alone."""
    answer = current.ask(api, "hi", model=LISTED, **verbosity(api, level))
    assert current.posts[-1].body["text"]["verbosity"] == level
    assert dropped(answer) == []
    assert "verbosity" not in current.prompt_of(api, api.body("hi", model=LISTED)).get("text", {})


def test_verbosity_beside_a_schema(current: Rig, api: Api) -> None:
    """Both are settings of the text."""
    body = api.body("hi", model=LISTED, **verbosity(api, "high"))
    form = json_schema(api, CLOSED, strict=True)
    text = current.prompt_of(
        api, body | form | ({"text": {**body["text"], **form["text"]}} if api is RESPONSES else {})
    )
    assert (text["text"]["verbosity"], text["text"]["format"]["schema"]) == ("high", CLOSED)


def test_verbosity_of_other_models(current: Rig, api: Api) -> None:
    """A model that Codex does not list gets it too."""
    answer = current.ask(api, "hi", model="guest-model", **verbosity(api, "high"))
    assert dropped(answer) == []
    assert current.posts[-1].body["text"]["verbosity"] == "high"


def test_verbosity_of_a_legacy_codex_is_named(legacy: Rig, api: Api) -> None:
    """0.107 has no place for it, and sends the API's default."""
    answer = legacy.ask(api, "hi", **verbosity(api, "high"))
    assert dropped(answer) == ["verbosity" if api is CHAT else "text.verbosity"]
    assert legacy.posts[-1].body["text"]["verbosity"] == "medium"


# Forms of answers

CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
LOOSE = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 3}}}


def json_schema(api: Api, schema: dict[str, Any], *, strict: bool | None = None) -> dict[str, Any]:
    """A request for an answer of this form."""
    asked = {"name": "number", "schema": schema, **({} if strict is None else {"strict": strict})}
    if api is CHAT:
        return {"response_format": {"type": "json_schema", "json_schema": asked}}
    return {"text": {"format": {"type": "json_schema", **asked}}}


def json_object(api: Api) -> dict[str, Any]:
    form = {"type": "json_object"}
    return {"response_format": form} if api is CHAT else {"text": {"format": form}}


@pytest.mark.parametrize(("schema", "strict"), [(CLOSED, None), (CLOSED, False), (CLOSED, True), (LOOSE, True)])
def test_a_form_that_the_provider_enforces(current: Rig, api: Api, schema: dict[str, Any], strict: Any) -> None:
    """Wherever the schema suits it, or the client insists: it is sent as it is, and no words are added."""
    answer = current.ask(api, "count", **json_schema(api, schema, strict=strict))
    sent = current.posts[-1].body["text"]["format"]
    assert (sent["type"], sent["schema"], sent["strict"]) == ("json_schema", schema, True)
    assert developer_text(current) == ""
    assert dropped(answer) == []


@pytest.mark.parametrize("strict", [None, False])
def test_a_form_that_is_asked_for_in_words(current: Rig, api: Api, strict: Any) -> None:
    """The provider would refuse the schema: the model is shown it, after the client's own instructions."""
    body = api.body("count", **json_schema(api, LOOSE, strict=strict))
    system = {"role": "system", "content": "Be brief."}
    if api is CHAT:
        body["messages"].insert(0, system)
    else:
        body["instructions"] = "Be brief."
    answer = current.send(api, body)
    assert "format" not in (current.posts[-1].body.get("text") or {})
    words = developer_text(current)
    assert "Be brief." in words
    assert json.dumps(LOOSE, separators=(",", ":")) in words
    assert dropped(answer) == []


def test_any_json_is_asked_for_in_words(current: Rig, api: Api, stream: bool) -> None:
    """Codex knows no json_object."""
    answer = current.ask(api, {"do": "text", "pieces": ['{"n":1}']}, stream=stream, **json_object(api))
    assert (answer.text, dropped(answer)) == ('{"n":1}', [])
    assert "one valid JSON object and nothing else" in developer_text(current)
    assert "format" not in (current.posts[-1].body.get("text") or {})


EFFORT: dict[Api, dict[str, Any]] = {
    RESPONSES: {"reasoning": {"effort": "high", "summary": "detailed"}},
    CHAT: {"reasoning_effort": "high"},
}


@pytest.mark.parametrize(
    ("settings", "losing"),
    [
        ({}, {}),
        ({"PROXY_RESPONSES_SKIP_TURN": "true"}, {RESPONSES: {"text.format", "reasoning.effort", "reasoning.summary"}}),
        (
            {"PROXY_LEGACY_CALLS": "message"},
            {
                RESPONSES: {"text.format", "reasoning.effort", "reasoning.summary"},
                CHAT: {"response_format", "reasoning_effort"},
            },
        ),
        ({"PROXY_LEGACY_CALLS": "turn"}, {}),
        ({"PROXY_LEGACY_CALLS": "both"}, {RESPONSES: {"reasoning.effort"}}),
    ],
    ids=["auto", "skip turn", "message", "turn", "both"],
)
def test_what_a_legacy_call_cannot_carry_is_named(
    use: UseRig, api: Api, settings: dict[str, str], losing: dict[Api, set[str]]
) -> None:
    """0.107 reads nothing of sendUserMessage but its text. What does not reach the provider is in the header."""
    rig = use(LEGACY, **settings)
    answer = rig.ask(api, "count", **json_schema(api, CLOSED, strict=True), **EFFORT[api])
    sent = rig.posts[0].body
    arrived = {
        "response_format" if api is CHAT else "text.format": "format" in sent["text"],
        "reasoning_effort" if api is CHAT else "reasoning.effort": sent["reasoning"].get("effort") == "high",
    }
    if api is RESPONSES:
        arrived["reasoning.summary"] = sent["reasoning"].get("summary") == "detailed"
    assert {name for name, there in arrived.items() if not there} == losing.get(api, set())
    assert set(dropped(answer)) == losing.get(api, set())


def test_forms_of_a_legacy_codex(legacy: Rig, api: Api) -> None:
    """0.107 enforces a schema; any other JSON it can neither enforce nor ask for, and a header says so."""
    answer = legacy.ask(api, "count", **json_schema(api, CLOSED, strict=True))
    assert legacy.posts[-1].body["text"]["format"]["schema"] == CLOSED
    assert dropped(answer) == []
    answer = legacy.ask(api, "count", **json_object(api))
    assert "format" not in legacy.posts[-1].body["text"]
    assert dropped(answer) == ["response_format" if api is CHAT else "text.format"]


# Limits of the account


def windows(used: list[int], resets: list[int]) -> dict[str, str]:
    """The headers with which a provider tells how much of the account's quota is used."""
    names, minutes = ("primary", "secondary"), (300, 10080)
    return {
        f"x-codex-{name}-{member}": str(value)
        for name, *values in zip(names, used, minutes, resets, strict=True)
        for member, value in zip(("used-percent", "window-minutes", "reset-at"), values, strict=True)
    }


@pytest.mark.parametrize("target", [CURRENT, LEGACY], ids=str)
def test_rate_limits(tmp_path: Path, target: Target) -> None:
    """What the provider tells with one answer is known afterwards, and stands in the headers of the next."""
    resets = [int(time()) + 1000, int(time()) + 200_000]
    with start_rig(tmp_path, target) as rig:
        assert rig.client.get("rate-limits").json()["known"] is False
        for stream, used in ((False, [42, 7]), (True, [50, 8])):
            before = rig.ask(RESPONSES, {"do": "text", "headers": windows(used, resets)}, stream=stream).headers
            assert before.get("x-codex-primary-used-percent") == ("42" if stream else None)

            asked = int(time())
            limits = rig.client.get("rate-limits").json()
            assert limits["known"] is True
            for index, window in enumerate(("primary", "secondary")):
                assert limits[window]["used_percent"] == used[index]
                assert limits[window]["window_minutes"] == (300, 10080)[index]
                assert limits[window]["resets_at"] == resets[index]
                assert 0 < limits[window]["resets_in_seconds"] <= resets[index] - asked

            for api in (RESPONSES, CHAT):
                headers = rig.ask(api, {"do": "text"}, stream=stream).headers
                told = {name: value for name, value in headers.items() if name.startswith("x-codex")}
                assert told == windows(used, resets)


# Images

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)


def with_image(api: Api, url: str) -> dict[str, Any]:
    """A request with an image, tools and the history of a tool that has shown another one."""
    if api is CHAT:
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        items = [
            {"role": "user", "content": "look"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "a picture"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]},
        ]
        return api.body("", tools=[LOOK]) | {"messages": items}
    items = [
        {"role": "user", "content": "look"},
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_image", "image_url": url}]},
        {"role": "user", "content": [{"type": "input_image", "image_url": url}]},
    ]
    return api.body("", tools=[LOOK]) | {"input": items}


def test_images_as_data_urls(current: Rig, api: Api) -> None:
    """In messages and in the outputs of tools; with either way to offer tools."""
    items = without_ids(current.prompt_of(api, with_image(api, PIXEL))["input"])
    picture = {"type": "input_image", "image_url": PIXEL}
    assert items[-1] == {"type": "message", "role": "user", "content": [picture]}
    assert items[-2]["output"] == ("a picture" if api is CHAT else [picture])


@pytest.mark.parametrize("url", ["http://example.com/tea.png", "https://example.com/tea.png"])
def test_remote_images_are_refused(current: Rig, api: Api, stream: bool, url: str) -> None:
    """400 that says what to do instead, before anything is sent to the model."""
    answer = current.send(api, with_image(api, url), stream=stream)
    assert (answer.status, answer.error["code"]) == (400, "unsupported_image_url")
    assert "data URL" in answer.error["message"]
    assert current.posts == []


# Models


def test_models_come_from_the_child(current: Rig) -> None:
    """Each with the efforts that it knows, and each of those names works."""
    listed = [model["id"] for model in current.client.get("models").json()["data"]]
    efforts = [name.removeprefix(f"{LISTED}-") for name in listed if name.startswith(f"{LISTED}-")]
    assert LISTED in listed
    assert {"low", "medium", "high"} <= set(efforts)
    for effort in efforts:
        answer = current.ask(RESPONSES, "hi", model=f"{LISTED}-{effort}")
        assert answer.raw["model"] == f"{LISTED}-{effort}"
        sent = current.posts[-1].body
        assert (sent["model"], sent["reasoning"]["effort"]) == (LISTED, effort)


def test_one_model_can_be_asked_for(current: Rig) -> None:
    """By each name that is listed, and by one that is passed on to the provider."""
    for name in (LISTED, f"{LISTED}-high", "guest-model", "mock-echo", "codex-5", "gpt-4"):
        model = current.client.get(f"models/{name}")
        assert (model.status_code, model.json()["id"], model.json()["object"]) == (200, name, "model")


# All that a legacy Codex leaves out, at once


def test_a_legacy_codex_names_everything_that_it_drops(legacy: Rig, api: Api) -> None:
    """The answer comes all the same."""
    wishes = searching(api) | verbosity(api, "high") | json_object(api)
    if api is RESPONSES:
        wishes |= ENCRYPTED | {"text": {"format": {"type": "json_object"}, "verbosity": "high"}}
        names = ["tools:web_search", "text.verbosity", "text.format", "include:reasoning.encrypted_content"]
    else:
        names = ["web_search_options", "verbosity", "response_format"]
    answer = legacy.send(api, api.body("hi", temperature=0.5) | wishes)
    assert answer.text == "hello from the provider"
    assert set(dropped(answer)) == {"temperature", *names}


def test_what_is_dropped_can_be_refused(tmp_path: Path) -> None:
    """PROXY_UNSUPPORTED=reject: 400 that names it, and the model is not asked."""
    with start_rig(tmp_path, CURRENT, PROXY_UNSUPPORTED="reject") as rig:
        for api in (RESPONSES, CHAT):
            answer = rig.ask(api, "hi", temperature=0.5)
            assert (answer.status, answer.error["code"]) == (400, "unsupported_parameter")
            assert "temperature" in answer.error["message"]
        assert rig.posts == []
