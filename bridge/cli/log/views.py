"""A request as lines to be compared: what it asked, what the backend said, what the client got, how it ended."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import orjson

from bridge import exact_json
from bridge.cli.log.conversation import Told
from bridge.protolog.answer import sent_values
from bridge.protolog.asked import Part
from bridge.protolog.summary import Summary

_ID = re.compile(
    r"(?:[a-z]{1,12}[_-])?(?:[0-9a-f]{12,}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?:req|resp|msg|rs|fc|ctc|ws|call|chatcmpl|turn|item|conv|thread|toolu)[_-][0-9A-Za-z_-]+"
)
_TIMES = frozenset(
    {
        "created", "created_at", "createdAt", "completed_at", "updatedAt", "recencyAt", "emittedAtMs", "expires_at",
        "timestamp", "duration_ms", "ttft_ms",
    }
)  # fmt: skip
_ISO = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)")
_PER_RUN = frozenset({"sequence_number", "obfuscation", "system_fingerprint"})
_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS


@dataclass(frozen=True, slots=True)
class View:
    """Each part as lines."""

    request: list[str]
    backend: list[str]
    client: list[str]
    end: list[str]
    streamed: bool
    said: list[str]
    """What the client got, as texts alone: to be compared when only one of two was streamed."""

    NAMES: ClassVar[dict[str, str]] = {
        "request": "the request",
        "backend": "what the backend said",
        "client": "what the client got",
        "end": "how it ended",
    }


def view_of(summary: Summary, records: Iterable[dict[str, Any]]) -> View:
    """A request without what differs in every run."""
    told, names, statuses = Told(), Names(), []
    events: list[Any] = []
    for record in records:
        told.add(record)
        if record["phase"] == "client_egress":
            payload = record.get("payload")
            if record["kind"] == "client_start" and isinstance(payload, dict):
                statuses.append(f"HTTP {payload.get('status')}")
            events += sent_values(record["kind"], payload)
    said = [line for number, answer in sorted(told.answers.items()) for line in _said(answer.parts, number)]
    request = {"path": summary.path, "body": told.body} | {k: v for k, v in told.request.items() if k != "path"}
    end = {
        "outcome": summary.outcome,
        "reason": summary.reason,
        "error": told.end.get("error") or summary.error,
        "input_tokens": summary.input_tokens,
        "cached_tokens": summary.cached_tokens,
        "output_tokens": summary.output_tokens,
        "reasoning_tokens": summary.reasoning_tokens,
        "calls": summary.calls,
        "repairs": summary.repairs,
        "invalid_arguments": summary.invalid_arguments,
        "rejected": [payload.get("reason") for kind, payload in told.notes if kind == "tool_reject"],
        "model": summary.model,
        "backend": summary.backend,
    }
    got = [line for event in join_pieces(events) for line in _pretty(names.without(event))]
    shown = [*statuses, *_said(told.client.answer().parts, 0)]
    return View(_pretty(names.without(request)), said, statuses + got, _pretty(end), told.streamed, shown)


class Names:
    """Ids as their numbers in the order in which they came, times as nothing."""

    def __init__(self) -> None:
        self._numbers: dict[str, str] = {}

    def without(self, value: Any) -> Any:
        """The same value without ids and times."""
        if isinstance(value, dict):
            return {
                key: "<time>" if key in _TIMES and _is_time(member) else self.without(member)
                for key, member in value.items()
                if key not in _PER_RUN
            }
        if isinstance(value, list):
            return [self.without(member) for member in value]
        if isinstance(value, str) and len(value) <= 80 and _ID.fullmatch(value):
            return self._numbers.setdefault(value, f"<id {len(self._numbers) + 1}>")
        return value


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and _ISO.fullmatch(value) is not None)


def join_pieces(events: list[Any]) -> list[Any]:
    """Events with neighbouring pieces of one text joined: how a text was cut is chance."""
    joined: list[Any] = []
    pieces: list[str] = []
    open_key: Any = None

    def close() -> None:
        nonlocal open_key
        if open_key is not None:
            joined.append(open_key | {"p" if "op" in open_key else "delta": "".join(pieces)})
            pieces.clear()
            open_key = None

    for event in events:
        key, piece = _piece(event)
        if key is None:
            close()
            joined.append(event)
            continue
        if key != open_key:
            close()
            open_key = key
        pieces.append(piece)
    close()
    return joined


def _piece(event: Any) -> tuple[dict[str, Any] | None, str]:
    """(what is the same in all pieces of this text, the piece) of an event that is one."""
    if not isinstance(event, dict):
        return None, ""
    if isinstance(event.get("delta"), str):
        return {name: member for name, member in event.items() if name not in _PER_RUN | {"delta"}}, event["delta"]
    if event.get("op") == "delta" and isinstance(event.get("p"), str):
        return {"op": "delta"}, event["p"]
    choices = event.get("choices")
    if isinstance(choices, list) and len(choices) == 1 and isinstance(choices[0], dict):
        delta = choices[0].get("delta")
        if isinstance(delta, dict) and len(delta) == 1 and not choices[0].get("finish_reason"):
            [(name, text)] = delta.items()
            if isinstance(text, str) and name in ("content", "reasoning_content"):
                return {"object": event.get("object"), "index": choices[0].get("index"), "of": name}, text
    return None, ""


def _pretty(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    return _unescaped(exact_json.dumps(value, option=_PRETTY, default=str).decode())


def _unescaped(text: str) -> list[str]:
    """Long strings with their newlines as lines, so that a difference in a text is one line and not all of it."""
    lines = []
    for line in text.split("\n"):
        first, *rest = line.split("\\n") if len(line) > 80 else [line]
        lines += [first, *(f"      {each}" for each in rest)]
    return lines


def _said(parts: list[Part], number: int) -> list[str]:
    lines = []
    for part in parts:
        lines.append(f"[{part.kind} of answer {number + 1}]" if number else f"[{part.kind}]")
        lines += [f"  {line}" for line in part.words.split("\n")]
    return lines
