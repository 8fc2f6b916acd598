"""The providers over HTTP: the scripted servers of tests/upstream in the words of the battery."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio
from matrix.provider import RETRY_AFTER, SIGNATURE, Call, Json, Provider
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter, ValidationError
from upstream import anthropic_events, anthropic_server, events, openai_chat, openai_chat_chunks
from upstream.answers import Answer, Gate, Stream, refusal
from upstream.anthropic_server import Anthropic
from upstream.chatgpt import ChatGPT
from upstream.connection import Request

_PARAMS: TypeAdapter[Any] = TypeAdapter(ResponseCreateParamsStreaming)


class HttpProvider(Provider):
    """A scripted server."""

    def __init__(self, server: ChatGPT | Anthropic) -> None:
        self.server = server
        self.gate = Gate()

    def wait_until_held(self) -> None:
        self.server.wait_for(lambda: self.gate.held)

    def left_at(self) -> float:
        request = self.server.requests[-1]
        self.server.wait_for(lambda: request.left_at is not None)
        assert request.left_at is not None
        return request.left_at

    def settle(self) -> None:
        left = list(self.server.script)
        self.server.script.clear()
        self.gate = Gate()
        faults = list(self.server.faults)
        self.server.faults.clear()
        assert faults == []
        assert left == [], "answers that nobody asked for"

    @property
    def sent(self) -> Json:
        """The last request."""
        body: Json = self.server.requests[-1].body
        return body

    def refuses(self, status: int, message: str) -> None:
        codes = {400: None, 429: "rate_limit_exceeded"}
        self.server.will(refusal(status, codes[status], message, **_headers(status)))


class ResponsesProvider(HttpProvider):
    """The Responses API, as Codex uses it."""

    model = "direct-model"

    def says(self, *pieces: str) -> str:
        self.server.will(Stream(events.answer(events.text(*pieces))))
        return "".join(pieces)

    def calls(self, *calls: Call) -> list[Call]:
        self.server.will(Stream(events.answer(*(events.call(*call) for call in calls))))
        return list(calls)

    def thinks(self, thought: str, *calls: Call) -> None:
        then = [events.call(*call) for call in calls] or [events.text("Done.")]
        self.server.will(Stream(events.answer(events.reasoning(thought, encrypted=SIGNATURE), *then)))

    def cuts(self, text: str) -> None:
        self.server.will(Stream(events.answer(events.text(text), end=events.incomplete())))

    def holds(self, text: str) -> None:
        begun = events.answer(events.text(text))[:5]
        self.server.will(Stream([*begun, self.gate]))

    def images(self) -> list[str]:
        parts = [part for item in self._items("message") for part in item["content"]]
        return [part["image_url"] for part in parts if part["type"] == "input_image"]

    def outputs(self) -> list[str]:
        return [item["output"] for item in self._items("function_call_output")]

    def thoughts(self) -> list[str]:
        # `exec` passes its input on as it is, thoughts that nobody has signed too.
        return [item["encrypted_content"] for item in self._items("reasoning") if "encrypted_content" in item]

    def _items(self, kind: str) -> list[Json]:
        return [item for item in self.sent["input"] if item["type"] == kind]


class PlainResponsesProvider(ResponsesProvider):
    """The Responses API, as everybody else has it."""

    model = "plain-model"


class PlainResponses(ChatGPT):
    """A server of the Responses API that knows nothing of Codex: a key, and what OpenAI's own types allow."""

    def reply_to(self, request: Request) -> Answer:
        self.requests.append(request)
        faults = list(_plain_faults(request))
        reply = self._unauthorized(request) or (self._wrong(faults) if faults else self._next(request))
        self.note()
        return reply


@contextmanager
def serving_plain_responses() -> Iterator[PlainResponses]:
    """Such a server in a thread of its own."""
    server, ready, stop = PlainResponses(), threading.Event(), Gate()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            ready.set()
            await stop.passed()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=[main], name="plain-responses")
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        stop.open()
        thread.join()


def _plain_faults(request: Request) -> Iterator[str]:
    if request.path != "/v1/responses":
        yield f"no such path: {request.path}"
    if request.body.get("stream") is not True or request.body.get("store") is not False:
        yield "body: to be streamed and not to be stored"
    for name in ("originator", "chatgpt-account-id"):
        if name in request.headers:
            yield f"header {name}: nobody else's business"
    try:
        _PARAMS.validate_python({**request.body, "input": [_as_typed(item) for item in request.body["input"]]})
    except ValidationError as error:
        yield f"body: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}"


def _as_typed(item: Json) -> Json:
    """The assistant's own messages have ids in the types; the API takes them without, and Codex sends them so."""
    if item.get("role") != "assistant":
        return item
    content = [{"annotations": [], **part} for part in item["content"]]
    return {"id": "msg_1", "status": "completed", **item, "content": content}


class AnthropicProvider(HttpProvider):
    """The Messages API."""

    model = "claude-sonnet-4-5"
    usage = (16, 3, 7)
    """What is fresh, what was read from the cache and what was written to it, together."""

    def says(self, *pieces: str) -> str:
        self._will(anthropic_events.text(*pieces))
        return "".join(pieces)

    def calls(self, *calls: Call) -> list[Call]:
        self._will(*(anthropic_events.tool_use(*call) for call in calls))
        return list(calls)

    def thinks(self, thought: str, *calls: Call) -> None:
        then = [anthropic_events.tool_use(*call) for call in calls] or [anthropic_events.text("Done.")]
        self._will(anthropic_events.thinking(thought, signature=SIGNATURE), *then)

    def refuses(self, status: int, message: str) -> None:
        kinds = {400: "invalid_request_error", 429: "rate_limit_error"}
        self.server.will(anthropic_server.refusal(status, kinds[status], message, **_headers(status)))

    def cuts(self, text: str) -> None:
        self._will(anthropic_events.text(text), stop="max_tokens")

    def holds(self, text: str) -> None:
        begun = anthropic_events.answer(anthropic_events.text(text))[:4]
        self.server.will(Stream([*begun, self.gate]))

    def images(self) -> list[str]:
        sources = [block["source"] for block in self._blocks("image")]
        return [f"data:{source['media_type']};{source['type']},{source['data']}" for source in sources]

    def outputs(self) -> list[str]:
        return [block["content"] for block in self._blocks("tool_result")]

    def thoughts(self) -> list[str]:
        return [block["signature"] for block in self._blocks("thinking")]

    def _will(self, *blocks: Any, **more: Any) -> None:
        self.server.will(Stream(anthropic_events.answer(*blocks, **more)))

    def _blocks(self, kind: str) -> list[Json]:
        blocks = [block for message in self.sent["messages"] for block in message["content"]]
        return [block for block in blocks if block["type"] == kind]


class ChatProvider(HttpProvider):
    """Chat completions."""

    model = "some-model"

    def says(self, *pieces: str) -> str:
        self._will(openai_chat_chunks.text(*pieces))
        return "".join(pieces)

    def calls(self, *calls: Call) -> list[Call]:
        self._will(*(openai_chat_chunks.call(*call) for call in calls))
        return list(calls)

    def thinks(self, thought: str, *calls: Call) -> None:
        then = [openai_chat_chunks.call(*call) for call in calls] or [openai_chat_chunks.text("Done.")]
        self._will(openai_chat_chunks.reasoning(thought), *then)

    def cuts(self, text: str) -> None:
        self._will(openai_chat_chunks.text(text), finish="length")

    def holds(self, text: str) -> None:
        begun = openai_chat_chunks.answer(openai_chat_chunks.text(text))[:2]
        self.server.will(openai_chat.stream([*begun, self.gate]))

    def images(self) -> list[str]:
        parts = [part for message in self.sent["messages"] for part in _parts(message)]
        return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]

    def outputs(self) -> list[str]:
        return [message["content"] for message in self.sent["messages"] if message["role"] == "tool"]

    def thoughts(self) -> list[str]:
        """The API has no place for them, so anywhere."""
        return [SIGNATURE] * json.dumps(self.sent).count(SIGNATURE)

    def _will(self, *items: Any, **more: Any) -> None:
        self.server.will(openai_chat.stream(openai_chat_chunks.answer(*items, **more)))


def _parts(message: Json) -> list[Json]:
    content = message["content"]
    return content if isinstance(content, list) else []


def _headers(status: int) -> dict[str, str]:
    return {"retry_after": str(RETRY_AFTER)} if status == 429 else {}
