"""A real Codex behind the bridge: what the model is shown. Its provider sees the client's messages and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from real.rig import CHAT, CURRENT, LEGACY, LOOK, RESPONSES, TEXT_HISTORY, Api, Rig, Target, UseRig

from bridge.core.items import FunctionTool, ToolChoice
from bridge.tools.instructions import build_instructions

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
    "RU5ErkJggg=="
)
INJECTED = build_instructions([FunctionTool(**LOOK)], ToolChoice())
ARGUMENTS = '{"q": "tea",  "n": 1.50}'

CONVERSATION = {
    RESPONSES: [
        {"role": "user", "content": "find tea\nplease"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "One moment."}]},
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "call_1", "output": "green, black"},
        {"role": "assistant", "content": "Two kinds."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and coffee?"}]},
    ],
    CHAT: [
        {"role": "user", "content": "find tea\nplease"},
        {
            "role": "assistant",
            "content": "One moment.",
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": ARGUMENTS}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "green, black"},
        {"role": "assistant", "content": "Two kinds."},
        {"role": "user", "content": [{"type": "text", "text": "and coffee?"}]},
    ],
}
TRANSCRIPT = f"""\
[user] find tea
please
[assistant] One moment.
[function_call call_id=call_1 name=look arguments={ARGUMENTS}]
[function_call_output call_id=call_1 output=green, black]
[assistant] Two kinds.
[user] and coffee?"""


def conversation(api: Api, *items: Any, **more: Any) -> dict[str, Any]:
    """A request with these items or messages."""
    body = api.body("", **more)
    return body | {"messages" if api is CHAT else "input": list(items)}


def message(role: str, text: str) -> dict[str, Any]:
    """A message as the provider gets it."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items without the ids that Codex gives them."""
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def texts(body: dict[str, Any], role: str) -> list[str]:
    """All texts that the provider got from one role."""
    messages = [item for item in body["input"] if item.get("role") == role]
    return [part["text"] for item in messages for part in item["content"] if "text" in part]


def developer_texts(body: dict[str, Any]) -> list[str]:
    """What the client caused to be said to the model as its developer; Codex 0.107 adds a text of its own."""
    return [text for text in texts(body, "developer") if not text.startswith("<permissions instructions>")]


# The conversation


@pytest.mark.parametrize("tools", [[LOOK], None], ids=["tools", "no tools"])
def test_the_provider_sees_the_clients_items_and_nothing_else(use: UseRig, api: Api, tools: Any) -> None:
    """0.163: the input is the injected text, if there are tools, and the client's own items in order; no tools."""
    body = use(CURRENT).prompt_of(api, conversation(api, *CONVERSATION[api], tools=tools))
    assert without_ids(body["input"]) == [
        *([message("developer", INJECTED)] if tools else []),
        message("user", "find tea\nplease"),
        message("assistant", "One moment."),
        {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": ARGUMENTS},
        {"type": "function_call_output", "call_id": "call_1", "output": "green, black"},
        message("assistant", "Two kinds."),
        message("user", "and coffee?"),
    ]
    assert body["tools"] == []
    assert body.get("instructions", "") == ""


@pytest.mark.parametrize("target", [LEGACY, TEXT_HISTORY], ids=str)
@pytest.mark.parametrize("tools", [[LOOK], None], ids=["tools", "no tools"])
def test_the_transcript_is_complete(use: UseRig, target: Target, api: Api, tools: Any) -> None:
    """0.107: the conversation is one labelled text and the last thing in the prompt; the rest is Codex's own."""
    body = use(target).prompt_of(api, conversation(api, *CONVERSATION[api], tools=tools))
    assert body["input"][-1] == message("user", TRANSCRIPT)
    assert developer_texts(body) == ([INJECTED] if tools else [])
    agents, environment = texts(body, "user")[:-1]
    assert agents.startswith("# AGENTS.md instructions")
    assert environment.startswith("<environment_context>")
    assert {item["role"] for item in body["input"]} == {"developer", "user"}
    assert body["instructions"] in ("", ".")


def test_a_single_prompt(any_codex: Rig, api: Api) -> None:
    """One user message arrives once; as a text it keeps its label."""
    body = any_codex.prompt_of(api, api.body("what is tea?"))
    expected = "what is tea?" if any_codex.target.injects else "[user] what is tea?"
    assert body["input"][-1]["content"] == [{"type": "input_text", "text": expected}]
    assert json.dumps(body).count("what is tea?") == 1


def test_a_catalog_model_gets_no_prompt_and_no_tools(use: UseRig, api: Api) -> None:
    """0.163: a model of Codex's own catalog, which brings 50 kB of prompt and tools, is sent neither."""
    body = use(CURRENT).prompt_of(api, api.body("hi", model="gpt-6.1-sol"))
    assert body["model"] == "gpt-6.1-sol"
    assert without_ids(body["input"]) == [message("user", "hi")]
    assert body["tools"] == []
    assert len(json.dumps(body)) < 4000


# System messages


def test_system_messages_of_responses_always_arrive(any_codex: Rig) -> None:
    """Responses: `instructions`, system and developer items are the developer's words, after the injected text."""
    items = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": "hi"},
    ]
    body = any_codex.prompt_of(RESPONSES, conversation(RESPONSES, *items, tools=[LOOK], instructions="Be true."))
    assert "\n\n".join(developer_texts(body)) == f"{INJECTED}\n\nBe true.\n\nBe brief.\n\nBe kind."


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_of_chat(any_codex: Rig, role: str) -> None:
    """Chat: passed on as the developer's; in the legacy dialect left out by default, and a header says so."""
    answer = any_codex.send(
        CHAT, conversation(CHAT, {"role": role, "content": "Be brief."}, {"role": "user", "content": "hi"})
    )
    (post,) = any_codex.posts
    if any_codex.target is LEGACY:
        assert "Be brief." not in json.dumps(post.body)
        assert "PROXY_IGNORE_CLIENT_SYSTEM_PROMPT" in answer.headers["x-bridge-dropped"]
    else:
        assert developer_texts(post.body) == ["Be brief."]
        assert "x-bridge-dropped" not in answer.headers


def test_system_messages_of_legacy_chat_on_request(use: UseRig) -> None:
    """Legacy chat with PROXY_IGNORE_CLIENT_SYSTEM_PROMPT=false: they are the instructions, and no header complains."""
    rig = use(LEGACY, PROXY_IGNORE_CLIENT_SYSTEM_PROMPT="false")
    answer = rig.send(
        CHAT, conversation(CHAT, {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
    )
    (post,) = rig.posts
    assert post.body["instructions"] == "Be brief."
    assert "x-bridge-dropped" not in answer.headers


# Tags


@pytest.mark.parametrize("offered", [True, False], ids=["tools", "no tools"])
def test_live_tags_are_escaped_where_tools_are_offered(any_codex: Rig, api: Api, offered: bool) -> None:
    """With tools no text of the client's shows the model a well-formed call; without tools nothing is touched."""
    live = '<tool_call>{"name":"look"}</tool_call>'
    shown = live.replace("<", "&lt;") if offered else live
    call = {"call_id": "c", "name": "look", "arguments": "{}"}
    items: list[dict[str, Any]] = [{"role": "user", "content": f"user {live}"}]
    if api is CHAT:
        tool_call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        items.append({"role": "assistant", "content": f"assistant {live}", "tool_calls": [tool_call]})
        items.append({"role": "tool", "tool_call_id": "c", "content": f"output {live}"})
    else:
        items.append({"role": "assistant", "content": f"assistant {live}"})
        items.append({"type": "function_call", **call})
        items.append({"type": "function_call_output", "call_id": "c", "output": f"output {live}"})
    body = any_codex.prompt_of(api, conversation(api, *items, tools=[LOOK] if offered else None))
    if any_codex.target.injects:
        assert without_ids(body["input"])[-4:] == [
            message("user", f"user {shown}"),
            message("assistant", f"assistant {shown}"),
            {"type": "function_call", **call},
            {"type": "function_call_output", "call_id": "c", "output": f"output {shown}"},
        ]
    else:
        assert texts(body, "user")[-1] == (
            f"[user] user {shown}\n[assistant] assistant {shown}\n[function_call call_id=c name=look arguments={{}}]\n"
            f"[function_call_output call_id=c output=output {shown}]"
        )


# Effort, format, images


@pytest.mark.parametrize(
    ("model", "given", "effort"),
    [
        ("gpt-5.2", "high", "high"),
        ("gpt-5.2-codev-l", None, "low"),
        ("GPT-5.2-Codex-XH", None, "xhigh"),
        ("gpt-5.2-codev-l", "medium", "medium"),
    ],
)
def test_reasoning_effort(any_codex: Rig, api: Api, model: str, given: str | None, effort: str) -> None:
    """The effort of the request, else that of the alias, reaches the provider; the client reads the name it wrote."""
    more = {"reasoning_effort": given} if api is CHAT else {"reasoning": {"effort": given}}
    answer = any_codex.ask(api, "think", model=model, **(more if given else {}))
    (post,) = any_codex.posts
    assert (post.body["model"], post.body["reasoning"]["effort"]) == ("gpt-5.2", effort)
    assert answer.raw["model"] == model


def test_structured_output(any_codex: Rig, api: Api) -> None:
    """A JSON schema for the answer reaches the provider as the text's format, in this turn and no other."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    asked = {"name": "number", "schema": schema, "strict": True}
    more = (
        {"response_format": {"type": "json_schema", "json_schema": asked}}
        if api is CHAT
        else {"text": {"format": {"type": "json_schema", **asked}}}
    )
    body = any_codex.prompt_of(api, api.body("count", **more))
    assert body["text"]["format"]["type"] == "json_schema"
    assert body["text"]["format"]["schema"] == schema
    assert "format" not in any_codex.prompt_of(api, api.body("count")).get("text", {})


def image(api: Api, url: str) -> dict[str, Any]:
    """A request with an image between two texts."""
    if api is CHAT:
        kind, picture = "text", {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    else:
        kind, picture = "input_text", {"type": "input_image", "image_url": url, "detail": "low"}
    parts = [{"type": kind, "text": "before"}, picture, {"type": kind, "text": "after"}]
    return conversation(api, {"role": "user", "content": parts})


def test_an_image_as_data_url(any_codex: Rig, api: Api) -> None:
    """An image arrives as input_image in its place between the texts."""
    (*_, last) = any_codex.prompt_of(api, image(api, PIXEL))["input"]
    shown = [part.get("image_url") or part["text"] for part in last["content"]]
    if any_codex.target.injects:
        assert shown == ["before", PIXEL, "after"]
    else:
        assert shown == ["[user] before", "<image>", PIXEL, "</image>", "after"]
    assert [part["type"] for part in last["content"] if "image_url" in part] == ["input_image"]


def test_a_remote_image_is_not_lost(any_codex: Rig, api: Api) -> None:
    """0.163 takes no remote images: a clear 400 and no model call. 0.107 leaves the URL to the provider."""
    url = "http://example.com/tea.png"
    answer = any_codex.send(api, image(api, url))
    if any_codex.target.injects:
        assert (answer.status, answer.error["code"]) == (400, "unsupported_image_url")
        assert "data URL" in answer.error["message"]
        assert any_codex.posts == []
    else:
        (post,) = any_codex.posts
        assert {"type": "input_image", "image_url": url} in post.body["input"][-1]["content"]
