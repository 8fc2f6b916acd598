"""Finds secrets that a log holds in pieces. Pure.

A model writes token by token, so a secret may be split over the texts of many records. `RecordTexts` names the longer
text that each text of a record belongs to. `SplitSecretFinder` joins the texts that follow each other and finds what
spans several of them. `bridge.redact` knows what a secret looks like; `bridge.log.redact` makes copies without what is
found here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from bridge import exact_json
from bridge.redact import mark, secret_forms, secrets_in

SHORTEST = 4
"""A secret of fewer characters would be found everywhere."""
LONGEST = 2_000
"""A longer secret is reported in parts of this many characters."""
MOST_HELD = 1_000_000
"""Characters of a text that are held to be searched; its end is searched again with what follows."""
MOST_HELD_OF_WORDS = 20_000
"""The same for values of members like `type` and `id`, which follow each other but are not a text."""
MOST_ENDED = 100
"""Requests whose texts may continue after their end."""
KEPT = frozenset(
    {
        "action", "backend", "call_id", "callId", "calls", "cause", "code", "conversationId", "conversation_id",
        "dialect", "direction", "dropped", "effort", "ended_requests", "event", "finish_reason", "headers", "id",
        "invalid_arguments", "item_id", "itemId", "jsonrpc", "kind", "method", "model", "modelProvider", "name",
        "object", "outcome", "param", "path", "phase", "program", "reason", "redaction", "repairs", "req_id",
        "requested_model", "response_id", "role", "rpc_id", "service_tier", "sandbox", "severity", "status", "store",
        "threadId", "tool_call_id", "tool_choice", "truncation", "turnId", "turn_id", "type", "unsupported", "version",
        # CAP's
        "created_at", "domain", "events", "form", "op", "parent_request_id", "request_id", "resets_at",
        "root_request_id", "state", "timestamp", "tool",
        # Those of the Messages API
        "stop_reason", "tool_use_id",
    }
)  # fmt: skip
"""Names whose values are identifiers and words of a protocol, not content."""
_WHOLE = frozenset({"http_ingress", "backend_submission"})
"""Phases that are not recorded in pieces: secrets with a known shape were removed when they were written."""
_IDENTITY = frozenset(
    {
        "item_id", "itemId", "output_index", "content_index", "summary_index", "index", "threadId", "conversationId",
        "turnId",
    }
)  # fmt: skip
"""Members that distinguish texts of the same name from each other."""

Key = tuple[Any, ...]
Cut = tuple[int, int, int, str]
"""The number of a text in its record, the start and end of a part of it, and what replaces that part."""


class RecordTexts:
    """The texts of a record's payload, or of a transcript's message, in order.

    Each has a key that says which longer text it is a piece of: texts under the same member names, in records of the
    same kind, request and item, follow each other. So deltas of every protocol can be joined without knowing it. A
    recorded piece of an event stream (SSE, or one JSON event per line) is parsed; its unchanged lines keep their bytes.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self.slots: list[tuple[Key, Any, Any, int]] = []
        """The key, the object or list that holds the text, its name there, and the line of the event stream."""
        self._record = record
        self._lines: list[str] = []
        self._events: dict[int, Any] = {}
        key = (record.get("req_id"), record.get("kind"), record.get("method"))
        payload = record.get("payload")
        if record.get("kind") != "client_sse" or not isinstance(payload, str):
            for name in ("payload", "msg"):
                if name in record:
                    self._add(record, name, (*key, name), -1)
            return
        self._lines = payload.split("\n")
        for number, line in enumerate(self._lines):
            if line.startswith(("data:", "{")):
                try:
                    event = self._events[number] = exact_json.loads(line.removeprefix("data:"))
                except orjson.JSONDecodeError:
                    continue
                kind = event.get("type") if isinstance(event, dict) else None
                self._add(self._events, number, (*key, "event", kind if isinstance(kind, str) else None), number)

    def cut(self, cuts: Iterable[Cut]) -> None:
        """Replace parts of the texts. Where parts overlap, all of them are gone."""
        merged: list[Cut] = []
        for cut in sorted(cuts):
            index, start, end, replacement = cut
            if merged and merged[-1][0] == index and start < merged[-1][2]:
                _, first, last, mark_before = merged[-1]
                merged[-1] = index, first, max(end, last), mark_before + replacement
            else:
                merged.append(cut)
        for index, start, end, replacement in reversed(merged):
            _, holder, name, number = self.slots[index]
            text = holder[name]
            holder[name] = text[:start] + replacement + text[end:]
            if number >= 0:
                field = "" if self._lines[number].startswith("{") else "data: "
                self._lines[number] = field + exact_json.dumps(self._events[number]).decode()
        if self._lines:
            self._record["payload"] = "\n".join(self._lines)

    def _add(self, holder: Any, name: Any, key: Key, line: int) -> None:
        """Add the texts of a value. Without recursion: what was recorded may be nested deeper than Python allows."""
        stack = [(holder, name, key)]
        while stack:
            holder, name, key = stack.pop()
            value = holder[name]
            if isinstance(value, str):
                self.slots.append((key, holder, name, line))
            elif isinstance(value, dict):
                if not _IDENTITY.isdisjoint(value):
                    key += tuple(
                        member for name, member in value.items() if name in _IDENTITY and isinstance(member, str | int)
                    )
                stack += [(value, name, (*key, name)) for name in reversed(value)]
            elif isinstance(value, list):
                stack += [(value, index, key) for index in range(len(value) - 1, -1, -1)]


class Forms:
    """Every form of some secrets as one pattern, the longest first: one may contain another."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self.plain = {form: secret for secret in secrets for form in secret_forms(secret)}
        forms = sorted(self.plain, key=lambda form: (-len(form), form))
        self.pattern = re.compile("|".join(map(re.escape, forms))) if forms else None
        self.longest = max(map(len, forms), default=0)

    def spans(self, text: str) -> Iterator[tuple[str, int, int]]:
        """(secret, start, end) of the secrets in a text. Different secrets that overlap are one span of the first.

        `finditer` would skip a secret that begins within another one, and its end would remain.
        """
        first, last, start, end, position = "", "", 0, 0, 0
        while self.pattern is not None and (found := self.pattern.search(text, position)):
            position, secret = found.start() + 1, self.plain[found[0]]
            if found.start() >= end:
                if first:
                    yield first, start, end
                first, last, start, end = secret, secret, found.start(), found.end()
            elif secret != last and found.end() > end:
                last, end = secret, found.end()
        if first:
            yield first, start, end

    def in_json(self, *, nested: bool) -> re.Pattern[bytes] | None:
        """Matches them in a line, which is JSON itself; with `nested`, also what the line's JSON escapes once more."""
        forms = set(self.plain)
        if nested:
            forms |= {written for form in self.plain for written in secret_forms(form)}
        return re.compile(b"|".join(re.escape(form.encode()) for form in sorted(forms))) if forms else None


class _Piece(NamedTuple):
    record: int
    slot: int
    start: int
    """How many characters of the record's text come before this piece."""
    text: str


@dataclass(slots=True)
class _Text:
    key: Key
    is_content: bool
    pieces: list[_Piece]
    size: int = 0

    def shorten(self, length: int) -> None:
        """Keep the last `length` characters."""
        kept: list[_Piece] = []
        self.size = 0
        while self.pieces and self.size < length:
            record, slot, start, text = self.pieces.pop()
            skipped = max(0, len(text) - (length - self.size))
            kept.append(_Piece(record, slot, start + skipped, text[skipped:]))
            self.size += len(text) - skipped
        self.pieces = kept[::-1]


class SplitSecretFinder:
    """Reads numbered records in order, and searches each text when its request ends; `end` ends all requests.

    The ends of the texts of the last `MOST_ENDED` requests are searched again with what is recorded after `turn_end`.

    It locates `secrets` and `fragments` where they span several records. With `discover`, it also finds what has the
    shape of a secret, and what the patterns match across pieces, in texts that were recorded in pieces.
    """

    def __init__(
        self,
        secrets: Sequence[str] = (),
        patterns: Sequence[re.Pattern[str]] = (),
        fragments: Sequence[str] = (),
        *,
        discover: bool = True,
    ) -> None:
        self.shaped: dict[str, None] = {}
        """Texts with the shape of a secret. They are secrets wherever they occur."""
        self.matched: dict[str, None] = {}
        """What a pattern matches across pieces. Elsewhere it may be part of a word."""
        self.cuts: defaultdict[int, dict[Cut, None]] = defaultdict(dict)
        """What has to be replaced in each record. The mark replaces the share of the first piece."""
        self.splits: dict[tuple[int, int, int], tuple[int, Key]] = {}
        """(record, text, position) where a secret begins: the record where it ends, and the key of its text."""
        self._forms = Forms([*secrets, *fragments])
        self._patterns = tuple(patterns)
        self._discover = discover
        self._kept = max(LONGEST, self._forms.longest)
        self._texts: defaultdict[str, dict[Key, _Text]] = defaultdict(dict)
        self._ended: deque[str] = deque()

    def feed(self, number: int, record: dict[str, Any]) -> None:
        """Read the next record, which has this number."""
        request = str(record.get("req_id")).partition("#")[0]
        texts = self._texts[request]
        in_pieces = self._discover and record.get("phase") not in _WHOLE
        for index, (key, holder, name, _) in enumerate(RecordTexts(record).slots):
            is_content = in_pieces and key[-1] not in KEPT
            piece = holder[name]
            if piece and (is_content or self._forms.pattern is not None):
                text = texts.get(key) or texts.setdefault(key, _Text(key, is_content, []))
                text.pieces.append(_Piece(number, index, 0, piece))
                text.size += len(piece)
                if text.size > max(MOST_HELD if is_content else MOST_HELD_OF_WORDS, 2 * self._kept):
                    self._search(text)
                    text.shorten(self._kept)
        if record.get("kind") == "turn_end":
            # A child that was interrupted may still send deltas.
            for text in texts.values():
                self._search(text)
                text.shorten(self._kept)
            self._ended.append(request)
            if len(self._ended) > MOST_ENDED:
                self._end(self._ended.popleft())

    def end(self) -> SplitSecretFinder:
        """Search what has not ended."""
        for request in list(self._texts):
            self._end(request)
        return self

    def _end(self, request: str) -> None:
        for text in self._texts.pop(request, {}).values():
            self._search(text)

    def _search(self, text: _Text) -> None:
        joined = "".join(piece.text for piece in text.pieces)
        if text.is_content:
            for secret in secrets_in(joined):
                self.shaped.update(dict.fromkeys(_parts(secret)))
        in_events = text.key[3] == "event"
        if len(text.pieces) < 2 and not in_events:
            return
        ends = list(accumulate(len(piece.text) for piece in text.pieces))
        for pattern in self._patterns if text.is_content else ():
            for found in pattern.finditer(joined):
                if _is_split(ends, *found.span()):
                    self.matched.update(dict.fromkeys(_parts(found[0])))
                elif in_events:
                    # Within one piece the pattern is applied directly, but there to an event stream, which is escaped.
                    self._locate(text, ends, found[0], *found.span())
        for secret, start, stop in self._forms.spans(joined):
            if _is_split(ends, start, stop):
                self._locate(text, ends, secret, start, stop)

    def _locate(self, text: _Text, ends: list[int], secret: str, begin: int, finish: int) -> None:
        first, last = bisect_right(ends, begin), bisect_right(ends, finish - 1)
        replacement = mark(secret)
        for piece, end in zip(text.pieces[first : last + 1], ends[first : last + 1], strict=True):
            before = end - len(piece.text) - piece.start  # of the record's text in the joined one
            start, stop = max(begin - before, piece.start), min(finish, end) - before
            if replacement:
                self.splits[piece.record, piece.slot, start] = text.pieces[last].record, text.key
            self.cuts[piece.record][piece.slot, start, stop, replacement] = None
            replacement = ""


def _is_split(ends: list[int], start: int, stop: int) -> bool:
    return bisect_right(ends, start) != bisect_right(ends, stop - 1)


def _parts(secret: str) -> Iterator[str]:
    """A secret in parts of limited length; the last part is never only a few characters."""
    while len(secret) >= 2 * LONGEST:
        yield secret[:LONGEST]
        secret = secret[LONGEST:]
    if len(secret) >= SHORTEST:
        yield secret
