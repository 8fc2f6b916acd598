"""Removes more from a recorded log than was removed when it was written, so that a copy can be shared. Pure.

A model writes token by token, so a secret may be split over the texts of many records. `SplitSecretFinder` joins the
texts that follow each other and finds what spans several of them; `Remover` makes the records of the copy; `find_leaks`
searches the copy with the same finder. A secret that is found late in a log is also in earlier records, therefore a log
is searched as a whole before the first record is written.

A removed secret leaves a digest, as `bridge.redact` does, so that equal secrets stay equal. A removed text leaves as
many characters as it had. Its digest is made with a key that is thrown away, and a short text leaves none: otherwise
words could be tried against it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import orjson

from bridge import __version__, exact_json
from bridge.log.read import is_record
from bridge.log.record import FORMAT
from bridge.log.record_texts import Cut, Key, RecordTexts
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
DEEPEST = 200

FIXED = frozenset({"ts", "mono", "run", "seq", "chunk", "phase", "direction", "kind", "format"})
"""Members of a record that the log itself writes."""
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
_CONTENT = frozenset(
    {"arguments", "const", "default", "enum", "example", "examples", "input", "metadata", "source", "user"}
)
"""Names under which everything is content, at any depth. A request's `input` is a list, so it is not meant."""
_WHOLE = frozenset({"http_ingress", "backend_submission"})
"""Phases that are not recorded in pieces: secrets with a known shape were removed when they were written."""
_WORD = re.compile(r"[A-Za-z0-9_.:/#@+=-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_.$:/-]{1,64}")
_HASHED = 16
"""Texts of at least this length leave a digest."""


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


class Remover:
    """Removes secrets, pattern matches and texts from records, and counts what it removed.

    `split` has located what spans several records.
    """

    def __init__(
        self,
        secrets: Sequence[str],
        patterns: Sequence[re.Pattern[str]] = (),
        *,
        texts: bool = False,
        key: bytes = b"",
        split: SplitSecretFinder | None = None,
    ) -> None:
        self._split = split or SplitSecretFinder()
        self.removed = {"secrets": len(self._split.splits), "patterns": 0, "texts": 0}
        self._forms = Forms(secrets)
        self._raw = self._forms.in_json(nested=True)
        self._patterns = tuple(patterns)
        self._texts = texts
        self._key = key
        counts = {"secrets": len(secrets), "patterns": len(patterns)}
        self._done = {"program": f"turnbridge {__version__}", **counts, "texts": texts}

    def copy(self, lines: Iterable[tuple[bytes, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
        """The entries of a copy, from lines and their parsed entries. The first is always a header."""
        for number, (line, entry) in enumerate(lines):
            is_header = entry.get("kind") == "header"
            if number == 0 and not is_header:
                yield self._header_for(entry)
            has_nothing = not self._texts and not self._patterns and (self._raw is None or not self._raw.search(line))
            is_clean = has_nothing and number not in self._split.cuts and "kind" in entry and not is_header
            yield entry if is_clean else self.entry(entry, number)

    def entry(self, entry: dict[str, Any], number: int) -> dict[str, Any]:
        """A record, or a line of a transcript, without what is removed. `number` is the one that was searched."""
        if cuts := self._split.cuts.get(number):
            RecordTexts(entry).cut(cuts)
        if not is_record(entry):
            return entry | {"msg": self.value(entry.get("msg"), "msg")}
        out: dict[str, Any] = {}
        for name, value in entry.items():
            if name == "payload" and self._texts and entry["kind"] == "client_sse" and isinstance(value, str):
                # The events keep their names and the shape of their data.
                out[name] = "\n".join(map(self._line_of_stream, value.split("\n")))
            else:
                out[name] = value if name in FIXED else self.value(value, name)
        if entry["kind"] == "header":
            before = entry.get("redacted")
            out["redacted"] = [*(before if isinstance(before, list) else ()), self._done]
        return out

    def value(self, value: Any, name: str = "", depth: int = DEEPEST) -> Any:
        """Any value of a record, which stands under this name, without what is removed."""
        if isinstance(value, str):
            return self._text(value, is_kept=name in KEPT and _WORD.fullmatch(value) is not None)
        if isinstance(value, dict | list) and not depth:
            return f"[redacted: nested deeper than {DEEPEST} levels]"
        if isinstance(value, dict):
            return {
                self._text(key, is_kept=_NAME.fullmatch(key) is not None): self.value(
                    member, "arguments" if name in _CONTENT else key, depth - 1
                )
                for key, member in value.items()
            }
        if isinstance(value, list):
            return [self.value(member, name, depth - 1) for member in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = exact_json.dumps(value).decode()
            clean = self._cut(text)
            return value if clean == text else clean
        return value

    def _header_for(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A header for a copy whose first line, this one, is not a header."""
        source = entry if is_record(entry) else {"ts": "", "mono": 0.0, "seq": 0}
        position = {name: source[name] for name in ("ts", "mono", "seq")}
        run = {"run": entry["run"]} if isinstance(entry.get("run"), str) else {}
        about = {"phase": "header", "direction": "none", "kind": "header", "req_id": None, "format": FORMAT}
        return position | run | about | {"redacted": [self._done]}

    def _text(self, text: str, *, is_kept: bool) -> str:
        return self._placeholder(text) if self._texts and text and not is_kept else self._cut(text)

    def _cut(self, text: str) -> str:
        """A text without secrets and without what the patterns match."""
        if self._forms.pattern is not None:
            text, count = self._forms.pattern.subn(lambda found: mark(self._forms.plain[found[0]]), text)
            self.removed["secrets"] += count
        for pattern in self._patterns:
            text, count = pattern.subn(lambda found: mark(found[0]), text)
            self.removed["patterns"] += count
        return text

    def _placeholder(self, text: str) -> str:
        self.removed["texts"] += 1
        if len(text) < _HASHED:
            return "x" * len(text)
        digest = hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:8]
        return f"[text:{digest}]".ljust(len(text), "x")

    def _line_of_stream(self, line: str) -> str:
        field, _, rest = line.partition(":")
        head = "" if line.startswith("{") else f"{field}: " if rest.startswith(" ") else f"{field}:"
        data = line[len(head) :]
        if head and field != "data":
            is_known = line in ("", ": keepalive") or (field in ("event", "id", "retry") and _WORD.fullmatch(data))
            return self._cut(line) if is_known else self._placeholder(line)
        try:
            return head + exact_json.dumps(self.value(exact_json.loads(data))).decode()
        except orjson.JSONDecodeError:
            return head + (data if data == "[DONE]" else self._placeholder(data))


def is_transcript_line(entry: Any) -> bool:
    """Whether it is a line of a plain transcript."""
    return isinstance(entry, dict) and isinstance(entry.get("msg"), dict) and "t" in entry and "dir" in entry


@dataclass(frozen=True, slots=True)
class Leak:
    """Where a secret remains."""

    line: int
    req_id: str | None
    kind: str
    first: int | None = None
    """The line where it begins, when it is split."""

    def __str__(self) -> str:
        where = f"line {self.line}" if self.first is None else f"split over lines {self.first} to {self.line}"
        return f"{where}, {self.kind}{f' of {self.req_id}' if self.req_id else ''}"


def find_leaks(lines: Iterable[bytes], secrets: Sequence[str], fragments: Sequence[str] = ()) -> list[Leak]:
    """The secrets that remain in the lines of a log. `fragments` count only where they span several texts."""
    raw = Forms(secrets).in_json(nested=False)
    finder = SplitSecretFinder(secrets, fragments=fragments, discover=False)
    found: dict[int, Leak] = {}
    for number, line in enumerate(lines, 1):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = None
        record = record if isinstance(record, dict) else {}
        if raw is not None and raw.search(line):
            found[number] = _leak(number, record.get("req_id"), record.get("kind"))
        finder.feed(number, record)
    for (first, _, _), (last, (req_id, kind, *_)) in finder.end().splits.items():
        found.setdefault(last, _leak(last, req_id, kind, first))
    return [leak for _, leak in sorted(found.items())]


def _leak(line: int, req_id: Any, kind: Any, first: int | None = None) -> Leak:
    return Leak(line, req_id if isinstance(req_id, str) else None, str(kind or "transcript"), first)
