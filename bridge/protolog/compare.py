"""What a client got then, and what it would get now: equal, or where they part. Pure."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

import orjson

from bridge import exact_json
from bridge.protolog.loose import member
from bridge.protolog.recording import Recording

_COMMENT = re.compile(rb"^:[^\n]*\n\n", re.MULTILINE)
_OWN_ID = re.compile(rb"\b([a-z]{2,10}[_-])[0-9a-f]{32}\b")
_TIME = re.compile(rb'"(timestamp|created_at)":"[^"\\]*"|"(duration_ms|ttft_ms)":[0-9]+')
_PACKET = rb'(?:event: stream\.packet\nid: [^\n]*\ndata: )?\{"op":"%b"[^\n]*\n+'
_CUT_END = re.compile(rb"(?:%b)?%b\Z" % (_PACKET % b"error", _PACKET % b"close"))
NEW_EACH_TIME = frozenset({"date", "x-request-id", "x-bridge-request-id", "x-client-request-id"})
"""Response headers whose values say nothing: that they are there counts."""
CONTEXT = 2
"""Equal events that are shown before the first that differs."""
MAX_LINES = 60

Outcome = Literal["same", "different", "not_played"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcome for one request; `lines` tell a person about it."""

    recording: Recording
    outcome: Outcome
    lines: tuple[str, ...] = ()
    now: Recording | None = None
    """What the client would get now."""

    @property
    def same(self) -> bool:
        """Whether nothing is wrong."""
        return self.outcome != "different"


def compare(recording: Recording, played: Recording) -> Comparison:
    """Compare status, headers and every byte. Comments, which keep a stream alive, do not count.

    Who left before the end got only the beginning; and of a log that was cut only the beginning is known. A turn of CAP
    that is ended from outside says so, whatever its backend had said by then.
    """
    then, now = without_comments(recording.sent), without_comments(played.sent)
    if None not in (recording.status, played.status) and recording.status != played.status:
        lines = (f"HTTP status {played.status}, recorded was {recording.status}", *show_difference(then, now))
        return Comparison(recording, "different", lines, played)
    if heads := _differing_headers(recording, played):
        return Comparison(recording, "different", heads, played)
    partial = _is_partial(recording)
    choices = isinstance(n := (recording.body or {}).get("n"), int) and n > 1
    lines = ("only the recorded beginning was compared",) if partial else ()
    if _alike(then, now, partial=partial, choices=choices):
        return Comparison(recording, "same", lines, played)
    if _alike(renamed(then), renamed(now), partial=partial, choices=choices):
        return Comparison(recording, "same", (*lines, "ids that the log does not name were made anew"), played)
    if _alike(timeless(then), timeless(now), partial=partial, choices=choices):
        return Comparison(recording, "same", (*lines, "times that the log does not tell were made anew"), played)
    return Comparison(recording, "different", tuple(show_difference(then, now)), played)


def _differing_headers(recording: Recording, played: Recording) -> tuple[str, ...]:
    """How the recorded response headers differ from those of now; nothing where either side has none on record."""
    then, now = _headers(recording), _headers(played)
    if then is None or now is None or then == now:
        return ()
    lines = difflib.unified_diff(then, now, "recorded", "now", lineterm="", n=0)
    return ("the response headers differ", *(line for line in lines if not line.startswith("@@")))


def _headers(recording: Recording) -> list[str] | None:
    """The headers in the order of their names, which is the only one that means something."""
    found = recording.headers
    if found is None:
        return None
    volatile = NEW_EACH_TIME
    if member(recording.end, "error", "code") == "insufficient_quota":
        # Until the quota begins anew, reckoned from the second of the answer.
        volatile |= {"retry-after"}
    return sorted(f"{name}: {'…' if name in volatile else value}" for name, value in found)


def _alike(then: bytes, now: bytes, *, partial: bool, choices: bool) -> bool:
    if not choices:
        return now == then or (partial and now.startswith(_CUT_END.sub(b"", then)))
    before, after = by_choice(then), by_choice(now)
    if not partial:
        return before == after
    return all(after.get(choice, b"").startswith(said) for choice, said in before.items())


def without_comments(stream: bytes) -> bytes:
    """A stream without what only keeps it alive."""
    return _COMMENT.sub(b"", stream) if b":" in stream else stream


def renamed(stream: bytes) -> bytes:
    """With numbers in place of ids of ours: one that was made for something which was never told is not in the log."""
    numbers: dict[bytes, int] = {}
    return _OWN_ID.sub(lambda found: found[1] + b"%d" % numbers.setdefault(found[0], len(numbers)), stream)


def timeless(stream: bytes) -> bytes:
    """With nothing in place of the times that CAP tells: which of them there are depends on what was streamed."""
    return _TIME.sub(rb'"\1\2":0', renamed(stream))


def by_choice(stream: bytes) -> dict[int, bytes]:
    """What is said of each choice, for which of them is told first is a matter of the moment; -1 is all of them."""
    said: dict[int, bytes] = {}
    for event in filter(None, stream.split(b"\n\n")):
        choice = _choice(event)
        said[choice] = said.get(choice, b"") + event + b"\n\n"
    return said


def _choice(event: bytes) -> int:
    try:
        choices = orjson.loads(event.removeprefix(b"data: "))["choices"]
        return int(choices[0]["index"])
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError):
        return -1


def show_difference(then: bytes, now: bytes) -> list[str]:
    """A unified diff of the events around the first that differs, as pretty JSON."""
    before, after = _events(then), _events(now)
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    start = max(0, same - CONTEXT)
    left = [line for event in before[start : same + 20] for line in _pretty(event)]
    right = [line for event in after[start : same + 20] for line in _pretty(event)]
    found = list(difflib.unified_diff(left, right, "recorded", "now", lineterm="", n=3))
    head = f"event {same + 1} of {len(before)} (now {len(after)}) is the first that differs"
    if len(found) > MAX_LINES:
        found = [*found[:MAX_LINES], f"… {len(found) - MAX_LINES} more lines"]
    return [head, *found]


def _is_partial(recording: Recording) -> bool:
    end = recording.end
    if end is None or (end.get("outcome") == "cancelled" and end.get("reason") == "client_gone"):
        return True
    late = isinstance(error := end.get("error"), dict) and error.get("code") == "deadline_exceeded"
    return (late or end.get("outcome") == "cancelled") and _CUT_END.search(recording.sent) is not None


def _events(stream: bytes) -> list[bytes]:
    """The events of a stream; a body or lines are one each."""
    separator = b"\n\n" if b"\n\n" in stream else b"\n"
    return [event for event in stream.split(separator) if event]


def _pretty(event: bytes) -> list[str]:
    lines: list[str] = []
    for line in event.split(b"\n"):
        name, found, data = line.partition(b"data: ")
        try:
            value = exact_json.loads(data if found and not name else line)
        except orjson.JSONDecodeError:
            lines.append(line.decode("utf-8", "replace"))
            continue
        lines += exact_json.dumps(value, option=orjson.OPT_INDENT_2).decode("utf-8", "replace").splitlines()
    return lines
