"""A PDF in a request: sent to a provider that reads it, refused in words elsewhere. A text file is text everywhere."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from harness import RunningBridge
from server.test_bad_input import send

from bridge.appserver.prompt import flatten
from bridge.core.items import Document, FunctionCall, FunctionOutput, Message, Text
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest
from bridge.log.request import messages_from_body
from bridge.protocols.chat.presets import PRESETS
from bridge.protocols.registry import PROTOCOLS
from bridge.upstream.backend import Api, ChatApi, MessagesApi, PlainResponsesApi, ResponsesApi

Json = dict[str, Any]

DATA = base64.b64encode(b"%PDF-1.7 ...").decode()
URL = f"data:application/pdf;base64,{DATA}"
NOTE = base64.b64encode(b"remember 42").decode()


def of_responses(kind: str, data: str) -> Json:
    part = {"type": "input_file", "filename": "a.pdf", "file_data": f"data:{kind};base64,{data}"}
    return {"model": "mock-echo", "input": [{"role": "user", "content": [part]}]}


def of_chat(kind: str, data: str) -> Json:
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:{kind};base64,{data}"}}
    return {"model": "mock-echo", "messages": [{"role": "user", "content": [part]}]}


def of_messages(kind: str, data: str) -> Json:
    source = {"type": "base64", "media_type": kind, "data": data}
    part = {"type": "document", "title": "a.pdf", "source": source}
    return {"model": "mock-echo", "max_tokens": 100, "messages": [{"role": "user", "content": [part]}]}


def of_gemini(kind: str, data: str) -> Json:
    part = {"inlineData": {"mimeType": kind, "data": data, "displayName": "a.pdf"}}
    return {"model": "mock-echo", "contents": [{"role": "user", "parts": [part]}]}


BODIES: dict[str, Callable[[str, str], Json]] = {
    "responses": of_responses,
    "chat": of_chat,
    "messages": of_messages,
    "gemini": of_gemini,
}
every = pytest.mark.parametrize("name", BODIES)


def parsed(name: str, kind: str = "application/pdf", data: str = DATA) -> Turn:
    return PROTOCOLS[name].parse(BODIES[name](kind, data), ())


@every
def test_a_pdf_is_a_document_with_its_name(name: str) -> None:
    assert parsed(name).items == (Message("user", (Document(URL, "a.pdf"),)),)


@every
def test_a_text_file_is_text(name: str) -> None:
    """Every model reads it, so no ability of the backend matters."""
    assert parsed(name, "text/plain", NOTE).items == (Message("user", (Text("a.pdf:\nremember 42"),)),)


@every
def test_data_that_is_not_base64_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="base64"):
        parsed(name, "application/pdf", "A")


@every
def test_a_backend_without_documents_refuses_one(mock_bridge: RunningBridge, name: str) -> None:
    """The message names the document, the rule and what to do."""
    path = PROTOCOLS[name].path.replace("{model:path}", "mock-echo")
    answer = send(mock_bridge, "POST", path, orjson.dumps(BODIES[name]("application/pdf", DATA)))
    assert answer.status == 400
    said = orjson.loads(answer.body)["error"]["message"]
    assert "'a.pdf' (application/pdf)" in said
    assert "cannot be passed on" in said
    assert "Send its text" in said
    text = send(mock_bridge, "POST", path, orjson.dumps(BODIES[name]("text/plain", NOTE)))
    assert text.status == 200
    assert b"remember 42" in text.body


def test_codex_refuses_a_document_in_a_tools_output() -> None:
    """Also where the app-server is asked without an exchange, as by `exec` and the lab."""
    items = (FunctionCall("c", "f", "{}"), FunctionOutput("c", (Document(URL),)))
    with pytest.raises(InvalidRequest, match="Codex does not read it") as caught:
        flatten(items, guard_tags=False)
    assert caught.value.code == "unsupported_document"


RESPONSES_PART = {"type": "input_file", "file_data": URL, "filename": "a.pdf"}
SENT: dict[str, tuple[Api, Json]] = {
    "codex": (ResponsesApi(), RESPONSES_PART),
    "responses": (PlainResponsesApi(), RESPONSES_PART),
    "openai": (ChatApi(PRESETS["openai"]), {"type": "file", "file": {"filename": "a.pdf", "file_data": URL}}),
    "gemini": (ChatApi(PRESETS["gemini"]), {"type": "image_url", "image_url": {"url": URL}}),
    "anthropic": (
        MessagesApi(),
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
            "title": "a.pdf",
            "cache_control": {"type": "ephemeral"},
        },
    ),
}


@every
@pytest.mark.parametrize("provider", SENT)
def test_a_provider_gets_it_in_its_own_form(name: str, provider: str) -> None:
    api, part = SENT[provider]
    assert api.takes.documents
    body = api.build(parsed(name), "session")
    (message,) = body["input"] if "input" in body else body["messages"]
    assert message["content"] == [part]


def test_a_provider_that_reads_none_says_so_by_its_abilities() -> None:
    assert not any(ChatApi(PRESETS[name]).takes.documents for name in ("groq", "ollama", "lmstudio", "vllm"))


@pytest.mark.parametrize(
    ("api", "document", "remedy"),
    [
        (MessagesApi(), Document("data:application/zip;base64,UEs="), "Send a PDF"),
        (MessagesApi(), Document("http://x/a.pdf"), "https URL"),
        (ChatApi(PRESETS["openai"]), Document("https://x/a.pdf"), "data URL"),
    ],
)
def test_a_document_that_the_provider_cannot_read(api: Api, document: Document, remedy: str) -> None:
    with pytest.raises(InvalidRequest, match=remedy):
        api.build(Turn("claude-opus-4-6", "m", (Message("user", (document,)),)), "session")


@every
def test_the_log_shows_it_as_a_file(name: str) -> None:
    (part,) = [part for parts in messages_from_body(BODIES[name]("application/pdf", DATA)) for part in parts]
    assert (part.kind, part.name) == ("media", "input_file")
    assert URL in part.text
