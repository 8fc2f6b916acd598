"""The ids and times of a recorded answer, given out again in their order, so that it can be made byte for byte.

They are read from what the client got: all ids there that neither the backend nor the request had. Those that the
client did not get are derived from the recording, so that every replay gives the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from datetime import datetime
from hashlib import blake2b
from typing import Any

from bridge.exact_json import member
from bridge.log.content import sent_values
from bridge.log.recording import Recording
from bridge.protocols.cap.decoder import clock_readings


class RecordedIds:
    """Gives out the ids of one recording, and then further ones that are derived from its own id."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording.id
        self._made = Counter[str]()
        self._ids: defaultdict[str, deque[str]] = defaultdict(deque)
        values = (value for piece in recording.client for value in sent_values(piece.kind, piece.payload))
        sent = [value for value in values if isinstance(value, dict)]
        # In CAP only a header has the id of a conversation.
        ids = [value for name, value in recording.headers or () if name == "x-conversation-id"]
        ids += _ids_in(sent, lambda name: name in ("id", "item_id", "call_id"))
        given = [*(frame.payload for frame in recording.frames if frame.direction == "in"), recording.body]
        foreign = set(_ids_in(given, lambda name: name.lower().endswith("id")))
        for name in dict.fromkeys(ids):
            prefix, _, rest = name.replace("-", "_", 1).partition("_")
            if rest and name not in foreign:
                self._ids[prefix].append(f"{prefix}_{rest}")
        times = clock_readings(sent, recording.end) or dict.fromkeys(_times_in(sent))
        self._times = deque(times or _request_times(recording))

    def new_id(self, prefix: str) -> str:
        """The next recorded id with this prefix; after the last, a derived one."""
        if self._ids[prefix]:
            return self._ids[prefix].popleft()
        self._made[prefix] += 1
        name = f"{self._recording} {prefix} {self._made[prefix]}".encode("utf-8", "surrogatepass")
        return f"{prefix}_{blake2b(name, digest_size=16).hexdigest()}"

    def now(self) -> float:
        """The next recorded time; the last one repeats."""
        return self._times.popleft() if len(self._times) > 1 else self._times[0]


def _ids_in(value: Any, is_id: Callable[[str], bool]) -> Iterator[str]:
    """The strings in members that are ids, in their order; those of an object before those within it."""
    stack = [value]
    while stack:  # no recursion: a log may be nested as deep as JSON can be parsed
        node = stack.pop()
        if isinstance(node, dict):
            yield from (text for name, text in node.items() if isinstance(text, str) and is_id(name))
            stack += reversed(node.values())
        elif isinstance(node, list):
            stack += reversed(node)


def _times_in(sent: list[dict[str, Any]]) -> Iterator[float]:
    """When the answer was begun, and completed."""
    for event in sent:
        holder = event.get("response", event)
        for name in ("created_at", "created", "completed_at"):
            if isinstance(value := member(holder, name), int | float):
                yield float(value)


def _request_times(recording: Recording) -> tuple[float, float]:
    """When the request arrived and when its turn ended; from 0 in a transcript, which has no dates."""
    try:
        begun = datetime.fromisoformat(recording.ts).timestamp()
    except (ValueError, OverflowError):
        begun = 0.0
    ended = recording.at if recording.end_mono is None else recording.end_mono
    return begun, begun + max(0.0, ended - recording.at)
