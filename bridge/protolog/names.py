"""The ids and times that a recorded answer has, given out again in the same order: so it can be made byte for byte.

They are taken from where an answer names them: its own id, its items' and calls', its creation and end. What the
backend named itself is no name of ours and is left out. What the answer does not tell, because its client got less, is
derived from the recording, so that every replay gives the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from datetime import datetime
from hashlib import blake2b
from typing import Any

import orjson

from bridge.protolog.assist_times import assist_moments
from bridge.protolog.loose import member
from bridge.protolog.recording import Recording


class Names:
    """Gives out the names of one recording, and then further ones that are made of its id."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording.id
        self._made = Counter[str]()
        self._ids: defaultdict[str, deque[str]] = defaultdict(deque)
        self._times: deque[float] = deque()
        foreign = _said_by_backend(recording)
        for name in dict.fromkeys(_named(recording)):
            prefix, _, rest = name.replace("-", "_", 1).partition("_")
            if rest and name not in foreign:
                self._ids[prefix].append(f"{prefix}_{rest}")
        told = [event for event in parse_stream(recording.sent) if isinstance(event, dict)]
        times = assist_moments(told, recording.end) or dict.fromkeys(_moments(told))
        self._times.extend(times or _recorded_moments(recording))

    def new_id(self, prefix: str) -> str:
        """The next recorded id of this kind; when there are no more, one that the same replay gives again."""
        if self._ids[prefix]:
            return self._ids[prefix].popleft()
        self._made[prefix] += 1
        name = f"{self._recording} {prefix} {self._made[prefix]}".encode("utf-8", "surrogatepass")
        return f"{prefix}_{blake2b(name, digest_size=16).hexdigest()}"

    def now(self) -> float:
        """The next recorded time; the last of them is then the time."""
        return self._times.popleft() if len(self._times) > 1 else self._times[0]


def parse_stream(stream: bytes) -> Iterator[Any]:
    """The JSON of each event of a stream, or of each line, or of a body; what is none is left out."""
    for line in stream.split(b"\n"):
        try:
            yield orjson.loads(line.removeprefix(b"data: "))
        except orjson.JSONDecodeError:
            continue


def _named(recording: Recording) -> Iterator[str]:
    # In a stream of CAP nothing else tells it.
    yield from (value for name, value in recording.headers or () if name == "x-conversation-id")
    for event in parse_stream(recording.sent):
        if isinstance(event, dict):
            yield from _names_in(event)


def _names_in(event: dict[str, Any]) -> Iterator[str]:
    """Ids of an event, a response, an item, a chunk; in the order in which they were made."""
    packet = member(event, "p", "data")
    for holder in (event, event.get("response"), event.get("item"), event.get("error"), packet):
        if not isinstance(holder, dict):
            continue
        for name in ("id", "item_id", "call_id"):
            if isinstance(value := holder.get(name), str):
                yield value
        output = holder.get("output")
        calls = member(output, "tool_calls")
        for item in [*(output if isinstance(output, list) else ()), *(calls if isinstance(calls, list) else ())]:
            if isinstance(item, dict):
                yield from _names_in(item)
    for choice in event.get("choices") or () if isinstance(event.get("choices"), list) else ():
        for said in (choice.get("delta"), choice.get("message")) if isinstance(choice, dict) else ():
            for call in (said.get("tool_calls") or ()) if isinstance(said, dict) else ():
                if isinstance(call, dict) and isinstance(call.get("id"), str):
                    yield call["id"]


def _moments(told: list[dict[str, Any]]) -> Iterator[float]:
    """When the answer was begun, and completed."""
    for event in told:
        holder = event.get("response", event)
        if not isinstance(holder, dict):
            continue
        for name in ("created_at", "created", "completed_at"):
            if isinstance(value := holder.get(name), int | float):
                yield float(value)


def _recorded_moments(recording: Recording) -> tuple[float, float]:
    """When the request came and when its turn ended, as the log tells it; 0 in a transcript, which has no dates."""
    try:
        begun = datetime.fromisoformat(recording.ts).timestamp()
    except (ValueError, OverflowError):
        begun = 0.0
    ended = recording.at if recording.end_mono is None else recording.end_mono
    return begun, begun + max(0.0, ended - recording.at)


def _said_by_backend(recording: Recording) -> set[str]:
    """Names that stand in what the backend said."""
    found: set[str] = set()
    for frames in recording.attempts.values():
        for frame in frames:
            if frame.direction == "in" and isinstance(frame.payload, dict):
                found |= set(_strings(frame.payload))
    return found


def _strings(value: Any) -> Iterator[str]:
    """The ids anywhere in a message: short texts under a name that ends in id."""
    stack = [value]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            for name, member in node.items():
                if isinstance(member, str):
                    if name.lower().endswith("id"):
                        yield member
                else:
                    stack.append(member)
        elif isinstance(node, list):
            stack += node
