"""A log as one page that needs nothing else: no server, no network, no other file.

What was recorded is in the page as JSON within script elements of a type that no browser runs, and the page's own
script puts it on the screen as text alone. A policy in the page forbids every other script, and every request.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from bridge import __version__
from bridge.protolog.export.cleaned import cleaned
from bridge.protolog.export.page_turn import conversation_block, list_row, script_safe, wire_block
from bridge.protolog.recording import Recording

MAX_BYTES = 200_000_000
"""Of blocks in one page. A browser holds them all in memory."""

_MARK = b"<!--turns-->"
SCRIPTS = ("dom", "text", "pretty", "tree", "virtual", "timeline", "conversation", "wire", "turn", "list", "main")
"""The page's script, in the order of its parts."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """A request, packed until the page is written: only then it is known which are the last ones."""

    row: dict[str, Any]
    packed: bytes
    size: int


@dataclass(slots=True)
class PageTurns:
    """The latest requests of a log, as many as fit. `left_out` counts the others."""

    limit: int | None = None
    max_bytes: int = MAX_BYTES
    left_out: int = 0
    _kept: deque[_Turn] = field(default_factory=deque)
    _size: int = 0

    def take(self, recordings: Iterable[Recording]) -> None:
        """Take these in; the earliest leave when it becomes too much."""
        for recording in recordings:
            recording = cleaned(recording)
            blocks = script_safe(conversation_block(recording)) + b"\n" + script_safe(wire_block(recording))
            self._kept.append(_Turn(list_row(recording), zlib.compress(blocks, 1), len(blocks)))
            self._size += len(blocks)
            while self._size > self.max_bytes or (self.limit is not None and len(self._kept) > self.limit):
                self._size -= self._kept.popleft().size
                self.left_out += 1

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the list."""
        return [turn.row for turn in self._kept]

    def blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """(conversation, wire) of each row."""
        for turn in self._kept:
            conversation, _, wire = zlib.decompress(turn.packed).partition(b"\n")
            yield conversation, wire


def page_pieces(turns: PageTurns, *, name: str, told: list[str]) -> Iterator[bytes]:
    """The page, in pieces. `name` is the log's, `told` what its reader should know."""
    page, style = _asset("page.html"), _asset("page.css")
    script = b'"use strict";\n{\n' + b"\n".join(_asset(f"{name}.js") for name in SCRIPTS) + b"}\n"
    head, _, tail = page.partition(_MARK)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"
    )
    policy += "; require-trusted-types-for 'script'; trusted-types 'none'"
    yield head.replace(b"{policy}", policy.encode()).replace(b"{style}", style)
    for number, (conversation, wire) in enumerate(turns.blocks()):
        yield b'<script type="application/json" id="c%d">%b</script>\n' % (number, conversation)
        yield b'<script type="application/json" id="w%d">%b</script>\n' % (number, wire)
    index = {
        "name": name,
        "program": f"codex-bridge {__version__}",
        "left_out": turns.left_out,
        "told": told,
        "turns": turns.rows(),
    }
    yield b'<script type="application/json" id="index">%b</script>\n' % script_safe(index)
    yield tail.replace(b"{script}", script)


def _asset(name: str) -> bytes:
    return files("bridge.protolog.export").joinpath("page", name).read_bytes()


def _hash(source: bytes) -> str:
    """The one script, or style, that the policy lets through."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source).digest()).decode()}'"
