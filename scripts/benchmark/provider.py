"""A provider that costs little: every request gets the same stream, made beforehand, in one write. Prints its port.

POST …/chat/completions and …/responses; ten deltas, as the child's `bench-short`.
"""

from __future__ import annotations

import json
import select
import socket
from typing import Any


def stream(events: list[dict[str, Any]], *, names: bool) -> bytes:
    """A whole answer as server-sent events in one chunk."""
    body = b"".join(
        (f"event: {event['type']}\n" if names else "").encode() + b"data: " + json.dumps(event).encode() + b"\n\n"
        for event in events
    ) + (b"" if names else b"data: [DONE]\n\n")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def chat() -> bytes:
    base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "bench-openai"}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    usage = {"prompt_tokens": 5, "completion_tokens": 10, "total_tokens": 15}
    return stream(
        [
            chunk({"role": "assistant", "content": ""}),
            *[chunk({"content": f"word{n} "}) for n in range(10)],
            chunk({}, "stop"),
            {**base, "choices": [], "usage": usage},
        ],
        names=False,
    )


def responses() -> bytes:
    text = "".join(f"word{n} " for n in range(10))
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    done_part = {**part, "text": text}
    done_item = {**item, "status": "completed", "content": [done_part]}
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "bench-responses", "error": None}
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 10,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**response, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        *[{"type": "response.output_text.delta", **place, "delta": f"word{n} "} for n in range(10)],
        {"type": "response.output_text.done", **place, "text": text},
        {"type": "response.content_part.done", **place, "part": done_part},
        {"type": "response.output_item.done", "output_index": 0, "item": done_item},
        {
            "type": "response.completed",
            "response": {**response, "status": "completed", "output": [done_item], "usage": usage},
        },
    ]
    return stream([{**event, "sequence_number": number} for number, event in enumerate(events)], names=True)


def main() -> None:
    answers = {b"/v1/chat/completions": chat(), b"/v1/responses": responses()}
    missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}"
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    received: dict[int, bytes] = {}
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[connection.fileno()], received[connection.fileno()] = connection, b""
                poll.register(connection, select.EPOLLIN)
                continue
            connection = connections[number]
            try:
                piece = connection.recv(1 << 16)
            except ConnectionError:
                piece = b""
            data = received[number] + piece
            head, whole, body = data.partition(b"\r\n\r\n")
            if not piece:
                poll.unregister(connection)
                connections.pop(number).close()
            elif whole and len(body) >= length(head):
                connection.sendall(answers.get(head.split(b" ", 2)[1], missing))
                data = b""
            received[number] = data


def length(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"\r\ncontent-length: ")
    return int(rest.split(b"\r", 1)[0]) if found else 0


if __name__ == "__main__":
    main()
