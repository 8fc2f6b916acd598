"""No text takes much longer than its length: everything that reads what a client, a model or a provider says."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from bridge.appserver.failures import finished_from_error
from bridge.errors import BridgeError
from bridge.http.head import BadRequest, Chunks, fault_of_head, parse_head
from bridge.protocols.reading import parse_json
from bridge.redact import Redactor, harmless
from bridge.tools.parser import ToolCallParser
from bridge.tools.payload import decode_payload, neutralise, neutralise_parts
from bridge.urls import is_header_safe, is_loopback

SEEDS = [
    *(
        "<",
        "<tool_call",
        "<tool_call>",
        "</tool_call>",
        '<tool_call>{"',
        "<tool_call>[",
        "```json\n",
        ",}",
        "[",
        '{"a":',
    ),
    *(
        "sk-",
        "eyJ",
        "eyJaaaaaaaa.",
        "token=",
        "token: ",
        'token="',
        "?key=",
        "&a",
        "?aaaaaaaa",
        "Bearer ",
        "/a:",
        "/a:bbb@",
        "-eyJ",
        "%3DeyJ",
        "bEaReR  ",
        "Bearer%20",
        "Bearer+",
        "%3Fkey",
        "key%3D",
        "gsk_",
    ),
    *("/home/", "~/", " url: ", "/tmp/x ", "\\", '\\"', "\r\n", "\r\n ", "\n", "a", " ", "\0", "é", "status 4", "&lt;"),
    *("http://", "http://a@", "ghp_", "github_pat_", "xoxb-", "AIza", "@", "gh", "k-", ";", "=", ":", "try again in 1"),
]


def parsed(text: str) -> None:
    parser = ToolCallParser({"look": None})
    for start in range(0, len(text), 65536):
        parser.feed(text[start : start + 65536])
    parser.finish()


def read(text: str) -> None:
    with contextlib.suppress(BridgeError):
        parse_json(text.encode())


def head_with(before: bytes, after: bytes) -> Callable[[str], None]:
    """Reads a head that has the text in one place."""

    def read_head(text: str) -> None:
        with contextlib.suppress(BadRequest):
            parse_head(before + text.encode() + after + b"\r\n\r\n")

    return read_head


def chunks(text: str) -> None:
    data, decoder = text.encode(), Chunks()
    with contextlib.suppress(BadRequest):
        for start in range(0, len(data), 1000):
            decoder.feed(data[start : start + 1000])


def in_parts(text: str) -> None:
    neutralise_parts([text[start : start + 7] for start in range(0, len(text), 7)])


READERS: dict[str, Callable[[str], object]] = {
    "redact": lambda text: Redactor(("a-known-key-0123",)).text(text.encode()),
    "redact_json": lambda text: Redactor().json(b'{"token_of":"' + text.encode() + b'"}'),
    "redact_sse": lambda text: Redactor().sse(text.encode()),
    "harmless": harmless,
    "failure": lambda text: finished_from_error(text, "other", text),
    "head": lambda text: fault_of_head(text.encode()),
    "method": head_with(b"", b" / HTTP/1.1\r\nhost: x"),
    "target": head_with(b"GET http://", b" HTTP/1.1\r\nhost: x"),
    "header_name": head_with(b"GET / HTTP/1.1\r\nhost: x\r\n", b": y"),
    "header_value": head_with(b"GET / HTTP/1.1\r\nhost: x\r\na:", b""),
    "chunks": chunks,
    "parser": parsed,
    "payload": decode_payload,
    "tags": neutralise,
    "tags_in_parts": in_parts,
    "json": read,
    "header": is_header_safe,
    "host": lambda text: is_loopback(text[:100_000]),
}


def seconds(reader: Callable[[str], object], seed: str, size: int) -> float:
    """What a text of this size takes of the processor."""
    text = (seed * (size // len(seed) + 1))[:size]
    started = time.process_time()
    reader(text)
    return time.process_time() - started


@pytest.mark.parametrize("name", READERS)
def test_a_long_text_is_read_in_time(name: str) -> None:
    """Forty kilobytes in far less than would be noticed; what is quadratic would take many seconds."""
    for seed in SEEDS:
        assert seconds(READERS[name], seed, 40_000) < 5, seed


@pytest.mark.deep
@pytest.mark.parametrize("name", READERS)
def test_ten_megabytes_are_read_in_time(name: str) -> None:
    """Of the three texts that are the slowest by far."""
    by_time = sorted(SEEDS, key=lambda seed: seconds(READERS[name], seed, 200_000))
    for seed in by_time[-3:]:
        assert seconds(READERS[name], seed, 10_000_000) < 60, seed
