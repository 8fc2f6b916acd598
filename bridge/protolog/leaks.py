"""Whether a secret still stands in a log: in one line, or cut into pieces that follow each other. Pure."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from bridge.protolog.leaves import Key, leaves, stream_of
from bridge.protolog.scrub import forms_pattern, secret_forms

MOST_TEXTS = 20_000
"""So many texts that may go on are remembered."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Where a secret remains."""

    line: int
    req_id: str | None
    kind: str
    first: int | None = None
    """The line where it begins, when it is cut into pieces."""

    def __str__(self) -> str:
        where = f"line {self.line}" if self.first is None else f"in pieces, lines {self.first} to {self.line}"
        return f"{where}, {self.kind}{f' of {self.req_id}' if self.req_id else ''}"


@dataclass(slots=True)
class _Tail:
    text: str
    line: int


class LeakFinder:
    """Takes the lines of a log in order and tells of each secret that they still hold.

    `in_pieces` are looked for only where they are cut.
    """

    def __init__(self, secrets: Sequence[str], in_pieces: Sequence[str] = ()) -> None:
        self._pattern = forms_pattern([*secrets, *in_pieces])
        forms = sorted({form for secret in secrets for form in secret_forms(secret)})
        self._raw = re.compile(b"|".join(re.escape(form.encode()) for form in forms)) if forms else None
        self._kept = (
            max((len(form) for secret in (*secrets, *in_pieces) for form in secret_forms(secret)), default=1) - 1
        )
        self._tails: OrderedDict[Key, _Tail] = OrderedDict()

    def feed(self, number: int, line: bytes) -> list[Leak]:
        """The leaks that the next line, the `number`-th, shows."""
        if self._pattern is None:
            return []
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            record = None
        record = record if isinstance(record, dict) else {}
        req_id, kind = record.get("req_id"), str(record.get("kind", "transcript"))
        req_id = req_id if isinstance(req_id, str) else None
        found = [Leak(number, req_id, kind)] if self._raw is not None and self._raw.search(line) else []
        for leaf in leaves(record, stream_of(record)):
            first = self._add(leaf.key, leaf.text, number)
            if first is not None and not found:
                found.append(Leak(number, req_id, kind, first))
        return found

    def _add(self, key: Key, text: str, number: int) -> int | None:
        """The line where a secret begins that these pieces make together."""
        assert self._pattern is not None
        tail = self._tails.pop(key, None) or _Tail("", number)
        joined = tail.text + text
        cut = len(tail.text)
        if cut and any(found.start() < cut < found.end() for found in self._pattern.finditer(joined)):
            return tail.line
        # Where the kept text begins is known only roughly, unless one piece fills it.
        self._tails[key] = _Tail(joined[-self._kept :], number if len(text) >= self._kept else tail.line)
        if len(self._tails) > MOST_TEXTS:
            self._tails.popitem(last=False)
        return None
