"""CPU µs to read one CAP delta packet, and to make one and write it as an event: the best of 7 rounds, as JSON."""

from __future__ import annotations

import json
import time
from typing import Any
from uuid import UUID

from bridge.core.events import TextDelta
from bridge.protocols.cap.encoder import CapEncoder
from bridge.protocols.cap.stream import parse_packet

COUNT = 20_000
packet = b'{"op":"delta","p":"Hello, wor"}'
encoder = CapEncoder(UUID(int=1), now=time.time, started_at=0)
batch: list[Any] = [TextDelta("msg", ["Hello, wor"] * 100)]


def read() -> None:
    for _ in range(COUNT):
        parse_packet(packet)


def write() -> None:
    for _ in range(COUNT // 100):
        encoder.feed(batch)


taken = []
for task in (read, write):
    task()
    rounds = []
    for _ in range(7):
        began = time.process_time()
        task()
        rounds.append(time.process_time() - began)
    taken.append(min(rounds) / COUNT * 1e6)
print(json.dumps(taken))
