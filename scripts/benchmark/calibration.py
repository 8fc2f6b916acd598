"""How fast this machine is, compared with the one that the goals were set on.

A goal such as "a short turn costs at most 500 µs" holds for one machine. On a slower one every row would miss its goal,
which says nothing about the bridge. So a fixed piece of work is timed between the parts of a benchmark, and the goals
for times and rates are scaled by what it took here relative to `REFERENCE`.

The work resembles the bridge's: function calls, attribute access, dictionaries, lists, slices of bytes and small JSON
documents. It does not import the bridge: a change to the bridge must not move its own goals.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

# The machine that the goals were set on is gone, so this number was derived: the same commit carried 830,000 deltas per
# CPU-second on one stream there and 538,000 on a machine where the work takes 0.70 ms when that machine is quiet, and a
# short turn cost 600 µs there and 960 µs on the other, which is a ratio of about 1.5.
REFERENCE = 0.000_47
"""CPU seconds that one run of `work` takes on the machine that the goals were set on."""

RUNS = 200
"""Runs per sample. One takes less than a millisecond, so most are not interrupted, and the median ignores the rest."""

_LINES = b"".join(
    orjson.dumps(
        {
            "method": "item/agentMessage/delta",
            "params": {"threadId": f"thread-{n % 7}", "turnId": "turn", "itemId": "item", "delta": f"word {n} "},
        }
    )
    + b"\n"
    for n in range(400)
)


class _Turn:
    """Collects the text of one thread, as the bridge does for one request."""

    __slots__ = ("count", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.count = 0

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.count += 1


def _encode(turn: _Turn, number: int, text: str) -> bytes:
    body = {"type": "response.output_text.delta", "sequence_number": number, "item_id": "item", "delta": text}
    body |= {"output_index": 0, "content_index": 0, "logprobs": []}
    turn.add(text)
    return b"event: response.output_text.delta\ndata: " + orjson.dumps(body) + b"\n\n"


def work() -> int:
    """Read 400 lines of JSON, sort them by thread, write them as server-sent events; returns the bytes written."""
    turns: dict[str, _Turn] = {}
    written = start = 0
    while (end := _LINES.find(b"\n", start)) >= 0:
        message = orjson.loads(_LINES[start:end])
        start = end + 1
        params = message["params"]
        key = params["threadId"]
        turn = turns.get(key)
        if turn is None:
            turn = turns[key] = _Turn()
        if message["method"].startswith("item/"):
            written += len(_encode(turn, turn.count, params["delta"]))
    for key in sorted(turns):
        written += len(orjson.dumps({"thread": key, "text": "".join(turns[key].texts)}))
    return written


def timed_run() -> float:
    """CPU seconds of one run, in this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


@dataclass
class Calibration:
    """Samples taken during a benchmark, and the ratio that follows from them."""

    run: Callable[[], float] = timed_run
    times: list[float] = field(default_factory=list)

    def sample(self) -> None:
        """Time the work. Call it before, between and after the parts, so that it meets the conditions they met."""
        was_enabled = gc.isenabled()
        gc.disable()  # a collection would count this process's objects, not the machine's speed
        try:
            self.run()  # the first run after a pause finds cold caches
            self.times += [self.run() for _ in range(RUNS)]
        finally:
            if was_enabled:
                gc.enable()

    @property
    def ratio(self) -> float:
        """How many times longer work takes here than on the reference machine; 1 without a sample."""
        return statistics.median(self.times) / REFERENCE if self.times else 1.0

    def __str__(self) -> str:
        ratio = self.ratio
        if 0.95 <= ratio <= 1.05:
            return "This machine is as fast as the one the goals were set on: the goals are not scaled noticeably."
        slower, times = ("slower", ratio) if ratio > 1 else ("faster", 1 / ratio)
        return (
            f"This machine is {times:.2f} times {slower} than the one the goals were set on "
            f"(calibration {1000 * self.ratio * REFERENCE:.2f} ms, there {1000 * REFERENCE:.2f} ms): "
            f"goals for times and rates are scaled by {ratio:.2f}, goals for memory and ratios are not."
        )
