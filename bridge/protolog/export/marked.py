"""What the model itself said, cut where some of it was taken for a call, mended or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.protolog.heard import heard_messages
from bridge.protolog.loose import text_of
from bridge.protolog.recording import Recording

PLAIN = "text"


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the model's text. `kind`: text, call, repair, or reject; `note` says more."""

    text: str
    kind: str = PLAIN
    note: str = ""


def marked(recording: Recording) -> list[list[Stretch]]:
    """The model's messages, cut where the parser noted something. The stretches of each, joined, are its text."""
    notes = _with_repairs(recording.notes)
    out = []
    for text in heard_messages(recording):
        stretches: list[Stretch] = []
        at, later = 0, []
        for source, kind, note in notes:
            start = text.find(source, at)
            if start < 0:
                later.append((source, kind, note))
                continue
            if start > at:
                stretches.append(Stretch(text[at:start]))
            stretches.append(Stretch(source, kind, note))
            at = start + len(source)
        if at < len(text):
            stretches.append(Stretch(text[at:]))
        out.append(stretches)
        notes = later
    return out


def _with_repairs(notes: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str, str]]:
    """(source, kind, note) of each note that names its text. A call's repairs are noted after it."""
    found: list[tuple[str, str, str]] = []
    for kind, payload in notes:
        source = text_of(payload.get("source"))
        named = payload.get("repairs")
        repairs = ", ".join(map(text_of, named)) if isinstance(named, list) else ""
        if kind == "tool_call" and source:
            found.append((source, "call", text_of(payload.get("name"))))
        elif kind == "tool_repair" and source:
            found.append((source, "repair", repairs))
        elif kind == "tool_repair" and found and found[-1][1] == "call":
            source, _, name = found[-1]
            found[-1] = (source, "repair", f"{name}: {repairs}")
        elif kind == "tool_reject" and source:
            found.append((source, "reject", text_of(payload.get("reason"))))
    return found
