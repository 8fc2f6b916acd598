"""Requests that somebody has tampered with, as three servers cut them: ours, h11, and Node's (llhttp in strict mode).

Nothing is accepted here that both others refuse, and no request is cut differently than both others cut it.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import h11
import pytest
from fuzz.http_connection import frame
from security.test_smuggling import REFUSED, chunked, good

HERE = Path(__file__).parent
SPOILT = [data for data in REFUSED.values() if len(data) < 4096]
SOUND = [
    good(),
    chunked(),
    good() + chunked(),
    chunked() + good() + good(Connection="close"),
    good(Expect="100-continue") + b"GET / HTTP/1.0\r\n\r\n",
]
INSERTED = [
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b"\0",
        b"\x0b",
        b"\x7f",
        b"\xff",
        b"0",
        b",",
        b";",
        b":",
        b"chunked",
        b"+",
        b"-",
        b"_",
    ),
    *(
        b"Content-Length: 3\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Host: b\r\n",
        b"\r\n\r\n",
    ),
    *(
        b"Transfer-Encoding: identity\r\n",
        b"Connection: close\r\n",
        b"HTTP/1.1",
        b"HTTP/1.0",
        b"0\r\n\r\n",
        b"5;a=b\r\n",
    ),
]


class Cut(NamedTuple):
    """What a server makes of a stream."""

    requests: list[tuple[str, bytes]]
    """(method, body) of each whole request."""
    is_refused: bool


def mutated(seed: int, count: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    for _ in range(count):
        data = bytearray(chance.choice(SOUND if chance.random() < 0.7 else SPOILT))
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            at = chance.randrange(len(data) + 1)
            match chance.randrange(4):
                case 0:
                    data[at : at + 1] = bytes([chance.choice(b"\r\n\t :;,/0123456789aAfF\0\x7f\x80")])
                case 1:
                    del data[at : at + chance.randrange(1, 8)]
                case 2:
                    data[at:at] = chance.choice(INSERTED)
                case _:
                    start = chance.randrange(len(data) + 1)
                    data[at:at] = data[start : start + chance.randrange(40)]
        yield bytes(data)


def cut_by_us(data: bytes) -> Cut:
    found, end = frame(data)
    return Cut([(each.method, each.body) for each in found], end == "refused")


def cut_by_h11(data: bytes) -> Cut:
    found: list[tuple[str, bytes]] = []
    try:
        while True:
            # One empty line before a request is to be ignored (RFC 9112 §2.2), which h11 does not do.
            connection = h11.Connection(h11.SERVER)
            connection.receive_data(data.removeprefix(b"\r\n"))
            event = connection.next_event()
            if not isinstance(event, h11.Request):
                return Cut(found, False)
            method, body = event.method.decode(), b""
            while isinstance(event := connection.next_event(), h11.Data):
                body += event.data
            if not isinstance(event, h11.EndOfMessage):
                return Cut(found, False)
            found.append((method, body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return Cut(found, False)
            data = connection.trailing_data[0]
    except h11.RemoteProtocolError:
        return Cut(found, True)


def cut_by_node(streams: list[bytes]) -> list[Cut]:
    node = shutil.which("node")
    assert node is not None
    lines = b"\n".join(map(base64.b64encode, streams)) + b"\n"
    done = subprocess.run([node, str(HERE / "frame_with_node.mjs")], input=lines, capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(streams)
    return [
        Cut([(method, base64.b64decode(body)) for method, body in answer["requests"]], answer["refused"])
        for answer in answers
    ]


def check(data: bytes, ours: Cut, others: tuple[Cut, Cut]) -> None:
    for number, request in enumerate(ours.requests):
        theirs = [each.requests[number] for each in others if len(each.requests) > number]
        # A server that has not refused, and has no such request, has read the stream differently or ended it.
        refusals = [each.is_refused and len(each.requests) <= number for each in others]
        assert not all(refusals), ("accepted here alone", number, data)
        if len(theirs) == len(others):
            assert request in theirs, ("cut differently", number, request, theirs, data)


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed: its parser is one of the two others")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.deep)])
def test_every_accepted_request_is_read_as_by_another_server(seed: int) -> None:
    """A few thousand tampered requests in every run; a hundred thousand in a deep one."""
    streams = list(mutated(seed, 3_000 if seed == 1 else 100_000))
    accepted = 0
    for data, by_node in zip(streams, cut_by_node(streams), strict=True):
        ours = cut_by_us(data)
        check(data, ours, (cut_by_h11(data), by_node))
        accepted += bool(ours.requests)
    # They are not all nonsense: else nothing has been compared.
    assert accepted > len(streams) / 10
