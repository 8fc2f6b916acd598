"""What the page shows of a turn beside its export: the text for its tools, its thread, and its neighbours there."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from bridge.exact_json import member, text_of
from bridge.log.recording import Recording, last_words
from bridge.page.ring import HeldTurn, Ring

_DEVELOPER = "developerInstructions"


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


def _threads(turn: HeldTurn) -> set[tuple[int, str]]:
    return {(id(feed), name) for feed, names in turn.threads.items() for name in names}
