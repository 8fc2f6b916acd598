"""More removed from a log, so that it can be given away: named secrets, patterns, and all texts. Pure.

What was removed leaves a hash, as `bridge.redact` leaves one, so that equal things stay equal. Texts leave as many
characters as they had; their hash is made with a key that nobody keeps, and short ones leave none: else a list of words
could be tried against it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from bridge import __version__, exact_json
from bridge.protolog.read import is_record
from bridge.protolog.record import FORMAT

SHORTEST = 4
"""A secret of fewer characters would be found everywhere."""
FIXED = frozenset({"ts", "mono", "run", "seq", "chunk", "phase", "direction", "kind", "format"})
"""Members of a record that are the log's own, never a client's."""
DEEPEST = 200

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
    }
)  # fmt: skip
"""Names under which a word tells the shape of an event, not what somebody said."""
_SAID = frozenset({"arguments", "const", "default", "enum", "example", "examples", "metadata", "source", "user"})
"""Names under which nothing is a word of ours, however deep."""
_WORD = re.compile(r"[A-Za-z0-9_.:/#@+=-]{1,200}")
_NAME = re.compile(r"[A-Za-z0-9_.$:/-]{1,64}")
_HASHED = 16
"""Texts of so many characters leave a hash."""


def secret_forms(secret: str) -> set[str]:
    """A secret as it may stand in a text: as it is, in JSON, in JSON within JSON, with slashes escaped, in a URL."""
    once = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    once |= {form.replace("/", "\\/") for form in once}
    once |= {form.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026") for form in once}
    twice = {json.dumps(form, ensure_ascii=False)[1:-1] for form in once}
    return {secret, quote(secret, safe=""), *once, *twice}


def forms_pattern(secrets: Sequence[str]) -> re.Pattern[str] | None:
    """Finds every form of every secret, the longest first: one may hold another. None without any."""
    forms = sorted({form for secret in secrets for form in secret_forms(secret)}, key=lambda form: (-len(form), form))
    return re.compile("|".join(map(re.escape, forms))) if forms else None


def _raw_pattern(secrets: Sequence[str]) -> re.Pattern[bytes] | None:
    """Finds every form of every secret in lines, which are JSON themselves."""
    forms = {form for secret in secrets for form in secret_forms(secret)}
    forms |= {written for form in forms for written in secret_forms(form)}
    return re.compile(b"|".join(re.escape(form.encode()) for form in sorted(forms))) if forms else None


class Scrubber:
    """Takes parsed lines and gives them back with less in them. Counts what it removed."""

    def __init__(self, secrets: Sequence[str], patterns: Sequence[re.Pattern[str]], *, texts: bool, key: bytes) -> None:
        self.removed = {"secrets": 0, "patterns": 0, "texts": 0}
        self._plain = {form: secret for secret in secrets for form in secret_forms(secret)}
        self._secrets = forms_pattern(secrets)
        self._raw = _raw_pattern(secrets)
        self._patterns = tuple(patterns)
        self._texts = texts
        self._key = key
        self._done = {
            "program": f"codex-bridge {__version__}",
            "secrets": len(secrets),
            "patterns": len(patterns),
            "texts": texts,
        }

    def header_for(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The header of a copy whose first line, this one, is none."""
        run = {"run": entry["run"]} if isinstance(entry.get("run"), str) else {}
        place = {name: entry[name] if is_record(entry) else empty for name, empty in _NOWHERE.items()}
        about = {"phase": "header", "direction": "none", "kind": "header", "req_id": None, "format": FORMAT}
        return place | run | about | {"redacted": [self._done]}

    def has_nothing_in(self, line: bytes) -> bool:
        """A quick look at a line that our recorder wrote: True means that nothing is to be removed from it."""
        return not self._texts and not self._patterns and (self._raw is None or not self._raw.search(line))

    def count_secret(self) -> None:
        """One more was removed, elsewhere."""
        self.removed["secrets"] += 1

    def entry(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A record, or a line of a transcript."""
        if not is_record(entry):
            return entry | {"msg": self._value(entry.get("msg"), "msg", DEEPEST)}
        out = {name: self._member(entry, name, value) for name, value in entry.items()}
        if entry["kind"] == "header":
            before = entry.get("redacted")
            out["redacted"] = [*(before if isinstance(before, list) else ()), self._done]
        return out

    def value(self, value: Any) -> Any:
        """Anything that a record holds."""
        return self._value(value, "", DEEPEST)

    def _member(self, record: dict[str, Any], name: str, value: Any) -> Any:
        if name in FIXED:
            return value
        if name == "payload" and self._texts and record["kind"] == "client_sse" and isinstance(value, str):
            return self._sse(value)
        return self._value(value, name, DEEPEST)

    def _value(self, value: Any, name: str, depth: int) -> Any:
        if isinstance(value, str):
            return self._string(value, name)
        if isinstance(value, dict | list) and not depth:
            return f"[redacted: nested deeper than {DEEPEST} levels]"
        if isinstance(value, dict):
            # The arguments of a call are an object under `arguments`, or under `input`; a request's `input` is a list.
            said = name in _SAID or name == "input"
            return {
                self._name(key): self._value(member, "arguments" if said else key, depth - 1)
                for key, member in value.items()
            }
        if isinstance(value, list):
            return [self._value(member, name, depth - 1) for member in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = exact_json.dumps(value).decode()
            cut = self._cut(text)
            return value if cut == text else cut
        return value

    def _string(self, text: str, name: str) -> str:
        if self._texts and text and not (name in KEPT and _WORD.fullmatch(text)):
            return self._placeholder(text)
        return self._cut(text)

    def _name(self, name: str) -> str:
        if self._texts and not _NAME.fullmatch(name):
            return self._placeholder(name)
        return self._cut(name)

    def _cut(self, text: str) -> str:
        """A text without secrets and without what the patterns find."""
        if self._secrets is not None:
            text, count = self._secrets.subn(lambda found: mark(self._plain[found[0]]), text)
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

    def _sse(self, stream: str) -> str:
        """A piece of an event stream: the events keep their names and the shape of their data."""
        return "\n".join(map(self._sse_line, stream.split("\n")))

    def _sse_line(self, line: str) -> str:
        if line.startswith("{"):
            return self._sse_data(line)
        field, _, rest = line.partition(":")
        space, rest = (" ", rest[1:]) if rest.startswith(" ") else ("", rest)
        if field != "data":
            known = not line or (field in ("event", "id", "retry") and _WORD.fullmatch(rest)) or line == ": keepalive"
            return self._cut(line) if known else self._placeholder(line)
        return f"data:{space}{self._sse_data(rest)}"

    def _sse_data(self, data: str) -> str:
        try:
            value = exact_json.loads(data)
        except orjson.JSONDecodeError:
            return data if data == "[DONE]" else self._placeholder(data)
        return exact_json.dumps(self.value(value)).decode()


_NOWHERE: dict[str, Any] = {"ts": "", "mono": 0.0, "seq": 0}


def mark(secret: str) -> str:
    """What stands where a secret was."""
    return f"[redacted:{hashlib.sha256(secret.encode('utf-8', 'replace')).hexdigest()[:8]}]"


def is_transcript_line(entry: Any) -> bool:
    """Whether it is a line of a plain transcript."""
    return isinstance(entry, dict) and isinstance(entry.get("msg"), dict) and "t" in entry and "dir" in entry


def scrubbed(lines: Iterable[tuple[bytes, dict[str, Any]]], scrubber: Scrubber) -> Iterator[dict[str, Any]]:
    """The entries of the copy, from lines and what they say. The first is a header, whether the log has one or not."""
    for number, (line, entry) in enumerate(lines):
        header = entry.get("kind") == "header"
        if number == 0 and not header:
            yield scrubber.header_for(entry)
        ours = "kind" in entry and not header
        yield entry if ours and scrubber.has_nothing_in(line) else scrubber.entry(entry)
