"""What the page shows of a turn beside its export: the text for its tools, its thread, and its neighbours there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from bridge.exact_json import member, safe_dumps, text_of
from bridge.log.export import ExportedTurn
from bridge.log.log import Log
from bridge.log.recording import EGRESS, Recording, last_words
from bridge.log.summary import Summary
from bridge.page.ring import HeldTurn, Ring

_DEVELOPER = "developerInstructions"
MOST_READ, MAX_READ = 1000, 16 * 1024 * 1024
"""How many requests of a log are searched before and after a turn, and how many bytes of answers before it."""


def injected_text(recording: Recording) -> str | None:
    """The text that the bridge gave the model about its tools and its format; None if there was none."""
    texts = [
        text
        for frame in recording.frames
        if frame.kind == "rpc_request" and (text := text_of(member(frame.payload, "params", _DEVELOPER)))
    ]
    return texts[0] if texts else None


def stderr_of(recording: Recording) -> list[str] | None:
    """The last lines of the child that ended the turn; None if none did."""
    return last_words(recording.exit).splitlines() if recording.exit is not None else None


def neighbours(ring: Ring, turn: HeldTurn) -> dict[str, Any]:
    """The thread of a turn, and the turns before and after it there, as far as they are in the ring."""
    threads = _threads(turn)
    same = [each for each in ring.turns.values() if each.key == turn.key and threads & _threads(each)]
    about: dict[str, Any] = {"previous": None, "next": None, "thread": None}
    for before, after in pairwise(same):
        if after is turn:
            about["previous"] = before.id
        if before is turn:
            about["next"] = after.id
    if threads:
        name = next(iter(sorted(name for _, name in threads)))
        about["thread"] = {"id": name, "continued": about["previous"] is not None, "turns": len(same)}
    return about


def logged_neighbours(log: Log, turn: ExportedTurn) -> dict[str, Any]:
    """The same for a turn of the log, from what requests name: a conversation, or the answer that they continue.

    Of long logs only the requests around it are read.
    """
    recording = turn.recording
    about: dict[str, Any] = {"previous": None, "next": None}
    near = sorted((each for each in log.summaries() if each.begun and each.path == recording.path), key=_arrival)
    at = next((number for number, each in enumerate(near) if each.id == recording.id), None)
    if at is None:
        return about
    before, after = near[max(0, at - MOST_READ) : at][::-1], near[at + 1 : at + 1 + MOST_READ]
    body, answer = recording.body or {}, turn.answer.response_id
    conversation, continued = conversation_of(body), body.get("previous_response_id")
    about["next"] = next((each.id for each in after if _continues(_body(log, each), conversation, answer)), None)
    if conversation is not None:
        earlier = (each.id for each in before if conversation_of(_body(log, each)) == conversation)
        about["previous"] = next(earlier, None)
    elif isinstance(continued, str) and continued:
        about["previous"] = next((each.id for each in _affordable(before) if _answered(log, each, continued)), None)
    return about


def conversation_of(body: dict[str, Any]) -> str | None:
    """The id of the conversation that a request names."""
    named = body.get("conversation")
    found = named.get("id") if isinstance(named, dict) else named
    return found if isinstance(found, str) and found else None


def _continues(body: dict[str, Any], conversation: str | None, answer: str | None) -> bool:
    if conversation is not None:
        return conversation_of(body) == conversation
    return answer is not None and body.get("previous_response_id") == answer


def _body(log: Log, summary: Summary) -> dict[str, Any]:
    body = member(log.request(summary), "body")
    return body if isinstance(body, dict) else {}


def _affordable(summaries: Iterable[Summary]) -> Iterator[Summary]:
    """As many as may be read whole."""
    size = 0
    for summary in summaries:
        size += sum(span.end - span.start for span in summary.spans)
        if size > MAX_READ:
            return
        yield summary


def _answered(log: Log, summary: Summary, answer: str) -> bool:
    """Whether the client got an answer with this id."""
    needle = answer.encode()
    return any(
        needle in safe_dumps(record.get("payload")) for record in log.records(summary) if record["phase"] == EGRESS
    )


def _arrival(summary: Summary) -> tuple[str, str]:
    return summary.time, summary.id


def _threads(turn: HeldTurn) -> set[tuple[int, str]]:
    return {(id(feed), name) for feed, names in turn.threads.items() for name in names}
