"""What the scripted backend does with one request: an answer, a stream, or a fault. No sockets here.

A stream is a list of parts: an event (dict), raw bytes, a `Gate` that holds the rest back, or a fault that ends it.

    Stream(answer(text("hello")))                               as the real one
    Stream([*answer(text("a", "b"))[:5], RESET])                a reset connection after five events
    Stream([RESET])                                             a reset after the headers
    Stream([*answer(text("a"))[:4], gate, ...])                 silence until gate.open()
    Stream([*answer(text("a"))[:4], Truncated(event)])          the connection ends in the middle of an event
    Stream(answer(text("é")), chunk=1, line_end="\\r\\n")       one byte at a time
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import trio

Json = dict[str, Any]


class Gate:
    """Holds an answer back until somebody opens it, from any thread."""

    def __init__(self) -> None:
        self.held = 0
        """How many answers have come to it."""
        self._lock = threading.Lock()
        self._is_open = False
        self._waiting: list[tuple[trio.lowlevel.TrioToken, trio.Event]] = []

    def open(self) -> None:
        """Let everything through, now and later."""
        with self._lock:
            self._is_open = True
            for token, event in self._waiting:
                token.run_sync_soon(event.set)
            self._waiting.clear()

    async def passed(self) -> None:
        """Wait until it is open."""
        event = trio.Event()
        with self._lock:
            if self._is_open:
                return
            self._waiting.append((trio.lowlevel.current_trio_token(), event))
        await event.wait()


Fault = Literal["reset", "cut"]
RESET: Fault = "reset"
"""The connection is reset. As a whole answer: before any byte of it."""
CUT: Fault = "cut"
"""The connection is closed without the end of the body. As a whole answer: before any byte of it."""


@dataclass(frozen=True)
class Truncated:
    """Half of an event in a chunk that was announced whole, then the connection is closed."""

    event: Json


Part = Json | bytes | Gate | Fault | Truncated


@dataclass(frozen=True)
class Stream:
    """A streamed answer.

    `chunk` cuts everything anew, so many bytes each; `names` writes `event:` lines; `done` appends `[DONE]`.
    """

    parts: Sequence[Part]
    headers: dict[str, str] = field(default_factory=dict)
    chunk: int | None = None
    line_end: str = "\n"
    names: bool = True
    done: bool = False
    gzip: bool = False
    gate: Gate | None = None
    """Holds even the headers back."""

    def pieces(self) -> Iterator[bytes | Gate | Fault | Truncated]:
        """What goes out, encoded; everything that is not bytes is for the server to do."""
        squeeze = zlib.compressobj(wbits=31) if self.gzip else None
        for part in self.parts:
            if isinstance(part, dict | bytes):
                data = self.encode(part) if isinstance(part, dict) else part
                yield from self._cut(squeeze.compress(data) + squeeze.flush(zlib.Z_SYNC_FLUSH) if squeeze else data)
            else:
                yield part
        last = f"data: [DONE]{self.line_end * 2}".encode() if self.done else b""
        yield from self._cut(squeeze.compress(last) + squeeze.flush() if squeeze else last)

    def encode(self, event: Json) -> bytes:
        """One event, as it is written."""
        name = f"event: {event['type']}{self.line_end}" if self.names else ""
        return f"{name}data: {json.dumps(event, ensure_ascii=False)}{self.line_end * 2}".encode()

    def _cut(self, data: bytes) -> Iterator[bytes]:
        size = self.chunk or len(data) or 1
        for start in range(0, len(data), size):
            yield data[start : start + size]


KEEPALIVE = b": keepalive\n\n"


@dataclass(frozen=True)
class Plain:
    """An answer that is not streamed. `gate` holds it back, body and all."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)
    gate: Gate | None = None


def plain_json(status: int, body: Any, **headers: str) -> Plain:
    """A JSON answer; names of headers with underscores for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Plain(status, json.dumps(body).encode(), {"content-type": "application/json", **named})


def refusal(status: int, code: str | None = None, message: str = "scripted refusal", **headers: str) -> Plain:
    """A refusal in OpenAI's form: `refusal(429, "rate_limit_exceeded", retry_after="1")`."""
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return plain_json(status, {"error": {"message": message, "type": kind, "param": None, "code": code}}, **headers)


def usage_limit(resets_in: int = 3600) -> Plain:
    """The 429 of a ChatGPT account whose quota is used up: its type tells it apart, not its status."""
    error = {"type": "usage_limit_reached", "message": "The usage limit has been reached", "plan_type": "plus"}
    return plain_json(429, {"error": {**error, "resets_in_seconds": resets_in}})


def html(status: int, said: str = "Bad gateway") -> Plain:
    """What a machine in between answers."""
    page = f"<!doctype html><html><head><title>{status}</title></head><body><h1>{said}</h1></body></html>"
    return Plain(status, page.encode(), {"content-type": "text/html; charset=utf-8"})


Answer = Stream | Plain | Fault
