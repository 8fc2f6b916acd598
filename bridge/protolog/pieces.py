"""Secrets out of texts that came in pieces: what a model says, token by token. Pure.

A record waits while the end of one of its texts could be the beginning of a secret. When the next piece of that text
completes it, the mark goes into the first of the pieces and the others lose their share.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.protolog.leaves import EventStream, Key, Leaf, leaves, stream_of
from bridge.protolog.scrub import forms_pattern, mark, secret_forms

MOST_WAITING = 5_000
MOST_CHARACTERS = 64_000_000
"""So many records may wait, with so much text in them: what the oldest of them waits for did not come."""


@dataclass(slots=True)
class _Waiting:
    """A record on its way out."""

    record: dict[str, Any]
    stream: EventStream | None
    pieces: int = 0
    """How many of its texts wait."""
    size: int = 0


@dataclass(slots=True)
class _Piece:
    """The end of a text, from `start` on."""

    leaf: Leaf
    owner: _Waiting
    start: int
    length: int


class PieceScrubber:
    """Takes records in order and gives them out in order, later. `removed` hears of each secret."""

    def __init__(self, secrets: Sequence[str], removed: Callable[[], None] = lambda: None) -> None:
        plain = {form: secret for secret in secrets for form in secret_forms(secret)}
        self._plain = plain
        self._pattern = forms_pattern(secrets)
        self._forms = sorted(plain)
        self._longest = max(map(len, plain), default=1) - 1
        self._first = re.compile("[" + "".join(re.escape(form[0]) for form in sorted(plain)) + "]") if plain else None
        self._removed = removed
        self._queue: deque[_Waiting] = deque()
        self._size = 0
        self._open: defaultdict[str, dict[Key, list[_Piece]]] = defaultdict(dict)

    def feed(self, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Take a record; those that wait for nothing any more."""
        if self._pattern is None:
            yield record
            return
        waiting = _Waiting(record, stream_of(record))
        self._queue.append(waiting)
        request = str(record.get("req_id")).partition("#")[0]
        texts = self._open[request]
        for leaf in leaves(record, waiting.stream):
            waiting.size += len(leaf.text)
            self._add(texts, leaf, waiting)
        self._size += waiting.size
        if record.get("kind") == "turn_end" or not texts:
            self._forget(request)
        while self._queue and (not self._queue[0].pieces or self._too_many()):
            yield self._out()

    def rest(self) -> Iterator[dict[str, Any]]:
        """Those that still wait: nothing follows."""
        while self._queue:
            yield self._out()

    def _too_many(self) -> bool:
        return len(self._queue) > MOST_WAITING or self._size > MOST_CHARACTERS

    def _out(self) -> dict[str, Any]:
        waiting = self._queue.popleft()
        self._size -= waiting.size
        if waiting.stream is not None and waiting.stream.changed:
            waiting.record["payload"] = waiting.stream.render()
        return waiting.record

    def _forget(self, request: str) -> None:
        for pieces in self._open.pop(request, {}).values():
            for piece in pieces:
                piece.owner.pieces -= 1

    def _add(self, texts: dict[Key, list[_Piece]], leaf: Leaf, owner: _Waiting) -> None:
        text = leaf.text
        if leaf.key not in texts and not self._could_begin(text):
            return
        pieces = texts.pop(leaf.key, [])
        for piece in pieces:
            piece.owner.pieces -= 1
        before = "".join(piece.leaf.text[piece.start : piece.start + piece.length] for piece in pieces)
        joined, done = before + text, 0
        pieces.append(_Piece(leaf, owner, 0, len(text)))
        if before:
            done = self._cut(joined, pieces)
        rest = self._could_begin(joined[done:])
        if rest:
            texts[leaf.key] = _last(pieces, rest)
            for piece in texts[leaf.key]:
                piece.owner.pieces += 1

    def _could_begin(self, text: str) -> int:
        """How many characters at the end of a text could be the beginning of a secret."""
        assert self._first is not None
        tail = text[-self._longest :]
        for found in self._first.finditer(tail):
            if self._begins(tail[found.start() :]):
                return len(tail) - found.start()
        return 0

    def _begins(self, text: str) -> bool:
        """Whether a secret begins so, and goes on: then the next one in order does."""
        at = bisect_right(self._forms, text)
        return at < len(self._forms) and self._forms[at].startswith(text)

    def _cut(self, joined: str, pieces: list[_Piece]) -> int:
        """Take the secrets out of pieces that make this text; where the last of them ended."""
        assert self._pattern is not None
        found = list(self._pattern.finditer(joined))
        for secret in reversed(found):
            put, at = mark(self._plain[secret[0]]), 0
            for piece in pieces:
                start, end = max(secret.start() - at, 0), min(secret.end() - at, piece.length)
                at += piece.length
                if start < end:
                    text, offset = piece.leaf.text, piece.start
                    piece.leaf.put(text[: offset + start] + put + text[offset + end :])
                    put = ""
            self._removed()
        if not found:
            return 0
        # What is left of the last text stands at its end.
        left = len(joined) - found[-1].end()
        last = pieces[-1]
        pieces[:] = [_Piece(last.leaf, last.owner, len(last.leaf.text) - left, left)]
        return found[-1].end()


def _last(pieces: list[_Piece], length: int) -> list[_Piece]:
    """The pieces that the last `length` characters stand in."""
    kept: list[_Piece] = []
    for piece in reversed(pieces):
        if length <= 0:
            break
        taken = min(length, piece.length)
        kept.append(_Piece(piece.leaf, piece.owner, piece.start + piece.length - taken, taken))
        length -= taken
    return kept[::-1]
