"""A scripted server of the chat completions API on the loopback.

In a trio test, in the same event loop:

    async with serving() as server:
        server.will(refusal(503), stream(answer(text("hello"))))
        ...
        assert server.faults == []

Around processes, in a thread of its own:

    with serving_in_thread() as server:
        subprocess.run([...], env={"SOME_KEY": server.key, ...})

Answers are taken from the script in order of arrival. A request with a wrong key gets 401, a wrong one 400 and an entry
in `faults`; neither takes an answer. When the script is empty the answer is a text: the outputs of tool calls if the
messages end with some, else `DEFAULT_TEXT`.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from upstream.answers import Answer, Part, Plain, Stream, plain_json, refusal
from upstream.chatgpt import ChatGPT
from upstream.connection import Request
from upstream.openai_chat_checks import request_faults
from upstream.openai_chat_chunks import answer, text
from upstream.serving import served, served_in_thread

DEFAULT_TEXT = "hello from the server"
PATH = "/v1/chat/completions"
MODELS_PATH = "GET /v1/models"


def stream(parts: list[Any], *, done: bool = True, **options: Any) -> Stream:
    """Chunks as these servers write them: no names of events, and `[DONE]` at the end."""
    listed: list[Part] = list(parts)
    return Stream(listed, names=False, done=done, **options)


class ChatServer(ChatGPT):
    """It keeps its script, serves and is waited for as the other scripted backend; what it demands is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.key: str | None = "sk-canary-chat-0123456789"
        """None lets everybody in, as local servers do."""
        self.models = ["some-model", "other-model"]

    def __repr__(self) -> str:
        answered = [request.status for request in self.requests]
        return f"<ChatServer answered={answered} gone={len(self.gone)} {self.faults}>"

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def reply_to(self, request: Request) -> Answer:
        if request.path == MODELS_PATH:
            listed = [{"id": name, "object": "model", "created": 1, "owned_by": "them"} for name in self.models]
            return self._refused(request) or plain_json(200, {"object": "list", "data": listed})
        if request.path != PATH:
            reply: Answer = self._wrong([f"no such path: {request.path}"], status=404)
        else:
            self.requests.append(request)
            faults = list(request_faults(request.header_list, request.body))
            reply = self._refused(request) or (self._wrong(faults) if faults else self._next(request))
        self.note()
        return reply

    def _refused(self, request: Request) -> Plain | None:
        given = request.headers.get("authorization")
        if self.key is None or given == f"Bearer {self.key}":
            return None
        return refusal(401, "invalid_api_key", f"Incorrect API key provided: {given}")

    def _next(self, request: Request) -> Answer:
        if self.script:
            reply = self.script.popleft()
            return reply(request) if callable(reply) else reply
        outputs: list[str] = []
        for message in reversed(request.body["messages"]):
            if message["role"] != "tool":
                break
            outputs.insert(0, message["content"])
        said = "result: " + "; ".join(outputs) if outputs else DEFAULT_TEXT
        return stream(answer(text(said)))


def serving() -> AbstractAsyncContextManager[ChatServer]:
    """A server in this event loop; leaving the block cuts whatever streams."""
    return served(ChatServer())


def serving_in_thread() -> AbstractContextManager[ChatServer]:
    """A server in a thread of its own; leaving the block cuts whatever streams and joins the thread."""
    return served_in_thread(ChatServer(), "chat-server")
