"""A log as one page that needs nothing else: no server, no network, no other file.

What was recorded is in the page as JSON within script elements of a type that no browser runs, and the page's own
script puts it on the screen as text alone. A policy in the page forbids every other script, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from bridge import __version__
from bridge.exact_json import safe_dumps, text_of
from bridge.log.content import backend_messages
from bridge.log.export import ExportedTurn
from bridge.log.recording import Recording, exit_cause, last_words
from bridge.log.request import Part, messages_from_body, tools_offered, with_words
from bridge.log.summary import Summary

PLAIN = "text"
PREVIEW = 160
MAX_BYTES = 200_000_000
"""Of blocks in one page. A browser holds them all in memory."""
SCRIPTS = (
    "dom",
    "text",
    "pretty",
    "tree",
    "virtual",
    "timeline",
    "conversation",
    "wire",
    "row",
    "turn",
    "list",
    "main",
)
"""The page's script, in the order of its parts. They are ES modules: the live page serves them as they are."""
_MODULE_SYNTAX = re.compile(rb"^import \{[^\n]*\n|^export (?=\w)", re.M)
"""What joins modules. Concatenated parts share one scope and do without it."""
_LISTED = (
    "id", "path", "outcome", "reason", "error", "input_tokens", "output_tokens", "first_event_s", "total_s", "calls",
    "repairs", "invalid_arguments",
)  # fmt: skip
"""Members of a summary that the list of turns shows."""
_ESCAPES = {
    b"<": b"\\u003c",
    b">": b"\\u003e",
    b"&": b"\\u0026",
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of the model's text. `kind`: text, call, repair, or reject; `note` says more."""

    text: str
    kind: str = PLAIN
    note: str = ""


def marked(recording: Recording) -> list[list[Stretch]]:
    """The model's messages, cut where the parser noted something. The stretches of each, joined, are its text."""
    notes = _notes_with_source(recording.notes)
    out = []
    for text in backend_messages(recording):
        stretches: list[Stretch] = []
        at, later = 0, []
        for note in notes:
            start = text.find(note.text, at)
            if start < 0:
                later.append(note)
                continue
            stretches += [Stretch(text[at:start]), note] if start > at else [note]
            at = start + len(note.text)
        if at < len(text):
            stretches.append(Stretch(text[at:]))
        out.append(stretches)
        notes = later
    return out


def _notes_with_source(notes: list[tuple[str, dict[str, Any]]]) -> list[Stretch]:
    """The notes that name their text. The repairs of a call are noted after it."""
    found: list[Stretch] = []
    for kind, payload in notes:
        source, named = text_of(payload.get("source")), payload.get("repairs")
        repairs = ", ".join(map(text_of, named)) if isinstance(named, list) else ""
        if kind == "tool_call" and source:
            found.append(Stretch(source, "call", text_of(payload.get("name"))))
        elif kind == "tool_repair" and source:
            found.append(Stretch(source, "repair", repairs))
        elif kind == "tool_repair" and found and found[-1].kind == "call":
            found[-1] = Stretch(found[-1].text, "repair", f"{found[-1].note}: {repairs}")
        elif kind == "tool_reject" and source:
            found.append(Stretch(source, "reject", text_of(payload.get("reason"))))
    return found


def script_safe(value: Any) -> bytes:
    """JSON that is safe in a script element: nothing in it can end the element or begin a comment.

    These characters occur in JSON within strings only, where their escapes mean the same.
    """
    data = safe_dumps(value)
    for character, escape in _ESCAPES.items():
        data = data.replace(character, escape)
    return data


def list_row(turn: ExportedTurn) -> dict[str, Any]:
    """What the list of turns shows, and finds without opening the turn."""
    return summary_row(turn.summary, turn.recording.body)


def summary_row(summary: Summary, body: dict[str, Any] | None) -> dict[str, Any]:
    """The same of a summary. `body` is the request's, if it is known."""
    asked = [part.text for part in with_words(messages_from_body(body)) if part.kind == "text" and part.role == "user"]
    return {name: getattr(summary, name) for name in _LISTED} | {
        "ts": summary.time,
        "model": summary.model or "?",
        "preview": " ".join(asked[-1][: PREVIEW * 4].split())[:PREVIEW] if asked else "",
    }


def conversation_block(turn: ExportedTurn) -> dict[str, Any]:
    """Input and answer: read when a turn is opened, or searched."""
    recording, answer = turn.recording, turn.answer
    header = ("program", "redaction", "redacted", "dialect", "run")
    return {
        "path": recording.path,
        "backend": turn.summary.backend,
        "requested": turn.summary.requested_model,
        "effort": turn.start.get("effort"),
        "status": recording.status,
        "streamed": recording.streamed,
        "usage": turn.usage,
        "run": {name: recording.header.get(name) for name in header if name in recording.header},
        "tools": tools_offered(recording.body),
        "dropped": turn.start.get("dropped") or [],
        "body": recording.body is not None,
        "asked": [_part(part) for part in _asked(recording)],
        "answers": [
            {"parts": [_part(part) for part in choice.parts], "finish": choice.finish_reason}
            for choice in answer.choices
        ],
        "source": answer.source,
        "error": turn.error,
        "exit": None if recording.exit is None else [exit_cause(recording.exit), last_words(recording.exit)],
        "heard": [
            [[each.text] if each.kind == PLAIN else [each.text, each.kind, each.note] for each in stretches]
            for stretches in marked(recording)
        ],
        "rejects": [
            text_of(payload.get("reason"))
            for kind, payload in recording.notes
            if kind == "tool_reject" and "source" not in payload
        ],
    }


def wire_block(recording: Recording) -> dict[str, Any]:
    """What went over both wires, with times in seconds since the request came."""

    def since(mono: float) -> float:
        return round(mono - recording.at, 6)

    return {
        "request": recording.request,
        "end": since(recording.end_mono) if recording.end_mono is not None else None,
        "frames": [
            [since(each.mono), each.direction, each.kind, each.method, each.chunk, attempt, each.payload]
            for attempt, frames in recording.attempts.items()
            for each in frames
        ],
        "client": [[since(piece.mono), piece.kind, piece.payload] for piece in recording.client],
    }


def _asked(recording: Recording) -> list[Part]:
    return with_words(messages_from_body(recording.body))


def _part(part: Part) -> list[str]:
    """The members of a part, without empty ones at the end but always three."""
    members = ["system" if part.role == "instructions" else part.role, part.kind, part.text, part.name, part.call_id]
    while len(members) > 3 and not members[-1]:
        members.pop()
    return members


class PageTurns:
    """The latest requests of a log, as many as fit. `left_out` counts the others."""

    def __init__(self, limit: int | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.left_out = 0
        self._limit, self._max_bytes, self._size = limit, max_bytes, 0
        self._kept: deque[tuple[dict[str, Any], bytes, int]] = deque()
        """The row, both blocks compressed (only at the end it is known which requests are the last), and their size."""

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, recordings: Iterable[Recording]) -> None:
        """Add these; the earliest are dropped when they do not fit any more."""
        for recording in recordings:
            turn = ExportedTurn(recording)
            blocks = script_safe(conversation_block(turn)) + b"\n" + script_safe(wire_block(turn.recording))
            self._kept.append((list_row(turn), zlib.compress(blocks, 1), len(blocks)))
            self._size += len(blocks)
            while self._size > self._max_bytes or (self._limit is not None and len(self._kept) > self._limit):
                self._size -= self._kept.popleft()[2]
                self.left_out += 1

    def rows(self) -> list[dict[str, Any]]:
        return [row for row, _, _ in self._kept]

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """The conversation and the wire of each row."""
        for _, packed, _ in self._kept:
            conversation, _, wire = zlib.decompress(packed).partition(b"\n")
            yield conversation, wire


def page_pieces(turns: PageTurns, *, name: str, notes: list[str]) -> Iterator[bytes]:
    """The page, in pieces. `name` is the log's, `notes` what its reader should know."""
    styles, scripts = [(__package__, "page")], [(__package__, each) for each in SCRIPTS]
    head, tail = page_frame(__package__, "page.html", "Event log", styles, scripts)
    yield head
    for number, (conversation, wire) in enumerate(turns.blocks()):
        yield json_block(f"c{number}", conversation)
        yield json_block(f"w{number}", wire)
    index = {
        "name": name,
        "program": f"turnbridge {__version__}",
        "left_out": turns.left_out,
        "told": notes,
        "turns": turns.rows(),
    }
    yield json_block("index", script_safe(index))
    yield tail


def page_frame(
    package: str, page: str, title: str, styles: Iterable[tuple[str, str]], scripts: Iterable[tuple[str, str]]
) -> tuple[bytes, bytes]:
    """What a page has before and after its blocks. Styles and scripts are parts, each named by its package and itself.

    The policy lets through this style and this script, and no request.
    """
    style = b"\n".join(_asset(package, f"{name}.css") for package, name in styles)
    parts = b"\n".join(_MODULE_SYNTAX.sub(b"", _asset(package, f"{name}.js")) for package, name in scripts)
    script = b'"use strict";\n{\n' + parts + b"}\n"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
        "; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    frame = _asset(__package__, "frame.html").replace(b"{policy}", policy.encode()).replace(b"{title}", title.encode())
    head, _, tail = (
        frame.replace(b"{style}", style).replace(b"{body}", _asset(package, page)).partition(b"<!--blocks-->")
    )
    return head, tail.replace(b"{script}", script)


def json_block(name: str, safe: bytes) -> bytes:
    """A value in a page: JSON from `script_safe`, which no browser runs."""
    return b'<script type="application/json" id="%b">%b</script>\n' % (name.encode(), safe)


def _asset(package: str, name: str) -> bytes:
    return files(package).joinpath("page", name).read_bytes()


def _hash(source: bytes) -> str:
    """The one script, or style, that the policy allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source).digest()).decode()}'"
