"""Scripted providers of every kind whose answer the prompt itself asks for, so that many requests may come at once.

A prompt says `[[PLAY LABEL]]`; the last one of a request counts. PLAY is a name in `Play`, LABEL tells the requests of
one test from all others (`labelled`) and names the gate that holds them. A prompt without any gets `HELLO`.
"""

from __future__ import annotations

import re
import ssl
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import trio
from upstream import anthropic_events, events, openai_chat_chunks
from upstream.answers import RESET, Answer, Gate, Part, Plain, Stream, Truncated, html, plain_json, refusal
from upstream.anthropic_server import Anthropic
from upstream.chatgpt import ChatGPT
from upstream.checks import API_PATH
from upstream.connection import Request
from upstream.openai_chat import ChatServer
from upstream.serving import served_in_thread

Json = dict[str, Any]

KINDS = ("codex", "responses", "anthropic", "openai")
HELLO = ("hel", "lo")
WAIT = 77
"""Seconds of a Retry-After that nobody waits for."""
MODELS_PATH = "GET /v1/models"

_MARK = re.compile(rb"\[\[([a-z0-9-]+) ([A-Za-z0-9._-]+)\]\]")


def marked(play: str, label: str) -> str:
    """A prompt that asks for this."""
    return f"[[{play} {label}]]"


def labels_in(text: str) -> list[str]:
    """The labels of all that a text asks for."""
    return [label.decode() for _, label in _MARK.findall(text.encode())]


@dataclass(frozen=True)
class Dialect:
    """How one kind of provider writes an answer. `beginning` is how many events there are up to the first text."""

    answer: Callable[[Sequence[str]], list[Json]]
    beginning: int
    end: int
    """How many events are at the end, after the last text."""
    named: bool = True

    def stream(self, parts: Sequence[Part], **options: Any) -> Stream:
        """An answer, as this kind writes it; with `[DONE]` only where that is told by all of its events."""
        return Stream(list(parts), names=self.named, **options)

    def whole(self, *pieces: str, **options: Any) -> Stream:
        """A good answer."""
        return self.stream(self.answer(pieces), done=not self.named, **options)

    def begun(self, piece: str) -> list[Json]:
        """The events up to the first text."""
        return self.answer([piece])[: self.beginning]

    def endless(self, *pieces: str) -> list[Json]:
        """The events without those that end it."""
        return self.answer(pieces)[: -self.end]


_RESPONSES = Dialect(lambda said: events.answer(events.text(*said)), 5, 4)
DIALECTS = {
    "codex": _RESPONSES,
    "responses": _RESPONSES,
    "anthropic": Dialect(lambda said: anthropic_events.answer(anthropic_events.text(*said)), 4, 3),
    "openai": Dialect(lambda said: openai_chat_chunks.answer(openai_chat_chunks.text(*said)), 2, 2, named=False),
}


class Plays:
    """What a provider can be asked to do."""

    def __init__(self, kind: str) -> None:
        self.dialect = DIALECTS[kind]
        self.gates: defaultdict[str, Gate] = defaultdict(Gate)
        self._plays: dict[str, Callable[[str, Request], Answer]] = {
            "hello": lambda label, request: self.dialect.whole(*HELLO),
            "say": lambda label, request: self.dialect.whole(label),
            "cookie": lambda label, request: self.dialect.whole(*HELLO, headers={"set-cookie": f"who={label}; Path=/"}),
            "echo": lambda label, request: self.dialect.whole("you sent ", _secret(request)),
            "echo-refusal": lambda label, request: refusal(400, "x", f"you sent {_secret(request)}"),
            # Before the first event.
            "401": lambda label, request: refusal(401, "invalid_api_key", f"bad key {_secret(request)}"),
            "403": lambda label, request: refusal(403, "forbidden", f"not you, {_secret(request)}"),
            "429-later": lambda label, request: refusal(429, "rate_limit_exceeded", retry_after=str(WAIT)),
            "429-soon": lambda label, request: refusal(429, "rate_limit_exceeded", retry_after="0"),
            "500": lambda label, request: refusal(500, None, retry_after_ms="1"),
            "500-later": lambda label, request: refusal(500, None, retry_after="25"),
            "503": lambda label, request: refusal(503, None, retry_after_ms="1"),
            "html": lambda label, request: html(200, _secret(request)),
            "html-502": lambda label, request: _soon(html(502, _secret(request))),
            "reset-at-once": lambda label, request: RESET,
            "reset-after-headers": lambda label, request: self.dialect.stream([RESET]),
            "half-an-event": lambda label, request: self.dialect.stream([Truncated(self.dialect.begun("x")[0])]),
            "early": lambda label, request: self.dialect.whole(*HELLO, gate=self.gates[label]),
            "silent": lambda label, request: self.dialect.stream([self.gates[label], *self.dialect.answer(HELLO)]),
            "late-403": lambda label, request: replace(refusal(403, "forbidden"), gate=self.gates[label]),
            # After it.
            "held": lambda label, request: self._held(label),
            "reset": lambda label, request: self.dialect.stream([*self.dialect.begun("hel"), RESET]),
            "truncated": lambda label, request: self.dialect.stream(self._truncated()),
            "no-end": lambda label, request: self.dialect.stream(self.dialect.endless(*HELLO)),
            "stops": lambda label, request: self.dialect.stream([*self.dialect.begun("hel"), self.gates[label]]),
        }

    def __call__(self, request: Request) -> Answer:
        """What a request asks for."""
        found = _MARK.findall(request.raw)
        if not found:
            return self.dialect.whole(*HELLO)
        play, label = found[-1]
        return self._plays[play.decode()](label.decode(), request)

    def _held(self, label: str) -> Answer:
        whole, begun = self.dialect.answer(HELLO), self.dialect.beginning
        parts: list[Part] = [*whole[:begun], self.gates[label], *whole[begun:]]
        return self.dialect.stream(parts, done=not self.dialect.named)

    def _truncated(self) -> list[Part]:
        begun = self.dialect.begun("hel")
        return [*begun, Truncated(begun[-1])]


def _secret(request: Request) -> str:
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")


def _soon(reply: Plain) -> Plain:
    return replace(reply, headers={**reply.headers, "retry-after-ms": "1"})


# The servers


class CodexServer(ChatGPT):
    """ChatGPT's backend."""

    def __init__(self) -> None:
        super().__init__()
        self.plays = Plays("codex")

    def _next(self, request: Request) -> Answer:
        return self.plays(request)


class ChatCompletions(ChatServer):
    """Chat completions; a key of a request's own begins with `own-`."""

    def __init__(self) -> None:
        super().__init__()
        self.plays = Plays("openai")
        self.listings: list[Request] = []

    def reply_to(self, request: Request) -> Answer:
        if request.path == MODELS_PATH:
            self.listings.append(request)
        return super().reply_to(request)

    def _refused(self, request: Request) -> Plain | None:
        return None if _is_own(request) else super()._refused(request)

    def _next(self, request: Request) -> Answer:
        return self.plays(request)


class ResponsesServer(ChatCompletions):
    """The Responses API, as others than Codex's provider have it."""

    def __init__(self) -> None:
        super().__init__()
        self.key = "sk-canary-responses-0123456789"
        self.plays = Plays("responses")

    def reply_to(self, request: Request) -> Answer:
        if request.path != API_PATH:
            return super().reply_to(request)
        self.requests.append(request)
        reply = self._refused(request) or self.plays(request)
        self.note()
        return reply


class Messages(Anthropic):
    """Anthropic's API, with a list of models."""

    def __init__(self) -> None:
        super().__init__()
        self.plays = Plays("anthropic")
        self.listings: list[Request] = []

    def reply_to(self, request: Request) -> Answer:
        if request.path.startswith(MODELS_PATH):
            self.listings.append(request)
            return plain_json(200, {"data": [{"type": "model", "id": "claude-of-the-list"}], "has_more": False})
        return super().reply_to(request)

    def _unauthorized(self, request: Request) -> Plain | None:
        return None if _is_own(request) else super()._unauthorized(request)

    def _next(self, request: Request) -> Answer:
        return self.plays(request)


def _is_own(request: Request) -> bool:
    return _secret(request).startswith("own-")


Server = CodexServer | ResponsesServer | Messages | ChatCompletions


def labelled(server: Server, label: str) -> list[Request]:
    """The requests of this label, in order of arrival."""
    mark = f" {label}]]".encode()
    return [request for request in list(server.requests) if mark in request.raw]


# Those that do not even answer


class SelfSigned:
    """A TLS server whose certificate nobody vouches for."""

    def __init__(self, directory: Path) -> None:
        self.url = ""
        self.handshakes = 0
        self.heard = b""
        """What came after a handshake."""
        key, certificate = directory / "key.pem", directory / "certificate.pem"
        made = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -keyout {key} -out {certificate}"
        subprocess.run(
            ["openssl", *made.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
        )
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"https://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._connected, [listener])
            task_status.started()

    async def _connected(self, stream: trio.SocketStream) -> None:
        self.handshakes += 1
        secure = trio.SSLStream(stream, self._context, server_side=True)
        try:
            self.heard += await secure.receive_some()
        except trio.BrokenResourceError:
            pass
        finally:
            stream.socket.close()


class Hanging:
    """A server that takes connections and says nothing."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._connected, [listener])
            task_status.started()

    async def _connected(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        async with stream:
            while await stream.receive_some():
                pass


class Unbound:
    """An address that nobody listens at."""

    def __init__(self) -> None:
        self.url = ""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Keep the port from others until cancelled."""
        with trio.socket.socket() as taken:
            await taken.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            task_status.started()
            await trio.sleep_forever()


@dataclass
class Providers:
    """All of them."""

    codex: CodexServer
    responses: ResponsesServer
    anthropic: Messages
    openai: ChatCompletions
    self_signed: SelfSigned
    hanging: Hanging
    unbound: Unbound

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            for server in vars(self).values():
                await nursery.start(server.run)
            task_status.started()

    def of(self, kind: str) -> Server:
        """The server of this kind."""
        server: Server = getattr(self, kind)
        return server

    def assert_well_asked(self) -> None:
        """Every request was one that the provider would take."""
        for kind in KINDS:
            assert self.of(kind).faults == [], kind


def providers_in_thread(directory: Path) -> AbstractContextManager[Providers]:
    """All providers in one thread; leaving the block cuts whatever streams and joins the thread."""
    providers = Providers(
        CodexServer(),
        ResponsesServer(),
        Messages(),
        ChatCompletions(),
        SelfSigned(directory),
        Hanging(),
        Unbound(),
    )
    return served_in_thread(providers, "providers")
