"""Secrets that nobody named, in texts that came in pieces: what a model spells out, token by token. Pure.

A recorder looks at each piece by itself, where a key has no shape yet. Here the pieces of a text are put together.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from bridge.protolog.leaves import Key, leaves, stream_of
from bridge.protolog.scrub import KEPT, SHORTEST
from bridge.redact import Redactor

LONGEST = 2_000
"""What is longer is told in parts of so many characters."""
MOST_HELD = 1_000_000
"""Characters of a text that are held; of a longer one the last `LONGEST` are looked at again with what follows."""

_ASKED = frozenset({"http_ingress", "backend_submission"})
"""What comes whole. It was looked at when it was written."""
_MARK = re.compile(r"(\[redacted:[0-9a-f]{8}\])")


class SpelledFinder:
    """Takes records in order, and collects what it finds in texts that have ended; `end` ends all of them."""

    def __init__(self, patterns: Sequence[re.Pattern[str]] = ()) -> None:
        self.shaped: dict[str, None] = {}
        """What has the shape of a secret: it is one wherever it stands."""
        self.matched: dict[str, None] = {}
        """What a pattern finds over several pieces. Elsewhere it may be a part of a word."""
        self._patterns = tuple(patterns)
        self._texts: defaultdict[str, dict[Key, _Text]] = defaultdict(dict)

    def feed(self, record: dict[str, Any]) -> None:
        """Take the next record."""
        if record.get("phase") in _ASKED:
            return
        request = str(record.get("req_id")).partition("#")[0]
        texts = self._texts[request]
        for leaf in leaves(record, stream_of(record)):
            # Words like `type` follow each other and are no text.
            if leaf.key[-1] not in KEPT and (piece := leaf.text):
                text = texts.setdefault(leaf.key, _Text())
                text.add(piece)
                if text.size > MOST_HELD:
                    self._search(text)
                    text.shorten()
        if record.get("kind") == "turn_end":
            self._end(request)

    def end(self) -> None:
        """Nothing follows."""
        for request in list(self._texts):
            self._end(request)

    def _end(self, request: str) -> None:
        for text in self._texts.pop(request, {}).values():
            self._search(text)

    def _search(self, text: _Text) -> None:
        joined = "".join(text.pieces)
        for secret in shaped_in(joined):
            self.shaped.update(dict.fromkeys(_parts(secret)))
        ends = list(accumulate(map(len, text.pieces))) if self._patterns and len(text.pieces) > 1 else []
        for pattern in self._patterns if ends else ():
            for found in pattern.finditer(joined):
                # What stands within one piece the pattern finds there.
                if bisect_right(ends, found.start()) != bisect_right(ends, found.end() - 1):
                    self.matched.update(dict.fromkeys(_parts(found[0])))


class _Text:
    """The pieces of a text until now."""

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.size = 0

    def add(self, piece: str) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    def shorten(self) -> None:
        tail = "".join(self.pieces)[-LONGEST:]
        # One by one: a match in it has to look like one over pieces.
        self.pieces, self.size = list(tail), len(tail)


def shaped_in(text: str) -> Iterator[str]:
    """What has the shape of a secret in a text."""
    clean = Redactor().text(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")
    if clean == text:
        return
    told = _MARK.split(clean)
    at = len(told[0])
    for mark, after in zip(told[1::2], told[2::2], strict=True):
        if text.startswith(mark, at):  # it was there before
            at += len(mark) + len(after)
            continue
        digest, start = hashlib.sha256(), at
        while at < len(text):
            digest.update(text[at].encode("utf-8", "surrogatepass"))
            at += 1
            if digest.copy().hexdigest()[:8] == mark[10:18] and text.startswith(after, at):
                yield text[start:at]
                break
        at += len(after)


def _parts(secret: str) -> Iterator[str]:
    """A secret, in parts that are not too long, and not too short: the last one is no remnant of a few characters."""
    while len(secret) >= 2 * LONGEST:
        yield secret[:LONGEST]
        secret = secret[LONGEST:]
    if len(secret) >= SHORTEST:
        yield secret
