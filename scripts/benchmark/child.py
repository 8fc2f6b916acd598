"""The benchmark's app-server: it costs next to nothing, because all that it writes is made before it is written.

The model's name says what a turn does: `bench-flood-STREAMS-DELTAS` waits until STREAMS turns have started and then
writes DELTAS for each, interleaved; `bench-short` answers at once; `bench-tick-COUNT` writes one delta with the time
every two milliseconds; `bench-pace-COUNT` writes COUNT deltas, 50 a second, each with its number and the time
(see `stamps`); `bench-heavy` writes 4 kB every two milliseconds for ten seconds; `bench-idle` says nothing. Both
dialects; the legacy one in all its three spellings.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time

from stamps import stamp

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


def flood(keys: list[str], count: int) -> None:
    round_ = b"".join(delta(key, f"word{n} ") for n, key in enumerate(keys))
    per_write = max(1, min(count, 262144 // len(round_)))
    blob = round_ * per_write
    for _ in range(count // per_write):
        write(blob)
    write(round_ * (count % per_write) + b"".join(end(key) for key in keys))


def tick(key: str, count: int) -> None:
    for _ in range(count):
        write(delta(key, f"{time.monotonic():.6f} "))
        time.sleep(0.002)
    write(end(key))


PERIOD = 0.02
SLOTS = 10
paced: list[list[tuple[bytes, bytes, list[int], str]]] = [[] for _ in range(SLOTS)]
"""Streams of 50 deltas a second, in ten groups that take turns: (what is before the text, what is after it, [the next
number, the number of deltas], the thread)."""


def pace() -> None:
    """Write for all of them: one delta for each stream of a group, in one write, when the group's time has come."""
    due = time.monotonic()
    for slot in itertools.cycle(range(SLOTS)):
        due += PERIOD / SLOTS
        time.sleep(max(0.0, due - time.monotonic()))
        streams = paced[slot]
        out = []
        for before, after, progress, key in list(streams):
            out.append(before + stamp(progress[0], time.monotonic()) + after)
            progress[0] += 1
            if progress[0] == progress[1]:
                out.append(end(key))
                streams.remove((before, after, progress, key))
        if out:
            write(b"".join(out))


def begin_pace(key: str, count: int) -> None:
    # One thread for all; it goes on with nothing to do when they have ended.
    if all(thread.name != "pace" for thread in threading.enumerate()):
        threading.Thread(target=pace, name="pace", daemon=True).start()
    before, after = delta(key, "TEXT").split(b"TEXT")
    min(paced, key=len).append((before, after, [0, count], key))


def heavy(key: str) -> None:
    piece = delta(key, "x" * 4096)
    for _ in range(5000):
        write(piece)
        time.sleep(0.002)
    write(end(key))


def start(key: str) -> None:
    model = threads[key]
    kind, *numbers = model.removeprefix("bench-").split("-")
    if kind == "flood":
        keys = waiting.setdefault(model, [])
        keys.append(key)
        if len(keys) == int(numbers[0]):
            del waiting[model]
            threading.Thread(target=flood, args=(keys, int(numbers[1]))).start()
    elif kind == "pace":
        begin_pace(key, int(numbers[0]))
    elif kind == "heavy":
        threading.Thread(target=heavy, args=(key,), daemon=True).start()
    elif kind == "tick":
        threading.Thread(target=tick, args=(key, int(numbers[0]))).start()
    elif kind == "short":
        write(b"".join(delta(key, f"word{n} ") for n in range(10)) + end(key))


def answer(message: dict) -> None:
    method, params = message["method"], message.get("params") or {}
    result: dict = {}
    begun = None
    if method == "initialize":
        result = {"userAgent": "bench/1.0.0"}
    elif method in ("thread/start", "newConversation"):
        key = f"01a1e197-d38d-7601-a7e2-{next(ids):012x}"
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
