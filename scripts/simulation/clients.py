"""Clients of every protocol on sockets of their own: they ask, read, stall and leave. Each keeps what it has seen."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from uuid import UUID

import orjson
import trio
from plans import Ask

MODEL = "mock-echo"
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": f"/v1beta/models/{MODEL}:",
    "cap": "/v1/assist",
}


@dataclass(eq=False)
class Seen:
    """A request as its client saw it."""

    ask: Ask
    key: int
    began: float
    sent: float | None = None
    """When the last byte of the request was sent."""
    stalled: float = 0.0
    """Until when the client did not read."""
    left: float | None = None
    cancelled: float | None = None
    """When the client cancelled its response, which ran in the background."""
    ended: float | None = None
    """When the last byte of the answer came, or the connection's end."""
    status: int | None = None
    outcome: str = ""
    """`completed`, `incomplete`, `cancelled`, the code of an error, or `cut` for an answer without an end."""
    text: str = ""
    faults: list[str] = field(default_factory=list)
    """Rules of the protocol that the answer broke."""
    heard: list[tuple[float, int]] = field(default_factory=list)
    """How many pieces of the text had come by when."""
    response_id: str | None = None
    data: bytes = b""

    @property
    def mark(self) -> str:
        return self.ask.mark

    @property
    def goes_on(self) -> bool:
        """Whether it is a background response whose client could not cancel it."""
        return self.outcome == "cut" and self.ask.manner == "cancels"


def connect(address: bytes | str) -> trio.SocketStream:
    """A connection to the bridge, in the kernel's memory."""
    bare = socket.socket(socket.AF_UNIX)
    bare.connect(address)
    bare.setblocking(False)
    return trio.SocketStream(trio.socket.from_stdlib_socket(bare))


def request_bytes(ask: Ask, key: str, before: Seen | None) -> bytes:
    """A whole request. `before` is the answer that it may continue."""
    said: list[dict[str, Any]] = [{"role": "user", "content": ask.mark}]
    continued = before if ask.continues and before is not None and before.ask.protocol == ask.protocol else None
    if continued is not None and (continued.outcome != "completed" or ask.protocol == "gemini"):
        continued = None
    path = PATHS[ask.protocol]
    match ask.protocol:
        case "gemini":
            path += "streamGenerateContent?alt=sse" if ask.stream else "generateContent"
            body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": ask.mark}]}]}
        case "responses":
            body = {"model": MODEL, "input": ask.mark, "stream": ask.stream}
            if continued is not None:
                body["previous_response_id"] = continued.response_id
            if ask.manner == "cancels":
                body["background"] = True
        case "cap":
            user = {"id": ask.mark[:2], "name": ask.mark[:2]}
            body = {
                "request_id": str(UUID(bytes=sha256(ask.mark.encode()).digest()[:16], version=4)),
                "context": {"session_id": ask.mark[:2], "user": user},
                "payload": {"query": ask.mark, "meta": {"model": MODEL}},
            }
        case _:
            if continued is not None:
                said = [
                    {"role": "user", "content": continued.mark},
                    {"role": "assistant", "content": continued.text},
                    *said,
                ]
            body = {"model": MODEL, "messages": said, "stream": ask.stream}
    if ask.protocol == "messages":
        body["max_tokens"] = 100_000
    accept = "text/event-stream" if ask.stream else "application/json"
    return post(path, key, orjson.dumps(body), accept)


def post(path: str, key: str, body: bytes = b"", accept: str = "*/*") -> bytes:
    """The bytes of a POST."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"accept: {accept}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def ask_for(stream: trio.SocketStream, seen: Seen, key: str, before: Seen | None) -> bool:
    """Send a request and read its answer to the end. False where the connection cannot be used again."""
    ask, answer = seen.ask, Answer()
    with trio.CancelScope() as patience:
        if ask.manner == "leaves":
            patience.deadline = trio.current_time() + ask.after
        try:
            await _exchange(stream, seen, request_bytes(ask, key, before), answer)
            if ask.manner == "cancels" and answer.is_whole and answer.status == 200:
                seen.response_id = orjson.loads(answer.body)["id"]
                await trio.sleep(ask.after)
                seen.cancelled = seen.stalled = trio.current_time()
                answer = Answer()
                await _exchange(stream, seen, post(f"/v1/responses/{seen.response_id}/cancel", key), answer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
    now = trio.current_time()
    if patience.cancelled_caught:
        seen.left = now
        return False
    seen.ended = now
    seen.status, seen.data = answer.status, answer.body
    read_answer(seen, answer)
    return answer.is_whole and not answer.closes


async def _exchange(stream: trio.SocketStream, seen: Seen, data: bytes, answer: Answer) -> None:
    ask = seen.ask
    size = -(-len(data) // ask.cuts)
    for start in range(0, len(data), size):
        await stream.send_all(data[start : start + size])
        if ask.cuts > 1:
            await trio.sleep(0.01)
    seen.sent = seen.sent or trio.current_time()
    has_stalled = ask.manner != "stalls"
    if not has_stalled:
        seen.stalled = trio.current_time() + ask.after
        await trio.sleep(ask.after)
    while not answer.is_whole:
        if not has_stalled and answer.size:
            has_stalled = True
            seen.stalled = trio.current_time() + ask.stall
            await trio.sleep(ask.stall)
        more = await stream.receive_some(4096)
        if not more:
            break
        answer.feed(more)
        seen.heard.append((trio.current_time(), answer.body.count(ask.mark.encode())))


class Answer:
    """The bytes of one HTTP answer."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = b""
        self.size = 0
        self.is_whole = False
        self.is_stream = False
        self.closes = False
        self._rest = b""
        self._length: int | None = None
        self._chunked = False

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        self._rest += data
        if self.status is None:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                return
            self._rest = rest
            first, *lines = head.decode("latin-1").split("\r\n")
            self.status = int(first.split()[1])
            headers = dict(line.lower().split(": ", 1) for line in lines)
            self._chunked = headers.get("transfer-encoding") == "chunked"
            self._length = int(headers["content-length"]) if "content-length" in headers else None
            self.is_stream = "event-stream" in headers.get("content-type", "")
            self.closes = headers.get("connection") == "close"
        if self._chunked:
            self._unchunk()
        elif self._length is not None and len(self._rest) >= self._length:
            self.body, self.is_whole = self._rest, True

    def _unchunk(self) -> None:
        while not self.is_whole:
            size, found, rest = self._rest.partition(b"\r\n")
            if not found or len(rest) < int(size, 16) + 2:
                return
            length = int(size, 16)
            self.body += rest[:length]
            self._rest = rest[length + 2 :]
            self.is_whole = length == 0


def read_answer(seen: Seen, answer: Answer) -> None:
    """What an answer says: its text and its end. Anything that its protocol does not allow is a fault."""
    seen.outcome = "cut"
    if not answer.is_whole:
        return
    try:
        if not answer.is_stream:
            _read_body(seen, orjson.loads(answer.body))
            return
        events = [_event(block) for block in answer.body.decode().split("\n\n") if _event(block) is not None]
        _READERS[seen.ask.protocol](seen, events)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        seen.faults.append(f"the answer cannot be read: {error!r}")


def _event(block: str) -> Any:
    lines = [line.removeprefix("data: ") for line in block.split("\n") if line.startswith("data: ")]
    if not lines:
        return None
    return lines[0] if lines[0] == "[DONE]" else json.loads("\n".join(lines))


def _end(seen: Seen, outcome: str) -> None:
    """An end was seen: the only one."""
    if seen.outcome != "cut":
        seen.faults.append(f"two ends: {seen.outcome} and {outcome}")
    seen.outcome = outcome


def _code(error: dict[str, Any]) -> str:
    details = error.get("details") or [{}]
    code = error.get("bridge_code") or details[0].get("reason") or error.get("code") or error.get("type")
    return str(code)


def _read_body(seen: Seen, data: dict[str, Any]) -> None:
    if seen.ask.protocol == "cap":
        if seen.status != 200:
            seen.outcome = data["code"]
        else:
            seen.text, seen.outcome = data["output"]["text"], data["output"]["status"]
        return
    if data.get("error"):
        seen.outcome = _code(data["error"])
        return
    match seen.ask.protocol:
        case "chat":
            (choice,) = data["choices"]
            seen.text, seen.outcome = choice["message"]["content"] or "", "completed"
        case "messages":
            seen.text, seen.outcome = "".join(part.get("text", "") for part in data["content"]), "completed"
        case "gemini":
            seen.text, seen.outcome = _parts(data), "completed"
        case _:
            _read_response(seen, data)


def _read_response(seen: Seen, data: dict[str, Any]) -> None:
    seen.response_id = data["id"]
    failed = data["status"] == "failed"
    _end(seen, _code(data["error"]) if failed else data["status"])
    parts = [part for item in data["output"] if item["type"] == "message" for part in item["content"]]
    seen.text = "".join(part["text"] for part in parts)


def _read_chat(seen: Seen, events: list[Any]) -> None:
    for event in events:
        if event == "[DONE]":
            continue
        if seen.outcome != "cut" and event.get("choices"):
            seen.faults.append("something follows the end")
        if "error" in event:
            _end(seen, _code(event["error"]))
        for choice in event.get("choices", ()):
            seen.text += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                _end(seen, "completed")
    if events.count("[DONE]") != 1 or events[-1] != "[DONE]":
        seen.faults.append("[DONE] is not the last event")


def _read_responses(seen: Seen, events: list[Any]) -> None:
    deltas = ""
    for number, event in enumerate(events):
        if event == "[DONE]":
            continue
        if event["sequence_number"] != number:
            seen.faults.append(f"event {number} has the number {event['sequence_number']}")
        if seen.outcome != "cut":
            seen.faults.append("something follows the end")
        if event["type"] == "response.output_text.delta":
            deltas += event["delta"]
        elif event["type"] in ("response.completed", "response.incomplete", "response.failed"):
            _read_response(seen, event["response"])
    if deltas != seen.text:
        seen.faults.append("the deltas do not add up to the text")


def _read_messages(seen: Seen, events: list[Any]) -> None:
    for event in events:
        if seen.outcome != "cut":
            seen.faults.append("something follows the end")
        if event["type"] == "content_block_delta":
            seen.text += event["delta"].get("text", "")
        elif event["type"] == "error":
            _end(seen, _code(event["error"]))
        elif event["type"] == "message_stop":
            _end(seen, "completed")


def _read_gemini(seen: Seen, events: list[Any]) -> None:
    for event in events:
        if seen.outcome != "cut":
            seen.faults.append("something follows the end")
        if "error" in event:
            _end(seen, _code(event["error"]))
            continue
        seen.text += _parts(event)
        if any(candidate.get("finishReason") for candidate in event.get("candidates", ())):
            _end(seen, "completed")


def _read_cap(seen: Seen, packets: list[Any]) -> None:
    seen.text = "".join(packet["p"] for packet in packets if packet["op"] == "delta")
    ops = [packet["op"] for packet in packets]
    if ops[-1:] == ["close"]:
        _end(seen, packets[-2]["p"]["code"] if ops[-2:-1] == ["error"] else "completed")
    if ops.count("close") != 1 or "error" in ops[:-2]:
        seen.faults.append(f"the packets end with {ops[-4:]}")


def _parts(data: dict[str, Any]) -> str:
    return "".join(
        part.get("text", "")
        for candidate in data.get("candidates", ())
        for part in candidate.get("content", {}).get("parts", ())
    )


_READERS = {
    "chat": _read_chat,
    "responses": _read_responses,
    "messages": _read_messages,
    "gemini": _read_gemini,
    "cap": _read_cap,
}
