"""The benchmark's app-server: it costs next to nothing, because all that it writes is made before it is written.

The model's name says what a turn does:

* `bench-short` answers with ten deltas at once;
* `bench-flood-STREAMS-DELTAS` waits until STREAMS turns have started and then writes DELTAS for each, interleaved;
* `bench-beat-RATE-COUNT` writes COUNT deltas, RATE a second on average with gaps of 0.5 to 1.5 times the mean, each in
  a write of its own and with the time;
* `bench-pace-COUNT` writes COUNT deltas, 50 a second, each with its number and the time (see `stamps`);
* `bench-heavy` writes 4 kB every two milliseconds for ten seconds;
* `bench-idle` says nothing.

Both dialects; the legacy one in all its three spellings.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import sys
import threading
import time
from typing import Any

LEGACY = os.environ.get("BENCH_LEGACY") == "1" or "--legacy" in sys.argv
ids = itertools.count(1)
lock = threading.Lock()
threads: dict[str, str] = {}
waiting: dict[str, list[str]] = {}


def write(data: bytes) -> None:
    with lock:
        while data:
            data = data[os.write(1, data) :]


def line(message: object) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def event(key: str, kind: str, **members: object) -> bytes:
    params = {"id": "turn", "msg": {"type": kind, **members}, "conversationId": key}
    return line({"method": f"codex/event/{kind}", "params": params})


def note(method: str, **params: object) -> bytes:
    return line({"method": method, "params": params, "emittedAtMs": 1794786186338})


def delta(key: str, text: str) -> bytes:
    turn, item = f"{key[:-4]}aaaa", f"msg_{key.replace('-', '')}0123456789abcdef"
    if not LEGACY:
        return note("item/agentMessage/delta", threadId=key, turnId=turn, itemId=item, delta=text)
    ids_ = {"thread_id": key, "turn_id": turn}
    twin = {"threadId": key, "turnId": turn, "itemId": item, "delta": text}
    return (
        event(key, "agent_message_content_delta", **ids_, item_id=item, delta=text)
        + line({"method": "item/agentMessage/delta", "params": twin})
        + event(key, "agent_message_delta", delta=text)
    )


def end(key: str) -> bytes:
    if LEGACY:
        return event(key, "task_complete", last_agent_message=None)
    return note("turn/completed", threadId=key, turn={"id": "turn", "items": [], "status": "completed", "error": None})


SAMPLE = "01a1e197-d38d-7601-a7e2-ffffffffffff"
SHORT = b"".join(delta(SAMPLE, f"word{n} ") for n in range(10)) + end(SAMPLE)


def short(key: str) -> bytes:
    """A whole short turn. Its ids differ in their last digits only."""
    made = SHORT.replace(b"a7e2-ffffffffaaaa", b"a7e2-%baaaa" % key[24:32].encode())
    digits = key[24:].encode()
    return made.replace(b"a7e2ffffffffffff", b"a7e2" + digits).replace(b"a7e2-ffffffffffff", b"a7e2-" + digits)


def flood(keys: list[str], count: int) -> None:
    round_ = b"".join(delta(key, f"word{n} ") for n, key in enumerate(keys))
    per_write = max(1, min(count, 262144 // len(round_)))
    blob = round_ * per_write
    for _ in range(count // per_write):
        write(blob)
    write(round_ * (count % per_write) + b"".join(end(key) for key in keys))


class Clock(threading.Thread):
    """One thread that writes for all streams of a kind; it stays when they have ended, with nothing to do."""

    def __init__(self) -> None:
        super().__init__(daemon=True)

    def begin(self) -> None:
        if not self.is_alive():
            self.start()


class Beats(Clock):
    """Deltas at times of their own, as the answers of a model come."""

    def __init__(self) -> None:
        super().__init__()
        self._dues: list[tuple[float, int, float, int, bytes, bytes, bytes]] = []
        self._more = threading.Condition()
        self._numbers = itertools.count()
        self._random = random.Random(1)

    def add(self, key: str, rate: int, count: int) -> None:
        before, after = delta(key, "TEXT").split(b"TEXT")
        due = time.monotonic() + self._random.random() / rate
        with self._more:
            heapq.heappush(self._dues, (due, next(self._numbers), 1 / rate, count, before, after, end(key)))
            self._more.notify()
        self.begin()

    def run(self) -> None:
        while True:
            with self._more:
                while not self._dues:
                    self._more.wait()
                due, number, gap, left, before, after, last = heapq.heappop(self._dues)
            if (ahead := due - time.monotonic()) > 0:
                time.sleep(ahead)
            write(b"%b%.6f %b" % (before, time.monotonic(), after))
            if left == 1:
                write(last)
                continue
            due += gap * (0.5 + self._random.random())
            with self._more:
                heapq.heappush(self._dues, (due, number, gap, left - 1, before, after, last))


class Pace(Clock):
    """50 deltas a second on each stream, in ten groups that take turns: one write has one delta for each of a group."""

    PERIOD = 0.02
    SLOTS = 10

    def __init__(self) -> None:
        super().__init__()
        self._groups: list[list[tuple[bytes, bytes, list[int], str]]] = [[] for _ in range(self.SLOTS)]
        """(what is before the text, what is after it, [the next number, the number of deltas], the thread)."""

    def add(self, key: str, count: int) -> None:
        before, after = delta(key, "TEXT").split(b"TEXT")
        min(self._groups, key=len).append((before, after, [0, count], key))
        self.begin()

    def run(self) -> None:
        from stamps import stamp  # its tables take 50 ms, which only the load needs

        due = time.monotonic()
        for slot in itertools.cycle(range(self.SLOTS)):
            due += self.PERIOD / self.SLOTS
            time.sleep(max(0.0, due - time.monotonic()))
            streams = self._groups[slot]
            out = []
            for before, after, progress, key in list(streams):
                out.append(before + stamp(progress[0], time.monotonic()) + after)
                progress[0] += 1
                if progress[0] == progress[1]:
                    out.append(end(key))
                    streams.remove((before, after, progress, key))
            if out:
                write(b"".join(out))


beats, paced = Beats(), Pace()


def heavy(key: str) -> None:
    piece = delta(key, "x" * 4096)
    for _ in range(5000):
        write(piece)
        time.sleep(0.002)
    write(end(key))


def start(key: str) -> None:
    model = threads[key]
    kind, *numbers = model.removeprefix("bench-").split("-")
    if kind == "short":
        write(short(key))
    elif kind == "flood":
        keys = waiting.setdefault(model, [])
        keys.append(key)
        if len(keys) == int(numbers[0]):
            del waiting[model]
            threading.Thread(target=flood, args=(keys, int(numbers[1]))).start()
    elif kind == "beat":
        beats.add(key, int(numbers[0]), int(numbers[1]))
    elif kind == "pace":
        paced.add(key, int(numbers[0]))
    elif kind == "heavy":
        threading.Thread(target=heavy, args=(key,), daemon=True).start()


def answer(message: dict[str, Any]) -> None:
    method, params = message["method"], message.get("params") or {}
    result: dict[str, Any] = {}
    begun = None
    if method == "initialize":
        result = {"userAgent": "bench/1.0.0"}
    elif method in ("thread/start", "newConversation"):
        key = f"{SAMPLE[:24]}{next(ids):012x}"
        threads[key] = params["model"]
        result = {"thread": {"id": key}} if method == "thread/start" else {"conversationId": key}
    elif method == "addConversationListener":
        result = {"subscriptionId": "sub"}
    elif method == "turn/start":
        begun = params["threadId"]
        result = {"turn": {"id": "turn"}}
    elif method == "sendUserTurn":
        begun = params["conversationId"]
    elif method == "bridge/probe":
        known = (
            "`newConversation`, `sendUserTurn`"
            if LEGACY
            else "`thread/start`, `turn/start`, `thread/inject_items`, `turn/interrupt`"
        )
        write(line({"id": message["id"], "error": {"code": -32600, "message": f"expected one of {known}"}}))
        return
    write(line({"id": message["id"], "result": result}))
    if begun is not None:
        start(begun)


for request in sys.stdin.buffer:
    message = json.loads(request)
    if "id" in message:
        answer(message)
